package tooltest

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Token is a PKCS #11 token that software plays (SoftHSM), with one key that never leaves it.
type Token struct {
	// folder is where SoftHSM keeps the token.
	folder string
	// reach is what pkcs11-tool reaches the key by.
	reach []string
}

// NewToken makes a token below a folder, and a key of a type in it, as pkcs11-tool names types. Programs find the token, and its PIN, by
// the environment, which is the test's.
func NewToken(t testing.TB, dir, kind string) Token {
	t.Helper()
	config, pin := filepath.Join(dir, "softhsm2.conf"), "1234"
	token := Token{
		folder: filepath.Join(dir, "tokens"),
		reach:  []string{"--module", "/usr/lib/softhsm/libsofthsm2.so", "--token-label", "hullmark", "--login", "--pin", "env:HULLMARK_PIN", "--label", "key"},
	}
	if err := errors.Join(os.Mkdir(token.folder, 0o700), os.WriteFile(config, []byte("directories.tokendir = "+token.folder+"\n"), 0o600)); err != nil {
		t.Fatal(err)
	}
	t.Setenv("SOFTHSM2_CONF", config)
	t.Setenv("HULLMARK_PIN", pin)
	Run(t, "softhsm2", "softhsm2-util", "--init-token", "--free", "--label", "hullmark", "--pin", pin, "--so-pin", "5678")
	if said := token.tool(t, "--keypairgen", "--key-type", kind); !strings.Contains(said, "never extractable") {
		t.Fatalf("the token does not say that its key never leaves it:\n%s", said)
	}
	return token
}

// tool runs pkcs11-tool for the key, and returns all that it printed.
func (k Token) tool(t testing.TB, args ...string) string {
	t.Helper()
	return Run(t, "opensc", "pkcs11-tool", append(k.reach[:len(k.reach):len(k.reach)], args...)...)
}

// Public writes the key's public half to a file, in PEM.
func (k Token) Public(t testing.TB, file string) {
	t.Helper()
	der := filepath.Join(t.TempDir(), "public.der")
	k.tool(t, "--read-object", "--type", "pubkey", "--output-file", der)
	Run(t, "openssl", "openssl", "pkey", "-pubin", "-inform", "DER", "-in", der, "-out", file)
}

// Signer is a command of the shell that has the key sign its standard input, by one of PKCS #11's mechanisms.
func (k Token) Signer(mechanism string) string {
	return "pkcs11-tool " + strings.Join(k.reach, " ") + " --sign --mechanism " + mechanism
}

// PullOut takes the token away: whoever wants it to sign finds none. What it returns brings it back.
func (k Token) PullOut(t testing.TB) (putBack func()) {
	t.Helper()
	away := k.folder + ".away"
	if err := errors.Join(os.Rename(k.folder, away), os.Mkdir(k.folder, 0o700)); err != nil {
		t.Fatal(err)
	}
	return func() {
		t.Helper()
		if err := errors.Join(os.Remove(k.folder), os.Rename(away, k.folder)); err != nil {
			t.Fatal(err)
		}
	}
}
