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
	// Tools is the root of a tools tree to run QEMU from. Empty: the host's, found in PATH.
	Tools string
}

// The network's addresses. The router's DHCP server gives out 16 addresses from networkDynamic on; those from 10.0.2.4 to
// 10.0.2.99 are for machines that have static ones.
var (
	networkPrefix  = netip.MustParsePrefix("10.0.2.0/24")
	networkRouter  = netip.MustParseAddr("10.0.2.2")
	networkDynamic = netip.MustParseAddr("10.0.2.100")
)

// Network is a running network: one Ethernet segment, on which each machine hears all others, and a router that leads to what this
// host reaches. The segment lives in this process, the router is a QEMU without a machine. A machine may start, end or be killed at
// any time without the others noticing; but one that runs when the network ends has none any more until it is started again.
type Network struct {
	config   NetworkConfig
	forwards []Forward
	lock     *os.File
	runtime  string
	listener net.Listener
	router   *process
	done     chan struct{} // closed when nothing of the network is left; err is set by then
	err      error
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
	if c.Dir == "" {
		return errors.New("a network needs a folder")
	}
	for _, f := range c.Forwards {
		if !networkPrefix.Contains(f.Address) || f.Address == networkRouter {
			return fmt.Errorf("forward %s: want HOST:ADDRESS:GUEST with a machine's address in %s, for example 7443:10.0.2.21:7443", f, networkPrefix)
		}
	}
	return nil
}

func (c NetworkConfig) complete() (NetworkConfig, error) {
	if err := c.Check(); err != nil {
		return c, fmt.Errorf("vm: network: %w", err)
	}
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
	if n.listener, err = net.Listen("unix", filepath.Join(n.runtime, segmentName)); err != nil {
		return fmt.Errorf("vm: network: %w", err)
	}
	go (&segment{ports: map[*port]struct{}{}, cards: map[mac]*port{}}).serve(n.listener)
	return n.startRouter(ctx, t)
}

// segmentName is the socket in the folder of sockets that machines connect to.
const segmentName = "segment"

// startRouter starts the router. It hangs on the segment as machines do.
func (n *Network) startRouter(ctx context.Context, t toolset) error {
	cable, err := plugIn(n.config.Dir)
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
		"-netdev", fmt.Sprintf("user,id=router,net=%s,host=%s,dhcpstart=%s", networkPrefix, networkRouter, networkDynamic)+leads+hostForwards(n.forwards),
		"-netdev", "hubport,id=inner,hubid=0,netdev=router",
		"-netdev", cableOption("cable"),
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
	if n.listener != nil {
		n.listener.Close()
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

// Dir is the network's folder, for Config.Network.
func (n *Network) Dir() string {
	return n.config.Dir
}

// Forwards are the forwarded ports in the configuration's order, with the host ports that were chosen.
func (n *Network) Forwards() []Forward {
	return n.forwards
}

// plugIn connects to the network that runs on a folder. The connection is for a QEMU to inherit.
func plugIn(dir string) (*os.File, error) {
	runtime, err := os.Readlink(filepath.Join(dir, runtimeName))
	if err != nil {
		return nil, noNetwork(dir, err)
	}
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Net: "unix", Name: filepath.Join(runtime, segmentName)})
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

// cableOption attaches the connection that QEMU inherits: the first file descriptor beyond the standard three.
func cableOption(id string) string { return "socket,id=" + id + ",fd=3" }

// hardwareAddress is the address of a machine's network card in a network: QEMU's range with three octets of the digest of the
// state folder's path, so that two machines differ and one machine keeps its own.
func hardwareAddress(dir string) net.HardwareAddr {
	digest := sha256.Sum256([]byte(dir))
	return append(net.HardwareAddr{0x52, 0x54, 0x00}, digest[:3]...)
}
