package keeper_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/internal/vaulttest"
	"github.com/hullmark/hullmark/joinservice/keys"
	"github.com/hullmark/hullmark/joinservice/keys/keeper"
)

// access is that of who may use a Vault.
func access(t *testing.T, v *vaulttest.Vault) keys.Access {
	t.Helper()
	return keys.Access{Open: credentials(t, vaulttest.Token, v.CA()).Open}
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
	v := vaulttest.New(t)
	// The environment's address, token and namespace are not this client's.
	t.Setenv("VAULT_ADDR", "http://127.0.0.1:1")
	t.Setenv("VAULT_TOKEN", "another")
	sealed := roundTrip(t, access(t, v), v.Keeper())
	if strings.Contains(string(sealed), vaulttest.Token) {
		t.Error("the document holds the token")
	}
}

// TestVaultAnswersWrongly opens one document with a Vault that does each wrong
// thing once, and then with the same Vault mended.
func TestVaultAnswersWrongly(t *testing.T) {
	v := vaulttest.New(t)
	k := newKeyset(t)
	sealed, err := access(t, v).Seal(t.Context(), k, root, v.Keeper())
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range misdeeds() {
		t.Run(name, func(t *testing.T) {
			v.Instead(func(w http.ResponseWriter, r *http.Request, plaintext string) bool {
				c.instead(w, r, plaintext)
				return true
			})
			a := access(t, v)
			if name == "stalls" {
				a.Try = 100 * time.Millisecond
			}
			condition := wantCode(t, loadOnce(t, a, sealed), c.code)
			said, err := json.Marshal(condition)
			if err != nil {
				t.Fatal(err)
			}
			if strings.Contains(string(said), vaulttest.Token) || strings.Contains(string(said), base64.StdEncoding.EncodeToString([]byte("hullmark/v1/"))) {
				t.Errorf("the condition quotes the server: %s", said)
			}
			v.Instead(nil)
			if _, err := access(t, v).Load(t.Context(), sealed, root); err != nil {
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
	v := vaulttest.New(t)
	a := access(t, v)
	sealed, err := a.Seal(t.Context(), newKeyset(t), root, v.Keeper())
	if err != nil {
		t.Fatal(err)
	}
	v.Instead(func(w http.ResponseWriter, _ *http.Request, _ string) bool {
		w.WriteHeader(http.StatusServiceUnavailable)
		return true
	})
	reports := 0
	a.Report = func(cause *hullmark.Condition, pause time.Duration) {
		reports++
		if cause.Code != keys.CodeUnreachable || cause.Got != "HTTP status 503" || pause <= 0 {
			t.Errorf("reported %v with a pause of %v", cause, pause)
		}
		v.Instead(nil)
	}
	if _, err := a.Load(t.Context(), sealed, root); err != nil || reports != 1 {
		t.Errorf("after %d reports: %v", reports, err)
	}
}

func TestVaultCredentials(t *testing.T) {
	v := vaulttest.New(t)
	sealed := roundTrip(t, access(t, v), v.Keeper())
	for name, c := range map[string]struct {
		credentials keeper.Credentials
		code        string
	}{
		"another token":     {credentials(t, "s.other", v.CA()), keys.CodeRefused},
		"another authority": {credentials(t, vaulttest.Token, nil), keys.CodeUnreachable},
		"no token":          {credentials(t, "", v.CA()), keys.CodeSetting},
	} {
		t.Run(name, func(t *testing.T) {
			wantCode(t, loadOnce(t, keys.Access{Open: c.credentials.Open}, sealed), c.code)
		})
	}
	v.Close()
	wantCode(t, loadOnce(t, access(t, v), sealed), keys.CodeUnreachable)
}
