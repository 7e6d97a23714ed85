package main

import (
	"context"
	"fmt"

	"github.com/flannel-io/flannel/pkg/subnet"
	"sigs.k8s.io/knftables"
)

// sealTable has the rules that keep pods' packets off every wire but WireGuard's.
const sealTable = "hullmark-wireguard"

// inside are the interfaces that pods' packets may take: pods' own, WireGuard's and the loopback. A node configuration can make none with
// such a name.
var inside = []string{"lo", "veth*", "flannel-wg*"}

// seal keeps what pods send each other inside WireGuard. One route leads there, to the network of all pods: whoever offers the node a
// narrower one, by DHCP, by router advertisement or in its configuration, would have those packets in the clear; and what comes from
// elsewhere in a pod's name was not authenticated. Such packets are dropped. The rules outlive the program; without WireGuard there are
// none.
func seal(ctx context.Context, config *subnet.Config) error {
	nft, err := knftables.New(knftables.InetFamily, sealTable)
	if err != nil {
		return err
	}
	return nft.Run(ctx, sealed(nft, config))
}

// sealed replaces all of the table at once.
func sealed(nft knftables.Interface, config *subnet.Config) *knftables.Transaction {
	tx := nft.NewTransaction()
	tx.Add(&knftables.Table{})
	tx.Delete(&knftables.Table{})
	if config.BackendType != "wireguard" {
		return tx
	}
	tx.Add(&knftables.Table{Comment: knftables.PtrTo("pods' packets stay inside WireGuard")})
	for _, c := range []struct {
		name       string
		hook       knftables.BaseChainHook
		priority   knftables.BaseChainPriority
		wire, side string
	}{
		{"coming", knftables.PreroutingHook, knftables.RawPriority, "iifname", "saddr"},
		{"leaving", knftables.PostroutingHook, knftables.FilterPriority, "oifname", "daddr"},
	} {
		tx.Add(&knftables.Chain{Name: c.name, Type: knftables.PtrTo(knftables.FilterType), Hook: &c.hook, Priority: &c.priority})
		for _, name := range inside {
			tx.Add(&knftables.Rule{Chain: c.name, Rule: knftables.Concat(c.wire, fmt.Sprintf("%q", name), "accept")})
		}
		if config.EnableIPv4 {
			tx.Add(&knftables.Rule{Chain: c.name, Rule: knftables.Concat("ip", c.side, config.Network.String(), "drop")})
		}
		if config.EnableIPv6 {
			tx.Add(&knftables.Rule{Chain: c.name, Rule: knftables.Concat("ip6", c.side, config.IPv6Network.String(), "drop")})
		}
	}
	return tx
}
