package firstboot

import (
	"context"
	"fmt"
	"time"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/firstboot/install"
	"github.com/hullmark/hullmark/firstboot/update"
)

// StepInstall is the state of a machine that has booted from an installation medium: it installs a disk, and restarts. It opens no port,
// asks nobody for anything, and gets no key.
const StepInstall = install.Step

// Installer is the helper that installs a disk; update.Client is the real one.
type Installer interface {
	// OnMedium reports whether the machine has booted from an installation medium.
	OnMedium(ctx context.Context) (bool, error)
	// Install installs the disk that a node configuration names, from that medium, which holds the release that runs.
	Install(ctx context.Context, release hullmark.RootHash, config []byte, tell func(update.Installing)) (update.Installed, error)
}

// onDisk reports whether there is nothing to install.
func (a setup) onDisk(ctx context.Context) (bool, error) {
	if a.Installer == nil {
		return true, nil
	}
	medium, err := a.Installer.OnMedium(ctx)
	a.onMedium = medium
	return !medium, err
}

// install installs the disk that the medium's configuration names. The medium may be pulled out meanwhile, and with it every program
// that is not in memory: what is left to do then is to say so.
func (a setup) install(ctx context.Context) error {
	a.Status.Say("looking at the disk to install")
	done, err := a.Installer.Install(ctx, a.Release, a.configData, func(i update.Installing) { a.Status.Say("%s, %d %%", i.Doing, i.Percent) })
	if err != nil {
		c := hullmark.AsCondition(err, StepInstall, "install-failed")
		if c.Root().Code != "medium-lost" {
			return c
		}
		return a.endInstall(ctx, c)
	}
	c := &hullmark.Condition{
		Code: "installed", Step: StepInstall, Title: done.Disk + " is installed", Retry: true,
		Next: "take the medium out; the machine restarts, and starts from its disk",
	}
	if done.Before {
		c.Title = done.Disk + " was installed from this medium before; nothing was written"
	}
	if done.Next != "" {
		c.Next = "take the medium out, and have the firmware start the disk first: it could not be told to (" + done.Next + "); the machine restarts"
	}
	return a.endInstall(ctx, c)
}

// endInstall leaves the time to read how an installation ended, and restarts the machine.
func (a setup) endInstall(ctx context.Context, c *hullmark.Condition) error {
	a.Status.Fail(c)
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(a.Timing.Read):
	}
	return fmt.Errorf("%w: %w", errReboot, c)
}
