package firstboot

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/peer"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest/wire"
	"github.com/hullmark/hullmark/firstboot/network"
	"github.com/hullmark/hullmark/internal/atomicfile"
)

// SystemdDir is where systemd looks for settings of this boot, a RAM disk; networkDir and timeFile are below it.
const (
	SystemdDir = "/run/systemd"
	networkDir = "network"
	timeFile   = "timesyncd.conf.d/50-hullmark.conf"
)

// proxyFile is the environment, in the agent's folder, of units that fetch what lies outside: containerd, and who writes slots. No other
// unit reads it.
const proxyFile = "proxy.env"

const (
	networkUnit = "systemd-networkd.service"
	timeUnit    = "systemd-timesyncd.service"
)

// applyConfig hands interfaces, time servers and the proxy to the units that use them.
func (a setup) applyConfig(ctx context.Context) (err error) {
	if a.plan, err = a.chooseCards(ctx); err != nil {
		return err
	}
	if files := a.plan.Files(); len(files) > 0 {
		for _, f := range files {
			if err := place644(filepath.Join(a.SystemdDir, networkDir, f.Name), f.Content); err != nil {
				return fmt.Errorf("set up the network: %w", err)
			}
		}
		if err := a.Machine.Restart(ctx, networkUnit); err != nil {
			return fmt.Errorf("set up the network: %w", err)
		}
	}
	if settings := network.Timesync(a.config); settings != "" {
		if err := place644(filepath.Join(a.SystemdDir, timeFile), settings); err != nil {
			return fmt.Errorf("set time servers: %w", err)
		}
		if err := a.Machine.Restart(ctx, timeUnit); err != nil {
			return fmt.Errorf("set time servers: %w", err)
		}
	}
	if environment := network.Environment(a.config); environment != "" {
		return place644(filepath.Join(a.RunDir, proxyFile), environment)
	}
	return nil
}

func place644(path, content string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return atomicfile.Write(path, []byte(content), 0o644)
}

// chooseCards finds the cards that the configuration chooses. It is patient with cards that are not there yet, and with a machine that may
// have more of them.
func (a setup) chooseCards(ctx context.Context) (network.Plan, error) {
	late := time.After(a.Timing.Network)
	for {
		links, settled, err := a.Machine.Links()
		if err != nil {
			return network.Plan{}, err
		}
		plan, err := network.Make(a.config, links)
		if !plan.Chooses() || settled && !network.Missing(err) {
			return plan, err
		}
		select {
		case <-ctx.Done():
			return plan, ctx.Err()
		case <-late:
			return plan, err
		case <-time.After(250 * time.Millisecond):
		}
	}
}

// waitNetwork shows a condition for as long as nobody could reach the node.
func (a setup) waitNetwork(ctx context.Context) error {
	a.Status.Say("waiting for the network")
	late := time.After(a.Timing.Network)
	for {
		online, err := networking(a).isOnline()
		if err != nil {
			return err
		}
		if online {
			a.Status.Enter(StepAttest)
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-late:
			a.Status.Fail(networking(a).noNetwork())
		case <-time.After(250 * time.Millisecond):
		}
	}
}

// networking is what the agent knows of its network, once its configuration is read.
type networking struct{ *Agent }

// isOnline reports whether others can reach the node, and shows its interfaces as soon as they can.
func (a networking) isOnline() (bool, error) {
	links, _, err := a.Machine.Links()
	if err != nil || !a.plan.Online(links) {
		return false, err
	}
	a.Status.Connected(links)
	return true, nil
}

func (a networking) noNetwork() *hullmark.Condition {
	c := &hullmark.Condition{
		Code: "no-network", Step: StepAttest, Title: "no network interface has an address", Retry: true,
		Next: "check the machine's network card and DHCP, or give addresses in the node config",
	}
	if own := a.config.NodeInterface(); own != nil {
		c.Title = "the node's network interface " + own.Name + " is not up with the addresses that its configuration gives it"
		c.Next = "check cables, switch and DHCP server, and what hullmark node logs or the console say of the interface"
	}
	return c
}

// ownAddresses returns the node's addresses, for its kubeadm documents and certificates: those of the interface that the configuration says
// is the node's; without one, first the one towards the verifier, then those of the configuration, then one of each family of which
// there was none by then, of the card towards the verifier.
func (a networking) ownAddresses(ctx context.Context) (own []string, err error) {
	add := func(a netip.Addr) {
		if text := a.Unmap().WithZone("").String(); len(own) < wire.MaxAddresses && !slices.Contains(own, text) {
			own = append(own, text)
		}
	}
	if a.config.NodeInterface() != nil {
		links, _, err := a.Machine.Links()
		for _, address := range a.plan.Own(links) {
			add(address)
		}
		return own, err
	}
	var local netip.Addr
	if other, ok := peer.FromContext(ctx); ok && other.LocalAddr != nil {
		if address, err := netip.ParseAddrPort(other.LocalAddr.String()); err == nil {
			local = address.Addr().Unmap()
			add(local)
		}
	}
	for _, text := range a.config.Addresses {
		if prefix, err := netip.ParsePrefix(text); err == nil { // ParseNodeConfig refused all others.
			add(prefix.Addr())
		}
	}
	for _, address := range beside(local) {
		if !slices.ContainsFunc(own, func(text string) bool { return strings.Contains(text, ":") == address.Is6() }) {
			add(address)
		}
	}
	return own, nil
}

// beside returns the addresses of the interface that has one of this machine's, in their own order: the same ones in each boot
// that the network gives the same ones to. Link-local ones are not among them.
func beside(local netip.Addr) []netip.Addr {
	interfaces, err := net.Interfaces()
	if err != nil {
		return nil // The address towards the verifier is known without.
	}
	for _, i := range interfaces {
		prefixes, err := i.Addrs()
		if err != nil {
			continue
		}
		var addresses []netip.Addr
		for _, p := range prefixes {
			if prefix, err := netip.ParsePrefix(p.String()); err == nil {
				addresses = append(addresses, prefix.Addr().Unmap())
			}
		}
		if slices.Contains(addresses, local) {
			slices.SortFunc(addresses, netip.Addr.Compare)
			return slices.DeleteFunc(addresses, func(a netip.Addr) bool { return !a.IsGlobalUnicast() })
		}
	}
	return nil
}
