package run

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hullmark/hullmark"
)

// The programs are played here; the real ones are asked by TestProgramsJudgeFlags.
func TestCheckFlags(t *testing.T) {
	bin := t.TempDir()
	script := `#!/bin/sh
for flag; do
	case $flag in
	--version) echo v1.36.3; exit 0 ;;
	--old=*) echo "Flag --old has been deprecated, use --new instead" >&2 ;;
	--new=*) ;;
	*) printf 'Usage:\n  it [flags]\n\nError: unknown flag: %s\n' "$flag" >&2; exit 1 ;;
	esac
done
exit 9
`
	for _, name := range []string{"etcd", "kubelet"} {
		if err := os.WriteFile(filepath.Join(bin, name), []byte(script), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	deprecated, err := CheckFlags(t.Context(), bin, map[string][]string{"etcd": {"--new=1"}, "kubelet": {"--old=1", "--new=2"}})
	if err != nil || !slices.Equal(deprecated, []string{"kubelet --old"}) {
		t.Errorf("got %q, %v", deprecated, err)
	}
	_, err = CheckFlags(t.Context(), bin, map[string][]string{"etcd": {"--new=1"}, "kubelet": {"--gone=1"}})
	var c *hullmark.Condition
	if !errors.As(err, &c) || c.Code != "flags-removed" || !strings.Contains(c.Title, "unknown flag: --gone=1") || !strings.HasPrefix(c.Title, "kubelet ") {
		t.Errorf("got %v", err)
	}
	if _, err = CheckFlags(t.Context(), bin, map[string][]string{"kube-scheduler": nil}); err == nil || !strings.Contains(err.Error(), "kube-scheduler") {
		t.Errorf("a program that is missing: %v", err)
	}
}
