// Command joinservice is what nodes dial to join a cluster or to come back to
// it. It runs on every control-plane node, sandboxed, with files that systemd
// hands over (systemd/system/hullmark-joinservice.service).
package main

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/signal"
	"time"

	"github.com/hullmark/hullmark/internal/unit"

	"github.com/coreos/go-systemd/v22/daemon"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest"
	"github.com/hullmark/hullmark/attest/channel"
	"github.com/hullmark/hullmark/firstboot/servicefiles"
	"github.com/hullmark/hullmark/internal/limit"
	"github.com/hullmark/hullmark/internal/nodump"
	"github.com/hullmark/hullmark/joinservice"
	"github.com/hullmark/hullmark/joinservice/registry"
	"github.com/hullmark/hullmark/measurements"
)

// httpAddress is where health and metrics are.
const httpAddress = "127.0.0.1:7445"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM, os.Interrupt)
	defer stop()
	o := options{
		credentials: os.Getenv("CREDENTIALS_DIRECTORY"), files: servicefiles.Files{Folder: os.Getenv("STATE_DIRECTORY")},
		upgrade: os.Getenv("RUNTIME_DIRECTORY"), notify: unit.Notify, osRelease: "/usr/lib/os-release", registers: registersDir, log: slog.New(slog.NewTextHandler(os.Stderr, nil)),
	}
	flag.StringVar(&o.listen, "listen", ":"+attest.JoinPort, "`address` at which nodes are waited for")
	flag.StringVar(&o.http, "metrics", httpAddress, "`address` of health and metrics; whoever reaches it may read them")
	flag.StringVar(&o.api, "api", apiServer, "`URL` of the Kubernetes API server")
	flag.StringVar(&o.etcd, "etcd", "", "`URL` of this node's member of etcd (default: port 2379 of the loopback address of the cluster's primary family)")
	flag.StringVar(&o.files.Socket, "kept", "", "`socket` of the node's agent, which keeps the service's files; without it they are in $STATE_DIRECTORY")
	flag.BoolVar(&o.profile, "profile", false, "serve profiles of this process beside the metrics")
	flag.Parse()
	err := nodump.Process()
	if err == nil {
		err = run(ctx, o)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "joinservice:", err)
		os.Exit(1)
	}
}

// options are what differs between a node and a test.
type options struct {
	// credentials is a folder.
	credentials string
	// files is where the service keeps what it has to know at its next start.
	files servicefiles.Files
	// listen and http are addresses, api and etcd URLs.
	listen, http, api, etcd string
	// osRelease is the file of the image's os-release(5); empty, or not there, is an image that says nothing.
	osRelease string
	// registers is the folder of the TPM's registers; one that is not there leaves open by which document this node booted.
	registers string
	// profile serves profiles beside the metrics.
	profile bool
	// upgrade is the folder for what the upgrade engine of this node is handed; empty if there is no engine.
	upgrade string
	// notify tells systemd.
	notify func(line string)
	log    *slog.Logger
}

// app is the running service.
type app struct {
	options
	credentials *credentials
	keyset      *keyset
	policy      *joinservice.PolicyStore
	api         *api
	registry    *registry.Registry
	service     *joinservice.Service
	metrics     *metrics
	outage      *outage
	// versions are those of the image that the service runs from; none of a container's.
	versions hullmark.Versions
	// handed is when the upgrade engine's certificate was made.
	handed time.Time
}

// run serves until ctx ends.
func run(ctx context.Context, o options) error {
	a, err := prepare(o)
	if err != nil {
		return err
	}
	return a.run(ctx)
}

