package kubeadm

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func firstNode(t *testing.T, name string, address string) []byte {
	t.Helper()
	documents, err := InitDocuments(Params{
		NodeName: name, AdvertiseAddress: netip.MustParseAddr(address),
		ServiceSubnet: netip.MustParsePrefix("10.96.0.0/12"), PodSubnet: netip.MustParsePrefix("10.244.0.0/16"),
	})
	if err != nil {
		t.Fatal(err)
	}
	return documents
}

func TestRestoreGivesTheUnitItsInput(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "kubeadm")
	var tokens []string
	for range 2 {
		unit := func(_ context.Context, name string) error {
			text, err := os.ReadFile(filepath.Join(dir, "environment"))
			token, rest, _ := strings.Cut(strings.TrimPrefix(string(text), "HULLMARK_ETCD_NAME=one\nHULLMARK_ETCD_PEER=https://192.0.2.7:2380\nHULLMARK_ETCD_TOKEN="), "\n")
			tokens = append(tokens, token)
			if name != RestoreUnit || rest != "HULLMARK_ETCD_BUMP=17\n" {
				t.Errorf("%s: %s", name, text)
			}
			return err
		}
		if err := restoreWith(t.Context(), dir, Restoration{Documents: firstNode(t, "one", "192.0.2.7"), Bump: 17}, unit); err != nil {
			t.Fatal(err)
		}
	}
	if len(tokens[0]) < 26 || tokens[0] == tokens[1] {
		t.Errorf("tokens %q: want one of its own for each etcd", tokens)
	}
	failing := func(context.Context, string) error {
		return errors.Join(errors.New("unit failed"), os.WriteFile(filepath.Join(dir, "output"), []byte("etcdutl: data-dir is not empty\n"), 0o600))
	}
	err := restoreWith(t.Context(), dir, Restoration{Documents: firstNode(t, "one", "192.0.2.7")}, failing)
	if err == nil || !strings.Contains(err.Error(), "data-dir is not empty") {
		t.Errorf("error %v, want etcdutl's words", err)
	}
}

func TestRestoreReadsTheMember(t *testing.T) {
	for documents, want := range map[string]string{
		"kind: InitConfiguration\nlocalAPIEndpoint: {advertiseAddress: '2001:db8::7'}\n---\nkind: ClusterConfiguration\netcd: {local: {dataDir: /var/lib/etcd/, extraArgs: {quota-backend-bytes: \"1\"}}}": "two=https://[2001:db8::7]:2380",
		"kind: ClusterConfiguration\n--- # next\nkind: InitConfiguration\nlocalAPIEndpoint: {advertiseAddress: 192.0.2.7}\n":                                                                               "two=https://192.0.2.7:2380",
		"kind: InitConfiguration\nnodeRegistration: {name: one}\nlocalAPIEndpoint: {advertiseAddress: 192.0.2.7}\n---\nkind: X\n---\nkind: ClusterConfiguration\n":                                         "one=https://192.0.2.7:2380",
	} {
		environment, err := Restoration{Documents: []byte(documents), NodeName: "two"}.environment("token")
		name, peer, _ := strings.Cut(want, "=")
		if err != nil || !strings.HasPrefix(string(environment), "HULLMARK_ETCD_NAME="+name+"\nHULLMARK_ETCD_PEER="+peer+"\n") {
			t.Errorf("%s: %s, %v", documents, environment, err)
		}
	}
	const first, cluster = "kind: InitConfiguration\nlocalAPIEndpoint: {advertiseAddress: 192.0.2.7}\n", "---\nkind: ClusterConfiguration\n"
	for name, documents := range map[string]string{
		"no document":       "",
		"no init":           cluster,
		"no cluster":        first,
		"no address":        "kind: InitConfiguration\n" + cluster,
		"loopback":          "kind: InitConfiguration\nlocalAPIEndpoint: {advertiseAddress: 127.0.0.1}\n" + cluster,
		"a zone":            "kind: InitConfiguration\nlocalAPIEndpoint: {advertiseAddress: 'fe80::1%eth0'}\n" + cluster,
		"a name of lines":   first + "nodeRegistration: {name: \"a\\nB=c\"}\n" + cluster,
		"no YAML":           "a: b: c",
		"an external etcd":  first + cluster + "etcd: {external: {endpoints: [\"https://192.0.2.9:2379\"]}}",
		"other data":        first + cluster + "etcd: {local: {dataDir: /var/lib/etcd-data}}",
		"other data by arg": first + cluster + "etcd: {local: {extraArgs: [{name: data-dir, value: /x}]}}",
		"v1beta3 arguments": first + cluster + "etcd: {local: {extraArgs: {data-dir: /x}}}",
		"no etcd":           first + "skipPhases: [addon/kube-proxy, etcd/local]\n" + cluster,
	} {
		if err := (Restoration{Documents: []byte(documents), NodeName: "two"}).Check(); err == nil {
			t.Errorf("%s is taken", name)
		}
	}
}

func TestInitFlags(t *testing.T) {
	for name, c := range map[string]struct {
		work Work
		want string
	}{
		"first":    {Work{}, ""},
		"restored": {Work{Restored: true}, restoredFlag},
		"again":    {Work{Restored: true, Retry: true}, retryFlag},
	} {
		c.work.Addons = []byte("a: 1")
		files, err := c.work.files()
		if got := string(files["environment"]); err != nil || got != c.want {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
}
