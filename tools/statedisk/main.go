// Command statedisk formats and opens the node's state disk. It answers one
// request of the agent on its standard input, which is a socket that systemd
// accepted, and ends: a key is in its memory no longer than that. "statedisk
// grow DIR" lets the open disk's file system, mounted at DIR, have the whole disk.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/firstboot/statedisk"
	"github.com/hullmark/hullmark/firstboot/statedisk/volume"
	"github.com/hullmark/hullmark/internal/nodump"
)

// workspace is on a RAM disk, and private to this service.
var workspace = volume.Workspace{Dir: "/run/hullmark/statedisk"}

func main() {
	run := serve
	if len(os.Args) > 1 {
		run = grow
	}
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "statedisk:", err)
		os.Exit(1)
	}
}

func grow() error {
	if len(os.Args) != 3 || os.Args[1] != "grow" {
		return errors.New("want no arguments, or grow and where the disk is mounted")
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	return volume.Grow(ctx, os.Args[2])
}

func serve() error {
	if err := nodump.Process(); err != nil {
		return err
	}
	request, key, err := statedisk.ReadRequest(os.Stdin)
	if err != nil {
		return err
	}
	defer key.Wipe()
	answer, err := answer(request, key)
	if err != nil {
		fmt.Fprintln(os.Stderr, "statedisk:", err)
		answer = statedisk.Answer{Failed: hullmark.AsCondition(err, "DISK", "disk-failed")}
	}
	return statedisk.WriteAnswer(os.Stdout, answer)
}

func answer(r statedisk.Request, key hullmark.Secret) (statedisk.Answer, error) {
	path, err := volume.Find(r.Disk)
	if err != nil {
		return statedisk.Answer{}, err
	}
	if r.Op == statedisk.OpProbe {
		claim, err := volume.Probe(path)
		return statedisk.Answer{Claim: &claim}, err
	}
	opened, err := workspace.Open(path, hullmark.DiskGrant{
		Key: key, Generation: r.Grant.Generation, UUID: r.Grant.UUID, Owner: r.Grant.Owner,
		FormatAllowed: r.Grant.FormatAllowed, Epoch: r.Grant.Epoch,
	})
	return statedisk.Answer{Opened: &opened}, err
}
