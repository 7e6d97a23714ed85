package firstboot

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/hullmark/hullmark"
)

// Units of what the pool's nodes find around them (hullmark.PoolFolder). Who has no collector forwards nothing; the endpoint of metrics
// starts once the kubelet has the certificate that both show.
const (
	journalUnit = "hullmark-journal.service"
	metricsUnit = "hullmark-metrics.path"
)

// surround hands on what the signed policy says of time servers and of the journal's collector. A node works without: what fails
// is said aloud, and stops nothing.
func (f *finishing) surround(ctx context.Context) {
	f.progress("surroundings", "starting what the pool's policy says of time, journal and metrics")
	for _, err := range []error{f.setTime(ctx), f.start(ctx, journalUnit), f.start(ctx, metricsUnit)} {
		if err != nil {
			f.warn("service-down", "the node lacks a service that it works without: "+err.Error(), "read why in hullmark node logs")
		}
	}
	if named, err := namesServer(f.agent.ResolvFile); err != nil || !named {
		if err != nil {
			fmt.Fprintln(f.agent.Status.Log, "name servers:", err)
		}
		f.warn("no-name-server", "the node knows no name server: CoreDNS, which would ask it, does not start here, and without one pods find no service by its name",
			"have the network name one by DHCP, or name one in the node config (nameServers); it need not know any name")
	}
}

// maxResolv bounds what is read of a list of name servers, in bytes.
const maxResolv = 64 << 10

// namesServer reports whether a file names a server (resolv.conf(5)).
func namesServer(file string) (bool, error) {
	f, err := os.Open(file)
	if err != nil {
		return false, err
	}
	defer f.Close()
	lines := bufio.NewScanner(io.LimitReader(f, maxResolv))
	for lines.Scan() {
		if fields := strings.Fields(lines.Text()); len(fields) > 1 && fields[0] == "nameserver" {
			return true, nil
		}
	}
	return false, lines.Err()
}

// timeSettings is a file in Agent.SystemdDir that timesyncd reads after the one with what the node's configuration says.
const timeSettings = "timesyncd.conf.d/60-hullmark-pool.conf"

// setTime lets the time servers of the policy take the place of those that the node's configuration, so its host, has named.
func (f *finishing) setTime(ctx context.Context) error {
	settings, err := f.agent.readState(hullmark.TimeFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := place644(filepath.Join(f.agent.SystemdDir, timeSettings), string(settings)); err != nil {
		return err
	}
	return f.agent.Machine.Restart(ctx, timeUnit)
}

// forwardWatch tells of a journal that is not forwarded, for as long as that is so.
type forwardWatch struct{ *Agent }

// maxForwardFile bounds what is read of the forwarder's state, in bytes.
const maxForwardFile = 64 << 10

// run looks again and again.
func (a forwardWatch) run(ctx context.Context) {
	var said *hullmark.Condition
	for sleep(ctx, a.Timing.Certificate) == nil {
		if !a.wasReady() {
			continue
		}
		c, err := forwarding(a.ForwardFile)
		if err != nil {
			fmt.Fprintln(a.Status.Log, "journal:", err)
			continue
		}
		if said != nil && (c == nil || c.Code != said.Code) {
			a.Status.Unwarn("journal-refused")
			a.Status.Unwarn("journal-not-sent")
			said = nil
		}
		if c != nil && said == nil {
			a.Status.WarnUnlessWarned(c)
			said = c
		}
	}
}

// forwarding returns what the forwarder says is wrong; nothing where there is none. It runs as nobody, so its word is bounded, and one of
// two codes.
func forwarding(file string) (*hullmark.Condition, error) {
	in, err := os.Open(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer in.Close()
	encoded, err := io.ReadAll(io.LimitReader(in, maxForwardFile))
	if err != nil {
		return nil, err
	}
	f, err := hullmark.ParseForward(encoded)
	if err != nil || f.Condition == nil {
		return nil, err
	}
	c := *f.Condition
	if c.Because = nil; c.Code != "journal-refused" && c.Code != "journal-not-sent" {
		return nil, fmt.Errorf("the forwarder's condition has the code %.80q", c.Code)
	}
	return &c, nil
}
