package hullmark

import (
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
)

// TestNodeFilesAreThoseOfTheUnit holds the table to what the join service is handed: the unit loads every credential from its
// file, and a default makes a missing file no error just where the table says that it may be missing.
func TestNodeFilesAreThoseOfTheUnit(t *testing.T) {
	unit, err := os.ReadFile("systemd/system/hullmark-joinservice.service")
	if err != nil {
		t.Fatal(err)
	}
	const otherwise = "recovered" // the agent's, on a RAM disk
	loaded, defaults := map[string]string{}, map[string]bool{}
	for line := range strings.Lines(string(unit)) {
		if credential, ok := strings.CutPrefix(strings.TrimSpace(line), "LoadCredential="); ok {
			name, path, _ := strings.Cut(credential, ":")
			loaded[name] = path
		}
		if set, ok := strings.CutPrefix(strings.TrimSpace(line), "SetCredential="); ok {
			name, _, _ := strings.Cut(set, ":")
			defaults[name] = true
		}
	}
	delete(loaded, otherwise)
	for _, f := range NodeFiles() {
		if f.Credential == "" {
			continue
		}
		if loaded[f.Credential] != strings.TrimSuffix(f.Path, "/") {
			t.Errorf("credential %s: the unit loads %q, the table has %q", f.Credential, loaded[f.Credential], f.Path)
		}
		if defaults[f.Credential] && !f.Optional {
			t.Errorf("credential %s has a default, and the table says that it is there", f.Credential)
		}
		delete(loaded, f.Credential)
	}
	if len(loaded) > 0 {
		t.Errorf("the unit loads what the table does not name: %v", slices.Sorted(maps.Keys(loaded)))
	}
}

// TestNodeFilesAreWhole looks at what everybody relies on: names once, modes of all that Hullmark writes, keys that only root reads.
func TestNodeFilesAreWhole(t *testing.T) {
	seen := map[string]bool{}
	for _, f := range NodeFiles() {
		if seen[f.Path] {
			t.Errorf("%s is there twice", f.Path)
		}
		seen[f.Path] = true
		if f.Mode == 0 && !f.Kubeadm || f.Mode&^0o644 != 0 {
			t.Errorf("%s has mode %o", f.Path, f.Mode)
		}
		if strings.HasSuffix(f.Path, ".key") && f.Mode != 0o600 {
			t.Errorf("%s is a key of mode %o", f.Path, f.Mode)
		}
		if f.Replaced && !f.Rotated || f.Shared && f.Credential == "" {
			t.Errorf("%s: %+v", f.Path, f)
		}
		if found, ok := NodeFileOf(f.Path); !ok || found != f || !Reserved(strings.TrimSuffix(f.Path, "/")) {
			t.Errorf("%s is not found, or not reserved", f.Path)
		}
	}
	if _, ok := NodeFileOf("/etc/kubernetes/audit.yaml"); ok || Reserved("/etc/kubernetes/audit.yaml") {
		t.Error("a pool's own file is reserved")
	}
}
