package firstboot

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest/wire"
	"github.com/hullmark/hullmark/kubeadm"
)

// clockBound is how far a node's clock may be off when it joins: certificates that kubeadm and the cluster make begin five
// minutes before their time (cmd/kubeadm/app/constants, CertificateBackdate).
const clockBound = 4 * time.Minute

// comesBack reports that the disk holds a node that is to be started, and that Proceed does not take for none: its member of etcd
// would have come back with less than it had acknowledged.
func (o *opened) comesBack(p *wire.Proceed) bool { return o.disk.Joined && !p.GetJoinAnew() }

// joins reports that kubeadm join is to run: the join service admitted the machine, and its disk holds no node.
func (o *opened) joins(p *wire.Proceed) bool { return o.service != "" && !o.comesBack(p) }

// checkClock refuses to join with a clock that is not the service's: by one that is behind, the cluster's certificates are not
// valid yet, and kubeadm would wait without a word until its time is up.
func (o *opened) checkClock(p *wire.Proceed) error {
	off, theirs := clockOff(p)
	if !o.joins(p) || off.Abs() <= clockBound {
		return nil
	}
	return &hullmark.Condition{
		Code: "clock-off", Step: StepEpoch, Title: fmt.Sprintf("the machine's clock is off by %v: a node joins with one that is right to within %v", off, clockBound), Retry: true,
		Expected: theirs.UTC().Format(time.RFC3339), Got: theirs.Add(off).UTC().Format(time.RFC3339), Next: "set the clock of the machine's host; the node tries again by itself",
	}
}

// clockOff returns by how much the node's clock is ahead of its verifier's time; zero if Proceed does not say it.
func clockOff(p *wire.Proceed) (off time.Duration, theirs time.Time) {
	if p.GetTime() == 0 {
		return 0, time.Time{}
	}
	theirs = time.Unix(p.GetTime(), 0)
	return time.Now().Truncate(time.Second).Sub(theirs), theirs
}

// checkProceed refuses what could not be carried out.
func (o *opened) checkProceed(p *wire.Proceed) error {
	if err := o.checkClock(p); err != nil {
		return err
	}
	if err := checkSigned(p, o.agent.config.ClusterRoot); err != nil {
		return &hullmark.Condition{
			Code: "keys-unsigned", Step: StepEpoch, Title: o.verifier() + " brings other keys than the cluster's root signed: " + err.Error(), Retry: true,
			Next: "if an operator brought them, take the newest cluster file; if a join service did, find out who wrote to its control plane's disk, and recover that",
		}
	}
	if err := o.checkOperator(p.GetFiles()); err != nil {
		return err
	}
	err := errors.Join(o.checkNamed(p), o.checkAnew(p), o.checkRole(p), o.checkOwned(p), o.checkMaterial(p), o.checkBootstrap(p), o.checkEndpoint(p), o.checkSnapshot(p),
		checkAddress(p), checkFiles(p.GetFiles()), checkHooks(p.GetHooks()))
	if err == nil {
		return nil
	}
	return &hullmark.Condition{Code: "proceed-refused", Step: StepEpoch, Title: err.Error(), Next: "use a hullmark of this image's release"}
}

// checkAnew refuses to give a node up but for a control plane whose records could be read.
func (o *opened) checkAnew(p *wire.Proceed) error {
	if !p.GetJoinAnew() || o.kind == hullmark.Rejoin && o.disk.Joined && !o.grant.Epoch.Unchecked && hullmark.Role(p.GetRole()) == hullmark.ControlPlane {
		return nil
	}
	return fmt.Errorf("only a control plane that comes back by its record joins anew, not a %.20q by %s", p.GetRole(), o.kind)
}

func (o *opened) checkRole(p *wire.Proceed) error {
	role := hullmark.Role(p.GetRole())
	switch {
	case !hullmark.ValidNodeName(p.GetNodeName()):
		return fmt.Errorf("node name %.80q is no DNS label", p.GetNodeName())
	case !role.Valid():
		return fmt.Errorf("role %.20q is unknown", role)
	case role == hullmark.Worker && (o.service == "" || o.grant.Epoch.Unchecked):
		return fmt.Errorf("kind %s is a control plane's, or its epoch is unchecked, but the role is %s", o.kind, role)
	}
	return nil
}

