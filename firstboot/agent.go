package firstboot

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/google/go-tpm/tpm2/transport"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest"
	"github.com/hullmark/hullmark/attest/prover"
	"github.com/hullmark/hullmark/attest/wire"
	"github.com/hullmark/hullmark/firstboot/config"
	"github.com/hullmark/hullmark/firstboot/network"
	"github.com/hullmark/hullmark/firstboot/statedisk"
	"github.com/hullmark/hullmark/kubeadm"
	"github.com/hullmark/hullmark/kubeadm/run"
	"github.com/hullmark/hullmark/kubeadm/step"
)

// StateDir is where the open state disk is mounted.
const StateDir = "/run/hullmark/state"

// retryPause lies between two attempts of what failed before the network was up.
const retryPause = 5 * time.Second

// Timing is how patient the agent is with others.
type Timing struct {
	// Network is how long the network may take before the node says that it lacks one.
	Network time.Duration
	// Dial bounds the connection to a join service, and again its handshake.
	Dial time.Duration
	// Answer bounds the wait for the operator's call, for Challenge and for Ticket, and how long a message of the node may take to be sent.
	Answer time.Duration
	// Proceed bounds the wait for Proceed, and for each piece of what it announces.
	Proceed time.Duration
	// Turn is how long an operator waits while the node asks a join service, and DialledTurn how long a join service is kept
	// waiting while an operator asks the node: that one has a connection to spare for others.
	Turn, DialledTurn time.Duration
	// FirstPause lies between the first two rounds of dialling; each following one doubles, up to LongestPause.
	FirstPause, LongestPause time.Duration
	// Epoch lies between two numbers of the disk while the node is Ready, within half as much and half as much again.
	Epoch time.Duration
	// DeniedPause is the first when only another policy or disk could change the answer, as when the operator has yet to name the machine;
	// it doubles, too.
	DeniedPause time.Duration
	// Trial is how long the trial of a release has until its node is healthy, TrialDenied how long a refusal that does not pass by itself
	// may stand meanwhile. Direction lies between two questions of a Ready node what to do with its slots, within half as much and half as
	// much again, and Report between two while something is done.
	Trial, TrialDenied, Direction, Report time.Duration
	// Certificate lies between two looks at the kubelet's certificate, and at how the journal's forwarder gets on; Restart bounds how
	// long a node waits that restarts because that certificate has ended.
	Certificate, Restart time.Duration
	// Upgrade lies between two tasks that end a step to another release of Kubernetes.
	Upgrade time.Duration
	// Read is how long a person has to read how an installation ended, before the machine restarts.
	Read time.Duration
}

// DefaultTiming is docs/protocol.md's.
func DefaultTiming() Timing {
	return Timing{
		Network: 15 * time.Second, Dial: 10 * time.Second, Answer: 15 * time.Second, Proceed: 5 * time.Minute,
		Turn: 45 * time.Second, DialledTurn: 5 * time.Second,
		FirstPause: time.Second, LongestPause: time.Minute, DeniedPause: 8 * time.Second, Epoch: 12 * time.Minute,
		Certificate: time.Minute, Restart: 5 * time.Minute, Upgrade: time.Minute, Read: 30 * time.Second,
		Trial: 30 * time.Minute, TrialDenied: 4 * time.Minute, Direction: 40 * time.Second, Report: 10 * time.Second,
	}
}

// Disk is the helper that opens the state disk; statedisk.Client is the real one.
type Disk interface {
	Probe(context.Context, hullmark.DiskSelector) (hullmark.DiskClaim, error)
	Open(context.Context, hullmark.DiskSelector, hullmark.DiskGrant) (statedisk.Opened, error)
}

