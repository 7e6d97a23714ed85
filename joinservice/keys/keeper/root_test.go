//go:build keeper

package keeper_test

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/hashicorp/vault/api"
)

var operatorProgram = flag.String("hullmark", "", "the `PROGRAM` hullmark")

// asVault is set where this test's own binary is to be vault.
const asVault = "HULLMARK_TEST_AS_VAULT"

func TestMain(m *testing.M) {
	if os.Getenv(asVault) == "" {
		os.Exit(m.Run())
	}
	if err := writeField(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "vault:", err)
		os.Exit(2)
	}
}

// writeField does what `vault write -field=NAME PATH KEY=VALUE...` does, by the library that Vault's own program is made with.
func writeField(args []string) error {
	if len(args) < 3 || args[0] != "write" || !strings.HasPrefix(args[1], "-field=") {
		return fmt.Errorf("%q: only write -field=NAME PATH KEY=VALUE... is played here", args)
	}
	values := map[string]any{}
	for _, arg := range args[3:] {
		key, value, _ := strings.Cut(arg, "=")
		values[key] = value
	}
	client, err := api.NewClient(api.DefaultConfig()) // It reads VAULT_ADDR, VAULT_CACERT and VAULT_TOKEN.
	if err != nil {
		return err
	}
	answer, err := client.Logical().Write(args[2], values)
	if err != nil {
		return err
	}
	field, ok := answer.Data[strings.TrimPrefix(args[1], "-field=")].(string)
	if !ok {
		return errors.New("the answer has no such field")
	}
	_, err = fmt.Print(field)
	return err
}

// vaultRow is the command that docs/operate.md has Vault sign for a root with.
var vaultRow = regexp.MustCompile("(?m)^\\| Vault's transit \\| `([^`]+)` \\|")

// documentedSigner is that command, for the key of a name.
func documentedSigner(t *testing.T, key string) string {
	t.Helper()
	page, err := os.ReadFile("../../../docs/operate.md")
	if err != nil {
		t.Fatal(err)
	}
	row := vaultRow.FindSubmatch(page)
	if row == nil || !strings.Contains(string(row[1]), "transit/sign/K/") {
		t.Fatalf("the page has no such command: %s", row)
	}
	return strings.NewReplacer("transit/sign/K/", "transit/sign/"+key+"/", `\|`, "|").Replace(string(row[1]))
}

// A real Vault holds a cluster's root, by the command and the policy of the page: it begins a cluster, and signs its policy, also once its
// key was rotated. With a key that the token may not use, nothing is signed.
func TestRealVaultHoldsARoot(t *testing.T) {
	if *operatorProgram == "" {
		t.Fatal("name the program: make test-keeper")
	}
	v := startVault(t)
	for _, key := range []string{"root", "other"} {
		v.write(t, "transit/keys/"+key, map[string]any{"type": "ecdsa-p256"})
	}
	dir := t.TempDir()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{
		"vault": "#!/bin/sh\n" + asVault + "=1 exec '" + self + "' \"$@\"\n", "passphrase": "correct horse\n", "root.pub": v.publicKey(t, "root"),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	token := v.token(t, `path "transit/sign/root/sha2-256" { capabilities = ["update"] }`, api.TokenCreateRequest{})
	environment := append(os.Environ(),
		"PATH="+dir+":"+os.Getenv("PATH"), "VAULT_ADDR=https://"+v.address, "VAULT_CACERT="+filepath.Join(v.folder, "ca.pem"), "VAULT_TOKEN="+token)
	runs := func(signer string, args ...string) (string, error) {
		cmd := exec.CommandContext(t.Context(), *operatorProgram, append(args, "--passphrase-file", "passphrase", "--root-signer", signer)...)
		cmd.Dir, cmd.Env = dir, environment
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	signer := documentedSigner(t, "root")
	if out, err := runs(signer, "cluster", "new", "cluster", "--root-public-key", "root.pub"); err != nil || !strings.Contains(out, "cluster root ") {
		t.Fatalf("%v\n%s", err, out)
	}
	member := []string{"policy", "add", "member", "--cluster", "cluster", "--ekid", strings.Repeat("11", 32), "--role", "worker", "--name", "worker-1"}
	if out, err := runs(documentedSigner(t, "other"), member...); err == nil || !strings.Contains(out, "permission denied") || !strings.Contains(out, "nothing was signed") {
		t.Errorf("by a key that the token may not use: %v\n%s", err, out)
	}
	v.write(t, "transit/keys/root/rotate", nil)
	if out, err := runs(signer, member...); err != nil || !strings.Contains(out, "version 1") {
		t.Errorf("%v\n%s", err, out)
	}
	if out, err := runs(strings.Replace(signer, "key_version=1", "key_version=2", 1), "policy", "revoke-operators", "--cluster", "cluster"); err == nil || !strings.Contains(out, "not the root key's over what was asked") {
		t.Errorf("by the rotated key: %v\n%s", err, out)
	}
}

// publicKey is that of the first version of a key, in PEM.
func (v *realVault) publicKey(t *testing.T, key string) string {
	t.Helper()
	found, err := v.admin.Logical().Read("transit/keys/" + key)
	if err != nil {
		t.Fatal(err)
	}
	versions, _ := found.Data["keys"].(map[string]any)
	first, _ := versions["1"].(map[string]any)
	text, ok := first["public_key"].(string)
	if !ok {
		t.Fatalf("the key is %v", found.Data)
	}
	return text
}
