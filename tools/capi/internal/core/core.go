// Package core is what all providers read of, and write into, core's objects in the same way.
package core

import (
	"errors"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"

	"github.com/hullmark/hullmark"
)

// Initialized reports whether a Cluster's first control plane runs. Core says so in a field if there is a control plane provider, and
// of Machines without one in the condition alone.
func Initialized(c *clusterv1.Cluster) bool {
	return ptr.Deref(c.Status.Initialization.ControlPlaneInitialized, false) || conditions.IsTrue(c, clusterv1.ClusterControlPlaneInitializedCondition)
}

// Message cuts a text to what a condition's message takes with room to spare: the API takes 32768 bytes (metav1.Condition).
func Message(text string) string { return AtMost(text, 8<<10) }

// Note cuts a text to what an event's note takes: 1024 bytes.
func Note(text string) string { return AtMost(text, 1000) }

// AtMost cuts a text, which may be of somebody who is not trusted, to so many bytes of valid UTF-8.
func AtMost(text string, bytes int) string {
	if text = strings.ToValidUTF8(text, "?"); len(text) <= bytes {
		return text
	}
	return strings.ToValidUTF8(text[:bytes], "") + "…"
}

// ErrNoEKID says that an infrastructure machine reports no identity, or not yet.
var ErrNoEKID = errors.New("status.ekID is not reported")

// ReportedEKID reads the identity that an infrastructure machine reports in status.ekID. The error is ErrNoEKID if it is absent, or no
// text. Zero is refused: no key has it, and whoever keeps identities takes it for none.
func ReportedEKID(infra *unstructured.Unstructured) (hullmark.EKID, error) {
	text, _, _ := unstructured.NestedString(infra.Object, "status", "ekID")
	if text == "" {
		return hullmark.EKID{}, ErrNoEKID
	}
	ekid, err := hullmark.ParseEKID(text)
	if err == nil && ekid == (hullmark.EKID{}) {
		err = errors.New("it is zero")
	}
	if err != nil {
		return hullmark.EKID{}, fmt.Errorf("status.ekID %.200q: %w", text, err)
	}
	return ekid, nil
}
