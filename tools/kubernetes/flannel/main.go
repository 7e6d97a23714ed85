// Command flannel gives every pod of a cluster an address that the other pods reach, and enforces the cluster's NetworkPolicies.
// It is flannel's own subnet manager, backends and nftables rules under a smaller main: flannel's also links the kits of clouds
// that this cluster does not run in, and leaves the CNI configuration to a container of its own, which is written here. Policies
// are enforced by kube-network-policies, in the same program: no pod has a network before they are.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"net/netip"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"

	"github.com/flannel-io/flannel/pkg/backend"
	_ "github.com/flannel-io/flannel/pkg/backend/hostgw"
	_ "github.com/flannel-io/flannel/pkg/backend/vxlan"
	_ "github.com/flannel-io/flannel/pkg/backend/wireguard"
	"github.com/flannel-io/flannel/pkg/ip"
	"github.com/flannel-io/flannel/pkg/ipmatch"
	"github.com/flannel-io/flannel/pkg/lease"
	"github.com/flannel-io/flannel/pkg/subnet"
	"github.com/flannel-io/flannel/pkg/subnet/kube"
	"github.com/flannel-io/flannel/pkg/trafficmngr/nftables"
)

// annotationPrefix is where flannel keeps a node's lease on its Node object.
const annotationPrefix = "flannel.alpha.coreos.com"

// resyncSeconds is how often the nftables rules are written again.
const resyncSeconds = 60

// options are the program's flags, and what its pod knows of its node.
type options struct {
	netConf, cniConf string
	policies         bool
	node             string
	// addresses are those that the node's kubelet names, by commas; empty means those of the interface of the default route.
	addresses string
}

func main() {
	o := options{node: os.Getenv("NODE_NAME"), addresses: os.Getenv("NODE_ADDRESSES")}
	flag.StringVar(&o.netConf, "net-conf", "/etc/kube-flannel/net-conf.json", "flannel's network configuration")
	flag.StringVar(&o.cniConf, "cni-conf", "/etc/cni/net.d/10-flannel.conflist", "CNI configuration to write")
	flag.BoolVar(&o.policies, "network-policies", false, "enforce NetworkPolicies")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := o.run(ctx); err != nil && ctx.Err() == nil {
		log.Fatalln("flannel:", err)
	}
}

// run leases this node's subnets, lets their packets through, tells the container runtime about them, and then follows the other
// nodes until ctx ends.
func (o options) run(ctx context.Context) error {
	manager, err := kube.NewSubnetManager(ctx, "", "", annotationPrefix, o.netConf, true)
	if err != nil {
		return fmt.Errorf("subnet manager: %w", err)
	}
	config, err := manager.GetNetworkConfig(ctx)
	if err != nil {
		return fmt.Errorf("%s: %w", o.netConf, err)
	}
	if !config.EnableNFTables {
		return fmt.Errorf("%s: only EnableNFTables is supported", o.netConf)
	}
	ended, err := o.enforce(ctx)
	if err != nil {
		return fmt.Errorf("network policies: %w", err)
	}
	if err := seal(ctx, config); err != nil {
		return fmt.Errorf("nftables: %w", err)
	}
	var background sync.WaitGroup
	network, err := o.join(ctx, &background, manager, config)
	if err != nil {
		return err
	}
	if err := permit(ctx, config, network.Lease()); err != nil {
		return fmt.Errorf("nftables: %w", err)
	}
	if err := writeCNI(o.cniConf, subnetsOf(config, network.Lease()), network.MTU()); err != nil {
		return fmt.Errorf("CNI configuration: %w", err)
	}
	background.Go(func() { network.Run(ctx) })
	if err := manager.CompleteLease(ctx, network.Lease(), &background); err != nil {
		return err
	}
	select {
	case err = <-ended:
		return fmt.Errorf("network policies: %w", err)
	case <-ctx.Done():
		background.Wait()
		return nil
	}
}

// subnetsOf are the node's own, IPv4 first.
func subnetsOf(config *subnet.Config, own *lease.Lease) (subnets []string) {
	if config.EnableIPv4 {
		subnets = append(subnets, own.Subnet.String())
	}
	if config.EnableIPv6 {
		subnets = append(subnets, own.IPv6Subnet.String())
	}
	return subnets
}

// join registers this node's interface with the backend that config names.
func (o options) join(ctx context.Context, background *sync.WaitGroup, manager subnet.Manager, config *subnet.Config) (backend.Network, error) {
	family, err := ipmatch.GetIPFamily(config.EnableIPv4, config.EnableIPv6)
	if err != nil {
		return nil, err
	}
	own, public, err := ownAddress(o.addresses, config)
	if err != nil {
		return nil, err
	}
	device, err := ipmatch.LookupExtIface(own, "", "", family, public)
	if err != nil {
		return nil, fmt.Errorf("find the interface towards other nodes: %w", err)
	}
	if device == nil {
		return nil, errors.New("no interface leads to other nodes: a default route is needed")
	}
	kind, err := backend.NewManager(ctx, manager, device).GetBackend(config.BackendType)
	if err != nil {
		return nil, fmt.Errorf("backend %s: %w", config.BackendType, err)
	}
	network, err := kind.RegisterNetwork(ctx, background, config)
	if err != nil {
		return nil, fmt.Errorf("register with backend %s: %w", config.BackendType, err)
	}
	return network, nil
}

// ownAddress is what other nodes reach this one at, of each family that the network has: the first of those that its kubelet names.
// Where these are not known, flannel chooses itself.
func ownAddress(addresses string, config *subnet.Config) (own string, public ipmatch.PublicIPOpts, err error) {
	if addresses == "" {
		return "", public, nil
	}
	for text := range strings.SplitSeq(addresses, ",") {
		address, err := netip.ParseAddr(text)
		switch {
		case err != nil:
			return "", public, fmt.Errorf("NODE_ADDRESSES: %w", err)
		case address.Is4() && config.EnableIPv4 && public.PublicIP == "":
			public.PublicIP = text
		case address.Is6() && config.EnableIPv6 && public.PublicIPv6 == "":
			public.PublicIPv6 = text
		}
	}
	if config.EnableIPv4 != (public.PublicIP != "") || config.EnableIPv6 != (public.PublicIPv6 != "") {
		return "", public, fmt.Errorf("the node's addresses are %s: want one of each family of the pods' network", addresses)
	}
	return cmp.Or(public.PublicIP, public.PublicIPv6), public, nil
}

// permit writes the rules that forward pods' packets and hide pods behind the node when
// they speak to the world.
func permit(ctx context.Context, config *subnet.Config, own *lease.Lease) error {
	rules := &nftables.NFTablesManager{}
	if err := rules.Init(ctx); err != nil {
		return err
	}
	rules.SetupAndEnsureForwardRules(ctx, config.Network, config.IPv6Network, resyncSeconds)
	return rules.SetupAndEnsureMasqRules(ctx,
		config.Network, ip.IP4Net{}, ip.IP4Net{},
		config.IPv6Network, ip.IP6Net{}, ip.IP6Net{},
		own, resyncSeconds, false)
}
