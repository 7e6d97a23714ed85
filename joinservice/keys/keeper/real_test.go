//go:build keeper

package keeper_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"flag"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/hashicorp/vault/api"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/joinservice/keys"
)

var program = flag.String("vault", "", "the `PROGRAM` of internal/vaulttest/server")

// realVault is a Vault that runs, with what its administrator holds.
type realVault struct {
	folder, address string
	process         *exec.Cmd
	stop            io.Closer
	admin           *api.Client
	unseal          string
}

// startVault makes one, opens it, and gives it a key named hullmark.
func startVault(t *testing.T) *realVault {
	t.Helper()
	if *program == "" {
		t.Fatal("name the server: make test-keeper")
	}
	v := &realVault{folder: t.TempDir(), address: freeAddress(t)}
	v.start(t)
	t.Cleanup(v.end)
	ready, err := v.admin.Sys().Init(&api.InitRequest{SecretShares: 1, SecretThreshold: 1})
	if err != nil {
		t.Fatal(err)
	}
	v.unseal = ready.Keys[0]
	v.open(t)
	v.admin.SetToken(ready.RootToken)
	if err := v.admin.Sys().Mount("transit", &api.MountInput{Type: "transit"}); err != nil {
		t.Fatal(err)
	}
	v.write(t, "transit/keys/hullmark", nil)
	return v
}

func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// start runs the server, which begins sealed.
func (v *realVault) start(t *testing.T) {
	t.Helper()
	v.process = exec.Command(*program, v.folder, v.address)
	v.process.Stderr = os.Stderr
	stdin, err := v.process.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	v.stop = stdin
	_ = os.Remove(filepath.Join(v.folder, "ca.pem"))
	if err := v.process.Start(); err != nil {
		t.Fatal(err)
	}
	token := ""
	if v.admin != nil {
		token = v.admin.Token()
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		if v.admin = v.client(); v.admin != nil {
			v.admin.SetToken(token)
			if _, err = v.admin.Sys().SealStatus(); err == nil {
				return
			}
		}
		if time.Now().After(deadline) {
			t.Fatalf("the Vault does not answer: %v", err)
		}
	}
}

// end stops the server.
func (v *realVault) end() {
	_ = v.stop.Close()
	_ = v.process.Wait()
}

// client is the administrator's; nil as long as the server has no certificate.
func (v *realVault) client() *api.Client {
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(v.ca()) {
		return nil
	}
	config := api.DefaultConfig()
	config.Address, config.MaxRetries = "https://"+v.address, 0
	config.HttpClient = &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}}, Timeout: time.Minute}
	c, err := api.NewClient(config)
	if err != nil {
		return nil
	}
	return c
}

func (v *realVault) ca() []byte {
	text, err := os.ReadFile(filepath.Join(v.folder, "ca.pem"))
	if err != nil {
		return nil
	}
	return text
}

func (v *realVault) open(t *testing.T) {
	t.Helper()
	if status, err := v.admin.Sys().Unseal(v.unseal); err != nil || status.Sealed {
		t.Fatalf("unseal: %+v, %v", status, err)
	}
}

func (v *realVault) write(t *testing.T, path string, data map[string]any) {
	t.Helper()
	if _, err := v.admin.Logical().Write(path, data); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
}

// token makes one of a policy.
func (v *realVault) token(t *testing.T, policy string, request api.TokenCreateRequest) string {
	t.Helper()
	if err := v.admin.Sys().PutPolicy("keeper", policy); err != nil {
		t.Fatal(err)
	}
	request.Policies, request.NoParent = []string{"keeper"}, true
	made, err := v.admin.Auth().Token().Create(&request)
	if err != nil {
		t.Fatal(err)
	}
	return made.Auth.ClientToken
}

func (v *realVault) access(t *testing.T, token string) keys.Access {
	t.Helper()
	return keys.Access{Open: credentials(t, token, v.ca()).Open, Try: 30 * time.Second}
}

const (
	keeperPath = "hashivault://hullmark?address=https://"
	// documented is the policy of docs/keepers.md.
	documented = `path "transit/encrypt/hullmark" { capabilities = ["update"] }
path "transit/decrypt/hullmark" { capabilities = ["update"] }`
	opensOnly = `path "transit/decrypt/hullmark" { capabilities = ["update"] }`
)

