//go:build network

package e2e

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/firstboot"
	"github.com/hullmark/hullmark/firstboot/network"
	"github.com/hullmark/hullmark/internal/vm"
)

// The machine's networks: in one the router is in a VLAN alone, so that whoever reaches the node does so through that; the other has a DHCP
// server.
var (
	nodesAddress  = netip.MustParseAddr("10.0.2.21")
	storagePrefix = netip.MustParsePrefix("10.0.3.0/24")
)

const nodesVLAN = 100

// A machine with four cards: two are a bond that carries a VLAN with static addresses, by which the node goes; one asks for an address; and
// one has none, since its configuration does not name it. It becomes Ready, and stays reachable whichever cable of the bond is pulled. Before
// that its configuration names a card that it has not, and the machine says which it has.
func TestNetworkOfCards(t *testing.T) {
	b := newBench(t)
	base, err := hullmark.ParseNodeConfig(b.newCluster(t, "cluster"))
	if err != nil {
		t.Fatal(err)
	}
	nodes := b.startNetwork(t, vm.NetworkConfig{
		Dir: b.path("nodes"), VLAN: nodesVLAN, Forwards: []vm.Forward{{Address: nodesAddress, Guest: 7443}, {Address: nodesAddress, Guest: 6443}},
	})
	storage := b.startNetwork(t, vm.NetworkConfig{Dir: b.path("storage"), Prefix: storagePrefix})
	c := vm.Config{Dir: b.path("control-plane-1"), Image: b.image(), Networks: []string{nodes.Dir(), nodes.Dir(), storage.Dir(), storage.Dir()}}
	c.Tools, c.StateDisk, c.MemoryMiB = b.tools(), 4<<30, 4096
	cards, err := c.CardAddresses()
	if err != nil {
		t.Fatal(err)
	}

	m := b.startIn(t, c, nodes, bonded(base, hullmark.Card{MAC: "52:54:00:00:00:00"}))
	m.sees(t, `code: +card-missing`)
	m.sees(t, `got: .*mac `+cards[0].String()+`, driver virtio_net, path pci-0000:00:\S+; .*path pci-0000:00:13\.0`)
	m.Kill()

	m = b.startIn(t, c, nodes, bonded(base, hullmark.Card{MAC: cards[0].String()}))
	m.init(t, 0, "cluster", "--control-plane", nodesAddress.String()+":6443")
	if got := b.says(t, "get", "nodes", "-o", `jsonpath={.items[*].status.addresses[?(@.type=="InternalIP")].address}`); got != nodesAddress.String() {
		t.Errorf("the node's address is %q, want %s", got, nodesAddress)
	}
	m.checkLinks(t, cards[0].String())
	m.checkJournal(t)
	for _, pulled := range []int{0, 1} {
		if err := m.SetCable(pulled, false); err != nil {
			t.Fatal(err)
		}
		m.answers(t, fmt.Sprintf("without the cable of card %d", pulled))
		if err := m.SetCable(pulled, true); err != nil {
			t.Fatal(err)
		}
		m.answers(t, fmt.Sprintf("with the cable of card %d again", pulled))
	}
}

// bonded is a configuration for such a machine, whose first card is chosen in that way.
func bonded(base hullmark.NodeConfig, left hullmark.Card) hullmark.NodeConfig {
	base.Interfaces = []hullmark.Interface{
		{Name: "left", Card: &left},
		{Name: "right", Card: &hullmark.Card{Path: "pci-0000:00:11.0"}},
		{Name: "bond", Bond: &hullmark.Bond{Mode: "active-backup", Members: []string{"left", "right"}, Primary: "left"}, MTU: 9000},
		{
			Name: "nodes", VLAN: &hullmark.VLAN{ID: nodesVLAN, Link: "bond"}, MTU: 9000, Node: true,
			Addresses: []string{nodesAddress.String() + "/24"}, Routes: []hullmark.Route{{Gateway: "10.0.2.2"}}, NameServers: []string{"10.0.2.3"},
		},
		{Name: "storage", Card: &hullmark.Card{Path: "pci-0000:00:12.0"}, DHCP4: &hullmark.Offer{Use: []string{}}},
	}
	return base
}

