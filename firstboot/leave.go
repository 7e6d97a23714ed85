package firstboot

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/coreos/go-systemd/v22/dbus"
	godbus "github.com/godbus/dbus/v5"
)

const (
	// serverProgram is what runs in an API server's container, and serverEnds how long it may take to end.
	serverProgram = "kube-apiserver"
	serverEnds    = 30 * time.Second
	// containerPrefix and containerSuffix enclose a container's ID in the name of its unit: containerd names it so.
	containerPrefix, containerSuffix = "cri-containerd-", ".scope"
	// containersDir is where containerd keeps a folder for each container that runs, with containerFile, its configuration by the OCI
	// runtime specification, of maxContainer bytes at most.
	containersDir = "/run/containerd/io.containerd.runtime.v2.task/k8s.io"
	containerFile = "config.json"
	maxContainer  = 1 << 20
)

// Reboot restarts the machine in good order.
func (Systemd) Reboot(ctx context.Context) error { return leave(ctx, "reboot.target") }

// RebootAtOnce restarts the machine without ending anything before, and without a program: the medium that it has booted from may have
// been pulled out, and systemd's own for a shutdown with it. systemd itself, which is in memory, acts as a unit ends, whether that could
// start or not (systemd.unit(5), FailureAction=).
func (Systemd) RebootAtOnce(ctx context.Context) error {
	conn, err := dbus.NewSystemdConnectionContext(ctx)
	if err != nil {
		return fmt.Errorf("restart: reach systemd: %w", err)
	}
	defer conn.Close()
	const atOnce = "reboot-immediate"
	if _, err := conn.StartTransientUnitContext(ctx, "hullmark-restart.service", "replace", []dbus.Property{
		dbus.PropType("oneshot"), dbus.PropExecStart([]string{"/usr/bin/true"}, false),
		{Name: "FailureAction", Value: godbus.MakeVariant(atOnce)},
		{Name: "SuccessAction", Value: godbus.MakeVariant(atOnce)},
	}, nil); err != nil {
		return fmt.Errorf("restart: %w", err)
	}
	return nil
}

// PowerOff switches the machine off in good order.
func (Systemd) PowerOff(ctx context.Context) error { return leave(ctx, "poweroff.target") }

// leave starts a target after which nothing else can be started. An API server that does not end before does not keep the machine.
func leave(ctx context.Context, target string) error {
	conn, err := dbus.NewSystemdConnectionContext(ctx)
	if err != nil {
		return fmt.Errorf("start %s: reach systemd: %w", target, err)
	}
	defer conn.Close()
	if err := endServer(ctx, conn); err != nil {
		fmt.Fprintln(os.Stderr, "the API server does not end before etcd:", err)
	}
	if _, err := conn.StartUnitContext(ctx, target, "replace-irreversibly", nil); err != nil {
		return fmt.Errorf("start %s: %w", target, err)
	}
	return nil
}

// endServer ends the API server of a control plane while its member of etcd still answers. Containers outlive all units of a shutdown, at
// whose end systemd asks whatever is left to end at once. An API server without its member neither ends then, until it is killed, nor
// answers what it is asked; one that has its member sends its clients to another server, and ends.
func endServer(ctx context.Context, conn *dbus.Conn) error {
	ctx, cancel := context.WithTimeout(ctx, serverEnds)
	defer cancel()
	containers, err := conn.ListUnitsByPatternsContext(ctx, []string{"active"}, []string{containerPrefix + "*" + containerSuffix})
	if err != nil {
		return fmt.Errorf("list containers: %w", err)
	}
	for _, c := range containers {
		if programOf(containersDir, c.Name) != serverProgram {
			continue
		}
		// The kubelet would start it again.
		if err := job(ctx, "stop", kubeletUnit, (*dbus.Conn).StopUnitContext); err != nil {
			return err
		}
		return job(ctx, "stop", c.Name, (*dbus.Conn).StopUnitContext)
	}
	return nil
}

// programOf returns the name of the program that was started in the container of a unit; empty if that is not known. A container that has
// just ended has no folder any more.
func programOf(dir, unit string) string {
	id := strings.TrimSuffix(strings.TrimPrefix(unit, containerPrefix), containerSuffix)
	file, err := os.Open(filepath.Join(dir, filepath.Base(id), containerFile))
	if err != nil {
		return ""
	}
	defer file.Close()
	var config struct{ Process struct{ Args []string } }
	if err := json.NewDecoder(io.LimitReader(file, maxContainer)).Decode(&config); err != nil || len(config.Process.Args) == 0 {
		return ""
	}
	return filepath.Base(config.Process.Args[0])
}
