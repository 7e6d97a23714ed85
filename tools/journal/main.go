// Command journal forwards the node's journal to the collector that the cluster's policy names
// (systemd/system/hullmark-journal.service).
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"

	"golang.org/x/sys/unix"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/firstboot/journal"
	"github.com/hullmark/hullmark/internal/nodump"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM, os.Interrupt)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "journal:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	if err := nodump.Process(); err != nil {
		return err
	}
	node, err := os.Hostname()
	if err != nil {
		return err
	}
	f := journal.Forwarder{
		Settings: os.Getenv("CREDENTIALS_DIRECTORY"), State: os.Getenv("STATE_DIRECTORY"), Status: hullmark.ForwardFile,
		Node: node, Read: journal.Journalctl(journal.Folder), Timing: journal.DefaultTiming(),
	}
	return f.Run(ctx)
}
