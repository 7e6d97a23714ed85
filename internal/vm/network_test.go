package vm

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// networkAt is an address of a network that has no other prefix.
func networkAt(i byte) netip.Addr { return NetworkConfig{Prefix: DefaultPrefix}.address(i) }

func startNetwork(t *testing.T, forwards ...Forward) *Network {
	t.Helper()
	return startNetworkOf(t, NetworkConfig{Forwards: forwards})
}

// startNetworkOf starts a network of that kind in a folder of its own.
func startNetworkOf(t *testing.T, c NetworkConfig) *Network {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	c.Dir, c.Tools = filepath.Join(t.TempDir(), "network"), os.Getenv("HULLMARK_TOOLS")
	n, err := StartNetwork(ctx, c)
	if err != nil {
		cancel()
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		if err := n.Wait(); !errors.Is(err, context.Canceled) {
			t.Errorf("the network ended with %v", err)
		}
	})
	return n
}

// card is a machine as the network sees it: it speaks the frames that QEMU's network card would.
type card struct {
	conn net.Conn
	mac  net.HardwareAddr
	// patience is how long await waits.
	patience time.Duration
}

func plugCard(t *testing.T, n *Network, mac byte) *card {
	t.Helper()
	cable, err := plugIn(n.config.Dir, segmentName)
	if err != nil {
		t.Fatal(err)
	}
	defer cable.Close()
	conn, err := net.FileConn(cable)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return &card{conn: conn, mac: net.HardwareAddr{0x52, 0x54, 0, 0, 0, mac}, patience: 20 * time.Second}
}

// send sends one Ethernet frame, which QEMU's stream precedes by its length.
func (c *card) send(t *testing.T, to net.HardwareAddr, etherType uint16, payload []byte) {
	t.Helper()
	frame := binary.BigEndian.AppendUint16(append(bytes.Clone(to), c.mac...), etherType)
	frame = append(frame, payload...)
	if _, err := c.conn.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(frame))), frame...)); err != nil {
		t.Error(err)
	}
}

// await reads frames until one is accepted, and returns it without its Ethernet header.
func (c *card) await(t *testing.T, what string, etherType uint16, accept func(from net.HardwareAddr, payload []byte) bool) {
	t.Helper()
	if err := c.conn.SetReadDeadline(time.Now().Add(c.patience)); err != nil {
		t.Fatal(err)
	}
	for {
		length := make([]byte, 4)
		if _, err := io.ReadFull(c.conn, length); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		frame := make([]byte, binary.BigEndian.Uint32(length))
		if _, err := io.ReadFull(c.conn, frame); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if binary.BigEndian.Uint16(frame[12:]) == etherType && accept(frame[6:12], frame[14:]) {
			return
		}
	}
}

var (
	everybody = net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	nodeOne   = netip.MustParseAddr("10.0.2.21")
)

// The EtherTypes; test is one for experiments (IEEE 802).
const (
	etherIPv4, etherARP, etherTest = 0x0800, 0x0806, 0x88b5
)

// arp is an ARP packet (RFC 826).
func arp(operation uint16, sender net.HardwareAddr, senderIP netip.Addr, target net.HardwareAddr, targetIP netip.Addr) []byte {
	b := []byte{0, 1, 8, 0, 6, 4}
	b = binary.BigEndian.AppendUint16(b, operation)
	b = append(append(b, sender...), senderIP.AsSlice()...)
	return append(append(b, target...), targetIP.AsSlice()...)
}

// says sends a line to every machine, again and again, until listener hears it: it may only just have been plugged in.
func (c *card) says(t *testing.T, listener *card, line string) {
	t.Helper()
	heard := make(chan struct{})
	var sender sync.WaitGroup
	sender.Go(func() {
		for {
			c.send(t, everybody, etherTest, []byte(line))
			select {
			case <-heard:
				return
			case <-time.After(50 * time.Millisecond):
			}
		}
	})
	// Last in, first out: the listener may end the test.
	defer sender.Wait()
	defer close(heard)
	listener.await(t, line, etherTest, func(from net.HardwareAddr, payload []byte) bool {
		return bytes.Equal(from, c.mac) && strings.HasPrefix(string(payload), line)
	})
}

