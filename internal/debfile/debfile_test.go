package debfile

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func example() Package {
	return Package{
		Control: []Field{
			{"Package", "example"},
			{"Version", "1.2.3"},
			{"Architecture", "all"},
			{"Maintainer", "nobody <nobody@example.org>"},
			{"Recommends", "git, tar"},
			{"Description", "an example\n It has two lines.\n .\n And a paragraph."},
		},
		Files: []File{
			{"/usr/share/doc/example/copyright", 0o644, []byte("none\n")},
			{"/usr/bin/example", 0o755, bytes.Repeat([]byte("program "), 1000)},
			{"/usr/bin/another", 0o755, []byte("odd")},
		},
		Time: time.Unix(1700000000, 0),
	}
}

// write writes a package into a file.
func write(t *testing.T, p Package) string {
	t.Helper()
	var b bytes.Buffer
	if err := p.Write(&b); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "example.deb")
	if err := os.WriteFile(file, b.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// dpkgDeb runs dpkg-deb and returns what it says, without a complaint.
func dpkgDeb(t *testing.T, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "dpkg-deb", args...)
	cmd.Env = append(os.Environ(), "TZ=UTC", "LC_ALL=C.UTF-8")
	var said, complaints bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &complaints
	if err := cmd.Run(); err != nil || complaints.Len() > 0 {
		t.Fatalf("dpkg-deb %q: %v (apt-get install dpkg)\n%s", args, err, complaints.Bytes())
	}
	return said.String()
}

// dpkg-deb reads everything back.
func TestDpkgDebReadsIt(t *testing.T) {
	file := write(t, example())
	control := dpkgDeb(t, "--field", file)
	for _, want := range []string{"Package: example\n", "Recommends: git, tar\n", "Description: an example\n It has two lines.\n .\n And a paragraph.\n", "Installed-Size: 16\n"} {
		if !strings.Contains(control, want) {
			t.Errorf("no %q in\n%s", want, control)
		}
	}
	var got []string
	for line := range strings.Lines(dpkgDeb(t, "--contents", file)) {
		got = append(got, strings.Join(strings.Fields(line), " "))
	}
	want := []string{
		"drwxr-xr-x root/root 0 2023-11-14 22:13 ./",
		"drwxr-xr-x root/root 0 2023-11-14 22:13 ./usr/",
		"drwxr-xr-x root/root 0 2023-11-14 22:13 ./usr/bin/",
		"-rwxr-xr-x root/root 3 2023-11-14 22:13 ./usr/bin/another",
		"-rwxr-xr-x root/root 8000 2023-11-14 22:13 ./usr/bin/example",
		"drwxr-xr-x root/root 0 2023-11-14 22:13 ./usr/share/",
		"drwxr-xr-x root/root 0 2023-11-14 22:13 ./usr/share/doc/",
		"drwxr-xr-x root/root 0 2023-11-14 22:13 ./usr/share/doc/example/",
		"-rw-r--r-- root/root 5 2023-11-14 22:13 ./usr/share/doc/example/copyright",
	}
	if !slices.Equal(got, want) {
		t.Errorf("it holds\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	to := t.TempDir()
	dpkgDeb(t, "--extract", file, to)
	if content, err := os.ReadFile(filepath.Join(to, "usr/bin/another")); err != nil || string(content) != "odd" {
		t.Errorf("a file is %q, %v", content, err)
	}
	dpkgDeb(t, "--control", file, filepath.Join(to, "DEBIAN"))
	check := exec.CommandContext(t.Context(), "md5sum", "--check", "--strict", "DEBIAN/md5sums")
	check.Dir = to
	if said, err := check.CombinedOutput(); err != nil || strings.Count(string(said), ": OK") != 3 {
		t.Errorf("%v\n%s", err, said)
	}
}

// The order of files does not matter, and the same package gives the same bytes.
func TestSameBytes(t *testing.T) {
	one, other := example(), example()
	slices.Reverse(other.Files)
	var a, b bytes.Buffer
	if err := errors.Join(one.Write(&a), other.Write(&b)); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(a.Bytes(), b.Bytes()) {
		t.Error("they differ")
	}
}

func TestRefuses(t *testing.T) {
	for want, change := range map[string]func(*Package){
		"no field Maintainer":       func(p *Package) { p.Control = slices.Delete(p.Control, 3, 4) },
		`field "Package"`:           func(p *Package) { p.Control = append(p.Control, Field{"Package", "again"}) },
		`field "Installed-Size"`:    func(p *Package) { p.Control = append(p.Control, Field{"Installed-Size", "1"}) },
		"field Suggests: line \"\"": func(p *Package) { p.Control = append(p.Control, Field{"Suggests", ""}) },
		"line \"Essential: yes\"":   func(p *Package) { p.Control = append(p.Control, Field{"Suggests", "tar\nEssential: yes"}) },
		`file "usr/bin/x"`:          func(p *Package) { p.Files = append(p.Files, File{Path: "usr/bin/x"}) },
		`file "/usr/../etc/x"`:      func(p *Package) { p.Files = append(p.Files, File{Path: "/usr/../etc/x"}) },
		`file "/usr/bin/another"`:   func(p *Package) { p.Files = append(p.Files, File{Path: "/usr/bin/another"}) },
		"/usr/bin is a file":        func(p *Package) { p.Files = append(p.Files, File{Path: "/usr/bin"}) },
		"only permissions":          func(p *Package) { p.Files[0].Mode |= os.ModeSetuid },
		"data: archive/tar":         func(p *Package) { p.Files[0].Path = "/" + strings.Repeat("x", 300) },
	} {
		p := example()
		change(&p)
		var b bytes.Buffer
		if err := p.Write(&b); err == nil || !strings.Contains(err.Error(), want) || b.Len() > 0 {
			t.Errorf("%v, and %d bytes; want %q", err, b.Len(), want)
		}
	}
}
