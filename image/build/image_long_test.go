//go:build long

package build

import (
	"archive/tar"
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/hullmark/hullmark/image/lock"
)

// unwanted are files that would let someone in, measure behind Hullmark's back, or take orders from the machine.
var unwanted = regexp.MustCompile(`systemd-pcr|systemd-tpm2|getty|sulogin|systemd-sysext|systemd-confext|debug-shell|emergency|rescue|logind|sshd|systemd/system-generators/.|/boot/.`)

// shells are programs that take commands of whoever reaches them, and those that let somebody in.
var shells = regexp.MustCompile(`^usr/s?bin/(sh|r?bash|dash|busybox|perl.*|python.*|[mgn]?awk|agetty|getty|login|su|sudo|run0|runuser|sulogin|sshd)$`)

func TestRootTreeHoldsNothingUnwanted(t *testing.T) {
	o, l, tools := settled(t)
	folder, _, err := Tree(t.Context(), o, l, tools)
	if err != nil {
		t.Fatal(err)
	}
	m := members{}
	if err := m.addTree(folder); err != nil {
		t.Fatal(err)
	}
	for name, f := range m {
		if unwanted.MatchString("/"+name) && strings.HasPrefix(name, "usr/lib/systemd/") || strings.HasPrefix(name, "etc/systemd/system/") && unwanted.MatchString(name) {
			t.Errorf("%s is in the image", name)
		}
		if shells.MatchString(name) {
			t.Errorf("%s is in the image", name)
		}
		if f.header.Typeflag == tar.TypeReg && f.header.Mode&0o111 != 0 && !strings.HasPrefix(name, "var/lib/dpkg/") {
			if text, err := m.read(name); err != nil || bytes.HasPrefix(text, []byte("#!")) {
				t.Errorf("%s wants an interpreter, and there is none: %.40q, %v", name, text, err)
			}
		}
		if f.header.Uid > 65534 || f.header.Gid > 65534 {
			t.Errorf("%s belongs to %d:%d, an owner of the machine that built it", name, f.header.Uid, f.header.Gid)
		}
	}
	shadow, err := m.read("etc/shadow")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(shadow)) {
		if f := strings.Split(line, ":"); f[1] != "*" && !strings.HasPrefix(f[1], "!") {
			t.Errorf("%s has a password", f[0])
		}
	}
	if id, err := m.read("etc/machine-id"); err != nil || len(id) != 0 {
		t.Errorf("machine-id is %q, %v; want it empty", id, err)
	}
}

func TestSettleMovesOnlyWhatIsGone(t *testing.T) {
	o, l, _ := settled(t)
	bad := lock.Lock{Time: l.Time, Go: l.Go, Suites: l.Suites, Kubernetes: l.Kubernetes}
	for _, p := range l.Packages {
		if p.Name == "ethtool" { // as if the archive had a newer one, and the locked one nowhere
			p.Version, p.SHA256 = "1:0.1-1", strings.Repeat("0", 64)
			p.Path = "debian/pool/main/e/ethtool/ethtool_0.1-1_amd64.deb"
		}
		bad.Packages = append(bad.Packages, p)
	}
	o.LockFile = filepath.Join(t.TempDir(), "bad.lock")
	if err := WriteLock(o.LockFile, bad); err != nil {
		t.Fatal(err)
	}
	if _, err := Build(t.Context(), o); len(movedPackages(err)) == 0 || !strings.Contains(err.Error(), "package ethtool moved: locked version 1:0.1-1") {
		t.Fatalf("strict build: %v", err)
	}
	bad.Go = "go1.26.9999"
	if err := WriteLock(o.LockFile, bad); err != nil {
		t.Fatal(err)
	}
	before, err := os.ReadFile(o.LockFile)
	if err != nil {
		t.Fatal(err)
	}
	anew, err := Settle(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	got, err := ReadLock(anew)
	if err != nil {
		t.Fatal(err)
	}
	if machine, err := machineGo(t.Context(), o.Source); err != nil || got.Go != machine {
		t.Errorf("in place of a release of Go that is none, got %s, want the machine's %s (%v)", got.Go, machine, err)
	}
	if moves := lock.Compare(bad, got); len(moves) != 1 || moves[0].To.Name != "ethtool" {
		t.Errorf("moved: %v", moves)
	}
	if after, err := os.ReadFile(o.LockFile); err != nil || string(after) != string(before) {
		t.Error("the lock that was given has changed")
	}
}
