// Command upgrade carries upgrades of the cluster out. It runs on every control-plane node, sandboxed, with a certificate that the join
// service makes for it (systemd/system/hullmark-upgrade.service); of all of them one acts.
package main

import (
	"context"
	"crypto/rand"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/hullmark/hullmark/internal/nodump"
	"github.com/hullmark/hullmark/internal/unit"
	"github.com/hullmark/hullmark/upgrade"
	"github.com/hullmark/hullmark/upgrade/kube"
)

const (
	// apiServer is this node's own, and apiPort that of all control planes.
	apiServer = "https://127.0.0.1:6443"
	apiPort   = 6443
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM, os.Interrupt)
	defer stop()
	o := options{credentials: os.Getenv("CREDENTIALS_DIRECTORY"), notify: unit.Notify, log: slog.New(slog.NewTextHandler(os.Stderr, nil))}
	flag.StringVar(&o.api, "api", apiServer, "`URL` of the Kubernetes API server")
	flag.UintVar(&o.port, "port", apiPort, "`port` of the control planes' API servers")
	flag.Parse()
	err := nodump.Process()
	if err == nil {
		err = run(ctx, o)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "upgrade:", err)
		os.Exit(1)
	}
}

// options are what differs between a node and a test.
type options struct {
	// credentials is a folder.
	credentials string
	api         string
	port        uint
	// notify tells systemd.
	notify func(line string)
	log    *slog.Logger
}

// run turns until ctx ends, or until it is time to begin anew with another certificate.
func run(ctx context.Context, o options) error {
	c, err := readCredentials(o.credentials)
	if err != nil {
		return err
	}
	ends, err := c.lasts(time.Now())
	if err != nil {
		return err
	}
	engine, err := newEngine(o, c)
	if err != nil {
		return err
	}
	o.notify(daemon.SdNotifyReady)
	o.log.Info("waiting for upgrades", "engine", engine.Name, "until", ends.UTC())
	group, working := errgroup.WithContext(ctx)
	group.Go(func() error { return untilEnd(working, ends) })
	group.Go(func() error { return engine.Run(working) })
	group.Go(func() error { return unit.Watchdog(working, o.notify) })
	err = group.Wait()
	o.notify(daemon.SdNotifyStopping)
	if ctx.Err() != nil || errors.Is(err, errRenew) {
		return nil
	}
	return err
}

// newEngine makes the engine of this node, which no other one is called like.
func newEngine(o options, c credentials) (*upgrade.Engine, error) {
	if o.port == 0 || o.port > 1<<16-1 {
		return nil, fmt.Errorf("-port %d: want 1 to 65535", o.port)
	}
	node, err := os.Hostname()
	if err != nil {
		return nil, err
	}
	config := c.config(o.api)
	cluster, err := kube.New(config)
	if err != nil {
		return nil, err
	}
	if err := cluster.Probe(config, uint16(o.port)); err != nil {
		return nil, err
	}
	return &upgrade.Engine{Cluster: cluster, Name: node + "." + rand.Text()[:8], Judge: upgrade.ByVersions, Now: time.Now, Log: o.log}, nil
}

// errRenew says that it is time to begin anew.
var errRenew = errors.New("the certificate is to be renewed")

// clockCheck is how often the certificate is held to the clock, which may be set.
const clockCheck = time.Minute

// untilEnd returns errRenew at that time by the wall clock.
func untilEnd(ctx context.Context, ends time.Time) error {
	tick := time.NewTicker(clockCheck)
	defer tick.Stop()
	for {
		if !time.Now().Round(0).Before(ends) {
			return errRenew
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}
