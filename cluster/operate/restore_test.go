package operate

import (
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hullmark/hullmark/cluster"
	"github.com/hullmark/hullmark/cluster/backup"
	"github.com/hullmark/hullmark/joinservice"
	"github.com/hullmark/hullmark/kubeadm"
	"github.com/hullmark/hullmark/measurements"
)

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
	file := &cluster.File{Cluster: &cluster.Cluster{Settings: &joinservice.Settings{ControlPlaneEndpoint: "192.0.2.7:6443", Networks: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12"), netip.MustParsePrefix("10.244.0.0/16")}, Names: []string{"api.example.net"}}}}
	own := []byte("kind: ClusterConfiguration\ncontrolPlaneEndpoint: 192.0.2.7:6443\n")
	for name, c := range map[string]struct {
		given string
		own   []byte
		want  string
	}{
		"none given":               {"", nil, "192.0.2.7:6443"},
		"the same":                 {"192.0.2.7:6443", nil, "192.0.2.7:6443"},
		"another":                  {"192.0.2.9:6443", nil, "192.0.2.9:6443"},
		"own documents":            {"", own, "192.0.2.7:6443"},
		"own documents of another": {"192.0.2.9:6443", own, ""},
	} {
		r := initRun{exchange: exchange{file: file}, options: InitOptions{Backup: os.Stdin, Kubernetes: Kubernetes{ControlPlane: c.given, Kubeadm: c.own}}}
		if err := r.keepSettings(); (err == nil) != (c.want != "") {
			t.Errorf("%s: %v", name, err)
		}
		if c.want == "" {
			continue
		}
		policy := r.moveEndpoint(measurements.Policy{})
		moved := policy.Endpoint != nil && policy.Endpoint.Address == c.want && slices.Equal(policy.Endpoint.Names, []string{"api.example.net"})
		if d := r.options.Kubernetes; d.ControlPlane != c.want || !slices.Equal(d.names, []string{"api.example.net"}) || moved != (c.want == "192.0.2.9:6443") {
			t.Errorf("%s: %q with %q, policy %+v", name, d.ControlPlane, d.names, policy.Endpoint)
		}
	}
}

// A cluster that begins anew keeps its profile, unless another is named.
func TestBackupKeepsTheProfile(t *testing.T) {
	for _, c := range []struct{ was, given, want kubeadm.Profile }{
		{kubeadm.Slow, "", kubeadm.Slow}, {kubeadm.Normal, "", kubeadm.Normal}, {kubeadm.Normal, kubeadm.Slow, kubeadm.Slow},
	} {
		file := &cluster.File{Cluster: &cluster.Cluster{Settings: &joinservice.Settings{ControlPlaneEndpoint: "192.0.2.7:6443", Networks: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12"), netip.MustParsePrefix("10.244.0.0/16")}, Profile: c.was}}}
		r := initRun{exchange: exchange{file: file}, options: InitOptions{Backup: os.Stdin, Kubernetes: Kubernetes{Profile: c.given}}}
		if err := r.keepSettings(); err != nil {
			t.Error(err)
		}
		if got, err := r.options.Kubernetes.example(); err != nil || got.Profile != c.want {
			t.Errorf("%q was in force, %q is given: the profile is %q, %v", c.was, c.given, got.Profile, err)
		}
	}
}

// A cluster with a pod network of its own is given no other, also by default.
func TestBackupKeepsTheNetwork(t *testing.T) {
	for _, c := range []struct{ brought, was, ok bool }{{true, true, true}, {true, false, false}, {false, false, true}, {false, true, true}} {
		d := Kubernetes{
			Flannel: c.brought, PodSubnet: kubeadm.MustParseSubnets("10.244.0.0/16"), ServiceSubnet: kubeadm.MustParseSubnets("10.96.0.0/12"), ControlPlane: "192.0.2.7:6443",
		}
		if err := d.check(); err != nil {
			t.Fatal(err)
		}
		example, err := d.example()
		if err != nil {
			t.Fatal(err)
		}
		documents, _, err := d.make(example)
		if err != nil {
			t.Fatal(err)
		}
		r := initRun{options: InitOptions{Name: "control-plane-1", Kubernetes: d}}
		if err := r.fits(backup.Content{Configuration: documents, Flannel: c.was}); (err == nil) != c.ok || err != nil && !strings.Contains(err.Error(), "--network none") {
			t.Errorf("flannel is brought: %v, and was there: %v: %v", c.brought, c.was, err)
		}
	}
}

// Of a disk that holds a node that was Ready, a backup makes nothing.
func TestBackupIsNotForADiskThatWasReady(t *testing.T) {
	r := initRun{restoration: &restoration{}}
	if err := r.announce(nil, joinservice.Opened{Joined: true}); err == nil || !strings.Contains(err.Error(), "disk-not-blank") {
		t.Errorf("error %v", err)
	}
}
