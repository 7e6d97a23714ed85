package hullmark

// Limits of the network in a node configuration.
const (
	maxInterfaces = 32
	maxMembers    = 8
	maxRoutes     = 64
	maxServers    = 16
)

// Interface is one network interface of a node: a card, or what is made of cards. Exactly one of Card, Bond, VLAN and Bridge is set.
type Interface struct {
	// Name is what others of the configuration call it by. A bond, VLAN or bridge is made under this name; a card keeps the kernel's.
	Name   string  `json:"name"`
	Card   *Card   `json:"card,omitempty"`
	Bond   *Bond   `json:"bond,omitempty"`
	VLAN   *VLAN   `json:"vlan,omitempty"`
	Bridge *Bridge `json:"bridge,omitempty"`
	// Node marks the interface whose addresses are the node's own: its kubelet's, its API server's and etcd's. It may be left out where
	// one interface alone gets addresses.
	Node bool `json:"node,omitempty"`
	// MTU is the largest packet in bytes; what the card has, if it is left out.
	MTU int `json:"mtu,omitempty"`
	// Addresses are static addresses in CIDR notation.
	Addresses []string `json:"addresses,omitempty"`
	Routes    []Route  `json:"routes,omitempty"`
	// DHCP4, DHCP6 and RA are what is asked for or accepted from the network: each is off if it is left out, and on if it is there.
	DHCP4 *Offer `json:"dhcp4,omitempty"`
	DHCP6 *Offer `json:"dhcp6,omitempty"`
	RA    *Offer `json:"ra,omitempty"`
	// NameServers are addresses of DNS servers, SearchDomains what is appended to names without a dot.
	NameServers   []string `json:"nameServers,omitempty"`
	SearchDomains []string `json:"searchDomains,omitempty"`
}

// Card chooses the one network card that has something. Exactly one field is set.
type Card struct {
	// MAC is the address that the card was made with, in lower case with colons.
	MAC string `json:"mac,omitempty"`
	// Name is the kernel's, such as enp1s0.
	Name string `json:"name,omitempty"`
	// Driver is the kernel's, such as virtio_net.
	Driver string `json:"driver,omitempty"`
	// Path is where the card is plugged in, as udev's ID_PATH says it, such as pci-0000:00:03.0.
	Path string `json:"path,omitempty"`
}

// Bond makes one interface of several cards.
type Bond struct {
	// Mode is active-backup, 802.3ad, balance-xor or balance-tlb, as the kernel's bonding driver calls them.
	Mode string `json:"mode"`
	// Members are the names of cards of this configuration.
	Members []string `json:"members"`
	// Primary is the member that is used while it works, of active-backup and balance-tlb.
	Primary string `json:"primary,omitempty"`
	// Hash decides which member a packet takes, of 802.3ad and balance-xor: layer2 (the kernel's choice), layer2+3 or layer3+4.
	Hash string `json:"hash,omitempty"`
	// LACPRate is how often the other end is to speak, of 802.3ad: slow (the kernel's choice) or fast.
	LACPRate string `json:"lacpRate,omitempty"`
}

// VLAN is the part of an interface's traffic that has a tag (IEEE 802.1Q).
type VLAN struct {
	// ID is 1 to 4094.
	ID int `json:"id"`
	// Link is the name of a card, a bond or a bridge.
	Link string `json:"link"`
}

// Bridge joins interfaces to one segment.
type Bridge struct {
	// Members are the names of cards, bonds or VLANs.
	Members []string `json:"members"`
	// STP runs the spanning tree protocol.
	STP bool `json:"stp,omitempty"`
}

// Route says by which router a network is reached.
type Route struct {
	// To is the network in CIDR notation; left out, it is all that no other route is for.
	To string `json:"to,omitempty"`
	// Gateway is the router's address, in a network of a static address of the interface, unless OnLink says that it is reached all the
	// same. Without a gateway, To is reached directly.
	Gateway string `json:"gateway,omitempty"`
	OnLink  bool   `json:"onLink,omitempty"`
	// Metric orders routes to the same network: the lowest is taken. 0 is the kernel's choice.
	Metric int `json:"metric,omitempty"`
}

// Offer says what is taken of what a DHCP server or a router offers, beside addresses. A host name never is, nor is one sent.
type Offer struct {
	// Use has some of dns, domains, mtu, ntp and routes. Left out, it is dns, and routes where they can be offered; empty, it is nothing.
	Use []string `json:"use,omitzero"`
	// Metric is that of the offered routes, as Route has it; 1024 if it is left out.
	Metric int `json:"metric,omitempty"`
	// ClientID is what a DHCPv4 server knows the machine by: mac (the default) or duid, which is made of the MAC, too.
	ClientID string `json:"clientID,omitempty"`
	// VendorClass is what a DHCP server is told the machine is.
	VendorClass string `json:"vendorClass,omitempty"`
}

// Proxy leads to servers outside: containerd's to registries, and the node's to where releases are published. Nothing else goes there:
// no exchange with a verifier, no question to an API server or a metadata service.
type Proxy struct {
	// HTTP and HTTPS are addresses, as http://HOST:PORT or https://HOST:PORT, of the proxy for servers of either kind. They have no
	// credentials: a node configuration is public.
	HTTP  string `json:"http,omitempty"`
	HTTPS string `json:"https,omitempty"`
	// Except are the servers that are asked directly: names (.example.net is all below it), addresses, and networks in CIDR notation.
	Except []string `json:"except,omitempty"`
}

// Dynamic reports whether the interface gets addresses from its network.
func (i Interface) Dynamic() bool { return i.DHCP4 != nil || i.DHCP6 != nil || i.RA != nil }

// addressed reports whether the interface gets addresses at all.
func (i Interface) addressed() bool { return len(i.Addresses) > 0 || i.Dynamic() }

// members are the names of what the interface is made of.
func (i Interface) members() []string {
	switch {
	case i.Bond != nil:
		return i.Bond.Members
	case i.Bridge != nil:
		return i.Bridge.Members
	case i.VLAN != nil:
		return []string{i.VLAN.Link}
	}
	return nil
}

// NodeInterface returns the interface whose addresses are the node's own; nil if the configuration has no interfaces.
func (c NodeConfig) NodeInterface() *Interface {
	var own *Interface
	for n := range c.Interfaces {
		i := &c.Interfaces[n]
		if i.Node || own == nil && i.addressed() {
			own = i
		}
		if i.Node {
			break
		}
	}
	return own
}

// OwnAddresses are the static addresses of the node in CIDR notation, in the order in which it prefers them.
func (c NodeConfig) OwnAddresses() []string {
	if own := c.NodeInterface(); own != nil {
		return own.Addresses
	}
	return c.Addresses
}
