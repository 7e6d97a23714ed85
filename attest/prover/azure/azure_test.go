package azure_test

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-tpm/tpm2"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest/prover"
	"github.com/hullmark/hullmark/attest/prover/azure"
	"github.com/hullmark/hullmark/internal/hcltest"
	"github.com/hullmark/hullmark/internal/tpmtest"
)

// keep has the TPM hold content where a paravisor keeps its report.
func keep(t *testing.T, tpm *tpmtest.TPM, content []byte) {
	t.Helper()
	public := tpm2.New2B(tpm2.TPMSNVPublic{
		NVIndex: 0x01400001, NameAlg: tpm2.TPMAlgSHA256, DataSize: uint16(len(content)),
		Attributes: tpm2.TPMANV{OwnerWrite: true, OwnerRead: true, AuthRead: true, AuthWrite: true, NoDA: true},
	})
	if _, err := (tpm2.NVDefineSpace{AuthHandle: tpm2.AuthHandle{Handle: tpm2.TPMRHOwner, Auth: tpm2.PasswordAuth(nil)}, PublicInfo: public}).Execute(tpm); err != nil {
		t.Fatal(err)
	}
	read, err := tpm2.NVReadPublic{NVIndex: tpm2.TPMHandle(0x01400001)}.Execute(tpm)
	if err != nil {
		t.Fatal(err)
	}
	for at := 0; at < len(content); at += 512 {
		_, err := tpm2.NVWrite{
			AuthHandle: tpm2.AuthHandle{Handle: 0x01400001, Name: read.NVName, Auth: tpm2.PasswordAuth(nil)}, NVIndex: tpm2.NamedHandle{Handle: 0x01400001, Name: read.NVName},
			Data: tpm2.TPM2BMaxNVBuffer{Buffer: content[at:min(at+512, len(content))]}, Offset: uint16(at),
		}.Execute(tpm)
		if err != nil {
			t.Fatal(err)
		}
	}
}

// frameOf is what a paravisor would keep there for the TPM's own key, cut to what the emulator has room for.
func frameOf(t *testing.T, tpm *tpmtest.TPM, kind uint32) []byte {
	t.Helper()
	p, err := prover.Open(tpm, hullmark.EKID{})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	return hcltest.Frame(kind, bytes.Repeat([]byte{byte(kind) + 0x40}, 1024), hcltest.Claims(t, p.Identity().EKPublic, nil))
}

func serve(t *testing.T, handler http.HandlerFunc) azure.Host {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	return azure.Host{URL: server.URL}
}

func TestNoParavisor(t *testing.T) {
	p, err := azure.Host{URL: "http://127.0.0.1:1"}.Evidence(t.Context(), tpmtest.New(t))
	if p != nil || err != nil {
		t.Errorf("%+v, %v", p, err)
	}
}

func TestSNP(t *testing.T) {
	tpm := tpmtest.New(t)
	frame := frameOf(t, tpm, hcltest.SNP)
	keep(t, tpm, frame)
	key, chain := pemOf("vcek"), pemOf("ask")+pemOf("ark")
	good := func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/metadata/THIM/amd/certification" || r.Header.Get("Metadata") != "true" {
			http.NotFound(w, r)
			return
		}
		_ = json.NewEncoder(w).Encode(map[string]string{"vcekCert": key, "certificateChain": chain, "tcbm": "DB18000000000004"})
	}
	p, err := serve(t, good).Evidence(t.Context(), tpm)
	if err != nil || p.Kind != hullmark.PlatformAzureSNP || !bytes.Equal(p.Report, frame) || len(p.Certificates) != 3 || string(p.Certificates[0]) != "vcek" || p.Quote != nil {
		t.Fatalf("%+v, %v", p, err)
	}
	for want, handler := range map[string]http.HandlerFunc{
		"404":               http.NotFound,
		"it redirects":      func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/elsewhere", http.StatusFound) },
		"more than 65536":   func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(bytes.Repeat([]byte(" "), 1<<17)) },
		"no certificate":    func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("{}")) },
		"invalid character": func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("x")) },
		"more than 4": func(w http.ResponseWriter, _ *http.Request) {
			_ = json.NewEncoder(w).Encode(map[string]string{"certificateChain": strings.Repeat(pemOf("x"), 9)})
		},
	} {
		if _, err := serve(t, handler).Evidence(t.Context(), tpm); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
}

func pemOf(content string) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte(content)}))
}

func TestTDX(t *testing.T) {
	tpm := tpmtest.New(t)
	frame := frameOf(t, tpm, hcltest.TDX)
	keep(t, tpm, frame)
	p, err := serve(t, func(w http.ResponseWriter, r *http.Request) {
		var asked struct {
			Report string `json:"report"`
		}
		report, err := []byte(nil), json.NewDecoder(r.Body).Decode(&asked)
		if err == nil {
			report, err = base64.RawURLEncoding.DecodeString(asked.Report)
		}
		if err != nil || r.URL.Path != "/acc/tdquote" || r.Method != http.MethodPost || !bytes.Equal(report, frame[32:32+1024]) {
			http.Error(w, "no", http.StatusBadRequest)
			return
		}
		_ = json.NewEncoder(w).Encode(map[string]string{"quote": base64.RawURLEncoding.EncodeToString([]byte("a quote"))})
	}).Evidence(t.Context(), tpm)
	if err != nil || p.Kind != hullmark.PlatformAzureTDX || string(p.Quote) != "a quote" || p.Certificates != nil {
		t.Errorf("%+v, %v", p, err)
	}
}