func (b bench) startNetwork(t *testing.T, c vm.NetworkConfig) *vm.Network {
	t.Helper()
	c.Tools = b.tools()
	n, err := vm.StartNetwork(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// startIn starts a machine whose agent and API server are reached through a network.
func (b bench) startIn(t *testing.T, c vm.Config, n *vm.Network, config hullmark.NodeConfig) machine {
	t.Helper()
	var err error
	if c.NodeConfig, err = json.MarshalIndent(config, "", "  "); err != nil {
		t.Fatal(err)
	}
	m, err := vm.Start(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Kill)
	at := func(i int) string { return fmt.Sprintf("127.0.0.1:%d", n.Forwards()[i].Host) }
	return machine{Machine: m, bench: b, agent: at(0), api: at(1)}
}

// says is what kubectl answers.
func (b bench) says(t *testing.T, args ...string) string {
	t.Helper()
	return strings.TrimSpace(command(t, 0, filepath.Join(b.out, "kubectl"), append([]string{"--kubeconfig", b.path("kubeconfig")}, args...)...))
}

func (m machine) clusterFlags() []string {
	return []string{"--node", m.agent, "--cluster", m.bench.path("cluster"), "--passphrase-file", m.bench.path("passphrase")}
}

// checkLinks holds what the node says of its interfaces to the configuration.
func (m machine) checkLinks(t *testing.T, bondMAC string) {
	t.Helper()
	var d firstboot.Document
	if err := json.Unmarshal([]byte(cli(t, 0, append([]string{"node", "status"}, m.clusterFlags()...)...)), &d); err != nil {
		t.Fatal(err)
	}
	byName, cards := map[string]network.Link{}, 0
	for _, l := range d.Interfaces {
		byName[l.Name] = l
		if l.Path != "" {
			byName[l.Path] = l
		}
		if l.Card {
			cards++
		}
	}
	if cards != 4 {
		t.Errorf("the node shows %d cards", cards)
	}
	if own := byName["nodes"]; !own.Up || own.MAC != bondMAC || !slices.Equal(own.Addresses, []netip.Prefix{netip.PrefixFrom(nodesAddress, 24)}) {
		t.Errorf("the VLAN: %+v", own)
	}
	if offered := byName["pci-0000:00:12.0"]; len(offered.Addresses) != 1 || !storagePrefix.Contains(offered.Addresses[0].Addr()) {
		t.Errorf("the card that asks for an address: %+v", offered)
	}
	for _, path := range []string{"pci-0000:00:11.0", "pci-0000:00:13.0"} {
		if l, there := byName[path]; !there || len(l.Addresses) > 0 {
			t.Errorf("a card that is to have no address: %+v", l)
		}
	}
}

// complaint is what systemd-networkd says of settings that it does not know, and of what it could not do.
var complaint = regexp.MustCompile(`(?m)^.*systemd-networkd\[\d+\]: .*(ignoring|[Ff]ailed|[Cc]ould not|[Cc]annot).*$`)

// checkJournal wants no complaint of networkd about what it was given, and that it was seen.
func (m machine) checkJournal(t *testing.T) {
	t.Helper()
	journal := cli(t, 0, append([]string{"node", "logs"}, m.clusterFlags()...)...)
	if !strings.Contains(journal, "bond: ") || !strings.Contains(journal, "nodes: ") {
		t.Error("the journal does not tell of the interfaces")
	}
	for _, line := range complaint.FindAllString(journal, -1) {
		if !strings.Contains(line, "cgroup path") { // It runs before the rest of systemd asks for that.
			t.Errorf("networkd complains: %s", line)
		}
	}
}

// answers waits until the agent answers its operator.
func (m machine) answers(t *testing.T, when string) {
	t.Helper()
	const patience = 2 * time.Minute
	began := time.Now()
	for {
		out, err := exec.CommandContext(t.Context(), filepath.Join(source(t), "bin", "hullmark"), append([]string{"node", "status"}, m.clusterFlags()...)...).CombinedOutput()
		if err == nil {
			t.Logf("%s: it answers after %v", when, time.Since(began).Round(time.Millisecond))
			return
		}
		if time.Since(began) > patience {
			console, _ := os.ReadFile(m.Console())
			t.Fatalf("%s: %s\nthe console's end:\n%s", when, out, tail(console))
		}
	}
}