func TestNetworkJoinsMachinesThatComeAndGo(t *testing.T) {
	n := startNetwork(t)
	one, two, three := plugCard(t, n, 1), plugCard(t, n, 2), plugCard(t, n, 3)
	one.says(t, two, "first to second")
	two.says(t, one, "second to first")
	for i := range 5 {
		three.conn.Close()
		one.says(t, two, fmt.Sprintf("the third's power is cut for the %d. time", i))
		three = plugCard(t, n, 3)
		three.says(t, one, fmt.Sprintf("it is back for the %d. time", i))
		two.says(t, three, "and hears")
	}
}

// A machine that stands still, as one that is stopped by a debugger, does not hold up the others.
func TestNetworkIsNotHeldUp(t *testing.T) {
	n := startNetwork(t)
	one, two := plugCard(t, n, 1), plugCard(t, n, 2)
	plugCard(t, n, 3)
	for i := range 2000 {
		one.send(t, everybody, etherTest, bytes.Repeat([]byte{1}, 1400))
		if i%100 == 0 {
			one.says(t, two, fmt.Sprintf("frame %d", i))
		}
	}
}

// What is for one card no other hears: the router would answer it in that machine's name.
func TestNetworkCarriesAFrameToItsCardAlone(t *testing.T) {
	n := startNetwork(t)
	one, two, three := plugCard(t, n, 1), plugCard(t, n, 2), plugCard(t, n, 3)
	two.says(t, one, "the second is here")
	two.says(t, three, "and the third hears it")
	one.send(t, two.mac, etherTest, []byte("for the second alone"))
	one.send(t, net.HardwareAddr{0x52, 0x54, 0, 0, 0, 9}, etherTest, []byte("for nobody who is here"))
	one.send(t, everybody, etherTest, []byte("for all"))
	two.await(t, "the second's own", etherTest, func(_ net.HardwareAddr, p []byte) bool {
		return strings.HasPrefix(string(p), "for the second alone")
	})
	three.await(t, "what is for all", etherTest, func(_ net.HardwareAddr, p []byte) bool {
		if strings.HasPrefix(string(p), "for the second alone") || strings.HasPrefix(string(p), "for nobody") {
			t.Errorf("the third heard %q", p)
		}
		return strings.HasPrefix(string(p), "for all")
	})
}

// router asks for the router's card, and waits for its answer.
func (c *card) router(t *testing.T) (router net.HardwareAddr) {
	t.Helper()
	c.send(t, everybody, etherARP, arp(1, c.mac, nodeOne, make([]byte, 6), networkAt(2)))
	c.await(t, "the router's answer", etherARP, func(from net.HardwareAddr, p []byte) bool {
		router = bytes.Clone(from)
		return len(p) >= 28 && p[7] == 2 && bytes.Equal(p[14:18], networkAt(2).AsSlice())
	})
	return router
}

// isDialled connects to the first forward from this host, and waits for what comes of that as node one.
func (c *card) isDialled(t *testing.T, n *Network, router net.HardwareAddr) {
	t.Helper()
	f := n.Forwards()[0]
	go func() {
		if conn, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", f.Host)); err == nil {
			conn.Close()
		}
	}()
	c.await(t, "a connection's first packet", etherIPv4, func(from net.HardwareAddr, p []byte) bool {
		tcp := p[4*(p[0]&15):]
		return bytes.Equal(from, router) && bytes.Equal(p[16:20], nodeOne.AsSlice()) && binary.BigEndian.Uint16(tcp[2:]) == f.Guest
	})
}

func TestNetworkHasARouterAndForwards(t *testing.T) {
	n := startNetwork(t, Forward{Address: nodeOne, Guest: 7444})
	one := plugCard(t, n, 1)
	one.isDialled(t, n, one.router(t))
}

