package lock

import (
	"bytes"
	"errors"
	"os"
	"strings"
	"testing"
)

func sum(digit string) string { return strings.Repeat(digit, 64) }

func small() Lock {
	return Lock{
		Time:   1795054374,
		Go:     "go1.26.8",
		Suites: []Suite{{Archive: "debian", Name: "trixie", InRelease: sum("a"), Date: 1795054374}},
		Kubernetes: Kubernetes{
			Sums:    []GoSum{{Dir: "tools/kubernetes", SHA256: sum("b")}},
			Modules: []Module{{Path: "k8s.io/kubernetes", Version: "v1.36.3", Sum: "h1:qDQdoMiluAE2Eab6Fa52YV+WjiGz9mZFFoagEA6cI+o="}},
		},
		Packages: []Package{
			{Set: Tools, Name: "tar", Version: "1.35+dfsg-3.1", Arch: "amd64", SHA256: sum("2"), Size: 814968, Path: "debian/pool/main/t/tar/tar_1.35+dfsg-3.1_amd64.deb"},
			{Set: Root, Name: "tar", Version: "1.35+dfsg-3.1", Arch: "amd64", SHA256: sum("2"), Size: 814968, Path: "debian/pool/main/t/tar/tar_1.35+dfsg-3.1_amd64.deb"},
			{Set: Root, Name: "passwd", Version: "1:4.17.4-2", Arch: "amd64", SHA256: sum("1"), Size: 9, Path: "debian/pool/main/s/shadow/passwd_4.17.4-2_amd64.deb"},
		},
	}
}

func encode(t *testing.T, l Lock) []byte {
	t.Helper()
	file, err := Encode(l)
	if err != nil {
		t.Fatal(err)
	}
	return file
}

func TestEncodeIsCanonicalAndParseItsInverse(t *testing.T) {
	file := encode(t, small())
	l, err := Parse(file)
	if err != nil {
		t.Fatal(err)
	}
	if l.Packages[0].Name != "passwd" || l.Packages[2].Set != Tools {
		t.Errorf("order: %v", l.Packages)
	}
	if again := encode(t, l); !bytes.Equal(file, again) {
		t.Errorf("encoded again:\n%s\nwas:\n%s", again, file)
	}
}

func TestEveryFlippedBitIsRefused(t *testing.T) {
	file := encode(t, small())
	for i := range file {
		bad := bytes.Clone(file)
		bad[i] ^= 1
		if _, err := Parse(bad); err == nil {
			t.Fatalf("byte %d: %q became %q and was accepted", i, file[i], bad[i])
		}
	}
	for n := range file {
		if _, err := Parse(file[:n]); err == nil {
			t.Fatalf("cut off after %d of %d bytes and accepted", n, len(file))
		}
	}
}

// A writer that keeps the last line right can still not say what a lock must not say.
func TestParseRefusesContentThatCouldMislead(t *testing.T) {
	for name, change := range map[string]func(*Lock){
		"path outside":         func(l *Lock) { l.Packages[0].Path = "debian/../../etc/tar_1.35+dfsg-3.1_amd64.deb" },
		"path of another":      func(l *Lock) { l.Packages[0].Path = "debian/pool/main/t/tar/tar_1.36_amd64.deb" },
		"absolute path":        func(l *Lock) { l.Packages[0].Path = "/" + l.Packages[0].Path },
		"line end in version":  func(l *Lock) { l.Packages[0].Version = "1\n" },
		"upper-case hash":      func(l *Lock) { l.Packages[0].SHA256 = sum("A") },
		"no size":              func(l *Lock) { l.Packages[0].Size = 0 },
		"foreign arch":         func(l *Lock) { l.Packages[0].Arch = "arm64" },
		"twice":                func(l *Lock) { l.Packages = append(l.Packages, l.Packages[0]) },
		"two contents":         func(l *Lock) { l.Packages[0].SHA256 = sum("3") },
		"index later than all": func(l *Lock) { l.Suites[0].Date = l.Time + 1 },
		"index without a date": func(l *Lock) { l.Suites[0].Date = 0 },
		"no time":              func(l *Lock) { l.Time = 0 },
		"module hash":          func(l *Lock) { l.Kubernetes.Modules[0].Sum = "h1:short" },
		"too many": func(l *Lock) {
			for range MaxPackages {
				l.Packages = append(l.Packages, l.Packages[0])
			}
		},
	} {
		l := small()
		change(&l)
		if _, err := Encode(l); err == nil {
			t.Errorf("%s: written", name)
		}
		body := l.body()
		if _, err := Parse(append(body, closing(body)...)); err == nil {
			t.Errorf("%s: read", name)
		}
	}
}

