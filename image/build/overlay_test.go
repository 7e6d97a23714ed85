package build

import (
	"archive/tar"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/hullmark/hullmark/image/lock"
)

// put writes files below dir, by their names.
func put(t testing.TB, dir string, files map[string]string) {
	t.Helper()
	for name, content := range files {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func TestVerbatim(t *testing.T) {
	for _, c := range []struct {
		what  string
		files map[string]string
		want  []string
	}{
		{"ours, with its own script", map[string]string{"mkosi/mkosi.extra/etc/a.toml": "1", "mkosi/mkosi.finalize": ""}, []string{"etc/a.toml"}},
		{"what mkosi's last steps read", map[string]string{
			"mkosi/mkosi.extra/usr/lib/systemd/system/a.service": "", "mkosi/mkosi.extra/etc/passwd": "", "mkosi/mkosi.extra/usr/lib/modules-load.d/a.conf": "", "mkosi/mkosi.extra/opt/a": "",
		}, []string{"opt/a"}},
		{"the user's, and a profile's", map[string]string{"config/mkosi.extra/opt/b": "", "mkosi/mkosi.profiles/azure/mkosi.extra/opt/c": "", "mkosi/mkosi.profiles/aws/mkosi.extra/opt/d": ""}, []string{"opt/b", "opt/c"}},
		{"two of one name", map[string]string{"config/mkosi.extra/opt/b": "", "mkosi/mkosi.extra/opt/b": "", "mkosi/mkosi.extra/opt/c": ""}, []string{"opt/c"}},
		{"a user's script", map[string]string{"config/mkosi.postinst.chroot": "", "mkosi/mkosi.extra/opt/b": ""}, nil},
		{"a user's folder of scripts", map[string]string{"config/mkosi.finalize.d/1.sh": "", "mkosi/mkosi.extra/opt/b": ""}, nil},
		{"a script behind spaces", map[string]string{"config/mkosi.conf": "[Content]\n FinalizeScripts = x\n", "mkosi/mkosi.extra/opt/b": ""}, nil},
		{"a script by its older name", map[string]string{"config/mkosi.conf": "[Content]\n@PostInstallationScript = x\n", "mkosi/mkosi.extra/opt/b": ""}, nil},
		{"settings of one machine", map[string]string{"config/mkosi.local.conf": "[Content]\nFinalizeScripts=x\n", "mkosi/mkosi.extra/opt/b": ""}, nil},
		{"an archive over the files", map[string]string{"config/mkosi.extra.tar": "", "config/mkosi.extra/opt/b": ""}, nil},
		{"what systemd/ may have, too", map[string]string{"config/mkosi.extra/usr/lib/sysctl.d/50-hullmark.conf": "", "mkosi/mkosi.extra/opt/b": ""}, []string{"opt/b"}},
		{"definitions from elsewhere", map[string]string{"config/mkosi.conf": "[Include]\nInclude=/x\n", "mkosi/mkosi.extra/opt/b": ""}, nil},
		{"a profile that is a file", map[string]string{"config/mkosi.profiles/azure.conf": "[Content]\nFinalizeScripts=x\n", "mkosi/mkosi.extra/opt/b": ""}, nil},
		{"a folder of settings", map[string]string{"config/mkosi.conf.d/a/mkosi.conf": "", "mkosi/mkosi.extra/opt/b": ""}, nil},
		{"files that tmpfiles.d may copy", map[string]string{"config/mkosi.extra/usr/lib/tmpfiles.d/a.conf": "", "config/mkosi.extra/opt/a": ""}, nil},
		{"what is a link in the tree", map[string]string{"mkosi/mkosi.extra/lib/systemd/system/a.service": "", "mkosi/mkosi.extra/bin/b": "", "mkosi/mkosi.extra/opt/b": ""}, []string{"opt/b"}},
		{"a script that settings name", map[string]string{"config/mkosi.conf.d/a.conf": "[Content]\nPostInstallationScripts=x\n", "mkosi/mkosi.extra/opt/b": ""}, nil},
	} {
		dir := t.TempDir()
		put(t, dir, c.files)
		files, err := verbatim(Options{Source: dir, Config: filepath.Join(dir, "config"), Profiles: []string{"azure"}})
		if got := slices.Sorted(maps.Keys(files)); err != nil || !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, %v; want %v", c.what, got, err, c.want)
		}
	}
}

// What is copied verbatim may change under a tree's key; nothing else may, and the copy keeps its mode.
func TestVerbatimKey(t *testing.T) {
	dir := t.TempDir()
	put(t, dir, map[string]string{"mkosi/mkosi.extra/etc/a.toml": "1", "mkosi/mkosi.conf": "", "systemd/system/a.service": ""})
	o := Options{Source: dir}
	key := func() string {
		sum, err := treeKey(o, lock.Lock{}, mkosi{definitions: filepath.Join(dir, "mkosi")})
		if err != nil {
			t.Fatal(err)
		}
		return sum
	}
	before := key()
	put(t, dir, map[string]string{"mkosi/mkosi.extra/etc/a.toml": "22"})
	if key() != before {
		t.Error("another key for another content of a verbatim copy")
	}
	m := members{"etc/a.toml": {header: tar.Header{Typeflag: tar.TypeReg, Mode: 0o644, Size: 1}}}
	files, err := verbatim(o)
	if err == nil {
		err = m.update(files)
	}
	if text, readErr := m.read("etc/a.toml"); err != nil || readErr != nil || string(text) != "22" || m["etc/a.toml"].header.Size != 2 {
		t.Errorf("%q, %v, %v", text, err, readErr)
	}
	for what, change := range map[string]func(){
		"its mode":    func() { _ = os.Chmod(filepath.Join(dir, "mkosi/mkosi.extra/etc/a.toml"), 0o755) },
		"a new file":  func() { put(t, dir, map[string]string{"mkosi/mkosi.extra/etc/b": ""}) },
		"a unit":      func() { put(t, dir, map[string]string{"systemd/system/a.service": "1"}) },
		"the setting": func() { put(t, dir, map[string]string{"mkosi/mkosi.conf": "1"}) },
	} {
		old := key()
		if change(); key() == old {
			t.Errorf("%s changed, and the key did not", what)
		}
	}
}
