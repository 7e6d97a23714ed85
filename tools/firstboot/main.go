// Command firstboot is the node's agent: it takes the machine from power-on to
// a Ready Kubernetes node, and tells what stands in the way.
package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/signal"
	"strings"

	"github.com/hullmark/hullmark/internal/unit"

	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/google/go-tpm/tpm2/transport"
	"github.com/google/go-tpm/tpm2/transport/linuxtpm"
	"golang.org/x/sys/unix"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest"
	"github.com/hullmark/hullmark/attest/prover"
	"github.com/hullmark/hullmark/attest/prover/azure"
	"github.com/hullmark/hullmark/attest/prover/provider"
	"github.com/hullmark/hullmark/firstboot"
	"github.com/hullmark/hullmark/firstboot/button"
	"github.com/hullmark/hullmark/firstboot/config"
	"github.com/hullmark/hullmark/firstboot/initrd"
	"github.com/hullmark/hullmark/firstboot/statedisk"
	"github.com/hullmark/hullmark/firstboot/update"
	"github.com/hullmark/hullmark/internal/nodump"
	"github.com/hullmark/hullmark/kubeadm"
)

const (
	// tpmDevice is the TPM behind the kernel's resource manager.
	tpmDevice = "/dev/tpmrm0"
	runDir    = "/run/hullmark"
	// sentinels is where Cluster API looks for its sentinel file.
	sentinels = "/run/cluster-api"
	// eventLog is where the kernel keeps what the firmware and the stub logged (Documentation/security/tpm/tpm_event_log.rst).
	eventLog = "/sys/kernel/security/tpm0/binary_bios_measurements"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM, os.Interrupt)
	defer stop()
	if err := run(ctx); err != nil && ctx.Err() == nil {
		fmt.Fprintln(os.Stderr, "firstboot:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	if err := nodump.Process(); err != nil {
		return err
	}
	source, err := imageSource()
	if err != nil {
		return err
	}
	release, err := os.ReadFile("/usr/lib/os-release")
	if err != nil {
		return err
	}
	versions, err := hullmark.VersionsOf(release)
	if err != nil {
		return err
	}
	root, err := initrd.RootHash()
	if err != nil {
		return err
	}
	status := &firstboot.Status{File: firstboot.StatusFile, Sentinels: sentinels, Log: os.Stderr, Notify: unit.Notify}
	showStatus(ctx, status, hullmark.OSReleaseField(release, "IMAGE_VERSION"))
	slots := update.Client{Path: update.Socket}
	unit.Notify(daemon.SdNotifyReady)
	go func() {
		if err := unit.Watchdog(ctx, unit.Notify); err != nil && ctx.Err() == nil {
			fmt.Fprintln(os.Stderr, "watchdog:", err)
		}
	}()
	go obeyPowerButton(ctx)
	agent := firstboot.Agent{
		OpenTPM:  func() (transport.TPMCloser, error) { return linuxtpm.Open(tpmDevice) },
		Platform: prover.FirstOf(azure.Host{}.Evidence, provider.Evidence),
		Config:   source,
		Disk:     statedisk.Client{Path: statedisk.Socket},
		Machine:  firstboot.Systemd{},
		Cluster:  firstboot.Kubeadm{},
		Slots:    slots,
		Release:  hullmark.RootHash(root),
		Status:   status,
		StateDir: firstboot.StateDir, RunDir: runDir, SystemdDir: firstboot.SystemdDir, ForwardFile: hullmark.ForwardFile, ResolvFile: kubeadm.ResolvFile,
		EventLog: eventLog, Versions: versions,
		Listen: ":" + attest.OperatorPort, Timing: firstboot.DefaultTiming(),
	}
	if source.Disk != nil {
		// The medium that such an image may have booted from can be pulled out: what there is of this program stays in memory.
		if err := unix.Mlockall(unix.MCL_CURRENT); err != nil {
			return fmt.Errorf("stay in memory: %w", err)
		}
		agent.Installer = slots
	}
	return agent.Run(ctx)
}

// imageSource is where this image says that its nodes find their configuration.
func imageSource() (config.Source, error) {
	name, err := os.ReadFile(config.ImageFile)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return config.Source{}, err
	}
	source, err := config.Named(strings.TrimSpace(string(name)), update.Client{Path: update.Socket}.Config)
	source.Cache = runDir + "/config.json"
	return source, err
}

// obeyPowerButton switches the machine off in order when its power button is pressed.
func obeyPowerButton(ctx context.Context) {
	err := button.Wait(ctx)
	if err == nil {
		err = firstboot.Systemd{}.PowerOff(ctx)
	}
	if err != nil && ctx.Err() == nil {
		fmt.Fprintln(os.Stderr, "power button:", err)
	}
}
