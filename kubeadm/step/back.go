package step

import (
	"fmt"
	"strings"

	"github.com/hullmark/hullmark"
)

// Moved is what was changed since a release was begun with, and what an earlier one might not understand.
type Moved struct {
	// Storage are the resources of which objects are stored in a form that the earlier release's API server does not read (Unreadable).
	Storage []string
	// KubeletConfig is the release whose kubeadm wrote the kubelet's configuration; unknown where that is the earlier one's.
	KubeletConfig hullmark.Version
	// MinimumSVN is the least security version that the policy accepts.
	MinimumSVN uint32
}

// Back refuses the way back from the release that runs to an earlier one, with every reason. committed says that the one that runs is
// not on trial any more: then there is no way back over a minor release of Kubernetes, whatever is known to have moved.
func Back(from, to Release, committed bool, m Moved) error {
	var reasons []string
	refuse := func(format string, a ...any) { reasons = append(reasons, fmt.Sprintf(format, a...)) }
	if to.SVN < m.MinimumSVN {
		refuse("the policy accepts no security version below %d, and the earlier release has %d", m.MinimumSVN, to.SVN)
	}
	if !to.Etcd.SameLine(from.Etcd) {
		refuse("etcd's data is of %v, which etcd %v does not read", from.Etcd, to.Etcd)
	}
	if committed && !to.Kubernetes.SameLine(from.Kubernetes) {
		refuse("Kubernetes %v is committed, and %v is another minor release", from.Kubernetes, to.Kubernetes)
	}
	if len(m.Storage) > 0 {
		refuse("objects are stored in versions that the earlier API server does not read: %s", brief(m.Storage))
	}
	if m.KubeletConfig.Known() && behind(to.Kubernetes, m.KubeletConfig) > 0 {
		refuse("the kubelet's configuration was written by kubeadm %v, and an earlier kubelet refuses what it does not know", m.KubeletConfig)
	}
	if len(reasons) == 0 {
		return nil
	}
	return &hullmark.Condition{
		Code: "rollback-refused", Step: name, Title: "there is no way back to the earlier release: " + strings.Join(reasons, "; "), Expected: to.Kubernetes.String(), Got: from.Kubernetes.String(),
		Next: "go forward to a release that mends what is wrong, or restore a backup from before",
	}
}

// brief lists the first of many names.
func brief(names []string) string {
	const most = 8
	if len(names) <= most {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
}
