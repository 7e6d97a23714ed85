package build

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hullmark/hullmark/image/lock"
	"github.com/hullmark/hullmark/internal/cache"
)

func TestReadsAreThoseOfTheTree(t *testing.T) {
	const traced = `7  execve("/usr/bin/dpkg.debian", ["/usr/bin/dpkg.debian", "--root=/buildroot", ...], 0x7ffd /* 21 vars */) = 0
7  openat(AT_FDCWD</>, "/etc/ld.so.cache", O_RDONLY|O_CLOEXEC) = 3</etc/ld.so.cache>
7  openat(AT_FDCWD</buildroot>, "/buildroot/usr/bin/new", O_WRONLY|O_CREAT|O_EXCL, 000) = 4</buildroot/usr/bin/new.dpkg-new>
7  rename("/buildroot/usr/bin/new.dpkg-new", "/buildroot/usr/bin/new") = 0
7  openat(AT_FDCWD</buildroot>, "/buildroot/var/lib/dpkg/status", O_RDONLY) = 4</buildroot/var/lib/dpkg/status>
8  execve("/sbin/ldconfig", ["ldconfig"], 0x7ffd /* 9 vars */) = 0
9  openat(AT_FDCWD</buildroot>, "/usr/lib/libboth.so.1", O_RDONLY) = 3</buildroot/usr/lib/libboth.so.1.0>
8  openat(AT_FDCWD</buildroot>, "/usr/lib/libboth.so.1", O_RDONLY|O_NOFOLLOW) = 3</buildroot/usr/lib/libboth.so.1.0>
8  openat(AT_FDCWD</buildroot>, "/usr/lib/liblinked.so.1", O_RDONLY|O_NOFOLLOW) = 3</buildroot/usr/lib/liblinked.so.1.0>
8  +++ exited with 0 +++
8  openat(AT_FDCWD</buildroot>, "usr/share/again", O_RDWR) = 3</buildroot/usr/share/again>
9  openat2(AT_FDCWD</buildroot>, "x", {flags=O_RDONLY}, 24) = 5</buildroot/usr/share/F\305\221tan>
9  open("/usr/share/emptied", O_RDWR|O_TRUNC) = 5</buildroot/usr/share/emptied>
9  open("/usr/share/gone", O_RDONLY) = 5</buildroot/usr/share/gone>(deleted)
9  execve("./helper", ["./helper"], 0x7ffd /* 9 vars */) = 0
9  symlinkat("/usr/sbin/linked-to", AT_FDCWD</buildroot>, "x") = 0
10 execve("/usr/bin/dpkg-query", ["dpkg-query", "-f", "${Version}", "-W", "asked-for"], 0x7ffd /* 9 vars */) = 0
10 execve("/usr/bin/dpkg", ["dpkg", "--print-architecture"], 0x7ffd /* 9 vars */) = 0
ran /usr/bin/dash
end
`
	got, err := parseReads(strings.NewReader(traced))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		what string
		got  map[string]bool
		want []string
	}{
		{"read", got.Read, []string{"usr/bin/dash", "usr/lib/libboth.so.1.0", "usr/share/Főtan", "usr/share/again", "usr/share/gone", "var/lib/dpkg/status"}},
		{"linked", got.Linked, []string{"usr/lib/libboth.so.1.0", "usr/lib/liblinked.so.1.0"}},
		{"named", got.Bases, []string{"dash", "dpkg", "dpkg-query", "dpkg.debian", "helper", "ldconfig", "linked-to", "x"}},
		{"asked for", got.Asked, []string{"${Version}", "-W", "-f", "asked-for", "dpkg-query"}},
	} {
		var names []string
		for name := range c.got {
			names = append(names, name)
		}
		if slices.Sort(names); !slices.Equal(names, c.want) {
			t.Errorf("%s: %q, want %q", c.what, names, c.want)
		}
	}
	for _, lines := range []string{
		"", "ran /usr/bin/dash\n", "untraced\nend\n", "strace: ptrace: nobody may\nend\n", `9  open("x", O_RDONLY) = 5</buildroot/\x>` + "\nend\n", `9  open("x", O_RDONLY) = 5` + "\nend\n",
		"9  <... openat resumed>) = 5</buildroot/x>\nend\n", "9  execve(\"/bin/x\nend\n",
		"9  open(\"/O_TRUNC) = x\", O_RDONLY) = 5</buildroot/O_TRUNC) = x>\nend\n",
	} {
		if _, err := parseReads(strings.NewReader(lines)); err == nil {
			t.Errorf("%q was read", lines)
		}
	}
	for list, program := range map[string]string{"var/lib/dpkg/status": "grep", "var/lib/dpkg/info/some.list": "cat"} {
		lines := "9  execve(\"/bin/" + program + "\", [\"" + program + "\"], 0x7 /* 1 vars */) = 0\n9  open(\"x\", O_RDONLY) = 5</buildroot/" + list + ">\nend\n"
		if got, err := parseReads(strings.NewReader(lines)); err != nil || !got.Asked["*"] {
			t.Errorf("%s reads %s, which tells of any package: %v, %v", program, list, got, err)
		}
	}
}

