package firstboot

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/go-tpm/tpm2/transport"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest"
	"github.com/hullmark/hullmark/attest/prover"
	"github.com/hullmark/hullmark/attest/wire"
	"github.com/hullmark/hullmark/firstboot/kubeadm"
	"github.com/hullmark/hullmark/firstboot/statedisk"
)

// Units that the agent starts.
const (
	// stateUnit mounts the open state disk, binds it where programs expect to write, and makes their folders.
	stateUnit = "hullmark-state.service"
	// kubeletUnit pulls in containerd and the images.
	kubeletUnit = "kubelet.service"
	// hostnameUnit sets what hostnameFile says.
	hostnameUnit = "hullmark-hostname.service"
	hostnameFile = "hostname.conf"
)

// readyPause lies between two questions to the API server, which is busy enough when it starts.
const readyPause = 3 * time.Second

// readyTimeout bounds the wait for a Ready node, under slow emulation too.
const readyTimeout = 20 * time.Minute

// roots are where Proceed may place files, and the folders of the state disk that are bound there.
var roots = map[string]string{"/etc/kubernetes/": "etc-kubernetes", "/var/lib/hullmark/": "var/lib/hullmark"}

// checkProceed refuses what could not be carried out.
func checkProceed(p *wire.Proceed, joined bool) error {
	bad := func(format string, args ...any) error {
		return &hullmark.Condition{
			Code: "proceed-refused", Step: StepEpoch, Title: fmt.Sprintf(format, args...), Next: "use a hullmark of this image's release",
		}
	}
	if !hullmark.ValidNodeName(p.GetNodeName()) {
		return bad("node name %.80q is no DNS label", p.GetNodeName())
	}
	if !hullmark.Role(p.GetRole()).Valid() {
		return bad("role %.20q is unknown", p.GetRole())
	}
	if !joined && len(p.GetManifests()) == 0 {
		return bad("there is no manifest: at least the pod network's is needed")
	}
	for _, f := range p.GetFiles() {
		if _, err := place(f.GetPath()); err != nil {
			return bad("%v", err)
		}
		if f.GetMode() == 0 || f.GetMode()&^0o777 != 0 {
			return bad("file %.80q has mode %o", f.GetPath(), f.GetMode())
		}
	}
	return nil
}

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
	return x.agent.withTPM(func(tpm transport.TPM) error {
		return prover.ExtendEvent(tpm, attest.FuseRegister, hullmark.ClusterEvent(x.agent.config.ClusterRoot))
	})
}

// kubernetes mounts the disk, places the files, and starts or continues what the disk records.
func (x *exchange) kubernetes(ctx context.Context) error {
	x.progress("mount", "mounting the state disk")
	if err := x.agent.Machine.Start(ctx, stateUnit); err != nil {
		return err
	}
	if err := x.setHostname(ctx); err != nil {
		return err
	}
	if err := writeFiles(x.agent.StateDir, x.proceed.GetFiles()); err != nil {
		return fmt.Errorf("write files: %w", err)
	}
	intent, err := x.agent.intent()
	if err != nil {
		return err
	}
	if intent == statedisk.IntentDone {
		x.progress("kubelet", "starting what the disk holds")
		return x.agent.Machine.Start(ctx, kubeletUnit)
	}
	return x.kubeadmInit(ctx, intent == statedisk.IntentStarted)
}

func (x *exchange) kubeadmInit(ctx context.Context, retry bool) error {
	if err := storeFile(x.agent.intentFile(), statedisk.IntentStarted); err != nil {
		return fmt.Errorf("record intent: %w", err)
	}
	return x.agent.Cluster.Init(ctx, kubeadm.Work{
		Documents: x.proceed.GetKubeadmDocuments(), Addons: joinManifests(x.proceed.GetManifests()), Retry: retry,
		Report: func(p kubeadm.Phase) { x.progress(p.Name, p.Text) },
	})
}

// waitReady ends the journey; the disk then records that it holds a working node.
func (x *exchange) waitReady(ctx context.Context) error {
	x.progress("ready", "waiting for the node to be Ready")
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	kubeconfig, err := os.ReadFile(filepath.Join(x.agent.StateDir, "etc-kubernetes/admin.conf"))
	if err != nil {
		return err
	}
	if err := x.agent.Cluster.WaitReady(ctx, kubeconfig, x.proceed.GetNodeName()); err != nil {
		return err
	}
	return storeFile(x.agent.intentFile(), statedisk.IntentDone)
}

// setHostname gives the node its name; sysctl.d(5) is the form that a unit applies.
func (x *exchange) setHostname(ctx context.Context) error {
	file := filepath.Join(x.agent.RunDir, hostnameFile)
	if err := replaceFile(file, []byte("kernel.hostname = "+x.proceed.GetNodeName()+"\n"), 0o644); err != nil {
		return err
	}
	return x.agent.Machine.Restart(ctx, hostnameUnit)
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
	f, err := root.OpenFile(name+".new", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, mode)
	if err != nil {
		return err
	}
	if err := finishFile(f, content, mode); err != nil {
		return err
	}
	return root.Rename(name+".new", name)
}
