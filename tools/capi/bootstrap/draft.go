package bootstrap

import (
	"context"
	"fmt"
	"maps"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/tools/capi/api/bootstrap/v1alpha1"
	"github.com/hullmark/hullmark/tools/capi/kubeadmspec"
)

// draftKey is the key of a draft's ConfigMap.
const draftKey = "pool.yaml"

// draft is what a config's kubeadm spec says of its pool, for whoever signs the cluster's policy: a controller changes nothing of
// what nodes are given. It is nil of a config without such a spec.
type draft struct {
	// text is in the words of the cluster document (docs/cluster-document.md): the pool, and what belongs beside the pools.
	text string
	// timeServers go into the node configuration at once: they are nothing that has to be signed.
	timeServers []string
}

// newDraft maps the kubeadm spec of a config. What is refused is named, each field with its reason.
func newDraft(config *v1alpha1.HullmarkConfig, controlPlane bool) (d *draft, refused []string, err error) {
	spec := config.Spec.Kubeadm
	if spec == nil {
		return nil, nil, nil
	}
	said, refusals := kubeadmspec.Map(spec, controlPlane)
	for _, each := range refusals {
		refused = append(refused, fmt.Sprintf("kubeadm.%s: %s", each.Field, each.Reason))
	}
	if len(refused) > 0 {
		return nil, refused, nil
	}
	d = &draft{timeServers: said.TimeServers}
	said.Pool.Name, said.TimeServers = config.Spec.Pool, nil
	said.Pool.StateDisk = hullmark.DiskSelector{Serial: config.Spec.StateDisk.Serial, Path: config.Spec.StateDisk.Path}
	text, err := yaml.Marshal(said)
	if err != nil {
		return nil, nil, fmt.Errorf("draft of pool %s: %w", config.Spec.Pool, err)
	}
	d.text = string(text)
	return d, nil, nil
}

func draftName(config *v1alpha1.HullmarkConfig) string { return config.Name + "-pool" }

// note says what is to be done with a draft; nothing if there is none.
func (d *draft) note(config *v1alpha1.HullmarkConfig) string {
	if d == nil {
		return ""
	}
	return fmt.Sprintf("what spec.kubeadm says of pool %s is in ConfigMap %s; nodes are given it once it is in the cluster document, and the policy rendered from that is signed and pushed",
		config.Spec.Pool, draftName(config))
}

// publish writes a draft into its ConfigMap. A ConfigMap of that name that is not the config's is a verdict.
func (r *Reconciler) publish(ctx context.Context, s scope, d *draft) (*verdict, error) {
	if d == nil {
		return nil, nil
	}
	want := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: s.config.Namespace, Name: draftName(s.config), Labels: map[string]string{clusterv1.ClusterNameLabel: s.cluster.Name},
			OwnerReferences: []metav1.OwnerReference{ownerReference(s.config)},
		},
		Data: map[string]string{draftKey: d.text},
	}
	held := &corev1.ConfigMap{}
	err := r.Live.Get(ctx, client.ObjectKeyFromObject(want), held)
	switch {
	case apierrors.IsNotFound(err):
		return nil, r.Client.Create(ctx, want)
	case err != nil:
		return nil, fmt.Errorf("draft of pool %s: %w", s.config.Spec.Pool, err)
	case !isFor(held, s.config):
		v := waiting(v1alpha1.DraftNameTakenReason,
			"ConfigMap %s is not this HullmarkConfig's, and is left as it is: delete it if nobody needs it, or give the HullmarkConfig another name", held.Name)
		v.again = retry
		return &v, nil
	case maps.Equal(held.Data, want.Data):
		return nil, nil
	}
	held.Data = want.Data
	return nil, r.Client.Update(ctx, held)
}

// withNote adds what is to be done with a draft to a verdict.
func (v verdict) withNote(note string) verdict {
	if note != "" && v.reason == v1alpha1.AvailableReason {
		v.message = strings.TrimPrefix(v.message+"; "+note, "; ")
	}
	return v
}