// System is what the agent asks of the operating system around it; Systemd is the real one.
type System interface {
	// Start starts a unit and waits until it is up or has done its work.
	Start(ctx context.Context, unit string) error
	// Restart does the same for a unit that may run already.
	Restart(ctx context.Context, unit string) error
	// Reboot restarts the machine; it returns once that has begun.
	Reboot(ctx context.Context) error
	// RebootAtOnce does so without anything that is on the disk which it has booted from.
	RebootAtOnce(ctx context.Context) error
	// Links lists the machine's network interfaces. settled says that all cards that it was started with are among them.
	Links() (links []network.Link, settled bool, err error)
	// Uptime returns how long the machine has run, also while it was suspended: whoever sets its clock changes nothing of that.
	Uptime() (time.Duration, error)
	// Journal writes the log of this boot to w as text.
	Journal(ctx context.Context, w io.Writer) error
}

// Cluster is what the agent asks of Kubernetes; Kubeadm is the real one.
type Cluster interface {
	Validate(ctx context.Context, documents []byte) error
	// Restore makes the data with which the etcd of an init begins.
	Restore(ctx context.Context, r kubeadm.Restoration) error
	Init(ctx context.Context, w run.Work) error
	Join(ctx context.Context, documents []byte, report func(kubeadm.Phase)) error
	// Renew makes a control plane's certificates and kubeconfigs that are missing.
	Renew(ctx context.Context, documents []byte, report func(kubeadm.Phase)) error
	// WaitReady returns when node is Ready in this boot, and reports what it waits for until then.
	WaitReady(ctx context.Context, access run.Access, node string, report func(why error)) error
	// DiskRecord reads what the cluster keeps of a machine's disk.
	DiskRecord(ctx context.Context, access run.Access, node hullmark.EKID) (run.DiskRecord, error)
	Stepper
}

// Stepper is what the agent asks of Kubernetes to bring a node from one release to another (docs/kubernetes.md, Steps).
type Stepper interface {
	// CheckFlags has the image's own programs judge flags, by their names, and returns those that are deprecated.
	CheckFlags(ctx context.Context, flags map[string][]string) (deprecated []string, err error)
	// Render makes a control plane's static pods by documents of kubeadm.Rendering; what it needs meanwhile lies below dir.
	Render(ctx context.Context, dir string, documents []byte) (manifests map[string][]byte, err error)
	// Stored reads what kubeadm keeps in the cluster.
	Stored(ctx context.Context, access run.Access) (run.Stored, error)
	// Planes, Kubelets and OldDNS say how far the cluster is: its control planes, the kubelets of all nodes, and whether CoreDNS is not
	// the one that the image's kubeadm would start.
	Planes(ctx context.Context, access run.Access) ([]step.Plane, error)
	Kubelets(ctx context.Context, access run.Access) ([]step.Seen, error)
	OldDNS(ctx context.Context, access run.Access, v hullmark.Version) (bool, error)
	// Upgrade lets kubeadm write into the cluster what documents say, and KubeletConfig makes the kubelet's configuration of that.
	Upgrade(ctx context.Context, documents []byte, report func(kubeadm.Phase)) error
	KubeletConfig(ctx context.Context, report func(kubeadm.Phase)) ([]byte, error)
}