func TestParseRefusesUnknownLinesAndOtherOrder(t *testing.T) {
	body := string(small().body())
	lines := strings.SplitAfter(body, "\n")
	for name, bad := range map[string]string{
		"unknown line":    body + "note hello\n",
		"other order":     strings.Join(append(append(append([]string{}, lines[:5]...), lines[6], lines[5]), lines[7:]...), ""),
		"two spaces":      strings.Replace(body, "time ", "time  ", 1),
		"leading zero":    strings.Replace(body, " 814968 ", " 0814968 ", 1),
		"another version": strings.Replace(body, "hullmark-lock 3", "hullmark-lock 2", 1),
	} {
		if bad == body {
			t.Fatalf("%s: test changed nothing", name)
		}
		if _, err := Parse(append([]byte(bad), closing([]byte(bad))...)); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestCompareTellsWhatMoved(t *testing.T) {
	to := small()
	to.Packages[2].Version, to.Packages[2].SHA256 = "1:4.18-1", sum("9")
	to.Packages = append(to.Packages[1:], Package{Set: Root, Name: "zstd", Version: "1.5", Arch: "amd64"})
	var said []string
	for _, m := range Compare(small(), to) {
		said = append(said, m.String())
	}
	want := []string{"root: passwd 1:4.17.4-2 became 1:4.18-1", "root: zstd 1.5 amd64 came", "tools: tar 1.35+dfsg-3.1 amd64 went"}
	for _, w := range want {
		if !strings.Contains(strings.Join(said, "\n"), w) {
			t.Errorf("%q is not in %q", w, said)
		}
	}
	if len(said) != len(want) || len(Compare(small(), small())) != 0 {
		t.Errorf("moves: %q", said)
	}
}

func TestCheckInstalledNamesEveryDifference(t *testing.T) {
	want := small().Of(Root)
	status := `Package: tar
Status: install ok installed
Architecture: amd64
Version: 1.36-1

Package: vim
Status: install ok installed
Architecture: amd64
Version: 9
`
	have, err := ParseStatus(strings.NewReader(status))
	if err != nil {
		t.Fatal(err)
	}
	err = CheckInstalled(want, have)
	var moved *MovedError
	if !errors.As(err, &moved) {
		t.Fatalf("got %v", err)
	}
	for _, w := range []string{"package tar moved: locked version 1.35+dfsg-3.1", "found version 1.36-1 amd64", "passwd", "not installed", "vim 9 is installed, but not locked"} {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("%q is not in %v", w, err)
		}
	}
	exact := []Installed{{"tar", "1.35+dfsg-3.1", "amd64"}, {"passwd", "1:4.17.4-2", "amd64"}}
	if err := CheckInstalled(want, exact); err != nil {
		t.Errorf("exact set: %v", err)
	}
}

func TestParseStatusRefusesHalfInstalled(t *testing.T) {
	_, err := ParseStatus(strings.NewReader("Package: tar\nStatus: install ok unpacked\nVersion: 1\n"))
	if err == nil || !strings.Contains(err.Error(), "tar") {
		t.Errorf("got %v", err)
	}
}

// trackedLock reads the repository's own lock.
func trackedLock(t *testing.T) Lock {
	t.Helper()
	file, err := os.ReadFile("../../hullmark.lock")
	if err != nil {
		t.Fatal(err)
	}
	l, err := Parse(file)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func TestTheTrackedLockIsValid(t *testing.T) {
	l := trackedLock(t)
	if len(l.Of(Root)) == 0 || len(l.Of(Tools)) == 0 || len(l.Kubernetes.Modules) == 0 {
		t.Error("a set is empty")
	}
}

// A profile's image holds what all hold, without what the profile drops and with what it adds; others have none of that.
func TestFor(t *testing.T) {
	l := small()
	plain := l.For().Of(Root)
	kernel := Package{Set: Root, Name: "linux-image-amd64", Version: "6.12-1", Arch: "amd64", SHA256: sum("5"), Size: 7, Path: "debian/pool/main/l/linux/linux-image-amd64_6.12-1_amd64.deb"}
	l.Packages = append(l.Packages, Differences("baremetal", plain, []Package{plain[1], kernel})...)
	l.Packages = append(l.Packages, Differences("other", plain, append(plain, kernel))...)
	l, err := Parse(encode(t, l))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		profiles []string
		want     string
	}{
		{nil, "passwd tar"},
		{[]string{"debug"}, "passwd tar"},
		{[]string{"baremetal"}, "linux-image-amd64 tar"},
		{[]string{"other"}, "linux-image-amd64 passwd tar"},
		{[]string{"baremetal", "other"}, "linux-image-amd64 tar"},
	} {
		got := l.For(c.profiles...)
		var names []string
		for _, p := range got.Of(Root) {
			names = append(names, p.Name)
		}
		if strings.Join(names, " ") != c.want || len(got.Packages) != len(names)+len(l.Of(Tools)) {
			t.Errorf("%v: %v of %d packages, want %s", c.profiles, names, len(got.Packages), c.want)
		}
	}
}

func FuzzParse(f *testing.F) {
	file, err := Encode(small())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(file)
	f.Add([]byte(header + "\ntime 1\n"))
	f.Add(small().body())
	f.Fuzz(func(t *testing.T, file []byte) {
		if !bytes.HasPrefix(file, []byte("end ")) && bytes.HasSuffix(file, []byte("\n")) {
			file = append(file, closing(file)...) // else nothing gets past the last line
		}
		l, err := Parse(file)
		if err != nil {
			return
		}
		again, err := Encode(l)
		if err != nil || !bytes.Equal(again, file) {
			t.Fatalf("accepted, but encodes to %q, %v", again, err)
		}
	})
}