// writePackage keeps a package of some files in a store; those of DEBIAN/ are for dpkg.
func writePackage(t *testing.T, s cache.Store, name, version string, files map[string]string) lock.Package {
	t.Helper()
	dir := t.TempDir()
	control := "Package: " + name + "\nVersion: " + version + "\nArchitecture: amd64\nMaintainer: nobody\nDescription: a test\n"
	all := map[string]string{"DEBIAN/control": control}
	for file, content := range files {
		if file == "DEBIAN/control" {
			content = control + content
		}
		all[file] = content
	}
	for file, content := range all {
		at := filepath.Join(dir, "files", file)
		mode := os.FileMode(0o644)
		if strings.HasPrefix(content, "#!") {
			mode = 0o755
		}
		if err := errors.Join(os.MkdirAll(filepath.Dir(at), 0o755), os.WriteFile(at, []byte(content), mode)); err != nil {
			t.Fatal(err)
		}
	}
	deb := filepath.Join(dir, "new.deb")
	if out, err := exec.CommandContext(t.Context(), "dpkg-deb", "--build", "--root-owner-group", "-Znone", filepath.Join(dir, "files"), deb).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	content, err := os.ReadFile(deb)
	if err != nil {
		t.Fatal(err)
	}
	p := lock.Package{Set: lock.Root, Name: name, Version: version, Arch: "amd64", Size: int64(len(content))}
	if p.SHA256, err = cache.HashFile(deb); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.MkdirAll(filepath.Dir(s.BlobPath(p.SHA256)), 0o755), os.WriteFile(s.BlobPath(p.SHA256), content, 0o644)); err != nil {
		t.Fatal(err)
	}
	return p
}

// TestInertPackages changes a package in ways that a script could see, and in one that none can.
func TestInertPackages(t *testing.T) {
	s := cache.Store{Root: t.TempDir()}
	files := map[string]string{
		"usr/bin/seen": "1", "usr/bin/unseen": "1", "usr/lib/udev/rules.d/60-some.rules": "1", "etc/some.conf": "1", "usr/share/doc/some/changelog": "1",
		"usr/share/doc/some/copyright": "1", "usr/libexec/named": "1", "DEBIAN/postinst": "#!/bin/sh\n", "DEBIAN/control": "Depends: libc6 (>= 2.41), other (= 1.0)\n",
	}
	with := func(name, content string) map[string]string {
		out := map[string]string{}
		for file, was := range files {
			out[file] = was
		}
		out[name] = content
		return out
	}
	without := func(name string) map[string]string {
		out := with(name, "")
		delete(out, name)
		return out
	}
	was := writePackage(t, s, "some", "1.0", files)
	m := made{Packages: []lock.Package{was}, Read: []string{"usr/bin/seen"}, Linked: []string{"usr/bin/unseen"}, Bases: []string{"named"}, Asked: []string{"other"}}
	for _, c := range []struct {
		what  string
		files map[string]string
		inert bool
	}{
		{"another version alone", files, true},
		{"a copyright, which the tree has", with("usr/share/doc/some/copyright", "2"), true},
		{"documentation, which it has not", with("usr/share/doc/some/changelog", "2"), true},
		{"more documentation", with("usr/share/doc/some/NEWS", "2"), true},
		{"checksums", with("DEBIAN/md5sums", "2\n"), true},
		{"a folder of documentation", with("usr/share/doc/some/examples/one", "2"), false},
		{"a file of a name that somebody ran", with("usr/libexec/named", "2"), false},
		{"a file that somebody opened", with("usr/bin/seen", "2"), false},
		{"a file that ldconfig opened, and that is no library", with("usr/bin/unseen", "2"), false},
		{"a file that mkosi's last steps read", with("usr/lib/udev/rules.d/60-some.rules", "2"), false},
		{"a setting", with("etc/some.conf", "2"), false},
		{"a script", with("DEBIAN/postinst", "#!/bin/sh\ntrue\n"), false},
		{"a trigger", with("DEBIAN/triggers", "activate-noawait ldconfig\n"), false},
		{"another mode", with("usr/bin/unseen", "#!1"), false},
		{"one file more", with("usr/bin/more", "2"), false},
		{"one file less", without("usr/bin/unseen"), false},
	} {
		is := writePackage(t, s, "some", "1.1", c.files)
		_, _, err := m.inert(t.Context(), s, packagePair{was, is})
		if (err == nil) != c.inert || err != nil && !errors.Is(err, errOther) {
			t.Errorf("%s: %v", c.what, err)
		}
	}
	for _, word := range []string{"some", "so*"} {
		asked := m
		asked.Asked = []string{word}
		if _, _, err := asked.inert(t.Context(), s, packagePair{was, writePackage(t, s, "some", "1.1", files)}); !errors.Is(err, errOther) {
			t.Errorf("a script asked dpkg for %q: %v", word, err)
		}
	}
	lies := writePackage(t, s, "some", "1.1", files)
	lies.Version = "1.2"
	if _, _, err := m.inert(t.Context(), s, packagePair{was, lies}); err == nil {
		t.Error("a package that calls itself another version than the lock does was taken")
	}
}

