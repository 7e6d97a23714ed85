package keeper_test

import (
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/joinservice/keys"
	"github.com/hullmark/hullmark/joinservice/keys/keeper"
)

var root = hullmark.ClusterRoot{7}

func newKeyset(t *testing.T) keys.Keyset {
	t.Helper()
	k, err := keys.New(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func credentials(t *testing.T, secret string, ca []byte) keeper.Credentials {
	t.Helper()
	c, err := keeper.NewCredentials([]byte(secret), ca)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// roundTrip seals and loads a keyset, and returns the document.
func roundTrip(t *testing.T, a keys.Access, url string) []byte {
	t.Helper()
	k := newKeyset(t)
	sealed, err := a.Seal(t.Context(), k, root, url)
	if err != nil {
		t.Fatal(err)
	}
	again, err := a.Load(t.Context(), sealed, root)
	if err != nil {
		t.Fatal(err)
	}
	one, oneErr := k.DiskKey(1, root, hullmark.EKID{}, hullmark.UUID{})
	two, twoErr := again.DiskKey(1, root, hullmark.EKID{}, hullmark.UUID{})
	if oneErr != nil || twoErr != nil || !one.Equal(two) {
		t.Error("the keyset changed")
	}
	return sealed
}

func wantCode(t *testing.T, err error, code string) *hullmark.Condition {
	t.Helper()
	var c *hullmark.Condition
	if !errors.As(err, &c) || c.Code != code || c.Retry != (code == keys.CodeUnreachable) {
		t.Fatalf("got %v, want a condition %s", err, code)
	}
	return c
}

func localKey(b byte) string {
	return base64.StdEncoding.EncodeToString([]byte(strings.Repeat(string(rune(b)), 32)))
}

func TestLocalKeeper(t *testing.T) {
	right := keys.Access{Open: credentials(t, localKey(1)+"\n", nil).Open}
	sealed := roundTrip(t, right, "local://")
	if strings.Contains(string(sealed), localKey(1)) {
		t.Error("the document holds the local key")
	}
	wrong := keys.Access{Open: credentials(t, localKey(2), nil).Open}
	_, err := wrong.Load(t.Context(), sealed, root)
	wantCode(t, err, keys.CodeRefused)
}

func TestOpenRefusesSettings(t *testing.T) {
	vault := "hashivault://key?address=https://vault.example:8200"
	withSecret := credentials(t, "token", nil)
	if k, err := withSecret.Open(t.Context(), vault); err != nil || k.Close() != nil {
		t.Fatalf("a legal URL: %v", err)
	}
	for name, url := range map[string]string{
		"another scheme":       "vault://key",
		"a key in the URL":     "base64key://" + localKey(1),
		"local with a key":     "local://" + localKey(1)[:43],
		"local, another key":   "local://",
		"no address":           "hashivault://key",
		"no TLS":               strings.Replace(vault, "https", "http", 1),
		"no host":              "hashivault://key?address=https://",
		"a password":           strings.Replace(vault, "vault.example", "me:password@vault.example", 1),
		"two addresses":        vault + "&address=https://other.example",
		"another parameter":    vault + "&token=secret",
		"a path for a key":     strings.Replace(vault, "//key", "//key/../../sys/seal", 1),
		"an engine outside":    vault + "&engine=../sys",
		"an engine of a dot":   vault + "&engine=.",
		"an AWS without TLS":   "awskms:///key?region=r&endpoint=http://kms.example",
		"an AWS parameter":     "awskms:///key?region=r&secret=x",
		"an Azure without key": "azurekeyvault://name.vault.azure.net/",
	} {
		t.Run(name, func(t *testing.T) {
			_, err := withSecret.Open(t.Context(), url)
			wantCode(t, err, keys.CodeSetting)
			if strings.Contains(err.Error(), localKey(1)[:16]) || strings.Contains(err.Error(), "password@") {
				t.Errorf("the error quotes a secret: %v", err)
			}
		})
	}
	_, err := keeper.Credentials{}.Open(t.Context(), vault)
	wantCode(t, err, keys.CodeSetting)
}

func TestReadCredentials(t *testing.T) {
	dir := t.TempDir()
	if c, err := keeper.ReadCredentials(dir); err != nil || c.Secret.Len() != 0 || len(c.CA) != 0 {
		t.Errorf("an empty folder: %v", err)
	}
	write := func(name, content string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(keeper.SecretFile, "\n s.token \n")
	write(keeper.CAFile, "")
	c, err := keeper.ReadCredentials(dir)
	if err != nil || string(c.Secret.Expose()) != "s.token" {
		t.Errorf("a token: %v", err)
	}
	for name, content := range map[string]string{"two lines": "a\nb", "a control character": "a\x1b[2J", "too long": strings.Repeat("x", 8<<10+1)} {
		write(keeper.SecretFile, content)
		if _, err := keeper.ReadCredentials(dir); err == nil || strings.Contains(err.Error(), content) {
			t.Errorf("%s: %v", name, err)
		}
	}
	write(keeper.SecretFile, "s.token")
	write(keeper.CAFile, "no PEM")
	if _, err := keeper.ReadCredentials(dir); err == nil {
		t.Error("an authority that is none was read")
	}
}

// TestAWS drives the driver against a service of the protocol's form, over loopback.
func TestAWS(t *testing.T) {
	answer := func(w http.ResponseWriter, status int, body string) {
		w.Header().Set("Content-Type", "application/x-amz-json-1.1")
		w.WriteHeader(status)
		_, _ = w.Write([]byte(body)) // The client may be gone.
	}
	var refusal string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if refusal != "" {
			answer(w, http.StatusBadRequest, `{"__type":"`+refusal+`","message":"the server's own words"}`)
			return
		}
		var in struct{ Plaintext, CiphertextBlob []byte }
		if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
			t.Error(err)
		}
		field, out := "CiphertextBlob", invert(in.Plaintext)
		if strings.HasSuffix(r.Header.Get("X-Amz-Target"), ".Decrypt") {
			field, out = "Plaintext", invert(in.CiphertextBlob)
		}
		answer(w, http.StatusOK, `{"KeyId":"key","`+field+`":"`+base64.StdEncoding.EncodeToString(out)+`"}`)
	}))
	t.Cleanup(server.Close)
	a := keys.Access{Open: keeper.Credentials{}.Open}
	sealed := roundTrip(t, a, "awskms:///key?region=local&anonymous=true&endpoint="+server.URL)
	for code, want := range map[string]string{
		"AccessDeniedException": keys.CodeRefused, "InvalidCiphertextException": keys.CodeRefused,
		"DisabledException": keys.CodeRefused, "LimitExceededException": keys.CodeUnreachable,
	} {
		refusal = code
		if c := wantCode(t, loadOnce(t, a, sealed), want); strings.Contains(c.Error(), "own words") {
			t.Errorf("%s: the condition quotes the server: %v", code, c)
		}
	}
}

func invert(b []byte) []byte {
	out := make([]byte, len(b))
	for i := range b {
		out[i] = ^b[i]
	}
	return out
}
