package firstboot

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/kubeadm"
	"github.com/hullmark/hullmark/kubeadm/run"
	"github.com/hullmark/hullmark/kubeadm/step"
)

// codeUnfinished is the code of a Ready node's warning that passes once its step to a release has ended.
const codeUnfinished = "step-unfinished"

// idleTurns is how many pauses go by between two looks at a cluster in which nothing is left to do.
const idleTurns = 10

// upgrader ends a step to another release, from Ready on: kubeadm's phases that need an API server, and pods that behave as what they
// are (docs/kubernetes.md, Steps). What it has to do it sees by looking, each time anew.
type upgrader struct {
	*Agent
	// told is what it said last.
	told string
}

// run does one task after the other while the node is Ready and its release is not on trial. What fails is tried again; the node goes on in
// any case. It returns when ctx ends.
func (u *upgrader) run(ctx context.Context) {
	if !u.Versions.Kubernetes.Known() {
		return
	}
	tick := time.NewTicker(u.Timing.Upgrade)
	defer tick.Stop()
	for idle := 0; ; idle-- {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if idle > 0 || !u.wasReady() {
			continue
		}
		task, err := u.turn(ctx)
		switch {
		case err != nil:
			u.Status.WarnUnlessWarned(unfinished(task, err))
		case task == step.TaskNone:
			u.Status.Unwarn(codeUnfinished)
			idle = idleTurns
		}
	}
}

// unfinished is the condition of a node that runs a release whose step has not ended.
func unfinished(task step.Task, err error) *hullmark.Condition {
	title := fmt.Sprintf("the step to this release of Kubernetes has not ended (%s): %v", task, err)
	if task == step.TaskWait { // Nothing has begun: mostly the API is away.
		title = fmt.Sprintf("whether this release of Kubernetes needs anything more of the node cannot be told: %v", err)
	}
	return &hullmark.Condition{
		Code: codeUnfinished, Step: StepReady, Retry: true, Title: title,
		Next: "see that the API answers (hullmark node logs says more); the node tries again by itself",
	}
}

// turn looks what is left to do, and does the first of it.
func (u *upgrader) turn(ctx context.Context) (task step.Task, err error) {
	if (updater{u.Agent}).onTrial() {
		return step.TaskWait, nil // What is done here cannot be taken back.
	}
	m, err := readMark(u.Agent)
	if err != nil {
		return step.TaskWait, err
	}
	access := accessAs(m.Role, u.readState)
	node, cluster, err := u.look(ctx, m, access)
	if err != nil {
		return step.TaskWait, err
	}
	task, waitsFor := node.Next(cluster)
	if task == step.TaskDNS {
		if task, waitsFor, err = u.lookAtDNS(ctx, access, node, cluster); err != nil {
			return step.TaskDNS, err
		}
	}
	u.tell(task, waitsFor)
	return task, u.do(ctx, task, m)
}

// look returns how far the node and its cluster are, and keeps of that what a boot needs in which nobody can be asked.
func (u *upgrader) look(ctx context.Context, m mark, access run.Access) (node step.Node, cluster step.Cluster, err error) {
	stored, err := u.Cluster.Stored(ctx, access)
	if err != nil {
		return node, cluster, err
	}
	if cluster.Recorded, err = kubeadm.ClusterVersion(stored.ClusterConfiguration); err != nil {
		return node, cluster, err
	}
	node = step.Node{Name: m.Name, Role: m.Role, Version: u.Versions.Kubernetes}
	if text, err := u.note(kubeletNote); err != nil {
		return node, cluster, err
	} else if !strings.HasSuffix(text, beginsNote) && text != "" {
		if node.KubeletConfig, err = hullmark.ParseVersion(text); err != nil {
			return node, cluster, err
		}
	}
	if m.Role != hullmark.ControlPlane {
		return node, cluster, nil
	}
	if err := u.keepCluster(stored.ClusterConfiguration); err != nil {
		return node, cluster, err
	}
	on, err := kubeadm.ReadRendered(u.readState)
	if err != nil {
		return node, cluster, err
	}
	node.Acts = on.Acts
	cluster.OldDNS = true // Whether it is, is asked once nothing else is left.
	cluster.Planes, err = u.Cluster.Planes(ctx, access)
	return node, cluster, err
}