// udp is a datagram from node one to a port, 53 of which is DNS's (RFC 768, RFC 791); the checksum of UDP may be left out.
func udp(to netip.Addr, port uint16, data []byte) []byte {
	b := []byte{0x45, 0, 0, 0, 0, 0, 0, 0, 64, 17, 0, 0}
	b = append(append(b, nodeOne.AsSlice()...), to.AsSlice()...)
	binary.BigEndian.PutUint16(b[2:], uint16(len(b)+8+len(data)))
	var sum uint32
	for i := 0; i < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	binary.BigEndian.PutUint16(b[10:], ^uint16(sum+sum>>16))
	b = binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(b, 40000), port)
	b = binary.BigEndian.AppendUint16(b, uint16(8+len(data)))
	return append(append(b, 0, 0), data...)
}

// A datagram to the router reaches this host; in an isolated network it does not, and the forwards lead in all the same.
func TestIsolatedNetworkLeadsNowhere(t *testing.T) {
	host, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer host.Close()
	port := uint16(host.LocalAddr().(*net.UDPAddr).Port)
	for _, isolated := range []bool{false, true} {
		n := startNetworkOf(t, NetworkConfig{Isolated: isolated, Forwards: []Forward{{Address: nodeOne, Guest: 7444}}})
		one := plugCard(t, n, 1)
		router := one.router(t)
		one.send(t, router, etherIPv4, udp(networkAt(2), port, []byte("out")))
		// What is sent after it has been dealt with by then.
		one.isDialled(t, n, router)
		if err := host.SetReadDeadline(time.Now().Add(2 * time.Second)); err != nil {
			t.Fatal(err)
		}
		_, err := host.Read(make([]byte, 16))
		if reached := err == nil; reached == isolated {
			t.Errorf("isolated %v: a datagram reached this host: %v", isolated, reached)
		}
	}
}

// tagged is an Ethernet type with the tag of a VLAN before it, and a payload behind.
func tagged(vlan, etherType uint16, payload []byte) []byte {
	return append(binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, vlan), etherType), payload...)
}

// The router of a network with a VLAN is there for who speaks with that tag, and for nobody else; machines hear each other's frames as
// they are.
func TestNetworkWithAVLAN(t *testing.T) {
	n := startNetworkOf(t, NetworkConfig{VLAN: 100, Prefix: netip.MustParsePrefix("10.0.3.0/24")})
	router, own := netip.MustParseAddr("10.0.3.2"), netip.MustParseAddr("10.0.3.21")
	one, two := plugCard(t, n, 1), plugCard(t, n, 2)
	asks := arp(1, one.mac, own, make([]byte, 6), router)
	two.says(t, one, "the second is here")
	one.send(t, everybody, etherARP, asks)
	one.send(t, everybody, tagType, tagged(101, etherARP, asks))
	two.await(t, "a frame with a tag, at another machine", tagType, func(_ net.HardwareAddr, p []byte) bool {
		return bytes.HasPrefix(p, tagged(101, etherARP, asks))
	})
	one.send(t, everybody, tagType, tagged(100, etherARP, asks))
	answered := 0
	one.await(t, "the router's answer", tagType, func(_ net.HardwareAddr, p []byte) bool {
		if binary.BigEndian.Uint16(p)&0xfff != 100 {
			t.Errorf("the router answers with tag %x", p[:2])
		}
		answered++
		return binary.BigEndian.Uint16(p[2:]) == etherARP && p[4+7] == 2 && bytes.Equal(p[4+14:4+18], router.AsSlice())
	})
	two.says(t, one, "no other answer came before this")
	if answered != 1 {
		t.Errorf("%d frames came with a tag, want the one answer", answered)
	}
}

func TestNetworkIsAloneOnItsFolder(t *testing.T) {
	n := startNetwork(t)
	if _, err := StartNetwork(t.Context(), NetworkConfig{Dir: n.config.Dir}); err == nil || !strings.Contains(err.Error(), n.config.Dir) {
		t.Errorf("second network on one folder: %v", err)
	}
	one, two := plugCard(t, n, 1), plugCard(t, n, 2)
	one.says(t, two, "the first goes on")
}

// Who sends what is no frame is cut off, and nobody else.
func TestNetworkCutsOffNonsense(t *testing.T) {
	n := startNetwork(t)
	one, two, bad := plugCard(t, n, 1), plugCard(t, n, 2), plugCard(t, n, 3)
	if _, err := bad.conn.Write(binary.BigEndian.AppendUint32(nil, maxFrame+1)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, bad.conn); err != nil {
		t.Errorf("not cut off: %v", err)
	}
	one.says(t, two, "the others go on")
}

