package kubeadm

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"math/big"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// apiServerTwin answers like an API server that knows one node, with one answer after the other; the last is repeated.
func apiServerTwin(t *testing.T, answers ...string) (kubeconfig []byte) {
	t.Helper()
	asked := 0
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/api/v1/nodes/one" {
			http.NotFound(w, r)
			return
		}
		_, _ = fmt.Fprint(w, answers[min(asked, len(answers)-1)])
		asked++
	}))
	t.Cleanup(server.Close)
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	certificate, key := clientPair(t)
	encode := base64.StdEncoding.EncodeToString
	return []byte(fmt.Sprintf("clusters:\n- cluster:\n    server: %s\n    certificate-authority-data: %s\nusers:\n- user:\n    client-certificate-data: %s\n    client-key-data: %s\n",
		server.URL, encode(ca), encode(certificate), encode(key)))
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
	unknownNode = `{"status":{"conditions":[]}}`
	noNetwork   = `{"status":{"conditions":[{"type":"Ready","status":"False","message":"cni plugin not initialized"}]}}`
	readyNode   = `{"status":{"conditions":[{"type":"DiskPressure","status":"False"},{"type":"Ready","status":"True"}]}}`
)

func TestWaitReady(t *testing.T) {
	if err := WaitReady(t.Context(), apiServerTwin(t, unknownNode, noNetwork, readyNode), "one", time.Millisecond); err != nil {
		t.Error(err)
	}
}

func TestWaitReadySaysWhatItWaitsFor(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	err := WaitReady(ctx, apiServerTwin(t, noNetwork), "one", time.Millisecond)
	if err == nil || !strings.Contains(err.Error(), "cni plugin not initialized") {
		t.Errorf("got %v", err)
	}
}

func TestWaitReadyRefusesOddKubeconfig(t *testing.T) {
	for _, text := range []string{"", "clusters: []", "\x00", "clusters: [{}]\nusers: [{}]"} {
		if err := WaitReady(t.Context(), []byte(text), "one", time.Millisecond); err == nil {
			t.Errorf("%q is taken", text)
		}
	}
}
