// Command metrics shows Prometheus what a node says of itself, to whoever may read its kubelet's metrics
// (systemd/system/hullmark-metrics.service, docs/operations.md).
package main

import (
	"context"
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"golang.org/x/net/netutil"
	"golang.org/x/sys/unix"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/internal/nodump"
	"github.com/hullmark/hullmark/internal/unit"
	"github.com/hullmark/hullmark/kubeadm/run"
)

// statusFile is the agent's (firstboot.StatusFile); a test holds the two together, and the program does without all of the agent.
const statusFile = "/run/hullmark/status.json"

// maxConnections bounds those that are open at a time.
const maxConnections = 32

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM, os.Interrupt)
	defer stop()
	o := options{
		credentials: os.Getenv("CREDENTIALS_DIRECTORY"), status: statusFile, forward: hullmark.ForwardFile, disk: "/var",
		service: "http://127.0.0.1:7445/metrics", notify: unit.Notify,
	}
	flag.StringVar(&o.listen, "listen", ":7446", "`address` at which Prometheus is waited for")
	flag.Parse()
	if err := serve(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "metrics:", err)
		os.Exit(1)
	}
}

// options are what differs between a node and a test.
type options struct {
	// credentials is a folder with the kubelet's kubeconfig and certificates.
	credentials string
	// status and forward are the files of the agent and of the journal's forwarder, disk a path on the state disk, and service the URL
	// of the metrics of this node's join service, if it has one.
	status, forward, disk, service string
	listen                         string
	notify                         func(line string)
}

// The kubelet's files, by the names under which systemd hands them over.
const (
	kubeconfig  = "kubelet.conf"
	clientFile  = "client.pem"
	servingFile = "serving.pem"
)

// read returns a file that the kubelet's kubeconfig names, by the credential in its place.
func (o options) read(path string) ([]byte, error) {
	name := filepath.Base(path)
	if name != kubeconfig {
		name = clientFile
	}
	return os.ReadFile(filepath.Join(o.credentials, name))
}

// lifetime is how long the process goes on with the certificates that it was handed: the kubelet renews its own at any time.
const lifetime = 6 * time.Hour

// errRenew ends a process that is to be started with newer certificates.
var errRenew = errors.New("it ends, to be handed the kubelet's newest certificates")

// serve answers until ctx ends, or newer certificates are to be had.
func serve(ctx context.Context, o options) error {
	if err := nodump.Process(); err != nil {
		return err
	}
	pair, err := tls.LoadX509KeyPair(filepath.Join(o.credentials, servingFile), filepath.Join(o.credentials, servingFile))
	if err != nil {
		return err
	}
	node, err := nodeName(o)
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", o.listen)
	if err != nil {
		return err
	}
	gate := newGate(run.NewReviewer(run.Access{Kubeconfig: "/etc/kubernetes/" + kubeconfig, Read: o.read}), node)
	server := &http.Server{
		Handler: gate.guard(o.handler()), ReadTimeout: 10 * time.Second, WriteTimeout: 30 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 16 << 10,
		TLSConfig: &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12},
	}
	ended := make(chan error, 1)
	go func() { ended <- server.ServeTLS(netutil.LimitListener(listener, maxConnections), "", "") }()
	defer server.Close()
	o.notify(daemon.SdNotifyReady)
	until := min(lifetime, max(time.Until(pair.Leaf.NotAfter), time.Minute))
	select {
	case err := <-ended:
		return err
	case <-time.After(until):
		return errRenew
	case <-ctx.Done():
		return nil
	}
}
