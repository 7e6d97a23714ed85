// Command flannel gives every pod of a cluster an address that the other pods reach.
// It is flannel's own subnet manager, backends and nftables rules under a smaller main:
// flannel's also links the kits of clouds that this cluster does not run in, and leaves
// the CNI configuration to a container of its own, which is written here.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
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

func main() {
	netConf := flag.String("net-conf", "/etc/kube-flannel/net-conf.json", "flannel's network configuration")
	cniConf := flag.String("cni-conf", "/etc/cni/net.d/10-flannel.conflist", "CNI configuration to write")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *netConf, *cniConf); err != nil && ctx.Err() == nil {
		log.Fatalln("flannel:", err)
	}
}

// run leases this node's subnet, lets its packets through, tells the container runtime
// about it, and then follows the other nodes until ctx ends.
func run(ctx context.Context, netConf, cniConf string) error {
	manager, err := kube.NewSubnetManager(ctx, "", "", annotationPrefix, netConf, true)
	if err != nil {
		return fmt.Errorf("subnet manager: %w", err)
	}
	config, err := manager.GetNetworkConfig(ctx)
	if err != nil {
		return fmt.Errorf("%s: %w", netConf, err)
	}
	if config.EnableIPv6 || !config.EnableNFTables {
		return fmt.Errorf("%s: only IPv4 with EnableNFTables is supported", netConf)
	}
	var background sync.WaitGroup
	network, err := join(ctx, &background, manager, config)
	if err != nil {
		return err
	}
	if err := permit(ctx, config, network.Lease()); err != nil {
		return fmt.Errorf("nftables: %w", err)
	}
	if err := writeCNI(cniConf, network.Lease().Subnet, network.MTU()); err != nil {
		return fmt.Errorf("CNI configuration: %w", err)
	}
	background.Go(func() { network.Run(ctx) })
	err = manager.CompleteLease(ctx, network.Lease(), &background)
	background.Wait()
	return err
}

// join registers this node's interface with the backend that config names.
func join(ctx context.Context, background *sync.WaitGroup, manager subnet.Manager, config *subnet.Config) (backend.Network, error) {
	family, err := ipmatch.GetIPFamily(config.EnableIPv4, config.EnableIPv6)
	if err != nil {
		return nil, err
	}
	public, _ := manager.GetStoredPublicIP(ctx)
	device, err := ipmatch.LookupExtIface(public, "", "", family, ipmatch.PublicIPOpts{PublicIP: public})
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