// TestRelationsDecide lets versions move with which packages still go together, and no longer do.
func TestRelationsDecide(t *testing.T) {
	versions := map[string]string{"some": "1.0", "other": "1.0"}
	moved := map[string]string{"some": "1.1", "other": "1.1"}
	for _, c := range []struct {
		was, is string
		after   map[string]string
		same    bool
	}{
		{"Depends: other (= 1.0)", "Depends: other (= 1.1)", moved, true},
		{"Depends: other (= 1.0)", "Depends: other (= 1.0)", moved, false},
		{"Depends: other (= 1.0)", "Depends: other (= 1.1)", versions, false},
		{"Depends: other (>= 0.9~), away", "Depends: other (>= 1.0), away", moved, true},
		{"Depends: other | away", "Depends: other, away", moved, false},
		{"Depends: other", "Depends: other [amd64]", moved, false},
		{"Depends: other", "Pre-Depends: other", moved, false},
		{"Breaks: other (<< 1.0)", "Breaks: other (<< 1.2)", moved, false},
		{"Provides: a (= 1)", "Provides: a (= 2)", moved, false},
		{"Depends: provided (>= 1)", "Depends: provided (>= 2)", moved, false},
		{"Multi-Arch: same", "Multi-Arch: no", moved, false},
		{"Description: one\n two", "Description: one\n three", moved, true},
	} {
		was, is := map[string]fields{"some": parseFields(c.was)}, map[string]fields{"some": parseFields(c.is)}
		if err := sameRelations(context.Background(), was, is, versions, c.after); (err == nil) != c.same {
			t.Errorf("%q, then %q: %v", c.was, c.is, err)
		}
	}
}

// TestLinksOfLibraries holds the machine's own C library against changed ones.
func TestLinksOfLibraries(t *testing.T) {
	found, err := filepath.Glob("/lib/x86_64-linux-gnu/libc.so.6")
	if err != nil || len(found) == 0 {
		t.Fatalf("no C library: %v (apt install libc6)", err)
	}
	was, err := os.ReadFile(found[0])
	if err != nil {
		t.Fatal(err)
	}
	if !linkedAlike(was, append(slices.Clone(was), "more"...)) {
		t.Error("bytes behind a library make it another one")
	}
	for what, change := range map[string]func(b []byte) []byte{
		"another name": func(b []byte) []byte { return []byte(strings.ReplaceAll(string(b), "libc.so.6\x00", "libc.so.7\x00")) },
		"other flags":  func(b []byte) []byte { b[48] ^= 1; return b },
		"another kind": func(b []byte) []byte { b[16] ^= 1; return b },
		"no library":   func([]byte) []byte { return []byte("no") },
	} {
		if linkedAlike(was, change(slices.Clone(was))) {
			t.Errorf("%s is not seen", what)
		}
	}
}
