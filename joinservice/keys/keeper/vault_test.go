package keeper_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/joinservice/keys"
	"github.com/hullmark/hullmark/joinservice/keys/keeper"
)

const token = "s.0123456789abcdef"

// vault answers as the transit engine does, or as a test has it.
type vault struct {
	*httptest.Server
	// instead, if it is set, answers a request to open; plaintext is what would be right, in base64.
	instead atomic.Pointer[func(w http.ResponseWriter, r *http.Request, plaintext string)]
}

func newVault(t *testing.T) *vault {
	t.Helper()
	v := &vault{}
	v.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { v.serve(t, w, r) }))
	v.Config.ErrorLog = log.New(io.Discard, "", 0) // Clients that hang up are part of the tests.
	v.StartTLS()
	t.Cleanup(v.Close)
	return v
}

func (v *vault) serve(t *testing.T, w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("X-Vault-Token") != token {
		http.Error(w, `{"errors":["permission denied"]}`, http.StatusForbidden)
		return
	}
	var in struct{ Plaintext, Ciphertext string }
	if err := decode(r, &in); err != nil {
		t.Error(err)
	}
	switch r.URL.Path {
	case "/v1/transit/encrypt/hullmark":
		plain, err := base64.StdEncoding.DecodeString(in.Plaintext)
		if err != nil {
			t.Error(err)
		}
		fmt.Fprintf(w, `{"data":{"ciphertext":"vault:v1:%s"}}`, base64.StdEncoding.EncodeToString(invert(plain)))
	case "/v1/transit/decrypt/hullmark":
		sealed, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(in.Ciphertext, "vault:v1:"))
		if err != nil {
			t.Error(err)
		}
		plaintext := base64.StdEncoding.EncodeToString(invert(sealed))
		if instead := v.instead.Load(); instead != nil {
			(*instead)(w, r, plaintext)
			return
		}
		fmt.Fprintf(w, `{"data":{"plaintext":"%s"}}`, plaintext)
	default:
		http.Error(w, `{"errors":[]}`, http.StatusNotFound)
	}
}

func (v *vault) url() string { return "hashivault://hullmark?address=" + v.URL }

func (v *vault) access(t *testing.T) keys.Access {
	t.Helper()
	return keys.Access{Open: credentials(t, token, certificatePEM(v.Server)).Open}
}

func decode(r *http.Request, into any) error { return json.NewDecoder(r.Body).Decode(into) }

func invert(b []byte) []byte {
	out := make([]byte, len(b))
	for i := range b {
		out[i] = ^b[i]
	}
	return out
}

// loadOnce gives up when the first try has failed for a reason that may pass.
func loadOnce(t *testing.T, a keys.Access, sealed []byte) error {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	a.Report = func(*hullmark.Condition, time.Duration) { cancel() }
	_, err := a.Load(ctx, sealed, root)
	return err
}

func TestVault(t *testing.T) {
	v := newVault(t)
	// The environment's address, token and namespace are not this client's.
	t.Setenv("VAULT_ADDR", "http://127.0.0.1:1")
	t.Setenv("VAULT_TOKEN", "another")
	sealed := roundTrip(t, v.access(t), v.url())
	if strings.Contains(string(sealed), token) {
		t.Error("the document holds the token")
	}
}

// TestVaultAnswersWrongly opens one document with a Vault that does each wrong
// thing once, and then with the same Vault mended.
func TestVaultAnswersWrongly(t *testing.T) {
	v := newVault(t)
	k := newKeyset(t)
	sealed, err := v.access(t).Seal(t.Context(), k, root, v.url())
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range misdeeds() {
		t.Run(name, func(t *testing.T) {
			v.instead.Store(&c.instead)
			a := v.access(t)
			if name == "stalls" {
				a.Try = 100 * time.Millisecond
			}
			condition := wantCode(t, loadOnce(t, a, sealed), c.code)
			said, err := json.Marshal(condition)
			if err != nil {
				t.Fatal(err)
			}
			if strings.Contains(string(said), token) || strings.Contains(string(said), base64.StdEncoding.EncodeToString([]byte("hullmark/v1/"))) {
				t.Errorf("the condition quotes the server: %s", said)
			}
			v.instead.Store(nil)
			if _, err := v.access(t).Load(t.Context(), sealed, root); err != nil {
				t.Errorf("after it was mended: %v", err)
			}
		})
	}
}

// misdeed is what a Vault does instead of opening, and the code of its condition.
type misdeed struct {
	code    string
	instead func(w http.ResponseWriter, r *http.Request, plaintext string)
}

