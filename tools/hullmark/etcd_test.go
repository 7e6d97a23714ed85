package main

import (
	"os"
	"strings"
	"testing"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/cluster"
)

func TestEtcdBackupRefuses(t *testing.T) {
	s := newSite(t)
	file := []string{"--cluster", s.path("cluster"), "--passphrase-file", s.path("passphrase")}
	backup := func(args ...string) (int, string) {
		return hullmarkCLI(t, append(append([]string{"etcd", "backup"}, args...), file...)...)
	}
	code, output := backup(s.path("cluster"), "--member", "127.0.0.1:1")
	wantExit(t, code, exitFailed, output, "exists already")
	code, output = backup(s.path("new"))
	wantExit(t, code, exitUsage, output, "--member")
	code, output = backup(s.path("new"), "--member", "127.0.0.1:port")
	wantExit(t, code, exitUsage, output, "--member")
	code, output = backup(s.path("new"), "--member", "127.0.0.1:1")
	wantExit(t, code, exitUnreachable, output, "127.0.0.1:1", "check the way to it")
	names, err := os.ReadDir(s.dir)
	for _, name := range names {
		if name.Name() == "new" || strings.Contains(name.Name(), "backup") {
			t.Errorf("%s is left", name.Name())
		}
	}
	if err != nil {
		t.Error(err)
	}
}

// encrypted writes content beside the cluster file, as a backup is.
func (s *site) encrypted(t *testing.T, name, passphrase string, content []byte) {
	t.Helper()
	file, err := cluster.Open(s.path("cluster"), hullmark.NewSecret([]byte("correct horse")))
	if err != nil {
		t.Fatal(err)
	}
	if passphrase != "correct horse" {
		if file, err = cluster.Create(s.path(name+".cluster"), hullmark.NewSecret([]byte(passphrase)), s.cluster, 4); err != nil {
			t.Fatal(err)
		}
	}
	f, err := os.Create(s.path(name))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	w, err := file.Encrypt(f)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(content); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
}

// A backup that is none is refused before the node is dialled.
func TestInitRefusesABackup(t *testing.T) {
	s := newSite(t)
	s.encrypted(t, "short", "correct horse", []byte("etcd"))
	s.encrypted(t, "other", "another horse", []byte("etcd"))
	s.write(t, "plain", []byte("etcd"))
	whole, err := os.ReadFile(s.path("short"))
	if err != nil {
		t.Fatal(err)
	}
	s.write(t, "torn", whole[:len(whole)-1])
	whole[len(whole)-1] ^= 1
	s.write(t, "damaged", whole)
	unopened := []string{"no backup under the cluster file's passphrase, or it is damaged", "use a whole backup"}
	for name, want := range map[string][]string{
		"short": {"cut off"}, "missing": {"no such file"},
		"other": append(unopened, cluster.ErrPassphrase.Error()), "plain": unopened, "torn": unopened, "damaged": unopened,
	} {
		code, output := s.init(t, "--etcd-backup", s.path(name))
		wantExit(t, code, exitFailed, output, append(want, "--etcd-backup "+s.path(name))...)
		if strings.Contains(output, "dialling") || s.open(t).First != nil {
			t.Errorf("%s: the node was dialled, or got a ticket:\n%s", name, output)
		}
	}
}

// A cluster that begins anew has the pod network of its backup.
func TestBackupNeedsNoManifest(t *testing.T) {
	s := newSite(t)
	s.encrypted(t, "short", "correct horse", []byte("etcd"))
	code, output := s.init(t, "--network", "none", "--etcd-backup", s.path("short"))
	wantExit(t, code, exitFailed, output, "cut off") // and no manifests are asked for
}
