//go:build long

package build

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A package that the lock does not have is named at the end, with what to do.
func TestPackageThatIsNotLocked(t *testing.T) {
	o, l, tools := settled(t)
	o.Config = t.TempDir()
	if err := os.WriteFile(filepath.Join(o.Config, "mkosi.conf"), []byte("[Content]\nPackages=htop\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := Tree(t.Context(), o, l, tools); err == nil || !strings.Contains(err.Error(), "the lock has no package htop: hullmark lock --config") {
		t.Errorf("it said %v", err)
	}
}