// checkMaterial looks for what kubeadm needs and cannot say before the fuse that it lacks.
func (o *opened) checkMaterial(p *wire.Proceed) error {
	if o.kind == hullmark.Init && !o.comesBack(p) && len(p.GetManifests()) == 0 {
		return errors.New("there is no manifest: at least the pod network's is needed")
	}
	if !o.joins(p) {
		return nil
	}
	if err := kubeadm.CheckProviderID(p.GetKubeadmDocuments()); err != nil {
		return err
	}
	controlPlane := isControlPlane(p)
	needed := []string{kubeadm.DiscoveryFile}
	if controlPlane {
		needed = append(needed, kubeadm.ControlPlaneFiles()...)
	}
	for _, name := range needed {
		if !slices.ContainsFunc(p.GetFiles(), func(f *wire.File) bool { return f.GetPath() == name }) {
			return fmt.Errorf("the file %s is missing", name)
		}
	}
	for _, f := range p.GetFiles() {
		if kubeadm.JoinWrites(f.GetPath(), controlPlane) {
			return fmt.Errorf("it brings %.80q, which kubeadm join writes itself", f.GetPath())
		}
	}
	return nil
}

func isControlPlane(p *wire.Proceed) bool { return hullmark.Role(p.GetRole()) == hullmark.ControlPlane }

// checkOwned refuses keys for a worker, which a join service brings what the root signed of the Kubernetes CA alone, and files that a join
// service could only exchange against what a node that comes back has: the service accounts' keys, or what kubeadm made.
func (o *opened) checkOwned(p *wire.Proceed) error {
	for _, f := range p.GetFiles() {
		path := f.GetPath()
		switch {
		case hullmark.Rotated(path) && !isControlPlane(p) && !(isTrust(path) && o.service != ""):
			return fmt.Errorf("it brings a worker %.80q", path)
		case o.service != "" && o.comesBack(p) && hullmark.Reserved(path) && !hullmark.Rotated(path) && path != hullmark.SettingsFile && !isBootstrap(f):
			return fmt.Errorf("it brings %.80q, which a node that comes back has", path)
		}
	}
	return nil
}

// checkEndpoint looks at what only a node that comes back is told.
func (o *opened) checkEndpoint(p *wire.Proceed) error {
	switch {
	case p.GetEndpoint() == "" && len(p.GetNames()) == 0:
		return nil
	case !o.comesBack(p) || !hullmark.ValidEndpoint(p.GetEndpoint()):
		return fmt.Errorf("endpoint %.80q: want HOST:PORT, and a node that comes back", p.GetEndpoint())
	}
	for _, name := range p.GetNames() {
		if !hullmark.ValidServerName(name) {
			return fmt.Errorf("name %.80q is no DNS name and no IP address", name)
		}
	}
	return nil
}

// checkAddress looks at what becomes an argument of the kubelet.
func checkAddress(p *wire.Proceed) error {
	addresses, err := p.NodeAddresses()
	if err == nil && slices.ContainsFunc(addresses, func(a netip.Addr) bool { return !a.IsGlobalUnicast() }) {
		err = fmt.Errorf("address %.80q is none that other machines reach a node at", p.GetAddress())
	}
	return err
}

func checkFiles(files []*wire.File) error {
	for _, f := range files {
		if _, err := place(f.GetPath()); err != nil {
			return err
		}
		if f.GetMode() == 0 || f.GetMode()&^0o777 != 0 {
			return fmt.Errorf("file %.80q has mode %o", f.GetPath(), f.GetMode())
		}
	}
	return nil
}

func checkHooks(hooks []string) error {
	for _, unit := range hooks {
		if !hullmark.ValidHook(unit) {
			return fmt.Errorf("hook %.80q is not the name of a service, or of one that is started anyway", unit)
		}
	}
	return nil
}
