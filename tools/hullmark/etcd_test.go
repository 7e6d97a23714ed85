package main

import (
	"io"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/cluster"
	"github.com/hullmark/hullmark/cluster/backup"
	"github.com/hullmark/hullmark/joinservice"
	"github.com/hullmark/hullmark/kubeadm"
	"github.com/hullmark/hullmark/measurements"
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

func TestBackupHasToFit(t *testing.T) {
	framed := func(version, pods, services, domain string) frame {
		f, err := frameOf([]byte("---\nkind: InitConfiguration\n---\nkind: ClusterConfiguration\nkubernetesVersion: " + version +
			"\nnetworking: {podSubnet: " + pods + ", serviceSubnet: " + services + ", dnsDomain: " + domain + "}\n"))
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	then := framed("v1.36.1", "10.244.0.0/16", "10.96.0.0/12", "cluster.local")
	for name, c := range map[string]struct {
		now  frame
		want string
	}{
		"the same":           {then, ""},
		"by default":         {framed("", "10.244.0.0/16", "", ""), ""},
		"the next version":   {framed("v1.37.0", "10.244.0.0/16", "10.96.0.0/12", "cluster.local"), ""},
		"the one after":      {framed("v1.38.0", "10.244.0.0/16", "10.96.0.0/12", "cluster.local"), "want the same minor version or the next"},
		"an earlier version": {framed("v1.35.9", "10.244.0.0/16", "10.96.0.0/12", "cluster.local"), "want the same minor version or the next"},
		"no version":         {framed("stable", "10.244.0.0/16", "10.96.0.0/12", "cluster.local"), "version"},
		"other pods":         {framed("v1.36.1", "10.0.0.0/16", "10.96.0.0/12", "cluster.local"), "--pod-subnet"},
		"other services":     {framed("v1.36.1", "10.244.0.0/16", "10.112.0.0/12", "cluster.local"), "--service-subnet"},
		"another DNS domain": {framed("v1.36.1", "10.244.0.0/16", "10.96.0.0/12", "example.net"), "DNS domain"},
	} {
		err := c.now.continues(then)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := frameOf([]byte("kind: InitConfiguration\n")); err == nil {
		t.Error("documents without a ClusterConfiguration are taken")
	}
}

// Revisions rise from each restoration to every later one, of whichever backup.
func TestRevisionsRise(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	first := int64(4000)
	second := first + int64(bump(first, now)) + 70_000 // a backup of the restored cluster
	late := now.Add(time.Minute)
	if begun, again := second+int64(bump(second, late)), first+int64(bump(first, late.Add(time.Minute))); begun <= second || again <= begun {
		t.Errorf("revision %d, then %d, then %d", second, begun, again)
	}
	if ahead := int64(1) << 60; bump(ahead, now) == 0 {
		t.Error("revisions stay where they were")
	}
}

// A cluster that begins anew keeps its endpoint, or moves it by its policy: nodes that come back are told that.
func TestBackupKeepsTheEndpoint(t *testing.T) {
	s := newSite(t)
	if err := s.update(t, func(c *cluster.Cluster) error {
		c.Settings = &joinservice.Settings{ControlPlaneEndpoint: "192.0.2.7:6443", Networks: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12"), netip.MustParsePrefix("10.244.0.0/16")}, Names: []string{"api.example.net"}}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	s.write(t, "own.yaml", []byte("kind: ClusterConfiguration\ncontrolPlaneEndpoint: 192.0.2.7:6443\n"))
	for name, c := range map[string]struct{ given, own, want string }{
		"none given":               {"", "", "192.0.2.7:6443"},
		"the same":                 {"192.0.2.7:6443", "", "192.0.2.7:6443"},
		"another":                  {"192.0.2.9:6443", "", "192.0.2.9:6443"},
		"own documents":            {"", "own.yaml", "192.0.2.7:6443"},
		"own documents of another": {"192.0.2.9:6443", "own.yaml", ""},
	} {
		file, err := cluster.Open(s.path("cluster"), hullmark.NewSecret([]byte("correct horse")))
		if err != nil {
			t.Fatal(err)
		}
		r := initRun{release: release{file: file, notes: io.Discard}, options: initOptions{etcdBackup: "b", documents: documentOptions{controlPlane: c.given}}}
		if c.own != "" {
			r.options.documents.kubeadm = s.path(c.own)
		}
		if err := r.keepSettings(); (err == nil) != (c.want != "") {
			t.Errorf("%s: %v", name, err)
		}
		if c.want == "" {
			continue
		}
		policy := r.moveEndpoint(measurements.Policy{})
		moved := policy.Endpoint != nil && policy.Endpoint.Address == c.want && slices.Equal(policy.Endpoint.Names, []string{"api.example.net"})
		if d := r.options.documents; d.controlPlane != c.want || !slices.Equal(d.names, []string{"api.example.net"}) || moved != (c.want == "192.0.2.9:6443") {
			t.Errorf("%s: %q with %q, policy %+v", name, d.controlPlane, d.names, policy.Endpoint)
		}
	}
}

// A cluster that begins anew keeps its profile, unless another is named.
func TestBackupKeepsTheProfile(t *testing.T) {
	s := newSite(t)
	for _, c := range []struct{ was, given, want kubeadm.Profile }{
		{kubeadm.Slow, "", kubeadm.Slow}, {kubeadm.Normal, "", kubeadm.Normal}, {kubeadm.Normal, kubeadm.Slow, kubeadm.Slow},
	} {
		if err := s.update(t, func(cl *cluster.Cluster) error {
			cl.Settings = &joinservice.Settings{ControlPlaneEndpoint: "192.0.2.7:6443", Networks: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12"), netip.MustParsePrefix("10.244.0.0/16")}, Profile: c.was}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		file, err := cluster.Open(s.path("cluster"), hullmark.NewSecret([]byte("correct horse")))
		if err != nil {
			t.Fatal(err)
		}
		r := initRun{release: release{file: file, notes: io.Discard}, options: initOptions{etcdBackup: "b", documents: documentOptions{profile: string(c.given)}}}
		if err := r.keepSettings(); err != nil {
			t.Error(err)
		}
		if got := r.options.documents.example().Profile; got != c.want {
			t.Errorf("%q was in force, %q is given: the profile is %q", c.was, c.given, got)
		}
	}
}

// A cluster with a pod network of its own is given no other, also by default.
func TestBackupKeepsTheNetwork(t *testing.T) {
	for _, c := range []struct {
		network string
		flannel bool
		ok      bool
	}{{"flannel", true, true}, {"flannel", false, false}, {"none", false, true}, {"none", true, true}} {
		d := documentOptions{network: c.network, podSubnet: "10.244.0.0/16", serviceSubnet: "10.96.0.0/12", controlPlane: "192.0.2.7:6443"}
		if err := d.check(); err != nil {
			t.Fatal(err)
		}
		documents, _, err := d.make(d.example())
		if err != nil {
			t.Fatal(err)
		}
		r := initRun{options: initOptions{name: "control-plane-1", documents: d}}
		if err := r.fits(backup.Content{Configuration: documents, Flannel: c.flannel}); (err == nil) != c.ok || err != nil && !strings.Contains(err.Error(), "--network none") {
			t.Errorf("%s, and flannel was there: %v: %v", c.network, c.flannel, err)
		}
	}
	s := newSite(t)
	s.encrypted(t, "short", "correct horse", []byte("etcd"))
	code, output := s.init(t, "--network", "none", "--etcd-backup", s.path("short"))
	wantExit(t, code, exitFailed, output, "cut off") // and no manifests are asked for
}

// Of a disk that holds a node that was Ready, a backup makes nothing.
func TestBackupIsNotForADiskThatWasReady(t *testing.T) {
	r := initRun{restoration: &restoration{}}
	if err := r.announce(nil, joinservice.Opened{Joined: true}); err == nil || !strings.Contains(err.Error(), "disk-not-blank") {
		t.Errorf("error %v", err)
	}
}
