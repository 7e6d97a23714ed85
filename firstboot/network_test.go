package firstboot

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest"
	"github.com/hullmark/hullmark/attest/prover"
	"github.com/hullmark/hullmark/attest/wire"
	"github.com/hullmark/hullmark/firstboot/network"
)

// twoCards are a machine's, of one driver.
func twoCards() []network.Link {
	return []network.Link{
		{Name: "enp1s0", Card: true, MAC: "52:54:00:00:00:01", Driver: "virtio_net", Path: "pci-0000:00:01.0", Up: true},
		{Name: "enp2s0", Card: true, MAC: "52:54:00:00:00:02", Driver: "virtio_net", Path: "pci-0000:00:02.0", Up: true, Addresses: []netip.Prefix{netip.MustParsePrefix("192.0.2.9/24")}},
	}
}

// configureNetwork gives the node a configuration with these interfaces.
func (s *stage) configureNetwork(t *testing.T, change func(*hullmark.NodeConfig)) {
	t.Helper()
	c := hullmark.NodeConfig{Version: 1, ClusterRoot: hullmark.ClusterRootOf(s.root.RawSubjectPublicKeyInfo), StateDisk: hullmark.DiskSelector{Serial: "state"}}
	change(&c)
	s.configure(t, c)
}

// Each wrong setting is measured, refused with one condition, and nothing of the network is changed.
func TestWrongNetworks(t *testing.T) {
	on := func(c hullmark.Card) []hullmark.Interface {
		return []hullmark.Interface{{Name: "nodes", Card: &c, DHCP4: &hullmark.Offer{}}}
	}
	for code, change := range map[string]func(*hullmark.NodeConfig){
		"config-invalid": func(c *hullmark.NodeConfig) { c.Interfaces = on(hullmark.Card{}) },
		"card-missing":   func(c *hullmark.NodeConfig) { c.Interfaces = on(hullmark.Card{Name: "eth7"}) },
		"card-ambiguous": func(c *hullmark.NodeConfig) { c.Interfaces = on(hullmark.Card{Driver: "virtio_net"}) },
		"cards-several":  func(c *hullmark.NodeConfig) { c.Addresses = []string{"192.0.2.7/24"} },
		"interface-name-taken": func(c *hullmark.NodeConfig) {
			c.Interfaces = append(on(hullmark.Card{Name: "enp1s0"}), hullmark.Interface{Name: "enp2s0", VLAN: &hullmark.VLAN{ID: 2, Link: "nodes"}})
		},
		"card-twice": func(c *hullmark.NodeConfig) {
			c.Interfaces = append(on(hullmark.Card{Name: "enp1s0"}), hullmark.Interface{Name: "more", Card: &hullmark.Card{MAC: "52:54:00:00:00:01"}})
		},
	} {
		s := newStage(t)
		s.machine.Cards, s.agent.Timing.Network = twoCards(), 0
		s.configureNetwork(t, change)
		var c *hullmark.Condition
		if err := (setup{s.agent}).measureConfig(t.Context()); !errors.As(err, &c) || c.Code != code || c.Because != nil || c.Step != StepConfig {
			t.Errorf("%s: %v", code, err)
		}
		if registers, err := prover.ReadRegisters(s.tpm); err != nil || registers[attest.ConfigRegister] == [32]byte{} {
			t.Errorf("%s: it was not measured: %v", code, err)
		}
		if files, err := os.ReadDir(filepath.Join(s.agent.SystemdDir, networkDir)); err == nil || s.machine.Has("restart "+networkUnit) {
			t.Errorf("%s: %d files, %v: the network was changed", code, len(files), s.machine.Did())
		}
	}
}