// Agent takes one node to Ready. All fields are set by its maker.
type Agent struct {
	// OpenTPM opens the machine's TPM; it is closed after each use.
	OpenTPM func() (transport.TPMCloser, error)
	// Platform gathers what the machine's platform says of it, nil where that is nothing; the field may be nil, too. What it
	// cannot gather is not shown: whether that is enough is the verifier's to say.
	Platform func(context.Context, transport.TPM) (*prover.Platform, error)
	Config   config.Source
	Disk     Disk
	Machine  System
	Cluster  Cluster
	// Slots is nil where the machine has no disk with slots: it takes no other release then.
	Slots Slots
	// Installer is nil where the image makes no installation medium.
	Installer Installer
	// Release is the root hash on the kernel's command line, which is measured; what slots say of themselves the host can write.
	Release hullmark.RootHash
	Status  *Status
	// StateDir is where the state disk is mounted, RunDir the agent's folder on a RAM disk.
	StateDir, RunDir string
	// SystemdDir is where settings for systemd go; the constant of that name but in tests.
	SystemdDir string
	// ForwardFile is where the journal's forwarder says how it is getting on.
	ForwardFile string
	// EventLog is the file of the firmware's event log, which explains the registers where they differ; it may be absent.
	EventLog string
	// Versions are those of the image, as its os-release says them; without one, nothing is done about steps to another release.
	Versions hullmark.Versions
	// Listen is the address on which the operator is awaited.
	Listen string
	Timing Timing

	// turn is held by the one exchange that runs, and for good by the one whose ticket was used.
	turn turn
	// kept is what the disk's manifest holds.
	kept kept
	// ResolvFile lists the name servers that pods get from the kubelet: kubeadm.ResolvFile, in all but tests.
	ResolvFile string
	// onMedium is set if the machine has booted from an installation medium.
	onMedium bool
	// updates is what is known of the slots.
	updates updates
	// over gets the error that makes the machine restart.
	over       chan error
	config     hullmark.NodeConfig
	configData []byte
	// plan is which interfaces the configuration makes of the machine's cards.
	plan network.Plan
	// online is when the network was up, and setUp how long it took from then until an exchange could begin.
	online time.Time
	setUp  time.Duration
}

// Run takes the node to Ready and then keeps answering the operator until ctx
// ends. It returns early only if the machine is to restart, which then has begun.
func (a *Agent) Run(ctx context.Context) error {
	updater := updater{a}
	unknown := updater.lookAtSlots(ctx)
	updater.armTrial(ctx)
	err := (setup{a}).run(ctx)
	if err == nil {
		if c := (*hullmark.Condition)(nil); errors.As(unknown, &c) {
			a.Status.Warn(c)
		}
		err = a.serve(ctx)
	}
	if !errors.Is(err, errReboot) {
		return err
	}
	if c := (*hullmark.Condition)(nil); errors.As(err, &c) {
		updater.noteTrial(ctx, c)
	}
	fmt.Fprintln(a.Status.Console, "HULLMARK: the machine restarts")
	reboot := a.Machine.Reboot
	if a.onMedium {
		reboot = a.Machine.RebootAtOnce
	}
	return errors.Join(err, reboot(context.WithoutCancel(ctx)))
}

// setup is what comes before a node can prove anything: its TPM, its configuration and its network.
type setup struct{ *Agent }

// run does what needs no ticket, again and again until it works.
func (a setup) run(ctx context.Context) error {
	a.kept.stateDir, a.kept.keysPath = a.StateDir, filepath.Join(a.RunDir, keysFile)
	journal := Journal{Status: a.Status}
	steps := []Step{
		{Name: StepStart, Do: a.checkTPM},
		{Name: StepConfig, Do: a.measureConfig},
		{Name: StepInstall, Done: a.onDisk, Do: a.install},
		{Name: StepAttest, Done: func(context.Context) (bool, error) { return networking(a).isOnline() }, Do: a.waitNetwork},
	}
	for {
		err := journal.Run(ctx, steps...)
		a.online = time.Now()
		if err == nil || errors.Is(err, errReboot) {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(retryPause):
		}
	}
}

// withTPM opens the TPM for one use.
func (a *Agent) withTPM(use func(transport.TPM) error) error {
	tpm, err := a.OpenTPM()
	if err != nil {
		return &hullmark.Condition{
			Code: "no-tpm", Step: StepStart, Title: "the machine's TPM does not answer: " + err.Error(), Retry: true,
			Next: "give the machine a TPM 2.0; without one it cannot show what it booted",
		}
	}
	return errors.Join(use(tpm), tpm.Close())
}

