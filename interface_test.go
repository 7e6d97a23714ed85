package hullmark

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
)

// withNetwork is a configuration with more fields.
func withNetwork(fields string) []byte {
	return []byte(strings.Replace(goodConfig, `"version":1`, `"version":1,`+fields, 1))
}

const bonded = `"interfaces":[
	{"name":"left","card":{"mac":"52:54:00:00:00:01"}},
	{"name":"right","card":{"path":"pci-0000:00:03.0"}},
	{"name":"bond","bond":{"mode":"active-backup","members":["left","right"],"primary":"left"},"mtu":9000},
	{"name":"nodes","vlan":{"id":100,"link":"bond"},"mtu":9000,"node":true,"addresses":["192.0.2.21/24","2001:db8::21/64"],
	 "routes":[{"gateway":"192.0.2.1"},{"to":"198.51.100.0/24","gateway":"192.0.2.2","metric":5},{"gateway":"fe80::1"}],
	 "nameServers":["192.0.2.53"],"searchDomains":["example.net"]},
	{"name":"storage","card":{"driver":"e1000e"},"dhcp4":{"use":[],"vendorClass":"hullmark"},"ra":{"use":["mtu"]}}]`

func TestInterfaces(t *testing.T) {
	c, err := ParseNodeConfig(withNetwork(bonded))
	if err != nil {
		t.Fatal(err)
	}
	if own := c.NodeInterface(); own == nil || own.Name != "nodes" || !reflect.DeepEqual(c.OwnAddresses(), own.Addresses) {
		t.Errorf("the node's interface is %+v", own)
	}
	text, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	again, err := ParseNodeConfig(text)
	if err != nil || !reflect.DeepEqual(again, c) {
		t.Errorf("its own encoding is another: %v\n%s", err, text)
	}
	if s := c.Interfaces[4]; s.DHCP4.Uses("dns") || s.DHCP4.Uses("routes") || !s.RA.Uses("mtu") {
		t.Errorf("an empty list uses something, or one that is not empty does not: %+v", s)
	}
}

// Where one interface alone gets addresses, it is the node's.
func TestNodeInterface(t *testing.T) {
	c, err := ParseNodeConfig(withNetwork(`"interfaces":[{"name":"a","card":{"name":"eth0"}},{"name":"br","bridge":{"members":["a"]},"dhcp4":{}}]`))
	if err != nil {
		t.Fatal(err)
	}
	if own := c.NodeInterface(); own == nil || own.Name != "br" || !own.DHCP4.Uses("dns") || !own.DHCP4.Uses("routes") || own.DHCP4.Uses("ntp") {
		t.Errorf("the node's interface is %+v", own)
	}
	if (NodeConfig{Addresses: []string{"192.0.2.1/24"}}).NodeInterface() != nil {
		t.Error("a configuration without interfaces has one")
	}
}

