package firstboot

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"time"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/kubeadm"
	"github.com/hullmark/hullmark/kubeadm/step"
)

// Notes about what kubeadm has written: the ClusterConfiguration as the cluster keeps it, for a boot in which no API server can be
// asked, and the release whose kubeadm wrote the kubelet's configuration.
const (
	clusterNote = keptNotes + "cluster-configuration"
	kubeletNote = keptNotes + "kubelet-config"
	// beginsNote ends the latter while the file may be of either release.
	beginsNote = " begun"
)

// stepping brings what kubeadm once wrote on the disk of a node that comes back to the release that this boot runs, before the kubelet
// starts: the pods mount their programs from the root, so those of this release would be given another one's flags.
type stepping struct{ *finishing }

// run refuses a release to which there is no way from what is on the disk, and writes a control plane's static pods anew if they are
// another release's. As long as that was of an earlier minor release, they behave as that (docs/kubernetes.md, Steps).
func (s stepping) run(ctx context.Context) error {
	if !s.agent.Versions.Kubernetes.Known() {
		return nil
	}
	wrote, err := (written{s.agent}).kubeletRelease()
	if err != nil {
		return err
	}
	if err := s.checkKubelet(ctx, wrote); err != nil || hullmark.Role(s.proceed.GetRole()) != hullmark.ControlPlane {
		return err
	}
	on, err := kubeadm.ReadRendered(s.agent.readState)
	if err != nil {
		s.keepPods(err)
		return nil
	}
	if !on.Due(s.agent.Versions.Kubernetes) {
		return nil
	}
	return s.writePods(ctx, on)
}

// checkKubelet holds the kubelet's configuration and flags to this release.
func (s stepping) checkKubelet(ctx context.Context, wrote hullmark.Version) error {
	runs := s.release(s.agent.Versions)
	if wrote == runs.Kubernetes {
		return nil
	}
	before := s.release(hullmark.Versions{Kubernetes: wrote, Etcd: runs.Etcd})
	if wrote.Known() {
		if err := step.Back(before, runs, false, step.Moved{KubeletConfig: wrote}); err != nil {
			return err
		}
	}
	text, err := s.agent.readState(kubeadm.FlagsFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	flags, err := kubeadm.KubeletFlags(text)
	if err != nil {
		return err
	}
	return s.checkFlags(ctx, map[string][]string{"kubelet": flags})
}

// release is what a step is judged by. Releases that share a state disk are of one image.
func (s stepping) release(v hullmark.Versions) step.Release { return step.Release{Versions: v} }

// writePods lets this release's kubeadm write the static pods.
func (s stepping) writePods(ctx context.Context, on kubeadm.Rendered) error {
	runs := s.agent.Versions
	if !on.Acts.Known() { // They are nobody's: there is nothing to behave as.
		on.Acts, on.Etcd = runs.Kubernetes, runs.Etcd
	}
	if err := s.judge(on); err != nil {
		return err
	}
	cluster, err := s.agent.kept.read(clusterNote)
	if errors.Is(err, fs.ErrNotExist) {
		s.keepPods(fmt.Errorf("nothing is kept of the cluster's configuration, by which %v could write them", runs.Kubernetes))
		return nil
	}
	if err != nil {
		return err
	}
	flags, err := kubeadm.ProgramFlags(cluster)
	if err != nil {
		s.keepPods(err)
		return nil
	}
	if err := s.checkFlags(ctx, flags); err != nil {
		return err
	}
	s.progress("static-pods", fmt.Sprintf("writing the static pods of Kubernetes %v, which behave as %s", runs.Kubernetes, on.Acts.Line()))
	return written{s.agent}.renderPods(ctx, s.proceed.GetNodeName(), on.Acts, cluster)
}

// judge refuses a release that cannot follow on, or come before, the one that the control plane last behaved as.
func (s stepping) judge(on kubeadm.Rendered) error {
	before, runs := s.release(hullmark.Versions{Kubernetes: on.Acts, Etcd: on.Etcd}), s.release(s.agent.Versions)
	if !runs.Kubernetes.SameLine(before.Kubernetes) && runs.Kubernetes.Compare(before.Kubernetes) < 0 {
		return step.Back(before, runs, true, step.Moved{})
	}
	return step.Step{Role: hullmark.ControlPlane, From: before, To: runs}.Judge()
}

// checkFlags has this release's own programs judge flags.
func (s stepping) checkFlags(ctx context.Context, flags map[string][]string) error {
	defer wait(&s.took.programs, time.Now())
	deprecated, err := s.agent.Cluster.CheckFlags(ctx, flags)
	if len(deprecated) > 0 {
		s.progress("flags", "deprecated, and gone in a later release: "+strings.Join(deprecated, ", "))
	}
	return err
}

// keepPods says why the static pods stay as another release wrote them.
func (s stepping) keepPods(why error) {
	s.warn("static-pods-old", "the control plane's static pods stay as another release wrote them: "+why.Error(),
		"see that the control plane serves; if it does not, start the release from before, which once Ready keeps what is needed")
}

// written is what kubeadm has written on a node's disk.
type written struct{ *Agent }

// renderPods writes a control plane's static pods for the release that runs, so that they behave as acts. Each is there whole, and a cut
// in between is seen by the next boot.
func (a written) renderPods(ctx context.Context, node string, acts hullmark.Version, cluster []byte) error {
	documents, err := kubeadm.Rendering{NodeName: node, Version: a.Versions.Kubernetes, Acts: acts, ClusterConfiguration: cluster, Read: a.readState}.Documents()
	if err != nil {
		return err
	}
	pods, err := a.Cluster.Render(ctx, a.RunDir, documents)
	if err != nil {
		return err
	}
	for _, name := range kubeadm.StaticPods() {
		if old, err := a.readState(name); err == nil && bytes.Equal(old, pods[name]) {
			continue
		}
		if err := a.storeState(name, pods[name]); err != nil {
			return fmt.Errorf("write static pods: %w", err)
		}
	}
	return nil
}

// kubeletRelease is the release whose kubeadm wrote the kubelet's configuration, or may have; unknown if nobody noted that.
func (a written) kubeletRelease() (hullmark.Version, error) {
	text, err := a.note(kubeletNote)
	if err != nil || text == "" {
		return hullmark.Version{}, err
	}
	v, err := hullmark.ParseVersion(strings.TrimSuffix(text, beginsNote))
	if err != nil {
		return v, fmt.Errorf("note of the kubelet's configuration: %w", err)
	}
	return v, nil
}

// noteKubelet notes that this release's kubeadm has written the kubelet's configuration.
func (a written) noteKubelet() error {
	if !a.Versions.Kubernetes.Known() {
		return nil
	}
	return a.kept.write(kubeletNote, []byte(a.Versions.Kubernetes.String()))
}
