package firstboot

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/google/go-tpm/tpm2/transport"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest"
	"github.com/hullmark/hullmark/attest/prover"
	"github.com/hullmark/hullmark/attest/wire"
	"github.com/hullmark/hullmark/firstboot/kubeadm"
	"github.com/hullmark/hullmark/firstboot/statedisk"
	"github.com/hullmark/hullmark/internal/atomicfile"
)

// Units that the agent starts.
const (
	// stateUnit mounts the open state disk, binds it where programs expect to write, and makes their folders.
	stateUnit = "hullmark-state.service"
	// kubeletUnit pulls in containerd and the images.
	kubeletUnit = "kubelet.service"
	// joinServiceUnit lets other nodes join, on control planes; recoveredFile names the boot to it whose disk `hullmark recover` opened.
	joinServiceUnit = "hullmark-joinservice.service"
	recoveredFile   = "recovered"
	// hostnameUnit sets what hostnameFile says.
	hostnameUnit = "hullmark-hostname.service"
	hostnameFile = "hostname.conf"
	// kubeletFile is the environment of kubeletUnit, for this boot.
	kubeletFile = "kubelet.env"
)

// readyPause lies between two questions to the API server, which is busy enough when it starts.
const readyPause = 3 * time.Second

// readyTimeout bounds the wait for a Ready node, under slow emulation too.
const readyTimeout = 20 * time.Minute

// roots are where Proceed may place files, and the folders of the state disk that are bound there.
var roots = map[string]string{"/etc/kubernetes/": "etc-kubernetes", "/var/lib/hullmark/": "var/lib/hullmark"}

// comesBack reports that the disk holds a node that is to be started.
func (x *exchange) comesBack() bool { return x.opened.Joined && !x.joinAnew }

// joins reports that kubeadm join is to run: the join service admitted the machine, and its disk holds no node.
func (x *exchange) joins() bool { return x.service != "" && !x.comesBack() }

// place returns where on the state disk a file lies that programs see at name.
func place(name string) (string, error) {
	if path.Clean(name) == name {
		for root, folder := range roots {
			if rest, ok := strings.CutPrefix(name, root); ok && rest != "" {
				return folder + "/" + rest, nil
			}
		}
	}
	return "", fmt.Errorf("file %.80q is outside of the folders that may be written", name)
}

// finishSteps lead from permission to proceed to Ready.
func (x *exchange) finishSteps() []Step {
	return []Step{
		{Name: StepFuse, Do: x.blowFuse},
		{Name: StepKubeadm, Do: x.kubernetes},
		{Name: StepReady, Do: x.waitReady},
	}
}

// blowFuse makes sure that whoever takes this node over from now on cannot earn another ticket.
func (x *exchange) blowFuse(context.Context) error {
	return x.withTPM(func(tpm transport.TPM) error {
		return prover.ExtendEvent(tpm, attest.FuseRegister, hullmark.ClusterEvent(x.agent.config.ClusterRoot))
	})
}

// kubernetes mounts the disk, places the files, and starts or continues what the disk records.
func (x *exchange) kubernetes(ctx context.Context) error {
	x.progress("mount", "mounting the state disk")
	if err := x.agent.makeShown(); err != nil {
		return err
	}
	if err := x.start(ctx, stateUnit); err != nil {
		return err
	}
	if err := x.checkEtcd(); err != nil {
		return err
	}
	x.agent.kept.setRole(hullmark.Role(x.proceed.GetRole()))
	if err := x.clearRestoration(); err != nil {
		return err
	}
	if err := x.setHostname(ctx); err != nil {
		return err
	}
	if err := x.setKubeletAddress(); err != nil {
		return err
	}
	if err := x.placeFiles(); err != nil {
		return err
	}
	if err := x.startHooks(ctx); err != nil {
		return err
	}
	if hullmark.Role(x.proceed.GetRole()) == hullmark.ControlPlane {
		x.startJoinService(ctx)
	}
	if x.comesBack() {
		if err := errors.Join(x.readyKubelet(), x.renew(ctx)); err != nil {
			return err
		}
		x.sayUsage()
		x.progress("kubelet", "starting what the disk holds")
		return x.start(ctx, kubeletUnit)
	}
	intent, err := x.agent.intent()
	if err != nil {
		return err
	}
	restored, err := x.restore(ctx, intent)
	if err != nil {
		return err
	}
	if err := x.agent.recordIntent(statedisk.IntentStarted); err != nil {
		return fmt.Errorf("record intent: %w", err)
	}
	x.sayUsage()
	if x.joins() {
		return x.kubeadmJoin(ctx)
	}
	return x.kubeadmInit(ctx, intent == statedisk.IntentStarted, restored)
}

