package firstboot

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/internal/atomicfile"
)

// Files that carry the node config's network settings to systemd. They lie on
// a RAM disk and are written anew in each boot.
const (
	networkFile = "/run/systemd/network/10-hullmark.network"
	timeFile    = "/run/systemd/timesyncd.conf.d/50-hullmark.conf"
)

const (
	networkUnit = "systemd-networkd.service"
	timeUnit    = "systemd-timesyncd.service"
)

// applyConfig hands addresses and time servers to the units that use them.
func (a setup) applyConfig(ctx context.Context) error {
	if len(a.config.Addresses) > 0 {
		if err := a.apply(ctx, networkFile, networkSettings(a.config), networkUnit); err != nil {
			return fmt.Errorf("set addresses: %w", err)
		}
	}
	if len(a.config.TimeServers) > 0 {
		settings := "[Time]\nNTP=" + strings.Join(a.config.TimeServers, " ") + "\n"
		if err := a.apply(ctx, timeFile, settings, timeUnit); err != nil {
			return fmt.Errorf("set time servers: %w", err)
		}
	}
	return nil
}

func (a setup) apply(ctx context.Context, path, content, unit string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	if err := atomicfile.Write(path, []byte(content), 0o644); err != nil {
		return err
	}
	return a.Machine.Restart(ctx, unit)
}

// networkSettings writes systemd.network(5) for the first Ethernet interfaces
// that the machine has; parsing has made sure that the values are addresses.
func networkSettings(config hullmark.NodeConfig) string {
	var b strings.Builder
	b.WriteString("[Match]\nType=ether\nKind=!*\n\n[Network]\n")
	for _, address := range config.Addresses {
		fmt.Fprintf(&b, "Address=%s\n", address)
	}
	if config.Gateway != "" {
		fmt.Fprintf(&b, "Gateway=%s\n", config.Gateway)
	}
	for _, server := range config.NameServers {
		fmt.Fprintf(&b, "DNS=%s\n", server)
	}
	return b.String()
}