// Each wrong setting is one error, which names the interface and what is wrong.
func TestInterfacesRefuse(t *testing.T) {
	for name, c := range map[string]struct{ old, replacement, says string }{
		"unknown field":             {`"mode":"active-backup"`, `"mode":"active-backup","up":"ip link set"`, `unknown field "up"`},
		"addresses beside":          {`"interfaces":[`, `"addresses":["192.0.2.9/24"],"interfaces":[`, "are for machines without"},
		"a name twice":              {`"name":"right"`, `"name":"left"`, `two have the name "left"`},
		"a name with a line break":  {`"name":"storage"`, `"name":"a\nb"`, "name: want"},
		"a name too long":           {`"name":"storage"`, `"name":"abcdefghijklmnop"`, "name: want"},
		"a name of the pod network": {`"name":"storage"`, `"name":"cni0"`, "a pod network uses"},
		"the loopback":              {`"name":"storage"`, `"name":"lo"`, "name: want"},
		"no kind":                   {`"card":{"driver":"e1000e"},`, ``, "exactly one of card"},
		"two kinds":                 {`"card":{"driver":"e1000e"}`, `"card":{"driver":"e1000e"},"vlan":{"id":1,"link":"left"}`, "exactly one of card"},
		"no choice":                 {`{"driver":"e1000e"}`, `{}`, "exactly one of mac"},
		"two choices":               {`{"driver":"e1000e"}`, `{"driver":"e1000e","name":"eth0"}`, "exactly one of mac"},
		"mac of a group":            {`52:54:00:00:00:01`, `53:54:00:00:00:01`, "mac"},
		"mac in upper case":         {`52:54:00:00:00:01`, `52:54:00:00:00:AA`, "in lower case"},
		"card name as a pattern":    {`{"driver":"e1000e"}`, `{"name":"*"}`, "want the kernel's"},
		"driver as a pattern":       {`e1000e`, `e1000*`, "want the kernel's"},
		"path with a line break":    {`pci-0000:00:03.0`, `pci\n[Network]`, "want udev's"},
		"one card twice":            {`{"driver":"e1000e"}`, `{"mac":"52:54:00:00:00:01"}`, "is left already"},
		"vlan 0":                    {`"id":100`, `"id":0`, "1 to 4094"},
		"vlan 4095":                 {`"id":100`, `"id":4095`, "1 to 4094"},
		"vlan on nothing":           {`"link":"bond"`, `"link":"bund"`, `link "bund": want`},
		"vlan on a vlan":            {`"link":"bond"`, `"link":"nodes"`, "made of itself"},
		"vlan on a member":          {`"link":"bond"`, `"link":"left"`, "which is a member of bond"},
		"vlan twice":                {`{"name":"storage","card":{"driver":"e1000e"}`, `{"name":"storage","vlan":{"id":100,"link":"bond"}`, "is nodes already"},
		"vlan larger than below":    {`"primary":"left"},"mtu":9000`, `"primary":"left"}`, "is more than the 1500 of bond"},
		"unknown mode":              {`active-backup`, `round-robin`, `mode "round-robin": want one of`},
		"no members":                {`["left","right"],"primary":"left"`, `[]`, "0 members"},
		"member twice":              {`["left","right"]`, `["left","left"]`, "is in bond already"},
		"member of two":             {`"card":{"driver":"e1000e"}`, `"bridge":{"members":["left"]}`, "is in bond already"},
		"member unknown":            {`["left","right"]`, `["left","middle"]`, `member "middle" is no interface`},
		"member with addresses":     {`["left","right"]`, `["left","storage"]`, "has addresses"},
		"member is a vlan":          {`["left","right"]`, `["left","nodes"]`, "a bond is made of cards"},
		"member is itself":          {`["left","right"]`, `["left","bond"]`, "a bond is made of cards"},
		"primary is no member":      {`"primary":"left"`, `"primary":"storage"`, `primary "storage": want one of left, right`},
		"hash of active-backup":     {`"primary":"left"`, `"hash":"layer2"`, "hash is of mode 802.3ad and balance-xor"},
		"mtu too small":             {`"mtu":9000,"node"`, `"mtu":576,"node"`, "1280 to 9216"},
		"mtu of a member":           {`"card":{"mac":"52:54:00:00:00:01"}`, `"card":{"mac":"52:54:00:00:00:01"},"mtu":9000`, "has an mtu of its own"},
		"address twice":             {`"2001:db8::21/64"`, `"192.0.2.21/25"`, "192.0.2.21 is given to nodes already"},
		"address on two":            {`"dhcp4":{"use":[],"vendorClass":"hullmark"}`, `"addresses":["192.0.2.21/24"]`, "is given to nodes already"},
		"a network as address":      {`192.0.2.21/24`, `192.0.2.0/24`, "the network's own address"},
		"a broadcast address":       {`192.0.2.21/24`, `192.0.2.255/24`, "or its broadcast address"},
		"loopback address":          {`192.0.2.21/24`, `127.0.0.1/8`, "want a machine's address"},
		"link-local address":        {`2001:db8::21/64`, `fe80::21/64`, "want a machine's address"},
		"multicast address":         {`192.0.2.21/24`, `224.0.0.1/24`, "want a machine's address"},
		"no length":                 {`192.0.2.21/24`, `192.0.2.21`, "no '/'"},
		"gateway elsewhere":         {`{"gateway":"192.0.2.1"}`, `{"gateway":"192.0.3.1"}`, "is in no network of the interface's addresses"},
		"gateway is the node":       {`{"gateway":"192.0.2.1"}`, `{"gateway":"192.0.2.21"}`, "is the node's own address"},
		"gateway with a zone":       {`"gateway":"fe80::1"`, `"gateway":"fe80::1%a\nb"`, "is no router's address"},
		"gateway missing":           {`{"gateway":"192.0.2.1"}`, `{"metric":1}`, "gateway: missing"},
		"gateway of other family":   {`"to":"198.51.100.0/24"`, `"to":"2001:db8:1::/48"`, "of the other family"},
		"route to a machine":        {`198.51.100.0/24`, `198.51.100.7/24`, "want a network"},
		"route to all":              {`198.51.100.0/24`, `0.0.0.0/0`, "leave it out"},
		"negative metric":           {`"metric":5`, `"metric":-5`, "metric -5"},
		"two default routes":        {`{"gateway":"192.0.2.1"}`, `{"gateway":"192.0.2.1"},{"gateway":"192.0.2.3"}`, "a route to everything (0.0.0.0/0) has the same metric"},
		"offered default route":     {`"ra":{"use":["mtu"]}`, `"ra":{}`, "a route to everything (::/0) has the same metric as one of nodes"},
		"offer of what is none":     {`"use":["mtu"]`, `"use":["hostname"]`, `ra: use "hostname": want some of`},
		"ntp by router":             {`"use":["mtu"]`, `"use":["ntp"]`, `ra: use "ntp"`},
		"metric of nothing":         {`"use":[]`, `"use":[],"metric":5`, "want that of the routes"},
		"client of ra":              {`"use":["mtu"]`, `"use":["mtu"],"clientID":"mac"`, "others have none"},
		"class with a line break":   {`"vendorClass":"hullmark"`, `"vendorClass":"a\nSendHostname=yes"`, "vendorClass: want"},
		"name server by name":       {`"192.0.2.53"`, `"dns.example.net"`, "is no server's address"},
		"name server with a zone":   {`"192.0.2.53"`, `"fe80::53%x\ny"`, "is no server's address"},
		"domain with a space":       {`example.net`, `example.net ~.`, "is no domain"},
		"node without addresses":    {`"mtu":9000},`, `"mtu":9000,"node":true},`, "bond: node: it gets no addresses"},
		"two nodes":                 {`"dhcp4"`, `"node":true,"dhcp4"`, "are both marked"},
		"no node":                   {`"node":true,`, ``, "mark the one whose addresses are the node's own"},
	} {
		if !strings.Contains(bonded, c.old) {
			t.Fatalf("%s: %q is not in the configuration", name, c.old)
		}
		_, err := ParseNodeConfig(withNetwork(strings.Replace(bonded, c.old, c.replacement, 1)))
		if err == nil || !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: got %v, want an error with %q", name, err, c.says)
		}
	}
	for name, c := range map[string]struct{ fields, says string }{
		"a loop":         {`"interfaces":[{"name":"a","card":{"name":"e0"}},{"name":"br","bridge":{"members":["v"]},"dhcp4":{}},{"name":"v","vlan":{"id":2,"link":"br"}}]`, "made of itself"},
		"no address":     {`"interfaces":[{"name":"a","card":{"name":"e0"}}]`, "none gets addresses"},
		"too many":       {`"interfaces":[` + strings.Repeat(`{"name":"a"},`, 32) + `{"name":"a"}]`, "at most 32"},
		"a large bridge": {`"interfaces":[{"name":"a","card":{"name":"e0"}},{"name":"br","bridge":{"members":["a"]},"dhcp4":{},"mtu":9000}]`, "is more than the 1500 of member a"},
		"zone to systemd": {
			`"addresses":["192.0.2.9/24"],"gateway":"fe80::1%\n[Route]\nGateway=192.0.2.1"`, "is no IP address",
		},
		"zone to timesyncd": {`"timeServers":["fe80::1%\nFallbackNTP=x"]`, "neither a host name nor an address"},
	} {
		if _, err := ParseNodeConfig(withNetwork(c.fields)); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: got %v, want an error with %q", name, err, c.says)
		}
	}
}

