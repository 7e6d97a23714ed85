package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"io"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/firstboot"
	"github.com/hullmark/hullmark/kubeadm/run"
)

// asked plays the API server: what it says by token, and how often it was asked.
type asked struct {
	says  map[string]error
	times int
}

var errMayNot = errors.New("may not")

func (a *asked) MayReadMetrics(_ context.Context, token, node string) (bool, error) {
	a.times++
	err, known := a.says[token]
	if !known {
		return false, run.ErrNoUser
	}
	if errors.Is(err, errMayNot) {
		return false, nil
	}
	return err == nil && node == "worker-1", err
}

func TestGate(t *testing.T) {
	api := &asked{says: map[string]error{"prometheus": nil, "pod": errMayNot, "away": errors.New("the API server is away")}}
	g := newGate(api, "worker-1")
	server := httptest.NewServer(g.guard(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "metrics") })))
	defer server.Close()
	get := func(authorization string) int {
		t.Helper()
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+"/metrics", nil)
		if err != nil {
			t.Fatal(err)
		}
		if authorization != "" {
			request.Header.Set("Authorization", authorization)
		}
		answer, err := server.Client().Do(request)
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		body, err := io.ReadAll(answer.Body)
		if err != nil || strings.Contains(string(body), "metrics") != (answer.StatusCode == http.StatusOK) {
			t.Errorf("%q: %s with %q, %v", authorization, answer.Status, body, err)
		}
		return answer.StatusCode
	}
	for authorization, want := range map[string]int{
		"": http.StatusUnauthorized, "Basic prometheus": http.StatusUnauthorized, "Bearer": http.StatusUnauthorized, "Bearer " + strings.Repeat("x", maxToken+1): http.StatusUnauthorized,
	} {
		if got := get(authorization); got != want {
			t.Errorf("%.20q: %d, want %d", authorization, got, want)
		}
	}
	if api.times != 0 {
		t.Errorf("the API server was asked %d times about nothing", api.times)
	}
	for range 3 {
		for token, want := range map[string]int{"prometheus": http.StatusOK, "pod": http.StatusForbidden, "stranger": http.StatusUnauthorized} {
			if got := get("Bearer " + token); got != want {
				t.Errorf("%s: %d, want %d", token, got, want)
			}
		}
	}
	if api.times != 3 {
		t.Errorf("the API server was asked %d times about three tokens", api.times)
	}
	if got := get("Bearer away"); got != http.StatusServiceUnavailable {
		t.Errorf("without an API server: %d", got)
	}
	// Who makes tokens up does not have the API server asked about all of them, and keeps nobody out who was seen before.
	before := api.times
	for range 100 {
		get("Bearer " + rand.Text())
	}
	if n := api.times - before; n > 2*askedAtOnce {
		t.Errorf("the API server was asked %d times about tokens that were made up", n)
	}
	if got := get("Bearer prometheus"); got != http.StatusOK {
		t.Errorf("after a flood: %d", got)
	}
	// Nor is it kept out once it was not seen for longer than an answer holds: it is asked about again. Who may not any more is not let in.
	later := func() {
		for key, a := range g.answers {
			g.answers[key] = answer{a.status, a.until.Add(-2 * remembered)}
		}
	}
	later()
	for i := range 2 * maxRemembered {
		g.remember([32]byte{byte(i), byte(i >> 8)}, answer{http.StatusForbidden, time.Now().Add(-time.Second)})
	}
	before = api.times
	if got := get("Bearer prometheus"); got != http.StatusOK || api.times != before+1 {
		t.Errorf("between two scrapes of a flood: %d, asked %d times", got, api.times-before)
	}
	later()
	api.says["prometheus"] = errMayNot
	if got := get("Bearer prometheus"); got != http.StatusForbidden {
		t.Errorf("whose right was taken: %d", got)
	}
}

// certificate writes one for a name, with its key, as a kubelet does.
func certificate(t *testing.T, file, name string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, DNSNames: []string{"worker-1"}, NotAfter: time.Unix(4000000000, 0)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	encoded, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	text := append(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: encoded})...)
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestWhatIsShown(t *testing.T) {
	dir := t.TempDir()
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hullmark_policy_version 7\n") }))
	o := options{credentials: dir, status: filepath.Join(dir, "status.json"), forward: filepath.Join(dir, "forward.json"), disk: dir, service: service.URL}
	for _, file := range []string{clientFile, servingFile} {
		certificate(t, filepath.Join(dir, file), "system:node:worker-1")
	}
	if name, err := nodeName(o); err != nil || name != "worker-1" {
		t.Errorf("%q, %v", name, err)
	}
	write := func(name string, v any) {
		text, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if statusFile != firstboot.StatusFile {
		t.Errorf("the agent's status is in %s", firstboot.StatusFile)
	}
	write("status.json", firstboot.Document{
		Version: 1, Step: "READY", Ready: true, Epoch: 42, Condition: &hullmark.Condition{Code: "epoch-stands-still", Step: "EPOCH"},
		Update: &hullmark.UpdateStatus{Running: "b", Default: "b", B: hullmark.RootHash{0xab}, Phase: hullmark.UpdateTrial, Document: hullmark.DocumentID{0xcd}},
	})
	write("forward.json", hullmark.Forward{Sent: 100, Dropped: 3, Newest: 1700000000, Condition: &hullmark.Condition{Code: "journal-refused"}})
	get := func(path string) (int, string) {
		w := httptest.NewRecorder()
		o.handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
		return w.Code, w.Body.String()
	}
	code, text := get("/metrics")
	for _, want := range []string{
		"\nhullmark_node_ready 1\n", "\nhullmark_node_epoch 42\n", `hullmark_node_condition{code="epoch-stands-still",step="EPOCH"} 1`,
		`hullmark_node_release_info{root_hash="ab` + strings.Repeat("0", 62) + `",slot="b"} 1`, `hullmark_node_update_phase{document="cd` + strings.Repeat("0", 62) + `",phase="trial"} 1`,
		`hullmark_node_certificate_expiration_timestamp_seconds{certificate="kubelet-serving"} 4e+09`, "\nhullmark_journal_sent_total 100\n", "\nhullmark_journal_dropped_total 3\n",
		`hullmark_journal_condition{code="journal-refused"} 1`, "\nhullmark_state_disk_size_bytes ",
	} {
		if code != http.StatusOK || !strings.Contains(text, want) {
			t.Errorf("%d, without %q:\n%s", code, want, text)
		}
	}
	if code, text := get("/metrics/join-service"); code != http.StatusOK || text != "hullmark_policy_version 7\n" {
		t.Errorf("join service: %d %q", code, text)
	}
	service.Close()
	if code, _ := get("/metrics/join-service"); code != http.StatusNotFound {
		t.Errorf("without a join service: %d", code)
	}
	if code, _ := get("/other"); code != http.StatusNotFound {
		t.Errorf("another page: %d", code)
	}
	// Nothing is made of what a forwarder says that is nonsense; the rest is shown.
	if err := os.WriteFile(o.forward, []byte(`{"sent":-1}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if code, text := get("/metrics"); code != http.StatusOK || strings.Contains(text, "hullmark_journal") || !strings.Contains(text, "hullmark_node_ready 1") {
		t.Errorf("%d %s", code, text)
	}
}