// checkTPM makes sure that this boot can still earn a ticket.
func (a setup) checkTPM(context.Context) error {
	return a.withTPM(func(tpm transport.TPM) error {
		if err := a.tellNode(tpm); err != nil {
			return err
		}
		registers, err := prover.ReadRegisters(tpm)
		if err != nil {
			return err
		}
		if registers[attest.FuseRegister] == [32]byte{} {
			return nil
		}
		if !a.wasReady() {
			return fmt.Errorf("%w: %w", errReboot, &hullmark.Condition{
				Code: "fuse-blown", Step: StepStart, Title: "this boot has used its ticket already",
				Expected: "PCR 15 = 0", Got: fmt.Sprintf("%x", registers[attest.FuseRegister]), Next: "wait for the restart", Retry: true,
			})
		}
		// An earlier run of the agent took this boot to Ready: this one answers questions, and goes on with the epoch.
		a.turn.keep()
		if err := a.kept.resume(); err != nil {
			return err
		}
		return updater(a).settle()
	})
}

// tellNode shows the machine's identity to whoever stands before it.
func (a setup) tellNode(tpm transport.TPM) error {
	if a.Status.Screen == nil {
		return nil
	}
	node, err := prover.Node(tpm)
	if err == nil {
		a.Status.Know(node)
	}
	return err
}

// measureConfig finds the configuration, measures it, and only then reads it.
func (a setup) measureConfig(ctx context.Context) error {
	data, err := a.Config.Bytes(ctx)
	if err != nil {
		return err
	}
	if err := a.withTPM(func(tpm transport.TPM) error { return measureOnce(tpm, data) }); err != nil {
		return err
	}
	parsed, err := hullmark.ParseNodeConfig(data)
	if err != nil {
		return config.Invalid(err)
	}
	a.config, a.configData = parsed, data
	return a.applyConfig(ctx)
}

// measureOnce extends PCR 8 with the configuration, unless that happened
// before in this boot. Any other value can only be shed by a restart.
func measureOnce(tpm transport.TPM, data []byte) error {
	registers, err := prover.ReadRegisters(tpm)
	if err != nil {
		return err
	}
	event := hullmark.ConfigEvent(data)
	switch registers[attest.ConfigRegister] {
	case [32]byte{}:
		return prover.ExtendEvent(tpm, attest.ConfigRegister, event)
	case attest.Extended(event):
		return nil
	}
	return fmt.Errorf("%w: %w", errReboot, &hullmark.Condition{
		Code: "config-changed", Step: StepConfig, Title: "register 8 holds another configuration than this one",
		Expected: fmt.Sprintf("%x", attest.Extended(event)), Got: fmt.Sprintf("%x", registers[attest.ConfigRegister]),
		Next: "wait for the restart", Retry: true,
	})
}

// eventLog returns the firmware's log, or nothing: no decision rests on it.
func (a *Agent) eventLog() []byte {
	f, err := os.Open(a.EventLog)
	if err != nil {
		return nil
	}
	defer f.Close()
	log, err := io.ReadAll(io.LimitReader(f, wire.MaxEventLog+1))
	if err != nil || len(log) > wire.MaxEventLog {
		return nil
	}
	return log
}

// probe looks at the state disk and names a blank one.
func (a *Agent) probe(ctx context.Context) (hullmark.DiskClaim, error) {
	claim, err := a.Disk.Probe(ctx, a.config.StateDisk)
	if err != nil {
		return hullmark.DiskClaim{}, err
	}
	switch claim.State {
	case hullmark.DiskForeign:
		return hullmark.DiskClaim{}, &hullmark.Condition{
			Code: "disk-foreign", Step: StepDisk, Title: "the state disk is neither blank nor a Hullmark state disk; it was not touched",
			Next: "attach another disk, or zero this one's first and last 16 MiB if its content may go",
		}
	case hullmark.DiskBlank:
		_, err = rand.Read(claim.UUID[:])
	}
	return claim, err
}

// intent returns what the state disk records of kubeadm: empty, started or done.
func (a *Agent) intent() (string, error) { return a.note(statedisk.IntentFile) }

// recordIntent replaces that, and returns once it is stored.
func (a *Agent) recordIntent(intent string) error {
	return a.kept.write(statedisk.IntentFile, []byte(intent))
}
