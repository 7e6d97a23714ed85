package firstboot

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/coreos/go-systemd/v22/dbus"

	"golang.org/x/sys/unix"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/kubeadm"
	"github.com/hullmark/hullmark/kubeadm/run"
	"github.com/hullmark/hullmark/kubeadm/step"
)

// Systemd is the machine that the agent runs on. It talks to systemd itself
// over its private socket, so no message bus has to run.
type Systemd struct{}

// Start starts a unit and waits until it is up or has done its work.
func (Systemd) Start(ctx context.Context, unit string) error {
	return job(ctx, "start", unit, (*dbus.Conn).StartUnitContext)
}

// Restart starts a unit anew and waits like Start.
func (Systemd) Restart(ctx context.Context, unit string) error {
	return job(ctx, "start", unit, (*dbus.Conn).RestartUnitContext)
}

type enqueue func(c *dbus.Conn, ctx context.Context, unit, mode string, done chan<- string) (int, error)

func job(ctx context.Context, verb, unit string, f enqueue) error {
	conn, err := dbus.NewSystemdConnectionContext(ctx)
	if err != nil {
		return fmt.Errorf("%s %s: reach systemd: %w", verb, unit, err)
	}
	defer conn.Close()
	done := make(chan string, 1)
	if _, err := f(conn, ctx, unit, "replace", done); err != nil {
		return fmt.Errorf("%s %s: %w", verb, unit, err)
	}
	select {
	case result := <-done:
		if result != "done" {
			return fmt.Errorf("%s %s: %s (see the unit in hullmark node logs)", verb, unit, result)
		}
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%s %s: %w", verb, unit, ctx.Err())
	}
}

// Uptime asks the kernel (clock_gettime(2), CLOCK_BOOTTIME).
func (Systemd) Uptime() (time.Duration, error) {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &t); err != nil {
		return 0, fmt.Errorf("uptime: %w", err)
	}
	return time.Duration(t.Nano()), nil
}

// maxJournal bounds how much of the log is sent, in lines.
const maxJournal = "20000"

// Journal writes the newest lines of this boot's log to w.
func (Systemd) Journal(ctx context.Context, w io.Writer) error {
	cmd := exec.CommandContext(ctx, "/usr/bin/journalctl", "--boot", "--no-pager", "--output=short-monotonic", "--lines="+maxJournal)
	var complaint bytes.Buffer
	cmd.Stdout, cmd.Stderr = w, &complaint
	if err := cmd.Run(); err != nil {
		return errors.Join(fmt.Errorf("read the journal: %w: %.200s", err, complaint.String()), ctx.Err())
	}
	return nil
}

// Kubeadm is Kubernetes as the image brings it.
type Kubeadm struct{}

// Validate lets kubeadm judge documents.
func (Kubeadm) Validate(ctx context.Context, documents []byte) error {
	return run.Validate(ctx, run.Program, documents)
}

// Restore makes the data with which the etcd of an init begins.
func (Kubeadm) Restore(ctx context.Context, r kubeadm.Restoration) error {
	return run.Restore(ctx, r)
}

// Init makes the node a control plane.
func (Kubeadm) Init(ctx context.Context, w run.Work) error { return run.Init(ctx, w) }

// Join makes the node a worker, or one more control plane.
func (Kubeadm) Join(ctx context.Context, documents []byte, report func(kubeadm.Phase)) error {
	return run.Join(ctx, documents, report)
}

// Renew makes a control plane's certificates and kubeconfigs that are missing.
func (Kubeadm) Renew(ctx context.Context, documents []byte, report func(kubeadm.Phase)) error {
	return run.Renew(ctx, documents, report)
}

// bootIDFile holds what tells this boot from all others, for the kubelet too (random(4)).
const bootIDFile = "/proc/sys/kernel/random/boot_id"

// WaitReady returns when the node is Ready in this boot, and reports what it waits for until then.
func (Kubeadm) WaitReady(ctx context.Context, access run.Access, node string, report func(why error)) error {
	bootID, err := os.ReadFile(bootIDFile)
	if err != nil {
		return err
	}
	return run.WaitReady(ctx, access, node, strings.TrimSpace(string(bootID)), readyPause, report)
}

// CheckFlags asks the programs in the verity root.
func (Kubeadm) CheckFlags(ctx context.Context, flags map[string][]string) ([]string, error) {
	return run.CheckFlags(ctx, run.Programs, flags)
}

// Render lets kubeadm write static pods to a folder below dir.
func (Kubeadm) Render(ctx context.Context, dir string, documents []byte) (map[string][]byte, error) {
	return run.Render(ctx, run.Program, dir, documents)
}

// Stored asks the API server.
func (Kubeadm) Stored(ctx context.Context, access run.Access) (run.Stored, error) {
	return run.Running(ctx, access)
}

// Planes asks all API servers.
func (Kubeadm) Planes(ctx context.Context, access run.Access) ([]step.Plane, error) {
	return run.Planes(ctx, access)
}

// Kubelets asks the API server.
func (Kubeadm) Kubelets(ctx context.Context, access run.Access) ([]step.Seen, error) {
	return run.Kubelets(ctx, access)
}

// OldDNS asks the API server, and kubeadm.
func (Kubeadm) OldDNS(ctx context.Context, access run.Access, v hullmark.Version) (bool, error) {
	return run.OldDNS(ctx, run.Program, access, v)
}

// Upgrade lets kubeadm write into the cluster.
func (Kubeadm) Upgrade(ctx context.Context, documents []byte, report func(kubeadm.Phase)) error {
	return run.Upgrade(ctx, documents, report)
}

// KubeletConfig lets kubeadm make the kubelet's configuration.
func (Kubeadm) KubeletConfig(ctx context.Context, report func(kubeadm.Phase)) ([]byte, error) {
	return run.KubeletConfig(ctx, report)
}

// DiskRecord asks the API server.
func (Kubeadm) DiskRecord(ctx context.Context, access run.Access, node hullmark.EKID) (run.DiskRecord, error) {
	return run.ReadDiskRecord(ctx, access, node)
}
