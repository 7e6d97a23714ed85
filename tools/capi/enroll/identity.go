package enroll

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/controllers/external"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hullmark/hullmark"
	bootstrapv1 "github.com/hullmark/hullmark/tools/capi/api/bootstrap/v1alpha1"
)

// errNoIdentity says why a machine has no identity yet.
type errNoIdentity string

func (e errNoIdentity) Error() string { return string(e) }

// reportedBy returns the identity that the infrastructure reports of a Machine in status.ekID. The error is errNoIdentity if it is not
// there, or is none.
func reportedBy(ctx context.Context, live client.Reader, m *clusterv1.Machine) (hullmark.EKID, error) {
	infra, err := external.GetObjectFromContractVersionedRef(ctx, live, m.Spec.InfrastructureRef, m.Namespace)
	if apierrors.IsNotFound(err) {
		return hullmark.EKID{}, errNoIdentity("its infrastructure is not there yet")
	}
	if err != nil {
		return hullmark.EKID{}, err
	}
	text, found, err := unstructured.NestedString(infra.Object, "status", "ekID")
	if err != nil || !found {
		return hullmark.EKID{}, errNoIdentity(fmt.Sprintf("%s %s does not report an identity (status.ekID) yet", infra.GetKind(), infra.GetName()))
	}
	ekid, err := hullmark.ParseEKID(text)
	if err != nil {
		return ekid, errNoIdentity(fmt.Sprintf("%s %s: status.ekID: %v", infra.GetKind(), infra.GetName(), err))
	}
	return ekid, nil
}

// NodeName is the name of a Machine's node: a voucher's begins with its group's and a hyphen. A Machine whose name does so gives it its
// own, as others may not have; else it is made of the Machine's namespace and name.
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
		Type: bootstrapv1.VouchedCondition, Status: status, Reason: v.reason, Message: atMost(v.message, 8<<10), ObservedGeneration: config.Generation,
	})
}
