package run

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/hullmark/hullmark"
)

// fakeAPIServer answers like an API server that knows one object, with one answer after the other; the last is repeated.
func fakeAPIServer(t *testing.T, path string, answers ...string) *httptest.Server {
	t.Helper()
	asked := 0
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != path {
			http.NotFound(w, r)
			return
		}
		_, _ = fmt.Fprint(w, answers[min(asked, len(answers)-1)])
		asked++
	}))
	t.Cleanup(server.Close)
	return server
}

// files are an Access whose kubeconfig is the file kubeconfig.
func files(content map[string][]byte) Access {
	return Access{Kubeconfig: "kubeconfig", Read: func(path string) ([]byte, error) {
		text, ok := content[path]
		if !ok {
			return nil, fmt.Errorf("%s: %w", path, fs.ErrNotExist)
		}
		return text, nil
	}}
}

func authority(server *httptest.Server) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
}

// administrator is what kubeadm writes on a control plane: all in one file.
func administrator(t *testing.T, server *httptest.Server) Access {
	t.Helper()
	certificate, key := clientPair(t)
	encode := base64.StdEncoding.EncodeToString
	return files(map[string][]byte{"kubeconfig": fmt.Appendf(nil,
		"clusters:\n- cluster:\n    server: %s\n    certificate-authority-data: %s\nusers:\n- user:\n    client-certificate-data: %s\n    client-key-data: %s\n",
		server.URL, encode(authority(server)), encode(certificate), encode(key))})
}

// kubelet is what a worker's kubelet writes: names of files, of which one holds both certificate and key.
func kubelet(t *testing.T, server *httptest.Server) (Access, map[string][]byte) {
	t.Helper()
	certificate, key := clientPair(t)
	content := map[string][]byte{
		"/var/lib/kubelet/pki/kubelet-client-current.pem": append(certificate, key...), "/etc/kubernetes/pki/ca.crt": authority(server),
		"kubeconfig": fmt.Appendf(nil, "clusters:\n- cluster:\n    server: %s\n    certificate-authority: /etc/kubernetes/pki/ca.crt\nusers:\n- user:\n"+
			"    client-certificate: /var/lib/kubelet/pki/kubelet-client-current.pem\n    client-key: /var/lib/kubelet/pki/kubelet-client-current.pem\n", server.URL),
	}
	return files(content), content
}

func clientPair(t *testing.T) (certificate, key []byte) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		t.Fatal(err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8})
}

const (
	nodePath    = "/api/v1/nodes/one"
	unknownNode = `{"status":{"nodeInfo":{"bootID":"now"},"conditions":[]}}`
	noNetwork   = `{"status":{"nodeInfo":{"bootID":"now"},"conditions":[{"type":"Ready","status":"False","message":"cni plugin not initialized"}]}}`
	staleNode   = `{"status":{"nodeInfo":{"bootID":"before"},"conditions":[{"type":"Ready","status":"True"}]}}`
	readyNode   = `{"status":{"nodeInfo":{"bootID":"now"},"conditions":[{"type":"DiskPressure","status":"False"},{"type":"Ready","status":"True"}]}}`
)

func silent(error) {}

func TestWaitReady(t *testing.T) {
	for name, access := range map[string]func(*httptest.Server) Access{
		"administrator": func(s *httptest.Server) Access { return administrator(t, s) },
		"kubelet":       func(s *httptest.Server) Access { a, _ := kubelet(t, s); return a },
	} {
		server := fakeAPIServer(t, nodePath, unknownNode, noNetwork, readyNode)
		if err := WaitReady(t.Context(), access(server), "one", "now", time.Millisecond, silent); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// The kubelet replaces its certificate, and first writes a kubeconfig that names a file which is not there yet.
func TestWaitReadyReadsTheFilesAgain(t *testing.T) {
	access, content := kubelet(t, fakeAPIServer(t, nodePath, readyNode))
	const current = "/var/lib/kubelet/pki/kubelet-client-current.pem"
	pair, reads := content[current], 0
	read := access.Read
	access.Read = func(path string) ([]byte, error) {
		if path == current {
			if reads++; reads == 1 {
				return nil, fs.ErrNotExist
			}
			content[current] = pair
		}
		return read(path)
	}
	if err := WaitReady(t.Context(), access, "one", "now", time.Millisecond, silent); err != nil || reads < 2 {
		t.Errorf("%v after %d reads", err, reads)
	}
}

func TestWaitReadySaysWhatItWaitsFor(t *testing.T) {
	for want, answer := range map[string]string{"cni plugin not initialized": noNetwork, "has not reported in this boot": staleNode} {
		ctx, cancel := context.WithCancel(t.Context())
		err := WaitReady(ctx, administrator(t, fakeAPIServer(t, nodePath, answer)), "one", "now", time.Millisecond, func(error) { cancel() })
		cancel()
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

// It reports what it waits for, and the same only once.
func TestWaitReadyReports(t *testing.T) {
	var reports []string
	report := func(why error) { reports = append(reports, why.Error()) }
	server := fakeAPIServer(t, nodePath, staleNode, noNetwork, noNetwork, readyNode)
	if err := WaitReady(t.Context(), administrator(t, server), "one", "now", time.Millisecond, report); err != nil {
		t.Fatal(err)
	}
	if len(reports) != 2 || reports[1] != "cni plugin not initialized" {
		t.Errorf("got %q", reports)
	}
}

// What the node said before it rebooted counts for nothing.
func TestWaitReadyIgnoresTheBootBefore(t *testing.T) {
	server := fakeAPIServer(t, nodePath, staleNode, staleNode, readyNode)
	if err := WaitReady(t.Context(), administrator(t, server), "one", "now", time.Millisecond, silent); err != nil {
		t.Error(err)
	}
}

// An API server that was just started lists its nodes before its own checks pass: its machine is not ready, a machine elsewhere is.
func TestReadyNeedsTheOwnAPIServer(t *testing.T) {
	for name, c := range map[string]struct {
		access Access
		checks string // What /readyz answers with 500; "" is a server that is ready.
		want   string
	}{
		"own, ready":         {Access{Local: true}, "", ""},
		"own, without etcd":  {Access{Local: true}, "[+]ping ok\n[-]etcd failed: reason withheld\n[-]poststarthook/rbac failed\n", "not yet etcd, poststarthook/rbac"},
		"own, without words": {Access{Local: true}, "no", "500"},
		"another's":          {Access{}, "[-]etcd failed", ""},
	} {
		server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			switch {
			case r.URL.Path == nodePath:
				_, _ = fmt.Fprint(w, readyNode)
			case r.URL.Path == "/readyz" && c.checks == "":
				_, _ = fmt.Fprint(w, "ok")
			case r.URL.Path == "/readyz":
				http.Error(w, c.checks, http.StatusInternalServerError)
			default:
				http.NotFound(w, r)
			}
		}))
		err := (&api{access: c.access, client: server.Client(), server: server.URL}).notReady(t.Context(), "one", "now")
		server.Close()
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: got %v, want %q", name, err, c.want)
		}
	}
}

