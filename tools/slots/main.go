// Command slots writes the disk that the node has booted from, and the firmware's variables that say what to start next. It answers one
// request of the agent on its standard input, which is a socket that systemd accepted, and ends.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/hullmark/hullmark/firstboot/disks"
	"github.com/hullmark/hullmark/firstboot/install"
	"github.com/hullmark/hullmark/firstboot/update"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	if err := serve(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "slots:", err)
		os.Exit(1)
	}
}

func serve(ctx context.Context) (err error) {
	request, err := update.ReadRequest(os.Stdin)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	go watch(cancel)
	send := func(a update.Answer) error {
		if a.Failed != nil {
			fmt.Fprintln(os.Stderr, "slots:", a.Failed)
		}
		return a.Send(os.Stdout)
	}
	helper, file, err := open()
	if err != nil {
		return update.Fail(err, send)
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	return helper.Answer(ctx, request, send)
}

// open opens what the machine has booted from.
func open() (update.Helper, *os.File, error) {
	disk, name, file, err := update.BootDisk(disks.Host)
	if err != nil {
		return update.Helper{}, nil, err
	}
	h := update.Helper{Disk: disk, Disks: disks.Host, Variables: update.FirmwareVariables, Open: update.OpenSources}
	if disk == nil {
		if h.Medium, err = openMedium(name, file); err != nil {
			return update.Helper{}, nil, errors.Join(err, file.Close())
		}
	}
	return h, file, nil
}

// openMedium is the medium that the machine has booted from. It may be pulled out at any time, and this program with it: what there is of
// it is kept in memory from here on.
func openMedium(name string, file *os.File) (*install.Medium, error) {
	if err := unix.Mlockall(unix.MCL_CURRENT); err != nil {
		return nil, fmt.Errorf("stay in memory: %w", err)
	}
	size, err := file.Seek(0, io.SeekEnd)
	return &install.Medium{Device: file, Size: size, Name: name}, err
}

// watch ends the work when who asked has gone: it sends nothing after its request.
func watch(cancel context.CancelCauseFunc) {
	fds := []unix.PollFd{{Fd: 0, Events: unix.POLLRDHUP}}
	for {
		if _, err := unix.Poll(fds, -1); !errors.Is(err, unix.EINTR) {
			cancel(errors.New("who asked has gone"))
			return
		}
	}
}