func TestMachineWithoutItsNetwork(t *testing.T) {
	stubQEMU(t)
	c := exampleConfig(t)
	folder := filepath.Join(t.TempDir(), "network")
	c.Networks = []string{folder}
	if _, err := Start(t.Context(), c); err == nil || !strings.Contains(err.Error(), "start it with hullmark vm network") {
		t.Errorf("never started: %v", err)
	}
	// What a killed network leaves.
	if err := os.Mkdir(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := makeRuntime(folder); err != nil {
		t.Fatal(err)
	}
	defer removeRuntime(filepath.Join(folder, runtimeName))
	if _, err := Start(t.Context(), c); err == nil || !strings.Contains(err.Error(), "start it with hullmark vm network") {
		t.Errorf("killed: %v", err)
	}
}

func TestNetworkThatCannotStart(t *testing.T) {
	for want, c := range map[string]NetworkConfig{
		"needs a folder": {},
		"want HOST:ADDRESS:GUEST with a machine's address": {Dir: t.TempDir(), Forwards: []Forward{{Host: 7443, Guest: 7443}}},
		"forward 0:10.0.2.2:80":                            {Dir: t.TempDir(), Forwards: []Forward{{Address: networkAt(2), Guest: 80}}},
		"forward 0:10.1.2.3:80":                            {Dir: t.TempDir(), Forwards: []Forward{{Address: netip.MustParseAddr("10.1.2.3"), Guest: 80}}},
		"VLAN 4095":                                        {Dir: t.TempDir(), VLAN: 4095},
		"prefix 10.0.0.0/8":                                {Dir: t.TempDir(), Prefix: netip.MustParsePrefix("10.0.0.0/8")},
	} {
		if _, err := StartNetwork(t.Context(), c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q, got %v", want, err)
		}
	}
	stubQEMU(t)
	dir := filepath.Join(t.TempDir(), "network")
	if _, err := StartNetwork(t.Context(), NetworkConfig{Dir: dir}); err == nil || !strings.Contains(err.Error(), "exit status 9") {
		t.Error(err)
	}
	if _, err := os.Lstat(filepath.Join(dir, runtimeName)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("left: %v", err)
	}
}

func TestNetworkSaysThatItsProcessDied(t *testing.T) {
	n, err := StartNetwork(t.Context(), NetworkConfig{Dir: filepath.Join(t.TempDir(), "network")})
	if err != nil {
		t.Fatal(err)
	}
	n.router.kill()
	if err := n.Wait(); err == nil || !strings.Contains(err.Error(), "router ended") {
		t.Error(err)
	}
	if _, err := plugIn(n.config.Dir, segmentName); err == nil {
		t.Error("a network that is gone took a machine")
	}
}

func TestMachinesInANetworkHaveTheirOwnAddresses(t *testing.T) {
	c := exampleConfig(t)
	c.Networks = []string{"a", "b"}
	h := exampleHardware(t, c)
	h.cables = []*os.File{os.Stdin, os.Stdin}
	devices := option(h.arguments(), "-device")
	for i := range 2 {
		netdev, mac := fmt.Sprintf("netdev=net%d,romfile=", i), ",mac="+hardwareAddress(h.config.Dir, i).String()
		if !slices.ContainsFunc(devices, func(d string) bool { return strings.Contains(d, netdev) && strings.HasSuffix(d, mac) }) {
			t.Errorf("card %d: %q", i, devices)
		}
	}
	if cables := option(h.arguments(), "-netdev"); !slices.Equal(cables, []string{"socket,id=net0,fd=3", "socket,id=net1,fd=4"}) {
		t.Errorf("%q", cables)
	}
	a, b, second := hardwareAddress("/a", 0), hardwareAddress("/b", 0), hardwareAddress("/a", 1)
	if bytes.Equal(a, b) || bytes.Equal(a, second) || !bytes.Equal(a, hardwareAddress("/a", 0)) || a[0]&1 != 0 {
		t.Errorf("%v, %v, %v", a, b, second)
	}
}