// run listens, tells systemd, and serves until ctx ends.
func (a *app) run(ctx context.Context) error {
	nodes, err := net.Listen("tcp", a.listen)
	if err != nil {
		return fmt.Errorf("wait for nodes: %w", err)
	}
	defer nodes.Close()
	scrapes, err := net.Listen("tcp", a.http)
	if err != nil {
		return fmt.Errorf("serve metrics: %w", err)
	}
	defer scrapes.Close()
	// The engine starts once this service says that it runs.
	if err := a.writeUpgrade(time.Now().Round(0)); err != nil {
		a.log.Warn("the upgrade engine of this node gets no certificate", "error", err.Error())
	}
	a.notify(daemon.SdNotifyReady)
	a.log.Info("waiting for nodes", "address", nodes.Addr().String(), "cluster", a.credentials.id().String(), "policy", a.policy.Policy().Version)
	return a.serve(ctx, nodes, scrapes)
}

// prepare does all that needs no network.
func prepare(o options) (a *app, err error) {
	a = &app{options: o, keyset: newKeyset()}
	if a.credentials, err = readCredentials(o.credentials); err != nil {
		return nil, err
	}
	if a.versions, err = imageVersions(o.osRelease); err != nil {
		return nil, err
	}
	var warning error
	a.policy, warning, err = joinservice.OpenPolicyStore(a.credentials.id(), a.credentials.policy, o.files.File(servicefiles.Policy))
	if err != nil {
		return nil, err
	}
	if warning != nil {
		o.log.Warn("policy", "error", warning.Error())
	}
	a.api = newAPI(o.api, a.credentials.kubernetes, a.credentials.authority, o.log)
	if a.registry, err = registry.New(a.api.config); err != nil {
		return nil, err
	}
	members := a.members()
	if a.outage, err = newOutage(folder(o.credentials), o.files, members.AwaitsOnly, o.log); err != nil {
		return nil, err
	}
	a.service = &joinservice.Service{
		Root: a.credentials.id(), Policy: a.policy, Keys: a.keyset, Records: attentive{a.registry, a.outage}, Tokens: a.registry, Vouchers: a.registry,
		RemoveNode: a.registry.RemoveStaleNode, Outage: a.outage, Directions: a.registry,
		Settings: a.credentials.settings, KubernetesCA: a.credentials.authority,
		Timeouts: joinservice.ServiceTimeouts(), Log: o.log,
		Lookup: func(ctx context.Context, host string) ([]netip.Addr, error) {
			return net.DefaultResolver.LookupNetIP(ctx, "ip", host)
		},
	}
	a.service.Newest = a.newestPolicy
	a.service.ControlPlanes = a.controlPlanes(members)
	a.warnOfRotation()
	a.metrics = newMetrics(
		func() float64 { return float64(a.service.InFlight()) },
		func() float64 { return float64(a.policy.Policy().Version) },
		func() float64 { return float64(a.missedRotations()) },
		func() float64 { return float64(a.api.until.Load()) })
	a.service.Ended = func(outcome string) { a.metrics.exchanges.WithLabelValues(outcome).Inc() }
	return a, nil
}

// imageVersions are what the image says of its programs.
func imageVersions(osRelease string) (hullmark.Versions, error) {
	if osRelease == "" {
		return hullmark.Versions{}, nil
	}
	text, err := os.ReadFile(osRelease)
	if errors.Is(err, fs.ErrNotExist) {
		return hullmark.Versions{}, nil
	}
	if err != nil {
		return hullmark.Versions{}, err
	}
	return hullmark.VersionsOf(text)
}

// serve runs everything that goes on side by side; the first failure ends it all, and systemd starts the program again.
func (a *app) serve(ctx context.Context, nodes, scrapes net.Listener) error {
	group, ctx := errgroup.WithContext(ctx)
	exchange, http := a.service.Server(a.tls()), a.metrics.server(a.profile)
	group.Go(func() error { return exchange.Serve(limit.NewListener(nodes, joinservice.MaxUnauthenticated)) })
	group.Go(func() error { return serveHTTP(http, scrapes) })
	for _, work := range []func(context.Context) error{a.openKeyset, a.api.keepFresh, a.watchPolicy, a.approve, a.adopt, a.noteBoot, a.reconcile, a.handUpgrade, a.watchdog} {
		group.Go(func() error { return ignoreEnd(ctx, work(ctx)) })
	}
	<-ctx.Done()
	a.notify(daemon.SdNotifyStopping)
	exchange.Stop() // Nodes go on by themselves, or dial the next service.
	_ = http.Close()
	return group.Wait()
}

