package main

import (
	"testing"

	"github.com/flannel-io/flannel/pkg/subnet"
	"sigs.k8s.io/knftables"
)

// TestSealed: with WireGuard pods' packets take no other wire, whatever routes the node is offered; without, the rules are gone.
func TestSealed(t *testing.T) {
	nft := knftables.NewFake(knftables.InetFamily, sealTable)
	config := func(text string) *subnet.Config {
		c, err := subnet.ParseConfig(text)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	both := config(`{"Network": "10.244.0.0/16", "EnableIPv6": true, "IPv6Network": "fd00:10:244::/56", "Backend": {"Type": "wireguard"}}`)
	const want = `add table inet hullmark-wireguard { comment "pods' packets stay inside WireGuard" ; }
add chain inet hullmark-wireguard coming { type filter hook prerouting priority -300 ; }
add chain inet hullmark-wireguard leaving { type filter hook postrouting priority 0 ; }
add rule inet hullmark-wireguard coming iifname "lo" accept
add rule inet hullmark-wireguard coming iifname "veth*" accept
add rule inet hullmark-wireguard coming iifname "flannel-wg*" accept
add rule inet hullmark-wireguard coming ip saddr 10.244.0.0/16 drop
add rule inet hullmark-wireguard coming ip6 saddr fd00:10:244::/56 drop
add rule inet hullmark-wireguard leaving oifname "lo" accept
add rule inet hullmark-wireguard leaving oifname "veth*" accept
add rule inet hullmark-wireguard leaving oifname "flannel-wg*" accept
add rule inet hullmark-wireguard leaving ip daddr 10.244.0.0/16 drop
add rule inet hullmark-wireguard leaving ip6 daddr fd00:10:244::/56 drop
`
	for range 2 {
		if err := nft.Run(t.Context(), sealed(nft, both)); err != nil || nft.Dump() != want {
			t.Errorf("%v, got\n%s\nwant\n%s", err, nft.Dump(), want)
		}
	}
	if err := nft.Run(t.Context(), sealed(nft, config(`{"Network": "10.244.0.0/16", "Backend": {"Type": "host-gw"}}`))); err != nil || nft.Dump() != "" {
		t.Errorf("without WireGuard: %v, %s", err, nft.Dump())
	}
}
