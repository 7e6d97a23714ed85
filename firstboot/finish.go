package firstboot

import (
	"context"
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
	"github.com/hullmark/hullmark/firstboot/statedisk"
	"github.com/hullmark/hullmark/internal/atomicfile"
	"github.com/hullmark/hullmark/internal/pemcert"
	"github.com/hullmark/hullmark/kubeadm"
	"github.com/hullmark/hullmark/kubeadm/run"
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

// finishing is the stage of a node that may proceed: nothing ends it any more but Ready, or a restart.
// Most of its methods are the steps that are left.
type finishing struct {
	*conversation
	admitted
	// grant is the ticket's, without its key.
	grant   hullmark.DiskGrant
	disk    statedisk.Opened
	proceed *wire.Proceed
	// comesBack says that the disk holds a node that is to be started, joins that kubeadm join is to run.
	comesBack, joins bool
	// machineBegan is when the machine was started by its verifier's clock, in Unix time; 0 if Proceed did not say the time.
	machineBegan int64
	// warning is what stands against the node although it is Ready.
	warning *hullmark.Condition
}

// steps lead from permission to proceed to Ready.
func (f *finishing) steps() []Step {
	return []Step{
		{Name: StepFuse, Do: f.blowFuse},
		{Name: StepKubeadm, Do: f.kubernetes},
		{Name: StepReady, Do: f.waitReady},
		{Name: StepReady, Do: f.commitTrial},
	}
}

// blowFuse makes sure that whoever takes this node over from now on cannot earn another ticket.
func (f *finishing) blowFuse(context.Context) error {
	return f.withTPM(func(tpm transport.TPM) error {
		return prover.ExtendEvent(tpm, attest.FuseRegister, hullmark.ClusterEvent(f.agent.config.ClusterRoot))
	})
}

// kubernetes mounts the disk, places the files, and starts or continues what the disk records.
func (f *finishing) kubernetes(ctx context.Context) error {
	if err := f.mount(ctx); err != nil {
		return err
	}
	if f.named != nil {
		if err := f.goByDisk(); err != nil {
			return err
		}
	}
	f.agent.kept.setRole(hullmark.Role(f.proceed.GetRole()))
	if err := (restoring{f.conversation, f.proceed}).clear(); err != nil {
		return err
	}
	if err := f.setHostname(ctx); err != nil {
		return err
	}
	if err := f.setKubeletAddress(); err != nil {
		return err
	}
	if err := f.placeFiles(); err != nil {
		return err
	}
	f.surround(ctx)
	if err := f.startHooks(ctx); err != nil {
		return err
	}
	if hullmark.Role(f.proceed.GetRole()) == hullmark.ControlPlane {
		f.startJoinService(ctx)
	}
	if f.comesBack {
		if err := errors.Join(f.readyKubelet(), (renewing{f}).run(ctx)); err != nil {
			return err
		}
		if err := (stepping{f}).run(ctx); err != nil {
			return err
		}
		f.sayUsage()
		f.progress("kubelet", "starting what the disk holds")
		return f.start(ctx, kubeletUnit)
	}
	intent, err := f.agent.intent()
	if err != nil {
		return err
	}
	restored := false
	if f.kind == hullmark.Init {
		if restored, err = (restoring{f.conversation, f.proceed}).run(ctx, intent); err != nil {
			return err
		}
	}
	if err := f.agent.recordIntent(statedisk.IntentStarted); err != nil {
		return fmt.Errorf("record intent: %w", err)
	}
	f.sayUsage()
	if f.joins {
		return f.kubeadmJoin(ctx)
	}
	return f.kubeadmInit(ctx, intent == statedisk.IntentStarted, restored)
}

// mount mounts the state disk, and compares what is on it with what runs: nothing of it has run yet.
func (f *finishing) mount(ctx context.Context) error {
	f.progress("mount", "mounting the state disk")
	if err := f.agent.makeShown(); err != nil {
		return err
	}
	if err := f.start(ctx, stateUnit); err != nil {
		return err
	}
	if err := (updater{f.agent}).settle(); err != nil {
		return err
	}
	return f.checkEtcd()
}

// startHooks starts the services that Proceed names. What they do is in the verity root, and whoever signed the policy wants it done
// before there are pods.
func (f *finishing) startHooks(ctx context.Context) error {
	for _, unit := range f.proceed.GetHooks() {
		f.progress("hooks", "starting "+unit)
		if err := f.start(ctx, unit); err != nil {
			return &hullmark.Condition{
				Code: "hook-failed", Step: StepKubeadm, Title: err.Error(), Retry: true,
				Next: "read why in hullmark node logs; correct the image or the pool's hooks",
			}
		}
	}
	return nil
}

// placeFiles writes Proceed's files, in the place of what a join that did not end has left, and keeps no key of them in memory.
// Those of the manifest are stored all or none: a boot that was interrupted holds the keys of an earlier rotation, or all of
// this one. Authorities are among them: kubeadm's programs find those of the manifest, whatever lies on the disk.
func (f *finishing) placeFiles() error {
	defer wire.WipeFiles(f.proceed.GetFiles())
	if err := f.checkOperator(); err != nil {
		return err
	}
	if f.proceed.GetJoinAnew() { // Else a boot that ends here would take for a node what is left of it.
		if err := f.agent.recordIntent(statedisk.IntentStarted); err != nil {
			return fmt.Errorf("record intent: %w", err)
		}
	}
	if f.joins {
		if err := f.agent.removeState(kubeadm.JoinRemains()...); err != nil {
			return fmt.Errorf("remove what an earlier join left: %w", err)
		}
	}
	if err := errors.Join(f.dropStaticPods(), f.dropFlags(), f.dropPrograms()); err != nil {
		return err
	}
	files, mark, err := f.newKeys(f.proceed.GetFiles())
	if err != nil {
		return err
	}
	if mark != nil {
		files = append(files, mark)
	}
	var kept, others []*wire.File
	for _, file := range files {
		if _, ok := proceedName(file.GetPath()); ok {
			kept = append(kept, file)
		} else {
			others = append(others, file)
		}
	}
	if err := writeFiles(f.agent.StateDir, others); err != nil {
		return fmt.Errorf("write files: %w", err)
	}
	// What lies beside the manifest is stored before it says so.
	if err := f.agent.syncState(); err != nil {
		return err
	}
	if f.named != nil { // He brought none: static pods apart, those of the pool stay, too.
		return bringKept(f.agent)
	}
	if err := f.agent.keepFiles(kept); err != nil {
		return fmt.Errorf("write files: %w", err)
	}
	return nil
}

// newKeys returns the files to write, and apart from them the one that says of which rotation the keys among them are. What
// comes with a rotation was held to the signed policy among it (checkRotated), whoever brought it. It is left out if the disk's
// newest signed policy is a later one, which a node that joins refuses, or if all of it is there: whoever was root on this node could
// have written other keys into the manifest, under the same number. A worker goes by the policy that it is brought once, and keeps none.
func (f *finishing) newKeys(files []*wire.File) (others []*wire.File, mark *wire.File, err error) {
	i := slices.IndexFunc(files, func(f *wire.File) bool { return f.GetPath() == hullmark.RotationFile })
	if i < 0 {
		return slices.DeleteFunc(slices.Clone(files), func(f *wire.File) bool { return f.GetPath() == hullmark.PolicyFile }), nil, nil
	}
	brought, err := openPolicy(wire.ContentOf(files)(hullmark.PolicyFile), f.agent.config.ClusterRoot)
	if err != nil {
		return nil, nil, err
	}
	installed, newest := f.agent.heldPolicies()
	same := f.comesBack && installed.Version == brought.Version && f.agent.kept.holdsKeys(brought)
	if brought.Version >= newest.Version && !same {
		return slices.Concat(files[:i], files[i+1:]), files[i], nil
	}
	if brought.Version < newest.Version && f.joins { // What an earlier join left is gone: there is nothing to keep.
		return nil, nil, &hullmark.Condition{
			Code: "keys-older", Step: StepKubeadm, Title: "the node holds a later signed policy than the one that its keys were brought by",
			Expected: fmt.Sprintf("policy version ≥ %d", newest.Version), Got: fmt.Sprintf("version %d", brought.Version), Next: "bring the newest policy to the cluster (hullmark policy push)",
		}
	}
	if brought.Version < newest.Version {
		f.warn("keys-older", fmt.Sprintf("the node keeps the keys that it has, for it was brought those of policy version %d (rotation %d), and holds version %d (rotation %d)",
			brought.Version, brought.Rotation, newest.Version, newest.Rotation),
			"recover control planes with the newest cluster file, and bring its policy to the cluster (hullmark policy push)")
	}
	return slices.DeleteFunc(slices.Clone(files), func(f *wire.File) bool { return hullmark.Rotated(f.GetPath()) }), nil, nil
}

// startJoinService lets others join. A cluster works without, and systemd tries again: so a failure is said aloud, and stops nothing. After
// `hullmark recover` it may let control planes come back before there are records.
func (f *finishing) startJoinService(ctx context.Context) {
	f.progress("joinservice", "starting the join service")
	var err error
	if f.kind == hullmark.Recover {
		err = atomicfile.Write(filepath.Join(f.agent.RunDir, recoveredFile), []byte(f.recovered()), 0o600)
	}
	if err := errors.Join(err, f.start(ctx, joinServiceUnit)); err != nil {
		f.warn("join-service-down", "other nodes cannot join or come back through this one: "+err.Error(), "read why in hullmark node logs")
	}
}

// kubeadmJoin joins, and keeps nothing that only served to join. The disk then records a node at once: from here on its kubelet
// is all that has to be started, and to clean up for another join would throw a member of etcd away.
func (f *finishing) kubeadmJoin(ctx context.Context) error {
	err := f.agent.Cluster.Join(ctx, f.proceed.GetKubeadmDocuments(), func(p kubeadm.Phase) { f.progress(p.Name, p.Text) })
	clear(f.proceed.GetKubeadmDocuments()) // They hold a token.
	if err := errors.Join(err, f.agent.removeState(kubeadm.DiscoveryFile)); err != nil {
		return err
	}
	if err := errors.Join(f.trustCA(), (written{f.agent}).noteKubelet()); err != nil {
		return err
	}
	// kubeadm stores nothing for good; the record that the node exists must not be stored before the node is.
	if err := f.agent.syncState(); err != nil {
		return err
	}
	return f.agent.recordIntent(statedisk.IntentDone)
}

func (f *finishing) kubeadmInit(ctx context.Context, retry, restored bool) error {
	// kubeadm makes what is missing, and refuses a certificate that its authority did not sign, and a kubeconfig that begins with another
	// one. The one that did may have been exchanged.
	if retry && (renewing{f}).renewal().Superseded() {
		if err := f.agent.removeState(slices.Concat(kubeadm.Renewals(), kubeadm.KubeletIdentity(), []string{superAdminConf})...); err != nil {
			return fmt.Errorf("remove certificates of an authority that was exchanged: %w", err)
		}
	}
	err := f.agent.Cluster.Init(ctx, run.Work{
		Documents: f.proceed.GetKubeadmDocuments(), Addons: joinManifests(f.proceed.GetManifests()), Retry: retry, Restored: restored,
		Report: func(p kubeadm.Phase) { f.progress(p.Name, p.Text) },
	})
	if err != nil {
		return err
	}
	return errors.Join(f.trustCA(), (written{f.agent}).noteKubelet())
}

// trustCA has the kubeconfigs of the machine's own programs take API servers by all certificates of the Kubernetes CA that the node holds:
// kubeadm writes the first of them alone, a join service those that it holds itself, and an earlier boot those of then. A kubeconfig that
// cannot be read stays as it is: no client reads it either.
func (f *finishing) trustCA() error {
	certificates, err := f.agent.readState(hullmark.KubernetesCACertificate)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("%s: %w", hullmark.KubernetesCACertificate, err)
	}
	if _, err := pemcert.Split(certificates); err != nil {
		return nil // Nothing is known by that.
	}
	for _, name := range kubeadm.HostKubeconfigs() {
		text, err := f.agent.readState(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		changed, differs, err := kubeadm.WithAuthorities(text, certificates)
		if err != nil || !differs {
			continue
		}
		f.progress("kubeconfigs", name+" takes API servers by other authorities from now on")
		if err := f.agent.storeState(name, changed); err != nil {
			return err
		}
	}
	return nil
}

// waitReady ends the journey; the disk then records that it holds a working node.
func (f *finishing) waitReady(ctx context.Context) error {
	f.progress("ready", "waiting for the node to be Ready")
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	// An API server's words, so they are bounded and quoted.
	report := func(why error) { f.progress("ready", fmt.Sprintf("not yet: %.300q", why.Error())) }
	if err := f.agent.Cluster.WaitReady(ctx, f.access(), f.proceed.GetNodeName(), report); err != nil {
		return err
	}
	if err := f.agent.removeState(kubeadm.BootstrapFile); err != nil {
		return err
	}
	note(f.agent.Status, "the agent took %s", usage())
	showEpoch(f.agent)
	if err := f.agent.syncState(); err != nil {
		return err
	}
	return f.agent.recordIntent(statedisk.IntentDone)
}

// accessAs is an administrator's at its own API server on a control plane, and on a worker its kubelet's.
func accessAs(role hullmark.Role, read func(string) ([]byte, error)) run.Access {
	if role == hullmark.ControlPlane {
		return run.Access{Kubeconfig: adminConf, Read: read, Local: true}
	}
	return run.Access{Kubeconfig: kubeletConf, Read: read}
}

func (f *finishing) access() run.Access {
	return accessAs(hullmark.Role(f.proceed.GetRole()), f.agent.readState)
}

// setHostname gives the node its name; sysctl.d(5) is the form that a unit applies.
func (f *finishing) setHostname(ctx context.Context) error {
	file := filepath.Join(f.agent.RunDir, hostnameFile)
	if err := atomicfile.Write(file, []byte("kernel.hostname = "+f.proceed.GetNodeName()+"\n"), 0o644); err != nil {
		return err
	}
	defer wait(&f.took.programs, time.Now())
	return f.agent.Machine.Restart(ctx, hostnameUnit)
}

// setKubeletAddress lets the kubelet name the address that Proceed says, in this boot, or else those of the interface that the
// configuration says is the node's; without one it names what it finds first. The kubelet takes the last of equal flags.
func (f *finishing) setKubeletAddress() error {
	named := f.proceed.GetAddress()
	if named == "" {
		links, _, err := f.agent.Machine.Links()
		if err != nil {
			return err
		}
		named = f.agent.plan.KubeletAddresses(links)
	}
	content := "HULLMARK_KUBELET_ARGS=\n"
	if named != "" {
		content = "HULLMARK_KUBELET_ARGS=--node-ip=" + named + "\n"
	}
	for _, c := range f.proceed.GetRefused() {
		refused := c.HullmarkCondition().Root()
		f.warn(refused.Code, refused.Title, refused.Next)
	}
	return atomicfile.Write(filepath.Join(f.agent.RunDir, kubeletFile), []byte(content), 0o644)
}

func (c *conversation) progress(phase, text string) {
	c.agent.Status.Say("%s: %s", phase, text)
	c.send(&wire.Progress{Phase: phase, Message: text})
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
