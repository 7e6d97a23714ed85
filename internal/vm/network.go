package vm

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/hullmark/hullmark/internal/toolstree"
)

// NetworkConfig describes a network that machines share.
type NetworkConfig struct {
	// Dir is the network's folder, by which machines find it. It is made if absent. Two networks cannot run on one folder.
	Dir string
	// Forwards are the TCP ports of machines that can be reached from this host; each names a machine's address.
	Forwards []Forward
	// Isolated has the router lead nowhere: machines reach each other, and are reached by the forwards; no name server answers.
	Isolated bool
	// Prefix are the network's addresses, DefaultPrefix by default: 256 of IPv4. The router has the third, the DNS server the fourth. A
	// DHCP server gives out 16 from the 101st on; those from the fifth to the 100th are for machines that have static ones.
	Prefix netip.Prefix
	// VLAN, if not 0, is the tag (IEEE 802.1Q) with which the router speaks and is spoken to. Machines see tagged and other frames as they
	// are.
	VLAN int
	// Tools is the root of a tools tree to run QEMU from. Empty: the host's, found in PATH.
	Tools string
}

// DefaultPrefix are the addresses of a network that has no others.
var DefaultPrefix = netip.MustParsePrefix("10.0.2.0/24")

// address is the network's i-th address.
func (c NetworkConfig) address(i byte) netip.Addr {
	a := c.Prefix.Masked().Addr().As4()
	a[3] = i
	return netip.AddrFrom4(a)
}

// The places of what a network has of its own.
const (
	routerPlace  = 2
	dynamicPlace = 100
)

// Network is a running network: one Ethernet segment, on which each machine hears all others, and a router that leads to what this
// host reaches. The segment lives in this process, the router is a QEMU without a machine. A machine may start, end or be killed at
// any time without the others noticing; but one that runs when the network ends has none any more until it is started again.
type Network struct {
	config   NetworkConfig
	forwards []Forward
	lock     *os.File
	runtime  string
	// machines and inner are where machines and the router connect to the segment.
	machines, inner net.Listener
	router          *process
	done            chan struct{} // closed when nothing of the network is left; err is set by then
	err             error
}

// StartNetwork starts a network. When ctx is cancelled, the network ends. Nothing that StartNetwork began is left behind when it
// fails, when the network ends, or when this process dies. It fails where Start does, for the same reasons.
func StartNetwork(ctx context.Context, config NetworkConfig) (*Network, error) {
	config, err := config.complete()
	if err != nil {
		return nil, err
	}
	n := &Network{config: config, done: make(chan struct{})}
	if err := n.start(ctx); err != nil {
		n.release()
		return nil, err
	}
	go n.supervise(ctx)
	return n, nil
}

// Check refuses what no network can be.
func (c NetworkConfig) Check() error {
	c.Prefix = orDefault(c.Prefix)
	switch {
	case c.Dir == "":
		return errors.New("a network needs a folder")
	case !c.Prefix.Addr().Is4() || c.Prefix.Bits() != 24:
		return fmt.Errorf("prefix %s: want 256 addresses of IPv4, such as %s", c.Prefix, DefaultPrefix)
	case c.VLAN < 0 || c.VLAN > 4094:
		return fmt.Errorf("VLAN %d: 1 to 4094 are possible", c.VLAN)
	}
	for _, f := range c.Forwards {
		if !c.Prefix.Contains(f.Address) || f.Address == c.address(routerPlace) {
			return fmt.Errorf("forward %s: want HOST:ADDRESS:GUEST with a machine's address in %s, for example 7443:%s:7443", f, c.Prefix, c.address(21))
		}
	}
	return nil
}

func orDefault(p netip.Prefix) netip.Prefix {
	if !p.IsValid() {
		return DefaultPrefix
	}
	return p.Masked()
}

func (c NetworkConfig) complete() (NetworkConfig, error) {
	if err := c.Check(); err != nil {
		return c, fmt.Errorf("vm: network: %w", err)
	}
	c.Prefix = orDefault(c.Prefix)
	for _, path := range []*string{&c.Dir, &c.Tools} {
		if *path == "" {
			continue
		}
		abs, err := filepath.Abs(*path)
		if err != nil {
			return c, fmt.Errorf("vm: %s: %w", *path, err)
		}
		*path = abs
	}
	return c, nil
}

func (n *Network) start(ctx context.Context) error {
	t := toolset{n.config.Tools}
	err := t.require(qemuProgram)
	if err != nil {
		return err
	}
	if n.lock, err = lockFolder(n.config.Dir); err != nil {
		return err
	}
	if n.forwards, err = choosePorts(n.config.Forwards); err != nil {
		return err
	}
	if n.runtime, err = makeRuntime(n.config.Dir); err != nil {
		return err
	}
	s := &segment{ports: map[*port]struct{}{}, cards: map[mac]*port{}}
	if n.inner, err = net.Listen("unix", filepath.Join(n.runtime, innerName)); err != nil {
		return fmt.Errorf("vm: network: %w", err)
	}
	go s.serve(n.inner, uint16(n.config.VLAN))
	if n.machines, err = net.Listen("unix", filepath.Join(n.runtime, segmentName)); err != nil {
		return fmt.Errorf("vm: network: %w", err)
	}
	go s.serve(n.machines, 0)
	return n.startRouter(ctx, t)
}