// Another interface's address does not make the node reachable.
func TestNodesInterfaceHasNoAddress(t *testing.T) {
	s := newStage(t)
	s.machine.Cards, s.agent.Timing.Network = twoCards(), 0
	s.configureNetwork(t, func(c *hullmark.NodeConfig) {
		c.Interfaces = []hullmark.Interface{{Name: "nodes", Card: &hullmark.Card{Name: "enp1s0"}, DHCP4: &hullmark.Offer{}}}
	})
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if err := (setup{s.agent}).run(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
	if text := s.console.String(); !strings.Contains(text, "the node's network interface nodes is not up") || strings.Count(text, "no-network") != 1 {
		t.Errorf("the console says %s", text)
	}
}

// A card that comes late is waited for.
func TestCardsComeLate(t *testing.T) {
	s := newStage(t)
	s.machine.Cards = twoCards()[:1]
	s.configureNetwork(t, func(c *hullmark.NodeConfig) {
		c.Interfaces = []hullmark.Interface{{Name: "nodes", Card: &hullmark.Card{Name: "enp2s0"}, DHCP4: &hullmark.Offer{}}}
	})
	go func() {
		time.Sleep(300 * time.Millisecond)
		s.machine.SetCards(twoCards())
	}()
	if err := (setup{s.agent}).run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(s.console.String(), "card-missing") {
		t.Errorf("the console says %s", s.console)
	}
}

// The files lie where systemd-networkd reads them before it is told to, the proxy is for the units that are to have it, and the status
// shows what the machine has.
func TestApplyNetwork(t *testing.T) {
	s := newStage(t)
	s.machine.Cards = append(twoCards(), network.Link{Name: "veth0", Up: true}, network.Link{Name: "nodes", Up: true, Addresses: []netip.Prefix{netip.MustParsePrefix("192.0.2.7/24")}})
	s.configureNetwork(t, func(c *hullmark.NodeConfig) {
		c.Interfaces = []hullmark.Interface{
			{Name: "lan", Card: &hullmark.Card{Name: "enp1s0"}},
			{Name: "nodes", VLAN: &hullmark.VLAN{ID: 7, Link: "lan"}, Addresses: []string{"192.0.2.7/24"}},
		}
		c.Proxy = &hullmark.Proxy{HTTPS: "http://proxy.example:3128"}
		c.TimeServers = []string{"time.example"}
	})
	if err := (setup{s.agent}).run(t.Context()); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		"network/10-hullmark-nodes.netdev": "Id=7\n", "network/10-hullmark-nodes.network": "Address=192.0.2.7/24\n", "network/10-hullmark-lan.network": "VLAN=nodes\n",
		"network/50-hullmark.network": "Kind=!*\n", "timesyncd.conf.d/50-hullmark.conf": "NTP=time.example\n", "../proxy.env": "HTTPS_PROXY=http://proxy.example:3128\n",
	} {
		if text, err := os.ReadFile(filepath.Join(s.agent.SystemdDir, path)); err != nil || !strings.Contains(string(text), want) {
			t.Errorf("%s: %q, %v", path, text, err)
		}
	}
	if did := s.machine.Did(); !slices.Contains(did, "restart "+networkUnit) || !slices.Contains(did, "restart "+timeUnit) {
		t.Errorf("systemd was asked for %v", did)
	}
	var names []string
	for _, l := range s.document(t).Interfaces {
		names = append(names, l.Name)
	}
	if !reflect.DeepEqual(names, []string{"enp1s0", "enp2s0", "nodes"}) {
		t.Errorf("the status shows %v", names)
	}
	if own, err := (networking{s.agent}).ownAddresses(t.Context()); err != nil || !reflect.DeepEqual(own, []string{"192.0.2.7"}) {
		t.Errorf("the node's own addresses are %v, %v", own, err)
	}
}

// The units that fetch from outside read the proxy, and no other does: not the agent, a join service or a kubelet.
func TestProxyIsForFetching(t *testing.T) {
	var readers []string
	err := filepath.WalkDir("../systemd/system", func(path string, d os.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		text, err := os.ReadFile(path)
		if strings.Contains(string(text), "/run/hullmark/"+proxyFile) {
			readers = append(readers, strings.TrimPrefix(path, "../systemd/system/"))
		}
		return err
	})
	if want := []string{"containerd.service.d/60-proxy.conf", "hullmark-slots@.service"}; err != nil || !slices.Equal(readers, want) {
		t.Errorf("read by %v, %v; want %v", readers, err, want)
	}
}

func TestReadDevice(t *testing.T) {
	const text = "S:net/x\nI:4077152\nE:ID_NET_DRIVER=virtio_net\nE:ID_PATH=pci-0000:00:02.0\nE:ID_NET_NAME=enp0s2\nG:systemd\n"
	var link network.Link
	known, err := readDevice(strings.NewReader(text), &link)
	if err != nil || !known || link.Driver != "virtio_net" || link.Path != "pci-0000:00:02.0" {
		t.Errorf("%+v, %v, %v", link, known, err)
	}
	if known, err := readDevice(strings.NewReader("E:ID_PATH=x\n"), &link); known || err != nil {
		t.Errorf("udev is not done with it yet: %v, %v", known, err)
	}
}

// The kubelet goes by the node's interface, unless the join service says by which of its addresses.
func TestKubeletNamesTheNodesInterface(t *testing.T) {
	for proceeds, want := range map[string]string{"": "--node-ip=192.0.2.9", "192.0.2.10": "--node-ip=192.0.2.10"} {
		s := newStage(t)
		s.machine.Cards = twoCards()
		s.agent.config = hullmark.NodeConfig{Interfaces: []hullmark.Interface{{Name: "nodes", Card: &hullmark.Card{Name: "enp2s0"}, DHCP4: &hullmark.Offer{}}}}
		var err error
		if s.agent.plan, err = network.Make(s.agent.config, twoCards()); err != nil {
			t.Fatal(err)
		}
		f := finishing{conversation: &conversation{agent: s.agent}, proceed: &wire.Proceed{Address: proceeds}}
		if err := f.setKubeletAddress(); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(filepath.Join(s.agent.RunDir, kubeletFile)); err != nil || string(got) != "HULLMARK_KUBELET_ARGS="+want+"\n" {
			t.Errorf("Proceed with %q: %q, %v", proceeds, got, err)
		}
	}
}