// A real Vault wraps and opens by the policy that the page gives, through rotations of its key, and every way in which it does not open
// shows as the condition that the page has for it.
func TestRealVault(t *testing.T) {
	v := startVault(t)
	url := keeperPath + v.address
	token := v.token(t, documented, api.TokenCreateRequest{Period: "1h"})
	sealed := roundTrip(t, v.access(t, token), url)
	opens := func(name string, document []byte) {
		t.Helper()
		if _, err := v.access(t, token).Load(t.Context(), document, root); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	fails := func(name, code, got string, a keys.Access, document []byte) {
		t.Helper()
		if c := wantCode(t, loadOnce(t, a, document), code); got != "" && c.Got != got {
			t.Errorf("%s: got %q, want %q", name, c.Got, got)
		}
	}

	v.write(t, "transit/keys/hullmark/rotate", nil)
	newer := roundTrip(t, v.access(t, token), url)
	opens("wrapped before the rotation", sealed)
	v.write(t, "transit/keys/hullmark/config", map[string]any{"min_decryption_version": 2})
	fails("a version that is not opened any more", keys.CodeRefused, "HTTP status 400", v.access(t, token), sealed)
	opens("wrapped after the rotation", newer)

	v.write(t, "transit/keys/another", nil)
	both := v.token(t, documented+"\n"+`path "transit/+/another" { capabilities = ["update"] }`, api.TokenCreateRequest{})
	other := roundTrip(t, v.access(t, both), "hashivault://another?address=https://"+v.address)
	fails("a key that the policy does not name", keys.CodeRefused, "HTTP status 403", v.access(t, v.token(t, documented, api.TokenCreateRequest{})), other)

	reader := v.token(t, opensOnly, api.TokenCreateRequest{})
	if _, err := v.access(t, reader).Load(t.Context(), newer, root); err != nil {
		t.Errorf("a control plane's token: %v", err)
	}
	_, err := v.access(t, reader).Seal(t.Context(), newKeyset(t), root, url)
	wantCode(t, err, keys.CodeRefused)
	token = v.token(t, documented, api.TokenCreateRequest{Period: "1h"})

	fails("no such token", keys.CodeRefused, "HTTP status 403", v.access(t, "hvs.none"), newer)
	brief := v.token(t, documented, api.TokenCreateRequest{ExplicitMaxTTL: "1s"})
	time.Sleep(2 * time.Second)
	fails("a token that has ended", keys.CodeRefused, "HTTP status 403", v.access(t, brief), newer)
	gone := v.token(t, documented, api.TokenCreateRequest{})
	if err := v.admin.Auth().Token().RevokeTree(gone); err != nil {
		t.Fatal(err)
	}
	fails("a token that was revoked", keys.CodeRefused, "HTTP status 403", v.access(t, gone), newer)

	v.write(t, "sys/quotas/rate-limit/slow", map[string]any{"path": "transit", "rate": 0.01})
	_ = loadOnce(t, v.access(t, token), newer)
	fails("too often", keys.CodeUnreachable, "HTTP status 429", v.access(t, token), newer)
	if _, err := v.admin.Logical().Delete("sys/quotas/rate-limit/slow"); err != nil {
		t.Fatal(err)
	}

	if err := v.admin.Sys().Seal(); err != nil {
		t.Fatal(err)
	}
	fails("sealed", keys.CodeUnreachable, "HTTP status 503", v.access(t, token), newer)
	v.unsealsMeanwhile(t, token, newer)

	v.end()
	fails("away", keys.CodeUnreachable, "a connection that fails (dial)", v.access(t, token), newer)
	former := v.access(t, token)
	v.start(t)
	v.open(t)
	fails("another certificate", keys.CodeUnreachable, "a certificate that is not accepted, for its authority, name or time", former, newer)
	opens("after it came back", newer)

	v.write(t, "transit/keys/hullmark/config", map[string]any{"deletion_allowed": true})
	if _, err := v.admin.Logical().Delete("transit/keys/hullmark"); err != nil {
		t.Fatal(err)
	}
	fails("a key that was deleted", keys.CodeRefused, "HTTP status 400", v.access(t, token), newer)
}

// unsealsMeanwhile has the Vault be unsealed while a join service waits for it.
func (v *realVault) unsealsMeanwhile(t *testing.T, token string, document []byte) {
	t.Helper()
	a := v.access(t, token)
	reports := 0
	a.Report = func(cause *hullmark.Condition, _ time.Duration) {
		if reports++; reports == 1 {
			v.open(t)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := a.Load(ctx, document, root); err != nil || reports == 0 {
		t.Errorf("after %d reports: %v", reports, err)
	}
}
