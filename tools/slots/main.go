// Command slots writes the disk that the node has booted from, and the firmware's variables that say what to start next. It answers one
// request of the agent on its standard input, which is a socket that systemd accepted, and ends.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"

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
	disk, file, err := update.BootDisk("/sys", "/dev")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	helper := update.Helper{Disk: disk, Variables: update.FirmwareVariables, Open: update.OpenSources}
	return helper.Answer(ctx, request, func(a update.Answer) error {
		if a.Failed != nil {
			fmt.Fprintln(os.Stderr, "slots:", a.Failed)
		}
		return a.Send(os.Stdout)
	})
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
