// Package vaulttest is a keeper of keysets for tests: it answers as the transit engine of a Vault does.
package vaulttest

import (
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
)

// Token is what the Vault wants to be shown.
const Token = "s.0123456789abcdef"

// Vault has one key, named hullmark, and serves TLS on loopback until the test ends.
type Vault struct {
	*httptest.Server
	instead atomic.Pointer[Answer]
}

// Answer answers a request in the Vault's place, unless it returns false. plaintext, of a request to open, is what it is
// rightly answered with, in base64.
type Answer func(w http.ResponseWriter, r *http.Request, plaintext string) bool

// New starts one.
func New(t testing.TB) *Vault {
	t.Helper()
	v := &Vault{}
	v.Server = httptest.NewUnstartedServer(v)
	v.Config.ErrorLog = log.New(io.Discard, "", 0) // Clients that hang up are part of the tests.
	v.StartTLS()
	t.Cleanup(v.Close)
	return v
}

// Keeper is the URL by which it keeps a keyset.
func (v *Vault) Keeper() string { return "hashivault://hullmark?address=" + v.URL }

// CA is the authority of its certificate, in PEM.
func (v *Vault) CA() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: v.Certificate().Raw})
}

// Instead lets answer see each request first; nil ends that.
func (v *Vault) Instead(answer Answer) {
	if answer == nil {
		v.instead.Store(nil)
		return
	}
	v.instead.Store(&answer)
}

// ServeHTTP wraps by inverting: nobody here is to be kept from anything, but what is wrapped must not look like what it was.
func (v *Vault) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var in struct{ Plaintext, Ciphertext string }
	if err := json.NewDecoder(r.Body).Decode(&in); err != nil || r.Header.Get("X-Vault-Token") != Token {
		http.Error(w, `{"errors":["permission denied"]}`, http.StatusForbidden)
		return
	}
	name, text := "ciphertext", in.Plaintext
	switch r.URL.Path {
	case "/v1/transit/encrypt/hullmark":
	case "/v1/transit/decrypt/hullmark":
		name, text = "plaintext", strings.TrimPrefix(in.Ciphertext, "vault:v1:")
	default:
		http.Error(w, `{"errors":[]}`, http.StatusNotFound)
		return
	}
	content, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		http.Error(w, `{"errors":["invalid base64"]}`, http.StatusBadRequest)
		return
	}
	for i, b := range content {
		content[i] = ^b
	}
	answer := base64.StdEncoding.EncodeToString(content)
	if instead := v.instead.Load(); instead != nil && (*instead)(w, r, answer) {
		return
	}
	if name == "ciphertext" {
		answer = "vault:v1:" + answer
	}
	fmt.Fprintf(w, `{"data":{"%s":"%s"}}`, name, answer)
}
