package run

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/coreos/go-systemd/v22/dbus"

	"github.com/hullmark/hullmark/kubeadm"
)

// runDir is where the units find their input and leave their output; systemd/system/hullmark-kubeadm*.service, hullmark-addons.service and
// hullmark-etcd-restore.service name the same files.
const runDir = "/run/hullmark/kubeadm"

// run writes the units' input to dir, which no other user can read, calls do, which runs them, and reports what kubeadm says it
// does. Afterwards nothing of it is left: input and output hold tokens.
func run(ctx context.Context, dir string, files map[string][]byte, report func(kubeadm.Phase), do func(context.Context) error) error {
	if err := writeInput(dir, files); err != nil {
		return errors.Join(err, os.RemoveAll(dir))
	}
	follower := follow(filepath.Join(dir, "output"), report)
	err := do(ctx)
	said, readErr := follower.stop()
	err = errors.Join(err, readErr, os.RemoveAll(dir))
	if err != nil {
		return fmt.Errorf("%w: %s", err, Cause(said))
	}
	return nil
}

func writeInput(dir string, files map[string][]byte) error {
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// withUnits calls do with a function that runs a unit to its end.
func withUnits(ctx context.Context, do func(units) error) error {
	systemd, err := dbus.NewSystemdConnectionContext(ctx)
	if err != nil {
		return fmt.Errorf("run kubeadm: reach systemd: %w", err)
	}
	defer systemd.Close()
	return do(func(ctx context.Context, unit string) error { return runUnit(ctx, systemd, unit) })
}

// units runs the unit of a name to its end.
type units func(ctx context.Context, unit string) error

// runUnit starts a unit and waits for its end. A unit of type oneshot is started when its commands have ended.
func runUnit(ctx context.Context, systemd *dbus.Conn, unit string) error {
	done := make(chan string, 1)
	if _, err := systemd.StartUnitContext(ctx, unit, "replace", done); err != nil {
		return fmt.Errorf("start %s: %w", unit, err)
	}
	select {
	case result := <-done:
		if result != "done" {
			return fmt.Errorf("%s: %s", unit, result)
		}
		return nil
	case <-ctx.Done():
		stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
		defer cancel()
		_, err := systemd.StopUnitContext(stop, unit, "replace", nil)
		return errors.Join(ctx.Err(), err)
	}
}