func TestProxy(t *testing.T) {
	good := `"proxy":{"http":"http://proxy.example:3128","https":"https://[2001:db8::1]:3128","except":[".example.net","registry.example.net","192.0.2.1","10.0.0.0/8","2001:db8::/32"]}`
	if _, err := ParseNodeConfig(withNetwork(good)); err != nil {
		t.Error(err)
	}
	for name, c := range map[string]struct{ proxy, says string }{
		"nothing":           {`{}`, "neither http nor https"},
		"a password":        {`{"http":"http://user:hunter@proxy.example:3128"}`, "want a proxy that needs none"},
		"a user":            {`{"https":"http://user@proxy.example:3128"}`, "want a proxy that needs none"},
		"no port":           {`{"http":"http://proxy.example"}`, "want http://HOST:PORT"},
		"another scheme":    {`{"http":"socks5://proxy.example:1080"}`, "want http://HOST:PORT"},
		"a path":            {`{"http":"http://proxy.example:3128/x"}`, "want http://HOST:PORT"},
		"a line break":      {`{"http":"http://proxy.example:3128\nLD_PRELOAD=x"}`, "want http://HOST:PORT"},
		"a zone":            {`{"http":"http://[fe80::1%a]:3128"}`, "want http://HOST:PORT"},
		"a quote in except": {`{"http":"http://proxy.example:3128","except":["a\"b"]}`, "want a host name"},
		"all":               {`{"http":"http://proxy.example:3128","except":["*"]}`, "want a host name"},
		"half a network":    {`{"http":"http://proxy.example:3128","except":["10.0.0.1/8"]}`, "want a host name"},
	} {
		_, err := ParseNodeConfig(withNetwork(`"proxy":` + c.proxy))
		if err == nil || !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), "hunter") {
			t.Errorf("%s: got %v, want an error with %q", name, err, c.says)
		}
	}
}