// tls shows nodes a leaf that is a day old at most, and the cross-certificates of the policy in force.
func (a *app) tls() *tls.Config {
	leaf := &rotating{age: leafAge, make: func(time.Time) (tls.Certificate, error) {
		return channel.NewService(a.credentials.root, a.credentials.online.Leaf, a.credentials.onlineKey())
	}}
	config := channel.ServiceTLS(tls.Certificate{})
	config.Certificates = nil
	config.GetCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
		made, err := leaf.get()
		if err != nil {
			return nil, err
		}
		shown := channel.WithCrossCertificates(*made, a.policy.CrossCertificates())
		return &shown, nil
	}
	return config
}

// watchPolicy takes up what the operator pushes, and says what it refuses.
func (a *app) watchPolicy(ctx context.Context) error {
	return a.registry.WatchPolicy(ctx, func(envelope []byte, documents map[measurements.DocumentID][]byte) {
		taken, err := a.policy.Offer(joinservice.SignedPolicy{Envelope: envelope, Documents: documents})
		if taken {
			a.log.Info("another policy is in force", "version", a.policy.Policy().Version, "by", signerOf(envelope))
			a.warnOfRotation()
		}
		if err != nil {
			a.log.Warn("policy", "error", err.Error())
			if err := a.registry.Refused(ctx, err.Error()); err != nil {
				a.log.Warn("event not written", "error", err.Error())
			}
			return
		}
		if err := a.registry.Changed(ctx, a.policy.Policy().Version, sha256.Sum256(envelope), signerOf(envelope)); err != nil {
			a.log.Warn("event not written", "error", err.Error())
		}
	})
}

// signerOf names who signed a policy, for people.
func signerOf(envelope []byte) string {
	if operator, ok := measurements.PolicyChanger(envelope); ok {
		return "operator " + operator.Name
	}
	return "whoever holds the root key"
}

// newestPolicy reads the API's policy.
func (a *app) newestPolicy(ctx context.Context, held []byte) (joinservice.SignedPolicy, error) {
	envelope, documents, err := a.registry.Newest(ctx, held)
	return joinservice.SignedPolicy{Envelope: envelope, Documents: documents}, err
}

// missedRotations is how often the operator has exchanged keys since this control plane was given its own.
func (a *app) missedRotations() uint64 {
	held, wanted := a.credentials.rotation, a.policy.Policy().Rotation
	return max(held, wanted) - held
}

func (a *app) warnOfRotation() {
	if a.missedRotations() > 0 {
		a.log.Warn("the operator has exchanged keys that this control plane does not hold yet, so it lets no machine join and no control plane come back: reboot it",
			"held", a.credentials.rotation, "policy", a.policy.Policy().Rotation)
	}
}

// commitsToCA reports whether the policy in force commits to the Kubernetes CA, as from its first exchange on.
func (a *app) commitsToCA() bool { return a.policy.Policy().KubernetesCA != (hullmark.CADigest{}) }

// approve decides over kubelets' certificate requests.
func (a *app) approve(ctx context.Context) error {
	approver := registry.Approver{Registry: a.registry, Admits: a.policy.Admits, Newest: a.service.TakeNewest, Here: a.service.Attends, Claim: a.service.ClaimAddresses, Issuers: a.commitsToCA, Report: func(d registry.Decision, err error) {
		if err != nil {
			a.log.Warn("certificate request", "name", d.Request, "requester", d.Requester, "error", err.Error())
			return
		}
		a.outage.end()
		a.metrics.requests.WithLabelValues(string(d.Outcome)).Inc()
		a.log.Info("certificate request", "name", d.Request, "signer", d.Signer, "requester", d.Requester, "outcome", string(d.Outcome), "reason", d.Reason)
	}}
	return approver.Run(ctx)
}

// watchdog tells systemd that the process still runs.
func (a *app) watchdog(ctx context.Context) error { return unit.Watchdog(ctx, a.notify) }
