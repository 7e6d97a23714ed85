package testenv

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/hullmark/hullmark/cluster"
)

// Plane is one of several control planes with stacked etcd, as kubeadm makes them: a member of etcd, and an API server that asks this
// member alone. Its Environment has no controllers.
type Plane struct {
	*Environment
	// At is the loopback address of both.
	At netip.Addr

	members *Etcd
	name    string
	mutex   sync.Locker // members has one map for all
}

// StartPlanes runs the API of a cluster by control planes at these loopback addresses, whose API servers have one port. Their files are
// below dir, which exists and is empty. It returns when all of them are ready.
func StartPlanes(ctx context.Context, dir string, c *cluster.Cluster, at ...netip.Addr) ([]*Plane, error) {
	planes, err := newPlanes(ctx, dir, c, at)
	if err != nil {
		return nil, fmt.Errorf("testenv: %w", err)
	}
	for i, p := range planes {
		if err = errors.Join(err, p.StartAPI(ctx)); err == nil && i == 0 {
			err = p.letAdminsIn(ctx)
		}
		if err != nil {
			return nil, fmt.Errorf("testenv: %w", errors.Join(err, StopPlanes(planes)))
		}
	}
	return planes, nil
}

// StopPlanes ends all programs of control planes.
func StopPlanes(planes []*Plane) (err error) {
	for _, p := range planes {
		err = errors.Join(err, p.Stop())
	}
	for _, p := range planes {
		err = errors.Join(err, p.members.Kill(p.name))
	}
	return err
}

// newPlanes starts the members of etcd.
func newPlanes(ctx context.Context, dir string, c *cluster.Cluster, at []netip.Addr) (planes []*Plane, err error) {
	members, err := NewEtcd(ctx, filepath.Join(dir, "etcd"), c)
	if err != nil {
		return nil, err
	}
	free, err := FreeAddress()
	if err != nil {
		return nil, err
	}
	_, port, err := net.SplitHostPort(free)
	if err != nil {
		return nil, err
	}
	mutex, addresses := &sync.Mutex{}, map[string]netip.Addr{}
	for i, a := range at {
		p := &Plane{At: a, members: members, name: fmt.Sprintf("member-%d", i+1), mutex: mutex}
		p.Environment = &Environment{Cluster: c, bin: members.bin, dir: filepath.Join(dir, fmt.Sprintf("plane-%d", i+1)), etcdURL: members.ClientURL(a), Address: net.JoinHostPort(a.String(), port)}
		// It keeps its place among the endpoints of the Service kubernetes in etcd, and gives it up when it ends. A loopback address would
		// be refused there.
		p.UseServer(members.bin, "--endpoint-reconciler-type=lease", fmt.Sprintf("--advertise-address=192.0.2.%d", 101+i))
		if err := errors.Join(os.MkdirAll(p.dir, 0o700), p.writeKeys(ctx)); err != nil {
			return nil, err
		}
		planes, addresses[p.name] = append(planes, p), a
	}
	return planes, members.Form(addresses)
}

// Halt asks the API server and the member of etcd to end, and returns once they have; one that has not after grace is killed, and is an
// error. Both are asked at once, unless ordered says that the API server ends first.
func (p *Plane) Halt(grace time.Duration, ordered bool) error {
	if ordered {
		return errors.Join(p.apiserver.Terminate(grace), p.member().Terminate(grace))
	}
	api := make(chan error, 1)
	go func() { api <- p.apiserver.Terminate(grace) }()
	err := p.member().Terminate(grace)
	return errors.Join(<-api, err)
}

// Exchange has the next Boot go on with the keys of c, as a control plane does that was brought them at its boot, and that had kubeadm make
// its certificates anew.
func (p *Plane) Exchange(ctx context.Context, c *cluster.Cluster) error {
	p.mutex.Lock()
	p.members.cluster = c
	p.mutex.Unlock()
	p.Cluster = c
	return p.writeKeys(ctx)
}

// Boot starts both again, and returns when the API server is ready.
func (p *Plane) Boot(ctx context.Context) error {
	p.mutex.Lock()
	// It knows the others by what it has stored.
	err := p.members.Start(p.name, p.At)
	p.mutex.Unlock()
	return errors.Join(err, p.StartAPI(ctx))
}

// member is the process of the plane's member.
func (p *Plane) member() *Process {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	return p.members.running[p.name]
}

// Processes returns the programs that run on it.
func (p *Plane) Processes() []*Process { return []*Process{p.member(), p.apiserver} }

// MemberURL is where its member of etcd serves clients.
func (p *Plane) MemberURL() string { return p.members.ClientURL(p.At) }

// StartController runs the controllers of a cluster, with further flags, as a client of the API at an address; its files are below dir.
// StopPlanes does not end it.
func StartController(ctx context.Context, dir string, of *Plane, address string, flags ...string) (*Environment, error) {
	r := &Environment{Cluster: of.Cluster, bin: of.bin, dir: dir, Address: address, managerFlags: flags}
	if err := errors.Join(os.MkdirAll(dir, 0o700), r.writeKeys(ctx), r.startManager(ctx)); err != nil {
		return nil, fmt.Errorf("testenv: %w", errors.Join(err, r.Stop()))
	}
	return r, nil
}
