package run

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hullmark/hullmark/kubeadm"
)

func firstNode(t *testing.T) []byte {
	t.Helper()
	documents, err := kubeadm.InitDocuments(kubeadm.Params{
		NodeName: "one", AdvertiseAddress: netip.MustParseAddr("192.0.2.7"),
		ServiceSubnet: kubeadm.MustParseSubnets("10.96.0.0/12"), PodSubnet: kubeadm.MustParseSubnets("10.244.0.0/16"),
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
		if err := restoreWith(t.Context(), dir, kubeadm.Restoration{Documents: firstNode(t), Bump: 17}, unit); err != nil {
			t.Fatal(err)
		}
	}
	if len(tokens[0]) < 26 || tokens[0] == tokens[1] {
		t.Errorf("tokens %q: want one of its own for each etcd", tokens)
	}
	failing := func(context.Context, string) error {
		return errors.Join(errors.New("unit failed"), os.WriteFile(filepath.Join(dir, "output"), []byte("etcdutl: data-dir is not empty\n"), 0o600))
	}
	err := restoreWith(t.Context(), dir, kubeadm.Restoration{Documents: firstNode(t)}, failing)
	if err == nil || !strings.Contains(err.Error(), "data-dir is not empty") {
		t.Errorf("error %v, want etcdutl's words", err)
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