// segmentName and innerName are the sockets in the folder of sockets that machines and the router connect to.
const (
	segmentName = "segment"
	innerName   = "router"
)

// startRouter starts the router. It hangs on the segment as machines do.
func (n *Network) startRouter(ctx context.Context, t toolset) error {
	cable, err := plugIn(n.config.Dir, innerName)
	if err != nil {
		return err
	}
	defer cable.Close()
	monitorSocket := filepath.Join(n.runtime, "qmp.sock")
	leads := ""
	if n.config.Isolated {
		leads = ",restrict=on"
	}
	cmd, err := t.command(ctx, []toolstree.Bind{{Host: n.runtime, Writable: true}}, qemuProgram,
		"-machine", "none", "-nodefaults", "-no-user-config", "-display", "none",
		"-qmp", "unix:"+t.inside(monitorSocket)+",server=on,wait=off",
		"-netdev", fmt.Sprintf("user,id=router,net=%s,host=%s,dhcpstart=%s", n.config.Prefix, n.config.address(routerPlace), n.config.address(dynamicPlace))+leads+hostForwards(n.forwards),
		"-netdev", "hubport,id=inner,hubid=0,netdev=router",
		"-netdev", cableOption("cable", 0),
		"-netdev", "hubport,id=outer,hubid=0,netdev=cable")
	if err != nil {
		return err
	}
	cmd.ExtraFiles = []*os.File{cable}
	if n.router, err = startProcess(cmd); err != nil {
		return err
	}
	// QEMU answers here once its ports listen.
	m, err := dialMonitor(ctx, monitorSocket, n.router.done)
	if err != nil {
		return errors.Join(err, n.router.endedFailure())
	}
	m.close()
	return nil
}

// supervise waits for the end of the network and cleans up.
func (n *Network) supervise(ctx context.Context) {
	defer close(n.done)
	select {
	case <-n.router.done:
	case <-ctx.Done():
	}
	// The context's end kills the router, too.
	if n.err = context.Cause(ctx); n.err == nil {
		n.err = errors.Join(errors.New("vm: network: its router ended"), n.router.failure())
	}
	n.release()
}

// release ends what still runs and gives back what StartNetwork took. It may be called at any point of its way.
func (n *Network) release() {
	if n.router != nil {
		n.router.kill()
	}
	for _, l := range []net.Listener{n.machines, n.inner} {
		if l != nil {
			l.Close()
		}
	}
	if n.runtime != "" {
		removeRuntime(filepath.Join(n.config.Dir, runtimeName))
	}
	if n.lock != nil {
		n.lock.Close()
	}
}

// Wait waits for the network's end. It returns the context's cause where that ended it, and otherwise what failed.
func (n *Network) Wait() error {
	<-n.done
	return n.err
}

// Dir is the network's folder, for Config.Networks.
func (n *Network) Dir() string {
	return n.config.Dir
}

// Forwards are the forwarded ports in the configuration's order, with the host ports that were chosen.
func (n *Network) Forwards() []Forward {
	return n.forwards
}

// plugIn connects to a socket of the network that runs on a folder. The connection is for a QEMU to inherit.
func plugIn(dir, socket string) (*os.File, error) {
	runtime, err := os.Readlink(filepath.Join(dir, runtimeName))
	if err != nil {
		return nil, noNetwork(dir, err)
	}
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Net: "unix", Name: filepath.Join(runtime, socket)})
	if err != nil {
		return nil, noNetwork(dir, err)
	}
	defer conn.Close()
	cable, err := conn.File()
	if err != nil {
		return nil, fmt.Errorf("vm: network %s: %w", dir, err)
	}
	return cable, nil
}

func noNetwork(dir string, err error) error {
	return fmt.Errorf("vm: network %s: none runs there (%w): start it with hullmark vm network", dir, err)
}

// cableOption attaches the i-th connection that QEMU inherits: file descriptors beyond the standard three.
func cableOption(id string, i int) string { return fmt.Sprintf("socket,id=%s,fd=%d", id, 3+i) }

// hardwareAddress is the address of a machine's i-th network card in a network: QEMU's range for the first, with three octets of the digest
// of the state folder's path, so that two machines differ and one machine keeps its own.
func hardwareAddress(dir string, i int) net.HardwareAddr {
	digest := sha256.Sum256([]byte(dir))
	return append(net.HardwareAddr{0x52, 0x54, byte(i)}, digest[:3]...)
}
