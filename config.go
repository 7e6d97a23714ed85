package hullmark

import (
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"strconv"
	"strings"
)

// MaxNodeConfig is the largest node configuration that is read, in bytes.
const MaxNodeConfig = 64 << 10

// NodeConfig is what a machine's owner hands to a node before it boots. It is
// public, it comes through the host and is therefore hostile: it grants
// nothing. It is measured into PCR 8 before any of it is used.
type NodeConfig struct {
	// Version is 1.
	Version int `json:"version"`
	// ClusterRoot names the only cluster whose operator and join service the node obeys.
	ClusterRoot ClusterRoot `json:"clusterRoot"`
	// Endpoints are join services as host:port, tried in any order; empty before the first init.
	Endpoints []string `json:"endpoints,omitempty"`
	// Addresses are static addresses in CIDR notation of a machine's only network card; without them, and without Interfaces, every card
	// uses DHCP and router advertisements.
	Addresses []string `json:"addresses,omitempty"`
	// Gateway is the default route for static addresses.
	Gateway string `json:"gateway,omitempty"`
	// NameServers are addresses of DNS servers for static addresses. CoreDNS does not start on a node that knows none.
	NameServers []string `json:"nameServers,omitempty"`
	// Interfaces say more of the network, and of machines with several cards. Cards that they do not name get no address.
	Interfaces []Interface `json:"interfaces,omitempty"`
	// Proxy is for what the node fetches from servers outside.
	Proxy *Proxy `json:"proxy,omitempty"`
	// TimeServers are NTP servers by name or address; time is a convenience, no decision rests on it.
	TimeServers []string `json:"timeServers,omitempty"`
	// StateDisk selects the state disk. If it is the disk that the node boots from, the state lies behind its slots.
	StateDisk DiskSelector `json:"stateDisk"`
	// Install is the disk that an installation medium installs; nil if the node's disk comes otherwise. It has no meaning in other boots.
	Install *Install `json:"install,omitempty"`
}

// Install says where an installation medium puts the release and the configuration that it holds.
type Install struct {
	// Disk selects the disk that the machine is to boot from.
	Disk DiskSelector `json:"disk"`
	// Overwrite is the serial number of a disk whose content may be lost. Any other disk has to be empty.
	Overwrite string `json:"overwrite,omitempty"`
}

// DiskSelector names one block device. Exactly one field is set.
type DiskSelector struct {
	// Serial is the device's serial number as the virtio, NVMe or SCSI layer reports it.
	Serial string `json:"serial,omitempty"`
	// Path is a device path below /dev.
	Path string `json:"path,omitempty"`
}