// startHooks starts the services that M6 names. What they do is in the verity root, and whoever signed the policy wants it done before there are pods.
func (x *exchange) startHooks(ctx context.Context) error {
	for _, unit := range x.proceed.GetHooks() {
		x.progress("hooks", "starting "+unit)
		if err := x.start(ctx, unit); err != nil {
			return &hullmark.Condition{
				Code: "hook-failed", Step: StepKubeadm, Title: err.Error(), Retry: true,
				Next: "read why in hullmark node logs; correct the image or the pool's hooks",
			}
		}
	}
	return nil
}

// placeFiles writes M6's files, in the place of what a join that did not end has left, and keeps no key of them in memory. Those of the
// manifest are stored all or none: a boot that was interrupted holds the keys of an earlier rotation, or all of this one.
func (x *exchange) placeFiles() error {
	defer wire.WipeFiles(x.proceed.GetFiles())
	if err := x.checkOperator(nil, true); err != nil {
		return err
	}
	if x.joinAnew { // Else a boot that ends here would take for a node what is left of it.
		if err := x.agent.recordIntent(statedisk.IntentStarted); err != nil {
			return fmt.Errorf("record intent: %w", err)
		}
	}
	if x.joins() {
		if err := x.agent.removeState(kubeadm.JoinRemains()...); err != nil {
			return fmt.Errorf("remove what an earlier join left: %w", err)
		}
	}
	if err := errors.Join(x.dropStaticPods(), x.dropFlags(), x.dropPrograms()); err != nil {
		return err
	}
	files, mark, err := x.newKeys(x.proceed.GetFiles())
	if err != nil {
		return err
	}
	if mark != nil {
		files = append(files, mark)
	}
	var kept, others []*wire.File
	for _, f := range files {
		if _, ok := keptName(f.GetPath()); ok {
			kept = append(kept, f)
		} else {
			others = append(others, f)
		}
	}
	if err := writeFiles(x.agent.StateDir, others); err != nil {
		return fmt.Errorf("write files: %w", err)
	}
	// What lies beside the manifest is stored before it says so.
	if err := x.agent.syncState(); err != nil {
		return err
	}
	if err := x.agent.keepFiles(kept); err != nil {
		return fmt.Errorf("write files: %w", err)
	}
	return nil
}

// newKeys returns the files to write, and apart from them the one that says of which rotation the keys among them are. What comes with a rotation was held to the signed
// policy among it (checkRotated), whoever brought it. It is left out if the disk's newest signed policy is a later one, which a node that joins refuses,
// or if all of it is there.
func (x *exchange) newKeys(files []*wire.File) (others []*wire.File, mark *wire.File, err error) {
	i := slices.IndexFunc(files, func(f *wire.File) bool { return f.GetPath() == hullmark.RotationFile })
	if i < 0 {
		return files, nil, nil
	}
	brought, err := openPolicy(wire.ContentOf(files)(hullmark.PolicyFile), x.agent.config.ClusterRoot)
	if err != nil {
		return nil, nil, err
	}
	installed, newest := x.agent.heldPolicies()
	text, err := x.agent.readState(hullmark.RotationFile)
	defer clear(text)
	same := x.comesBack() && err == nil && bytes.Equal(text, files[i].GetContent()) && installed.Version == brought.Version
	if brought.Version >= newest.Version && !same {
		return slices.Concat(files[:i], files[i+1:]), files[i], nil
	}
	if brought.Version < newest.Version && x.joins() { // What an earlier join left is gone: there is nothing to keep.
		return nil, nil, &hullmark.Condition{
			Code: "keys-older", Step: StepKubeadm, Title: "the node holds a later signed policy than the one that its keys were brought by",
			Expected: fmt.Sprintf("policy version ≥ %d", newest.Version), Got: fmt.Sprintf("version %d", brought.Version), Next: "bring the newest policy to the cluster (hullmark policy push)",
		}
	}
	if brought.Version < newest.Version {
		x.warn("keys-older", fmt.Sprintf("the node keeps the keys that it has, for it was brought those of policy version %d (rotation %d), and holds version %d (rotation %d)",
			brought.Version, brought.Rotation, newest.Version, newest.Rotation),
			"recover control planes with the newest cluster file, and bring its policy to the cluster (hullmark policy push)")
	}
	return slices.DeleteFunc(slices.Clone(files), func(f *wire.File) bool { return hullmark.Rotated(f.GetPath()) }), nil, nil
}

// startJoinService lets others join. A cluster works without, and systemd tries again: so a failure is said aloud, and stops nothing. After
// `hullmark recover` it may let control planes come back before there are records.
func (x *exchange) startJoinService(ctx context.Context) {
	x.progress("joinservice", "starting the join service")
	var err error
	if x.kind == hullmark.Recover {
		err = atomicfile.Write(filepath.Join(x.agent.RunDir, recoveredFile), []byte(rand.Text()), 0o600)
	}
	if err := errors.Join(err, x.start(ctx, joinServiceUnit)); err != nil {
		x.warn("join-service-down", "other nodes cannot join or come back through this one: "+err.Error(), "read why in hullmark node logs")
	}
}