// keepCluster notes the cluster's configuration, unless that was done.
func (u *upgrader) keepCluster(clusterConfiguration []byte) error {
	if kept, err := u.kept.read(clusterNote); err == nil && bytes.Equal(kept, clusterConfiguration) {
		return nil
	}
	return u.kept.write(clusterNote, clusterConfiguration)
}

// lookAtDNS asks whether CoreDNS is of an earlier release, and if it is, whether every node could start this one's.
func (u *upgrader) lookAtDNS(ctx context.Context, access run.Access, node step.Node, cluster step.Cluster) (step.Task, string, error) {
	var err error
	if cluster.OldDNS, err = u.Cluster.OldDNS(ctx, access, node.Version); err != nil {
		return step.TaskNone, "", err
	}
	if cluster.OldDNS {
		if cluster.Kubelets, err = u.Cluster.Kubelets(ctx, access); err != nil {
			return step.TaskNone, "", err
		}
	}
	task, waitsFor := node.Next(cluster)
	return task, waitsFor, nil
}

// do does a task.
func (u *upgrader) do(ctx context.Context, task step.Task, m mark) error {
	switch task {
	case step.TaskAct:
		cluster, err := u.kept.read(clusterNote)
		if err != nil {
			return err
		}
		return written{u.Agent}.renderPods(ctx, m.Name, u.Versions.Kubernetes, cluster)
	case step.TaskRecord:
		return u.upgrade(ctx, kubeadm.RecordDocuments)
	case step.TaskDNS:
		return u.upgrade(ctx, kubeadm.DNSDocuments)
	case step.TaskKubelet:
		return u.configureKubelet(ctx)
	}
	return nil
}

func (u *upgrader) upgrade(ctx context.Context, documents func(hullmark.Version) ([]byte, error)) error {
	text, err := documents(u.Versions.Kubernetes)
	if err != nil {
		return err
	}
	return u.Cluster.Upgrade(ctx, text, func(p kubeadm.Phase) { u.Status.Say("%s: %s", p.Name, p.Text) })
}

// configureKubelet writes the kubelet's configuration and lets the kubelet take it. It is noted before that it begins, so that no earlier
// kubelet is started with it, and after that it is whole.
func (u *upgrader) configureKubelet(ctx context.Context) error {
	config, err := u.Cluster.KubeletConfig(ctx, func(p kubeadm.Phase) { u.Status.Say("%s: %s", p.Name, p.Text) })
	if err != nil {
		return err
	}
	if err := u.kept.write(kubeletNote, []byte(u.Versions.Kubernetes.String()+beginsNote)); err != nil {
		return err
	}
	old, err := u.readState(kubeadm.KubeletConfig)
	if err != nil {
		return err
	}
	if !bytes.Equal(old, config) {
		if err := u.storeState(kubeadm.KubeletConfig, config); err != nil {
			return err
		}
		if err := u.Machine.Restart(ctx, kubeletUnit); err != nil {
			return err
		}
	}
	return written{u.Agent}.noteKubelet()
}

// tell says once what is done or waited for.
func (u *upgrader) tell(task step.Task, waitsFor string) {
	text := map[step.Task]string{
		step.TaskWait: "waiting for " + waitsFor, step.TaskAct: "all control planes run this release: behaving as it",
		step.TaskRecord: "writing the release into the cluster", step.TaskKubelet: "taking the kubelet's configuration from the cluster", step.TaskDNS: "bringing CoreDNS to the release",
	}[task]
	if text != "" && text != u.told {
		u.Status.Say("Kubernetes %v: %s", u.Versions.Kubernetes, text)
	}
	u.told = text
}

// readMark returns what is noted of this boot since it came to Ready.
func readMark(a *Agent) (m mark, err error) {
	text, err := os.ReadFile(filepath.Join(a.RunDir, readyMark))
	if err != nil {
		return m, err
	}
	if err := json.Unmarshal(text, &m); err != nil {
		return m, fmt.Errorf("%s: %w", readyMark, err)
	}
	if m.Name == "" {
		return m, errors.New("the boot's mark names no node")
	}
	return m, nil
}