func misdeeds() map[string]misdeed {
	say := func(text string) func(http.ResponseWriter, *http.Request, string) {
		return func(w http.ResponseWriter, _ *http.Request, _ string) { fmt.Fprint(w, text) }
	}
	fail := func(status int) func(http.ResponseWriter, *http.Request, string) {
		return func(w http.ResponseWriter, r *http.Request, plaintext string) {
			w.WriteHeader(status)
			fmt.Fprintf(w, `{"errors":[%q]}`, r.Header.Get("X-Vault-Token")+plaintext)
		}
	}
	return map[string]misdeed{
		"forbidden":    {keys.CodeRefused, fail(http.StatusForbidden)},
		"cannot open":  {keys.CodeRefused, fail(http.StatusBadRequest)},
		"no such key":  {keys.CodeRefused, fail(http.StatusNotFound)},
		"sealed":       {keys.CodeUnreachable, fail(http.StatusServiceUnavailable)},
		"too many":     {keys.CodeUnreachable, fail(http.StatusTooManyRequests)},
		"stalls":       {keys.CodeUnreachable, func(_ http.ResponseWriter, r *http.Request, _ string) { <-r.Context().Done() }},
		"hangs up":     {keys.CodeUnreachable, func(http.ResponseWriter, *http.Request, string) { panic(http.ErrAbortHandler) }},
		"breaks off":   {keys.CodeUnreachable, breakOff},
		"nothing":      {keys.CodeAnswer, say("")},
		"garbage":      {keys.CodeAnswer, say("\x00\x01{")},
		"cut JSON":     {keys.CodeAnswer, say(`{"data":{"plaintext":"aHVs`)},
		"no data":      {keys.CodeAnswer, say(`{"data":null}`)},
		"a number":     {keys.CodeAnswer, say(`{"data":{"plaintext":1}}`)},
		"a list":       {keys.CodeAnswer, say(`[]`)},
		"no base64":    {keys.CodeAnswer, say(`{"data":{"plaintext":"*"}}`)},
		"an empty one": {keys.CodeAnswer, say(`{"data":{"plaintext":""}}`)},
		"cut keyset": {keys.CodeAnswer, func(w http.ResponseWriter, _ *http.Request, plaintext string) {
			fmt.Fprintf(w, `{"data":{"plaintext":"%s"}}`, plaintext[:len(plaintext)-8])
		}},
		"other cluster's": {keys.CodeAnswer, func(w http.ResponseWriter, _ *http.Request, _ string) {
			other := "hullmark/v1/keyset\x00" + strings.Repeat("\x09", 32) + `{"version":1,"masters":{}}`
			fmt.Fprintf(w, `{"data":{"plaintext":"%s"}}`, base64.StdEncoding.EncodeToString([]byte(other)))
		}},
		"huge": {keys.CodeAnswer, func(w http.ResponseWriter, r *http.Request, _ string) {
			for r.Context().Err() == nil {
				if _, err := w.Write(make([]byte, 64<<10)); err != nil {
					return
				}
			}
		}},
		"a huge plaintext": {keys.CodeAnswer, func(w http.ResponseWriter, _ *http.Request, plaintext string) {
			fmt.Fprintf(w, `{"data":{"plaintext":"%s%s"}}`, plaintext[:len(plaintext)-4], strings.Repeat("AAAA", 100_000))
		}},
	}
}

// breakOff announces more than it sends.
func breakOff(w http.ResponseWriter, _ *http.Request, plaintext string) {
	w.Header().Set("Content-Length", "1000")
	fmt.Fprintf(w, `{"data":{"plaintext":"%s`, plaintext)
}

func TestVaultComesBack(t *testing.T) {
	v := newVault(t)
	a := v.access(t)
	sealed, err := a.Seal(t.Context(), newKeyset(t), root, v.url())
	if err != nil {
		t.Fatal(err)
	}
	down := func(w http.ResponseWriter, _ *http.Request, _ string) { w.WriteHeader(http.StatusServiceUnavailable) }
	v.instead.Store(&down)
	reports := 0
	a.Report = func(cause *hullmark.Condition, pause time.Duration) {
		reports++
		if cause.Code != keys.CodeUnreachable || cause.Got != "HTTP status 503" || pause <= 0 {
			t.Errorf("reported %v with a pause of %v", cause, pause)
		}
		v.instead.Store(nil)
	}
	if _, err := a.Load(t.Context(), sealed, root); err != nil || reports != 1 {
		t.Errorf("after %d reports: %v", reports, err)
	}
}

func TestVaultCredentials(t *testing.T) {
	v := newVault(t)
	sealed := roundTrip(t, v.access(t), v.url())
	for name, c := range map[string]struct {
		credentials keeper.Credentials
		code        string
	}{
		"another token":     {credentials(t, "s.other", certificatePEM(v.Server)), keys.CodeRefused},
		"another authority": {credentials(t, token, nil), keys.CodeUnreachable},
		"no token":          {credentials(t, "", certificatePEM(v.Server)), keys.CodeSetting},
	} {
		t.Run(name, func(t *testing.T) {
			wantCode(t, loadOnce(t, keys.Access{Open: c.credentials.Open}, sealed), c.code)
		})
	}
	v.Close()
	wantCode(t, loadOnce(t, v.access(t), sealed), keys.CodeUnreachable)
}
