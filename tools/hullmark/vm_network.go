package main

import (
	"context"
	"fmt"
	"io"
	"net/netip"

	"github.com/spf13/cobra"

	"github.com/hullmark/hullmark/internal/vm"
)

func newVMNetworkCommand() *cobra.Command {
	var config vm.NetworkConfig
	var forwards []string
	var prefix string
	cmd := &cobra.Command{
		Use:   "network FOLDER",
		Short: "Run a network that virtual machines share",
		Long: `Run a network that virtual machines share, until interrupted.

Machines started with --network FOLDER are on one Ethernet segment: they reach each other, and this host's network through the router 10.0.2.2.
Their node configurations name an address each, from 10.0.2.4/24 to 10.0.2.99/24, and the gateway 10.0.2.2; a machine without one is given one from
10.0.2.100 on. With --vlan the router is in that VLAN alone; with --prefix the network has other addresses, in the same places. Ports of this host are forwarded to such addresses, whether a machine has them yet or not: machines may come and go.`,
		Example: "  hullmark vm network out/network --forward 7443:10.0.2.21:7443 --forward 6443:10.0.2.21:6443",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			var err error
			config.Dir = args[0]
			if config.Prefix, err = netip.ParsePrefix(prefix); err != nil {
				return withCode(exitUsage, fmt.Errorf("--prefix: %w", err))
			}
			if config.Forwards, err = parseForwards(forwards); err == nil {
				err = config.Check()
			}
			if err != nil {
				return withCode(exitUsage, err)
			}
			return runNetwork(cmd.Context(), config, cmd.ErrOrStderr())
		},
	}
	cmd.Flags().StringArrayVar(&forwards, "forward", nil, "HOST:ADDRESS:GUEST, a TCP port of the machine with that address to reach on 127.0.0.1; HOST 0 takes a free one; repeatable")
	cmd.Flags().StringVar(&prefix, "prefix", vm.DefaultPrefix.String(), "256 addresses of IPv4, the network's own")
	cmd.Flags().IntVar(&config.VLAN, "vlan", 0, "`ID` of the VLAN that the router is in, from 1 to 4094 (default: none)")
	cmd.Flags().StringVar(&config.Tools, "tools", "", "tools tree to run QEMU from (default: the host's)")
	return cmd
}

// runNetwork runs a network until the context ends, which is how it is meant to end.
func runNetwork(ctx context.Context, config vm.NetworkConfig, notes io.Writer) error {
	n, err := vm.StartNetwork(ctx, config)
	if err != nil {
		return err
	}
	for _, f := range n.Forwards() {
		fmt.Fprintf(notes, "forward    127.0.0.1:%d to %s:%d\n", f.Host, f.Address, f.Guest)
	}
	fmt.Fprintf(notes, "network    %s: machines join it with --network\n", config.Dir)
	if err := n.Wait(); ctx.Err() == nil {
		return err
	}
	return nil
}
