package network

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/hullmark/hullmark"
)

func card(name, mac, driver, path string) Link {
	return Link{Name: name, Card: true, MAC: mac, Driver: driver, Path: path}
}

// cards are a machine's: three of one driver, and one of another.
var cards = []Link{
	card("enp1s0", "52:54:00:00:00:01", "virtio_net", "pci-0000:00:01.0"),
	card("enp2s0", "52:54:00:00:00:02", "virtio_net", "pci-0000:00:02.0"),
	card("enp3s0", "52:54:00:00:00:03", "e1000e", "pci-0000:00:03.0"),
	{Name: "bond", Up: true},
	{Name: "veth1234", Up: true},
}

func parse(t testing.TB, fields string) hullmark.NodeConfig {
	t.Helper()
	c, err := hullmark.ParseNodeConfig([]byte(`{"version":1,"clusterRoot":"` + strings.Repeat("5f2b9c1d", 8) + `","stateDisk":{"serial":"state"},` + fields + `}`))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

const bonded = `"interfaces":[
	{"name":"left","card":{"mac":"52:54:00:00:00:02"}},
	{"name":"right","card":{"path":"pci-0000:00:01.0"}},
	{"name":"bond","bond":{"mode":"active-backup","members":["left","right"],"primary":"right"},"mtu":9000},
	{"name":"nodes","vlan":{"id":100,"link":"bond"},"node":true,"addresses":["192.0.2.21/24","192.0.2.20/24","2001:db8::21/64"],
	 "routes":[{"gateway":"192.0.2.1"},{"to":"198.51.100.0/24","gateway":"192.0.2.2","metric":5},{"gateway":"fe80::1","onLink":true}],
	 "nameServers":["192.0.2.53","192.0.2.54"],"searchDomains":["example.net","example.org"]},
	{"name":"storage","card":{"driver":"e1000e"},"dhcp4":{"use":["mtu"],"vendorClass":"hullmark"}}]`

// What is chosen in each way is that card, and the files say so.
func TestFiles(t *testing.T) {
	p, err := Make(parse(t, bonded), cards)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, f := range p.Files() {
		got[f.Name] = f.Content
	}
	const tail = "LLMNR=no\nMulticastDNS=no\n"
	for name, want := range map[string]string{
		"50-hullmark.network":       "[Match]\nType=ether\nKind=!*\n\n[Link]\nActivationPolicy=manual\n\n[Network]\nDHCP=no\nIPv6AcceptRA=no\nLinkLocalAddressing=no\n",
		"10-hullmark-left.network":  "[Match]\nName=enp2s0\n\n[Network]\nBond=bond\nDHCP=no\nIPv6AcceptRA=no\nLinkLocalAddressing=no\n" + tail,
		"10-hullmark-right.network": "[Match]\nName=enp1s0\n\n[Network]\nBond=bond\nPrimarySlave=yes\nDHCP=no\nIPv6AcceptRA=no\nLinkLocalAddressing=no\n" + tail,
		"10-hullmark-bond.netdev":   "[NetDev]\nName=bond\nKind=bond\nMACAddress=52:54:00:00:00:02\n\n[Bond]\nMode=active-backup\nMIIMonitorSec=100ms\n",
		"10-hullmark-bond.network": "[Match]\nName=bond\n\n[Link]\nMTUBytes=9000\n\n[Network]\nVLAN=nodes\nDHCP=no\nIPv6AcceptRA=no\nLinkLocalAddressing=no\n" +
			tail,
		"10-hullmark-nodes.netdev": "[NetDev]\nName=nodes\nKind=vlan\n\n[VLAN]\nId=100\n",
		"10-hullmark-nodes.network": "[Match]\nName=nodes\n\n[Network]\nDHCP=no\nIPv6AcceptRA=no\nLinkLocalAddressing=ipv6\n" + tail +
			"Address=192.0.2.21/24\nAddress=192.0.2.20/24\nAddress=2001:db8::21/64\nDNS=192.0.2.53\nDNS=192.0.2.54\nDomains=example.net example.org\n" +
			"\n[Route]\nDestination=0.0.0.0/0\nGateway=192.0.2.1\n\n[Route]\nDestination=198.51.100.0/24\nGateway=192.0.2.2\nMetric=5\n" +
			"\n[Route]\nDestination=::/0\nGateway=fe80::1\nGatewayOnLink=yes\n",
		"10-hullmark-storage.network": "[Match]\nName=enp3s0\n\n[Network]\nDHCP=ipv4\nIPv6AcceptRA=no\nLinkLocalAddressing=no\n" + tail +
			"KeepConfiguration=dynamic-on-stop\n\n[DHCPv4]\nClientIdentifier=mac\nVendorClassIdentifier=hullmark\nSendHostname=no\nUseHostname=no\nUseTimezone=no\n" +
			"UseDNS=no\nUseDomains=no\nUseMTU=yes\nUseNTP=no\nUseRoutes=no\n",
	} {
		if got[name] != want {
			t.Errorf("%s:\n%s\nwant\n%s", name, got[name], want)
		}
		delete(got, name)
	}
	if len(got) > 0 {
		t.Errorf("there are more files: %v", got)
	}
}

// An IPv6-only interface, and what other kinds and options are called.
func TestFilesOfOthers(t *testing.T) {
	p, err := Make(parse(t, `"interfaces":[
		{"name":"a","card":{"name":"enp1s0"}},{"name":"b","card":{"name":"enp2s0"}},{"name":"c","card":{"name":"enp3s0"}},
		{"name":"lag","bond":{"mode":"802.3ad","members":["b","a"],"hash":"layer3+4","lacpRate":"fast"}},
		{"name":"pods","vlan":{"id":7,"link":"lag"}},
		{"name":"br","bridge":{"members":["pods","c"],"stp":true},"dhcp6":{"vendorClass":"hullmark"},"ra":{"metric":10}}]`), cards)
	if err != nil {
		t.Fatal(err)
	}
	all := ""
	for _, f := range p.Files() {
		all += "# " + f.Name + "\n" + f.Content
	}
	for _, want := range []string{
		"Kind=bond\nMACAddress=52:54:00:00:00:02\n\n[Bond]\nMode=802.3ad\nMIIMonitorSec=100ms\nTransmitHashPolicy=layer3+4\nLACPTransmitRate=fast\n",
		"Kind=bridge\nMACAddress=52:54:00:00:00:02\n\n[Bridge]\nSTP=yes\n",
		"Name=pods\n\n[Network]\nBridge=br\n", "Name=enp3s0\n\n[Network]\nBridge=br\n", "Name=lag\n\n[Network]\nVLAN=pods\n",
		"DHCP=ipv6\nIPv6AcceptRA=yes\nLinkLocalAddressing=ipv6\n", "[DHCPv6]\nDUIDType=link-layer\nVendorClass=hullmark\n", "WithoutRA=solicit\n",
		"[IPv6AcceptRA]\nDHCPv6Client=always\nUseRedirect=no\nUseGateway=yes\nUseRoutePrefix=yes\nUseDNS=yes\nUseDomains=no\nUseMTU=no\nRouteMetric=10\n",
	} {
		if !strings.Contains(all, want) {
			t.Errorf("the files lack\n%s\nin\n%s", want, all)
		}
	}
}

// Without interfaces, static addresses are those of the only card.
func TestFilesWithoutInterfaces(t *testing.T) {
	config := parse(t, `"addresses":["192.0.2.21/24","2001:db8::21/64"],"gateway":"192.0.2.1","nameServers":["192.0.2.3","2001:db8::3"]`)
	p, err := Make(config, []Link{cards[0], {Name: "veth1234"}})
	if err != nil {
		t.Fatal(err)
	}
	const want = "[Match]\nName=enp1s0\n\n[Network]\nAddress=192.0.2.21/24\nAddress=2001:db8::21/64\nGateway=192.0.2.1\nDNS=192.0.2.3\nDNS=2001:db8::3\n"
	if files := p.Files(); len(files) != 1 || files[0] != (File{"10-hullmark.network", want}) {
		t.Errorf("got %v, want %q", files, want)
	}
	p, err = Make(parse(t, `"timeServers":["time.example"]`), cards)
	if err != nil || p.Chooses() || len(p.Files()) > 0 {
		t.Errorf("a configuration without addresses has %v, %v", p.Files(), err)
	}
}

// Each choice that no machine, or not this one, can follow is one condition, which names the cards that there are.
func TestChoices(t *testing.T) {
	one := func(card string) string { return `"interfaces":[{"name":"a","card":` + card + `,"dhcp4":{}}]` }
	for name, c := range map[string]struct {
		fields, code string
		cards        []Link
	}{
		"by mac":                 {one(`{"mac":"52:54:00:00:00:03"}`), "", cards},
		"by name":                {one(`{"name":"enp3s0"}`), "", cards},
		"by driver":              {one(`{"driver":"e1000e"}`), "", cards},
		"by path":                {one(`{"path":"pci-0000:00:03.0"}`), "", cards},
		"no such mac":            {one(`{"mac":"52:54:00:00:00:09"}`), "card-missing", cards},
		"no such name":           {one(`{"name":"eth0"}`), "card-missing", cards},
		"no such driver":         {one(`{"driver":"ixgbe"}`), "card-missing", cards},
		"no such path":           {one(`{"path":"pci-0000:00:09.0"}`), "card-missing", cards},
		"what is no card":        {one(`{"name":"veth1234"}`), "card-missing", cards},
		"a name with a pattern":  {one(`{"driver":"e1000e"}`), "card-missing", []Link{card("e*", "", "e1000e", "")}},
		"two of a driver":        {one(`{"driver":"virtio_net"}`), "card-ambiguous", cards},
		"two with one mac":       {one(`{"mac":"52:54:00:00:00:01"}`), "card-ambiguous", append([]Link{card("enp9s0", "52:54:00:00:00:01", "", "")}, cards...)},
		"one card, chosen twice": {`"interfaces":[{"name":"a","card":{"mac":"52:54:00:00:00:03"},"dhcp4":{}},{"name":"b","card":{"driver":"e1000e"}}]`, "card-twice", cards},
		"the name of a card":     {`"interfaces":[{"name":"a","card":{"driver":"e1000e"}},{"name":"enp1s0","vlan":{"id":2,"link":"a"},"dhcp4":{}}]`, "interface-name-taken", cards},
		"an address, many cards": {`"addresses":["192.0.2.21/24"]`, "cards-several", cards},
		"an address, no card":    {`"addresses":["192.0.2.21/24"]`, "card-missing", cards[3:]},
		"an address, one card":   {`"addresses":["192.0.2.21/24"]`, "", cards[2:]},
	} {
		p, err := Make(parse(t, c.fields), c.cards)
		if c.code == "" {
			if err != nil || !strings.Contains(p.Files()[len(p.Files())-1].Content, "Name=enp3s0\n") {
				t.Errorf("%s: %v, %v", name, p.Files(), err)
			}
			continue
		}
		var condition *hullmark.Condition
		if !errors.As(err, &condition) || condition.Code != c.code || condition.Next == "" || Missing(err) != (c.code == "card-missing") {
			t.Errorf("%s: %v, want %s", name, err, c.code)
			continue
		}
		if c.code != "card-missing" && !strings.Contains(condition.Got, "mac 52:54:00:00:00:0") || strings.Contains(condition.Got, "veth") {
			t.Errorf("%s: it does not name the cards: %s", name, condition.Got)
		}
	}
}

// The node goes by static addresses in their order, once it has them all; else by what the network gave, IPv4 first.
func TestOwn(t *testing.T) {
	prefixes := func(texts ...string) (all []netip.Prefix) {
		for _, text := range texts {
			all = append(all, netip.MustParsePrefix(text))
		}
		return all
	}
	const dynamic = `"interfaces":[{"name":"a","card":{"name":"enp1s0"},"dhcp4":{},"ra":{}}]`
	for name, c := range map[string]struct {
		fields       string
		link         Link
		own, kubelet string
		online       bool
	}{
		"static": {bonded, Link{Name: "nodes", Up: true, Addresses: prefixes("2001:db8::21/64", "192.0.2.20/24", "192.0.2.21/24")}, "[192.0.2.21 192.0.2.20 2001:db8::21]", "192.0.2.21,2001:db8::21", true},
		"IPv6 before": {
			`"interfaces":[{"name":"a","card":{"name":"enp1s0"},"addresses":["2001:db8::21/64","192.0.2.21/24"]}]`,
			Link{Name: "enp1s0", Up: true, Addresses: prefixes("192.0.2.21/24", "2001:db8::21/64")},
			"[2001:db8::21 192.0.2.21]", "192.0.2.21,2001:db8::21", true,
		},
		"not yet all":       {bonded, Link{Name: "nodes", Up: true, Addresses: prefixes("192.0.2.21/24")}, "[192.0.2.21]", "192.0.2.21", false},
		"down":              {bonded, Link{Name: "nodes", Addresses: prefixes("192.0.2.20/24", "192.0.2.21/24", "2001:db8::21/64")}, "[]", "", false},
		"another interface": {bonded, Link{Name: "enp3s0", Up: true, Addresses: prefixes("203.0.113.5/24")}, "[]", "", false},
		"offered":           {dynamic, Link{Name: "enp1s0", Up: true, Addresses: prefixes("2001:db8::2/64", "192.0.2.9/24", "192.0.2.8/24")}, "[192.0.2.8 192.0.2.9 2001:db8::2]", "192.0.2.8", true},
		"left open":         {`"timeServers":["time.example"]`, Link{Name: "enp1s0", Up: true, Addresses: prefixes("192.0.2.9/24")}, "[]", "", true},
	} {
		p, err := Make(parse(t, c.fields), cards)
		if err != nil {
			t.Fatal(err)
		}
		links := []Link{{Name: "lo", Up: true}, c.link}
		text := "["
		for i, a := range p.Own(links) {
			if i > 0 {
				text += " "
			}
			text += a.String()
		}
		if text += "]"; text != c.own || p.KubeletAddresses(links) != c.kubelet || p.Online(links) != c.online {
			t.Errorf("%s: own %s, the kubelet's %q, online: %v", name, text, p.KubeletAddresses(links), p.Online(links))
		}
	}
}

func TestEnvironment(t *testing.T) {
	got := Environment(parse(t, `"proxy":{"http":"http://proxy.example:3128","https":"http://[2001:db8::1]:3128","except":[".example.net","10.0.0.0/8"]}`))
	if want := "HTTP_PROXY=http://proxy.example:3128\nHTTPS_PROXY=http://[2001:db8::1]:3128\nNO_PROXY=.example.net,10.0.0.0/8\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	none := parse(t, `"nameServers":[]`)
	if Environment(none) != "" || Timesync(none) != "" {
		t.Error("a configuration without proxy or time servers has settings for them")
	}
	if got := Timesync(parse(t, `"timeServers":["time.example","192.0.2.123"]`)); got != "[Time]\nNTP=time.example 192.0.2.123\n" {
		t.Errorf("got %q", got)
	}
}

// FuzzFiles holds every file to what its settings are made of: whatever a configuration that is accepted has for values, and whatever a
// machine's cards say of themselves, no value is more than one.
func FuzzFiles(f *testing.F) {
	seed := func(fields string) []byte {
		return []byte(`{"version":1,"clusterRoot":"` + strings.Repeat("5f2b9c1d", 8) + `","stateDisk":{"serial":"state"},` + fields + `}`)
	}
	f.Add(seed(bonded), "enp1s0", "pci-0000:00:01.0")
	f.Add(seed(`"addresses":["192.0.2.21/24"],"gateway":"fe80::1%eth0","nameServers":["fe80::53%eth0"],"timeServers":["a","::1"]`), "a\nb", "x")
	f.Add(seed(`"proxy":{"http":"http://proxy.example:3128","except":[".a","10.0.0.0/8"]},"interfaces":[{"name":"a","card":{"name":"e*"},"dhcp4":{},"dhcp6":{},"ra":{}}]`), "e*", "")
	f.Fuzz(func(t *testing.T, data []byte, name, path string) {
		config, err := hullmark.ParseNodeConfig(data)
		if err != nil {
			return
		}
		for text, separators := range map[string]string{Timesync(config): " ", Environment(config): ","} {
			checkSettings(t, text, separators)
		}
		// A machine whose cards are what is chosen, under a name of its own; and the only card.
		for _, links := range [][]Link{chosen(config, name, path), {card(name, "52:54:00:00:00:01", "virtio_net", path)}} {
			p, err := Make(config, links)
			if err != nil {
				continue
			}
			for _, file := range p.Files() {
				if strings.ContainsAny(file.Name, "/\n") || !strings.HasSuffix(file.Name, ".network") && !strings.HasSuffix(file.Name, ".netdev") {
					t.Errorf("a file is named %q", file.Name)
				}
				checkSettings(t, file.Content, " ")
			}
		}
	})
}

// chosen are cards such as a configuration chooses; one of them also has a name and a path that somebody else made up.
func chosen(config hullmark.NodeConfig, name, path string) (links []Link) {
	for n, i := range config.Interfaces {
		if i.Card == nil {
			continue
		}
		l := card("enp"+string(rune('a'+n%26))+string(rune('a'+n/26)), i.Card.MAC, i.Card.Driver, i.Card.Path)
		if i.Card.Name != "" {
			l.Name = i.Card.Name
		}
		if len(links) == 0 && i.Card.Name == "" {
			l.Name = name
		}
		if l.MAC == "" {
			l.MAC = "52:54:00:00:00:01"
		}
		if l.Path == "" {
			l.Path = path
		}
		links = append(links, l)
	}
	return links
}

// known are all settings that are written.
var known = strings.Fields(`Name Type Kind MTUBytes ActivationPolicy Bond PrimarySlave Bridge VLAN DHCP IPv6AcceptRA LinkLocalAddressing LLMNR MulticastDNS
	KeepConfiguration Address Gateway DNS Domains Destination GatewayOnLink Metric ClientIdentifier DUIDType VendorClassIdentifier SendHostname UseHostname
	UseTimezone UseDNS UseDomains UseMTU UseNTP UseRoutes RouteMetric VendorClass WithoutRA DHCPv6Client UseRedirect UseGateway UseRoutePrefix MACAddress Mode
	MIIMonitorSec TransmitHashPolicy LACPTransmitRate Id STP NTP HTTP_PROXY HTTPS_PROXY NO_PROXY`)

// checkSettings wants sections and settings that are known, each a line without anything that means something to systemd, and of settings
// that have lists, only such as those.
func checkSettings(t *testing.T, text, separator string) {
	t.Helper()
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		if line == "" || line[0] == '[' && line[len(line)-1] == ']' && strings.IndexFunc(line[1:len(line)-1], notLetter) < 0 {
			continue
		}
		name, value, found := strings.Cut(line, "=")
		lists := name == "Domains" || name == "NTP" || name == "NO_PROXY"
		if !found || !slices.Contains(known, name) || value == "" {
			t.Errorf("a line is %q", line)
		}
		if lists {
			value = strings.ReplaceAll(value, separator, "")
		}
		if name == "Kind" && value == "!*" {
			continue
		}
		if i := strings.IndexFunc(value, func(r rune) bool {
			return r <= ' ' || r >= 0x7f || strings.ContainsRune("\"'\\#;*?!=$`{}()<>|&~@^,", r)
		}); i >= 0 {
			t.Errorf("a setting is %q", line)
		}
	}
}

func notLetter(r rune) bool {
	return !('a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9')
}
