package main

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"filippo.io/age"

	"github.com/hullmark/hullmark/cluster/operate"
	"github.com/hullmark/hullmark/measurements"
)

// A person makes a key, vouches for a machine by it, and gives that to a cluster that does not answer.
func TestVoucherVerbs(t *testing.T) {
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	if err := os.WriteFile(path("passphrase"), []byte("correct horse\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	secret := []string{"--passphrase-file", path("passphrase")}
	want := func(code int, args []string, says ...string) {
		t.Helper()
		got, output := hullmarkCLI(t, append([]string{"voucher"}, args...)...)
		wantExit(t, got, code, output, says...)
	}
	want(0, append([]string{"new-key", path("key"), path("public")}, secret...))
	want(exitFailed, append([]string{"new-key", path("key"), path("public")}, secret...), "key")
	identity, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	recipient := []string{"--recipient", identity.Recipient().String(), "--for", "fleet/prod"}
	want(exitUsage, append(append([]string{"new-key", path("sealed"), path("sealed.pem")}, secret...), recipient...), "--recipient")
	want(exitUsage, append([]string{"new-key", path("sealed"), path("sealed.pem"), "--for", "fleet/prod"}, secret...), "add --recipient")
	want(0, append([]string{"new-key", path("sealed"), path("sealed.pem")}, recipient...))
	sealed, err := os.ReadFile(path("sealed"))
	if err != nil {
		t.Fatal(err)
	}
	if _, purpose, err := operate.OpenEnrollerKey(sealed, identity); err != nil || purpose != "fleet/prod" {
		t.Errorf("it is for %q, %v", purpose, err)
	}
	root, ekid := strings.Repeat("1", 64), strings.Repeat("2", 64)
	sign := func(more ...string) []string {
		return append(append([]string{"sign", path("voucher"), "--key", path("key"), "--cluster-root", root, "--group", "cloud", "--ekid", ekid, "--name", "cloud-1", "--provider-id", "test:///1"}, secret...), more...)
	}
	for says, more := range map[string][]string{
		"--cluster-root": {"--cluster-root", "x"}, "--ekid": {"--ekid", "x"}, "begins with cloud-": {"--name", "other-1"}, "provider ID": {"--provider-id", "x"}, "--valid": {"--valid", "0s"},
	} {
		want(exitUsage, sign(more...), says)
	}
	want(0, sign())
	want(0, []string{"show", path("voucher")}, `"name": "cloud-1"`, `"providerID": "test:///1"`, `"expired": false`, ekid)
	want(exitFailed, []string{"show", path("public")}, "read voucher")
	signed, err := os.ReadFile(path("voucher"))
	if err != nil {
		t.Fatal(err)
	}
	public, err := os.ReadFile(path("public"))
	if err != nil {
		t.Fatal(err)
	}
	keys, err := measurements.ParseEnrollers(public)
	if err != nil || len(keys) != 1 {
		t.Fatal(keys, err)
	}
	group := measurements.Group{Name: "cloud", Enrollers: keys, Max: 1}
	if v, _, err := measurements.OpenVoucher(signed, group.Enrolls); err != nil || v.Name != "cloud-1" {
		t.Errorf("%+v, %v", v, err)
	}
	server := httptest.NewServer(http.NotFoundHandler())
	server.Close()
	kubeconfig := "apiVersion: v1\nkind: Config\nclusters: [{name: a, cluster: {server: \"" + server.URL + "\"}}]\ncontexts: [{name: a, context: {cluster: a}}]\ncurrent-context: a\n"
	if err := os.WriteFile(path("kubeconfig"), []byte(kubeconfig), 0o600); err != nil {
		t.Fatal(err)
	}
	by := []string{"--kubeconfig", path("kubeconfig")}
	want(exitUnreachable, append([]string{"apply", path("voucher")}, by...), "store the voucher of machine "+ekid)
	want(exitUnreachable, append([]string{"list"}, by...), "list the vouchers")
	want(exitUnreachable, append([]string{"delete", ekid}, by...), "delete the voucher of machine "+ekid)
	want(exitUsage, append([]string{"delete", "x"}, by...), "64")
	want(exitUsage, []string{"list", "--kubeconfig", path("none")}, "--kubeconfig")
	want(exitFailed, append([]string{"apply", path("public")}, by...), "read voucher")
}