var (
	hostPattern   = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9.-]{0,252}[A-Za-z0-9])?$`)
	serialPattern = regexp.MustCompile(`^[A-Za-z0-9._-]{1,64}$`)
	// numberPattern finds what many programs take for an IPv4 address though it is none in its usual form, such as 192.0.2.01
	// or 0x7f.1 (inet_aton(3)).
	numberPattern = regexp.MustCompile(`(^|\.)(0[xX][0-9A-Fa-f]*|[0-9]+)$`)
	// serverNamePattern wants a last label that begins with a letter: what looks like an IPv4 address is none of these.
	serverNamePattern = regexp.MustCompile(`^(\*\.)?([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\.)*[a-z]([a-z0-9-]{0,61}[a-z0-9])?$`)
	devicePattern     = regexp.MustCompile(`^/dev/[A-Za-z0-9/_:.-]{1,128}$`)
)

// ParseNodeConfig strictly decodes a node configuration: JSON (RFC 8259) of at
// most MaxNodeConfig bytes, without unknown fields or trailing data.
func ParseNodeConfig(data []byte) (NodeConfig, error) {
	var c NodeConfig
	if err := DecodeStrict(data, MaxNodeConfig, &c); err != nil {
		return NodeConfig{}, fmt.Errorf("node config: %w", err)
	}
	if err := c.check(); err != nil {
		return NodeConfig{}, fmt.Errorf("node config: %w", err)
	}
	return c, nil
}

func (c NodeConfig) check() error {
	if c.Version != 1 {
		return fmt.Errorf("version: want 1, got %d", c.Version)
	}
	if c.ClusterRoot == (ClusterRoot{}) {
		return errors.New("clusterRoot: missing")
	}
	if len(c.Endpoints) > 32 || len(c.Addresses) > 16 || len(c.NameServers) > 16 || len(c.TimeServers) > 16 {
		return errors.New("a list is too long (at most 32 endpoints, 16 addresses, 16 name servers, 16 time servers)")
	}
	for _, e := range c.Endpoints {
		if !ValidEndpoint(e) {
			return fmt.Errorf("endpoints: %q: want HOST:PORT", e)
		}
	}
	for _, check := range []func() error{c.checkAddresses, c.checkInterfaces, c.Proxy.check} {
		if err := check(); err != nil {
			return err
		}
	}
	if err := c.StateDisk.check("stateDisk"); err != nil {
		return err
	}
	return c.Install.check()
}

func (i *Install) check() error {
	if i == nil {
		return nil
	}
	if i.Overwrite != "" && !serialPattern.MatchString(i.Overwrite) {
		return fmt.Errorf("install: overwrite %q: want the serial number of the disk whose content may be lost", i.Overwrite)
	}
	return i.Disk.check("install")
}

func (c NodeConfig) checkAddresses() error {
	for _, a := range c.Addresses {
		if _, err := netip.ParsePrefix(a); err != nil {
			return fmt.Errorf("addresses: %w", err)
		}
	}
	if c.Gateway != "" && !validAddress(c.Gateway) {
		return fmt.Errorf("gateway: %q is no IP address", c.Gateway)
	}
	for _, s := range c.NameServers {
		if !validAddress(s) {
			return fmt.Errorf("nameServers: %q is no IP address", s)
		}
	}
	for _, s := range c.TimeServers {
		if !hostPattern.MatchString(s) && !validAddress(s) {
			return fmt.Errorf("timeServers: %q is neither a host name nor an address", s)
		}
	}
	return nil
}

// ValidEndpoint reports whether s is a host name or an address (IPv6 in
// brackets; a zone in it is a name that an interface can have), a colon and
// a port from 1 to 65535. A name whose last label is a number is none: a program that takes it for an address
// would reach one that nobody knows to be the endpoint's.
func ValidEndpoint(s string) bool {
	_, ok := EndpointHost(s)
	return ok
}

// EndpointHost returns the host of a valid endpoint, an IPv6 address without its brackets.
func EndpointHost(endpoint string) (host string, ok bool) {
	if a, err := netip.ParseAddrPort(endpoint); err == nil {
		return a.Addr().String(), a.Port() > 0 && validZone(a.Addr())
	}
	host, port, found := strings.Cut(endpoint, ":")
	n, err := strconv.ParseUint(port, 10, 16)
	return host, found && err == nil && n > 0 && hostPattern.MatchString(host) && !numberPattern.MatchString(host)
}

// ValidServerName reports whether a server's certificate can be for s: a DNS name in lower case (RFC 1123), in which a * may
// stand for the first label, or an IP address in its usual form, without a zone.
func ValidServerName(s string) bool {
	if a, err := netip.ParseAddr(s); err == nil {
		return a.Zone() == "" && !a.Is4In6() && a.String() == s
	}
	return len(s) <= 253 && serverNamePattern.MatchString(s)
}

// validAddress reports whether s is an IP address. A zone can be any text to netip; here it is a name that an interface can have.
func validAddress(s string) bool {
	a, err := netip.ParseAddr(s)
	return err == nil && validZone(a)
}

func validZone(a netip.Addr) bool { return a.Zone() == "" || zonePattern.MatchString(a.Zone()) }

func (s DiskSelector) check(field string) error {
	if (s.Serial == "") == (s.Path == "") {
		return fmt.Errorf("%s: exactly one of serial and path must be set", field)
	}
	if s.Serial != "" && !serialPattern.MatchString(s.Serial) {
		return fmt.Errorf("%s: serial %q: want 1 to 64 letters, digits, dots, hyphens or underscores", field, s.Serial)
	}
	if s.Path != "" && !devicePattern.MatchString(s.Path) {
		return fmt.Errorf("%s: path %q: want a device below /dev", field, s.Path)
	}
	return nil
}