// kubeadmJoin joins, and keeps nothing that only served to join. The disk then records a node at once: from here on its kubelet is all that has to be
// started, and to clean up for another join would throw a member of etcd away.
func (x *exchange) kubeadmJoin(ctx context.Context) error {
	err := x.agent.Cluster.Join(ctx, x.proceed.GetKubeadmDocuments(), func(p kubeadm.Phase) { x.progress(p.Name, p.Text) })
	clear(x.proceed.GetKubeadmDocuments()) // They hold a token.
	if err := errors.Join(err, x.agent.removeState(kubeadm.DiscoveryFile)); err != nil {
		return err
	}
	// kubeadm stores nothing for good; the record that the node exists must not be stored before the node is.
	if err := x.agent.syncState(); err != nil {
		return err
	}
	return x.agent.recordIntent(statedisk.IntentDone)
}

func (x *exchange) kubeadmInit(ctx context.Context, retry, restored bool) error {
	return x.agent.Cluster.Init(ctx, kubeadm.Work{
		Documents: x.proceed.GetKubeadmDocuments(), Addons: joinManifests(x.proceed.GetManifests()), Retry: retry, Restored: restored,
		Report: func(p kubeadm.Phase) { x.progress(p.Name, p.Text) },
	})
}

// waitReady ends the journey; the disk then records that it holds a working node.
func (x *exchange) waitReady(ctx context.Context) error {
	x.progress("ready", "waiting for the node to be Ready")
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	// An API server's words, so they are bounded and quoted.
	report := func(why error) { x.progress("ready", fmt.Sprintf("not yet: %.300q", why.Error())) }
	if err := x.agent.Cluster.WaitReady(ctx, x.access(), x.proceed.GetNodeName(), report); err != nil {
		return err
	}
	if err := x.agent.removeState(kubeadm.BootstrapFile); err != nil {
		return err
	}
	x.agent.Status.Say("the agent took %s", usage())
	if err := x.agent.syncState(); err != nil {
		return err
	}
	return x.agent.recordIntent(statedisk.IntentDone)
}

// access is an administrator's at its own API server on a control plane, and on a worker its kubelet's.
func (x *exchange) access() kubeadm.Access {
	if hullmark.Role(x.proceed.GetRole()) == hullmark.ControlPlane {
		return kubeadm.Access{Kubeconfig: "/etc/kubernetes/admin.conf", Read: x.agent.readState, Local: true}
	}
	return kubeadm.Access{Kubeconfig: kubeletConf, Read: x.agent.readState}
}

// setHostname gives the node its name; sysctl.d(5) is the form that a unit applies.
func (x *exchange) setHostname(ctx context.Context) error {
	file := filepath.Join(x.agent.RunDir, hostnameFile)
	if err := atomicfile.Write(file, []byte("kernel.hostname = "+x.proceed.GetNodeName()+"\n"), 0o644); err != nil {
		return err
	}
	defer wait(&x.took.programs, time.Now())
	return x.agent.Machine.Restart(ctx, hostnameUnit)
}

// setKubeletAddress lets the kubelet name the address that M6 says, in this boot; without one it names what it finds first. The kubelet takes the last of equal flags.
func (x *exchange) setKubeletAddress() error {
	content := "HULLMARK_KUBELET_ARGS=\n"
	if a := x.proceed.GetAddress(); a != "" {
		content = "HULLMARK_KUBELET_ARGS=--node-ip=" + a + "\n"
	}
	for _, c := range x.proceed.GetRefused() {
		refused := c.HullmarkCondition().Root()
		x.warn(refused.Code, refused.Title, refused.Next)
	}
	return atomicfile.Write(filepath.Join(x.agent.RunDir, kubeletFile), []byte(content), 0o644)
}

func (x *exchange) progress(phase, text string) {
	x.agent.Status.Say("%s: %s", phase, text)
	x.send(&wire.Progress{Phase: phase, Message: text})
}

// joinManifests makes one YAML stream.
func joinManifests(manifests [][]byte) []byte {
	var stream []byte
	for _, m := range manifests {
		stream = append(append(stream, "---\n"...), m...)
		stream = append(stream, '\n')
	}
	return stream
}

// writeFiles writes below the state disk and never follows a link out of it.
func writeFiles(dir string, files []*wire.File) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	for _, f := range files {
		name, err := place(f.GetPath())
		if err != nil {
			return err
		}
		if err := writeFile(root, name, f.GetContent(), fs.FileMode(f.GetMode())); err != nil {
			return fmt.Errorf("%s: %w", f.GetPath(), err)
		}
	}
	return nil
}

func writeFile(root *os.Root, name string, content []byte, mode fs.FileMode) error {
	if err := root.MkdirAll(path.Dir(name), 0o755); err != nil {
		return err
	}
	return atomicfile.WriteIn(root, name, content, mode)
}
