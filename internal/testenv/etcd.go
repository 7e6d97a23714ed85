package testenv

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/hullmark/hullmark/cluster"
)

// Etcd is an etcd of several members on loopback, each at an address of its
// own, with a cluster file's keys and the settings that kubeadm would give them.
type Etcd struct {
	cluster              *cluster.Cluster
	bin, dir             string
	clientPort, peerPort string
	running              map[string]*Process
}

// NewEtcd prepares a cluster's etcd, whose files are below dir, which exists and is empty. No member runs yet; Stop ends all.
func NewEtcd(ctx context.Context, dir string, c *cluster.Cluster) (*Etcd, error) {
	bin, err := Programs(ctx)
	if err != nil {
		return nil, fmt.Errorf("testenv: %w", err)
	}
	e := &Etcd{cluster: c, bin: bin, dir: dir, running: map[string]*Process{}}
	for _, port := range []*string{&e.clientPort, &e.peerPort} {
		address, err := FreeAddress()
		if err != nil {
			return nil, fmt.Errorf("testenv: %w", err)
		}
		if _, *port, err = net.SplitHostPort(address); err != nil {
			return nil, fmt.Errorf("testenv: %w", err)
		}
	}
	return e, nil
}

// ClientURL is where the member at an address serves clients.
func (e *Etcd) ClientURL(at netip.Addr) string {
	return "https://" + net.JoinHostPort(at.String(), e.clientPort)
}

// PeerURL is where the member at an address is reached by the others.
func (e *Etcd) PeerURL(at netip.Addr) string {
	return "https://" + net.JoinHostPort(at.String(), e.peerPort)
}

// Start starts a member at a loopback address, with what its folder holds.
// others are the members that it finds, as NAME=PEER-URL; without any it makes a new etcd. It does not wait.
func (e *Etcd) Start(name string, at netip.Addr, others ...string) error {
	state := "existing"
	if len(others) == 0 {
		state = "new"
	}
	return e.start(name, at, state, append(others, name+"="+e.PeerURL(at)))
}

// Form makes a new etcd of several members, which have loopback addresses, and starts them. It does not wait.
func (e *Etcd) Form(at map[string]netip.Addr) error {
	var all []string
	for name, a := range at {
		all = append(all, name+"="+e.PeerURL(a))
	}
	for name, a := range at {
		if err := e.start(name, a, "new", all); err != nil {
			return err
		}
	}
	return nil
}

// start starts a member that finds all of these, NAME=PEER-URL, in an etcd that is new or existing.
func (e *Etcd) start(name string, at netip.Addr, state string, all []string) error {
	dir := filepath.Join(e.dir, name)
	if err := e.writeMemberKeys(dir, at); err != nil {
		return err
	}
	file := func(name string) string { return filepath.Join(dir, name) }
	p, err := Launch(dir, exec.Command(filepath.Join(e.bin, "etcd"),
		"--name="+name, "--data-dir="+e.Data(name), "--initial-cluster-state="+state,
		"--initial-cluster="+strings.Join(all, ","),
		"--listen-client-urls="+e.ClientURL(at), "--advertise-client-urls="+e.ClientURL(at),
		"--listen-peer-urls="+e.PeerURL(at), "--initial-advertise-peer-urls="+e.PeerURL(at),
		"--client-cert-auth", "--trusted-ca-file="+file("ca.crt"), "--cert-file="+file("member.crt"), "--key-file="+file("member.key"),
		"--peer-client-cert-auth", "--peer-trusted-ca-file="+file("ca.crt"), "--peer-cert-file="+file("member.crt"), "--peer-key-file="+file("member.key"),
		// A busy test machine is no reason for an election; tests lose nothing in a power cut.
		"--heartbeat-interval=200", "--election-timeout=2000", "--unsafe-no-fsync"))
	if err != nil {
		return err
	}
	e.running[name] = p
	return nil
}

func (e *Etcd) writeMemberKeys(dir string, at netip.Addr) error {
	certificate, key, err := sign(e.cluster.Etcd.Authority, leaf{
		name: "member", addresses: []net.IP{at.AsSlice()}, loopback: true,
		usages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	})
	if err != nil {
		return err
	}
	return errors.Join(
		os.MkdirAll(dir, 0o700),
		os.WriteFile(filepath.Join(dir, "ca.crt"), e.cluster.CATrust(cluster.EtcdCA), 0o600),
		os.WriteFile(filepath.Join(dir, "member.crt"), certificate, 0o600),
		os.WriteFile(filepath.Join(dir, "member.key"), key, 0o600))
}

// Kill ends a member as a power cut would; one that does not run is no error.
func (e *Etcd) Kill(name string) error { return e.running[name].Stop() }

// Forget kills a member and deletes what it kept, as a disk that is gone.
func (e *Etcd) Forget(name string) error {
	return errors.Join(e.Kill(name), os.RemoveAll(filepath.Join(e.dir, name)))
}

// Data is the folder of what a member keeps.
func (e *Etcd) Data(name string) string { return filepath.Join(e.dir, name, "data") }

// Stop ends all members.
func (e *Etcd) Stop() error {
	var all []error
	for _, p := range e.running {
		all = append(all, p.Stop())
	}
	return errors.Join(all...)
}