// A control plane's own server is not asked over a new connection each time that it is not ready yet; where there may be others, it is.
func TestConnectionToAServerThatStarts(t *testing.T) {
	for local, want := range map[bool]int{true: 1, false: 3} {
		asked, connections := 0, 0
		server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			if asked++; asked < 3 {
				http.Error(w, "[-]etcd failed", http.StatusInternalServerError)
				return
			}
			_, _ = fmt.Fprint(w, "{}")
		}))
		server.Config.ConnState = func(_ net.Conn, state http.ConnState) {
			if state == http.StateNew {
				connections++
			}
		}
		server.StartTLS()
		access := administrator(t, server)
		client, url, err := access.client()
		if err != nil {
			t.Fatal(err)
		}
		access.Local = local
		a := api{access: access, client: client, server: url}
		for range 3 {
			err = a.get(t.Context(), "/readyz", nil)
			if a.client == nil { // The address of the own server is another machine's.
				a.client, a.server = client, url
			}
		}
		server.Close()
		if err != nil || connections != want {
			t.Errorf("local %t: %d connections, %v", local, connections, err)
		}
	}
}

func TestOddKubeconfig(t *testing.T) {
	for _, text := range []string{
		"", "clusters: []", "\x00", "clusters: [{}]\nusers: [{}]", "clusters: [{cluster: {certificate-authority: /nowhere}}]\nusers: [{user: {}}]",
	} {
		if _, _, err := files(map[string][]byte{"kubeconfig": []byte(text)}).client(); err == nil {
			t.Errorf("%q is taken", text)
		}
	}
	if _, _, err := files(nil).client(); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no kubeconfig: %v", err)
	}
}

func TestReadDiskRecord(t *testing.T) {
	node := hullmark.EKID{7}
	path := "/api/v1/namespaces/hullmark/configmaps/node." + node.String()
	machine := func(id hullmark.EKID, uuid hullmark.UUID) string {
		text, err := json.Marshal(map[string]any{"ekid": id, "name": "cp-1", "disk": map[string]any{"uuid": uuid, "committed": 3, "issued": 4}})
		if err != nil {
			t.Fatal(err)
		}
		object, err := json.Marshal(map[string]any{"data": map[string]string{"machine": string(text)}})
		if err != nil {
			t.Fatal(err)
		}
		return string(object)
	}
	read := func(path, answer string) (DiskRecord, error) {
		return ReadDiskRecord(t.Context(), administrator(t, fakeAPIServer(t, path, answer)), node)
	}
	if got, err := read(path, machine(node, hullmark.UUID{1})); err != nil || got != (DiskRecord{Disk: hullmark.UUID{1}, Committed: 3, Issued: 4}) {
		t.Errorf("got %+v, %v", got, err)
	}
	for name, row := range map[string][2]string{
		"none":            {"/elsewhere", ""},
		"another machine": {path, machine(hullmark.EKID{8}, hullmark.UUID{1})},
		"no disk":         {path, machine(node, hullmark.UUID{})},
		"no key":          {path, `{"data":{}}`},
		"no JSON":         {path, "<html>"},
	} {
		if got, err := read(row[0], row[1]); err == nil {
			t.Errorf("%s: got %+v", name, got)
		}
	}
}
