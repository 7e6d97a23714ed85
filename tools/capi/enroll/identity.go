package enroll

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/controllers/external"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hullmark/hullmark"
	bootstrapv1 "github.com/hullmark/hullmark/tools/capi/api/bootstrap/v1alpha1"
	"github.com/hullmark/hullmark/tools/capi/internal/core"
)

// errNoIdentity says why a machine has no identity yet.
type errNoIdentity string

func (e errNoIdentity) Error() string { return string(e) }

// identity is what the infrastructure reports of a machine.
type identity struct {
	ekid hullmark.EKID
	// missing says why there is none.
	missing error
}

// identities asks the infrastructure of the Cluster's Machines for their identities, those of control planes among them: none may claim
// another's. Each kind is listed at once.
func (r *run) identities(ctx context.Context) (map[client.ObjectKey]identity, error) {
	kinds := map[schema.GroupKind][]*clusterv1.Machine{}
	for i := range r.machines {
		kind := r.machines[i].Spec.InfrastructureRef.GroupKind()
		kinds[kind] = append(kinds[kind], &r.machines[i])
	}
	known := make(map[client.ObjectKey]identity, len(r.machines))
	r.claims, r.providers = map[hullmark.EKID][]client.ObjectKey{}, providersOf(r.machines)
	for kind, machines := range kinds {
		found, err := r.infrastructure(ctx, machines)
		if err != nil && !errors.As(err, new(errNoIdentity)) {
			return nil, fmt.Errorf("%s: %w", kind, err)
		}
		for _, m := range machines {
			key := client.ObjectKeyFromObject(m)
			id := identity{missing: err}
			if err == nil {
				id = identityOf(m, found)
			}
			if known[key] = id; id.missing == nil {
				r.claims[id.ekid] = append(r.claims[id.ekid], key)
			}
		}
	}
	return known, nil
}

// identityOf finds what a Machine's infrastructure reports among that of its kind, by name.
func identityOf(m *clusterv1.Machine, found map[string]identity) identity {
	infra := m.Spec.InfrastructureRef
	id, there := found[infra.Name]
	switch {
	case !there:
		id.missing = fmt.Errorf("%s %s is not there", infra.Kind, infra.Name)
	case id.missing != nil:
		id.missing = fmt.Errorf("%s %s: %w", infra.Kind, infra.Name, id.missing)
	}
	return id
}

// page is how many objects of the infrastructure are read at once.
const page = 200

// infrastructure lists what the infrastructure of one kind reports in the Cluster's namespace, by name. The error is
// errNoIdentity if nobody knows that kind.
func (r *run) infrastructure(ctx context.Context, machines []*clusterv1.Machine) (map[string]identity, error) {
	var version schema.GroupVersionKind
	for _, m := range machines { // Which version is of the contract, a look at one that is there says.
		infra, err := external.GetObjectFromContractVersionedRef(ctx, r.Live, m.Spec.InfrastructureRef, m.Namespace)
		if err == nil {
			version = infra.GroupVersionKind()
			break
		}
		if status := apierrors.APIStatus(nil); errors.As(err, &status) && !apierrors.IsNotFound(err) && !apierrors.IsForbidden(err) {
			return nil, err
		}
		if !apierrors.IsNotFound(err) {
			return nil, errNoIdentity(fmt.Sprintf("its infrastructure cannot be read: %v", err))
		}
	}
	found := map[string]identity{}
	if version.Empty() {
		return found, nil
	}
	list := &unstructured.UnstructuredList{}
	for token := ""; ; token = list.GetContinue() {
		list = &unstructured.UnstructuredList{}
		list.SetGroupVersionKind(version.GroupVersion().WithKind(version.Kind + "List"))
		if err := r.Live.List(ctx, list, client.InNamespace(r.cluster.Namespace), client.Limit(page), client.Continue(token)); err != nil {
			return nil, err
		}
		for i := range list.Items {
			ekid, err := core.ReportedEKID(&list.Items[i])
			found[list.Items[i].GetName()] = identity{ekid, err}
		}
		if list.GetContinue() == "" {
			return found, nil
		}
	}
}

// NodeName is the name of a Machine's node: a voucher's begins with its group's and a hyphen. A Machine whose name does so gives it its
// own, as others may not have; else it is made of the Machine's namespace and name, and not of its UID, which a move changes.
func NodeName(pool string, m *clusterv1.Machine) string {
	if strings.HasPrefix(m.Name, pool+"-") && hullmark.ValidNodeName(m.Name) {
		return m.Name
	}
	sum := sha256.Sum256([]byte(m.Namespace + "/" + m.Name))
	return pool + "-" + hex.EncodeToString(sum[:8])
}

// setVouched sets the condition.
func setVouched(config *bootstrapv1.HullmarkConfig, v verdict) {
	status := metav1.ConditionFalse
	if v.reason == bootstrapv1.VouchedReason {
		status = metav1.ConditionTrue
	}
	conditions.Set(config, metav1.Condition{
		Type: bootstrapv1.VouchedCondition, Status: status, Reason: v.reason, Message: core.Message(v.message), ObservedGeneration: config.Generation,
	})
}
