//go:build long

package registry

import (
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/joinservice"
)

// conditionCode is a condition's code, the text of another error, or nothing.
func conditionCode(err error) string {
	var condition *hullmark.Condition
	switch {
	case err == nil:
		return ""
	case errors.As(err, &condition):
		return condition.Code
	}
	return err.Error()
}

// Two replicas, whose clocks this test moves, and two machines that want the one place.
func TestOneControlPlaneJoinsAtATime(t *testing.T) {
	ctx, all := t.Context(), replicas(t, 2)
	now := time.Now()
	for _, r := range all {
		r.joining.now = func() time.Time { return now }
	}
	one, two := hullmark.EKID{1}, hullmark.EKID{2}
	first, err := all[0].Acquire(ctx, one)
	if err != nil {
		t.Fatal(err)
	}
	var condition *hullmark.Condition
	if _, err := all[1].Acquire(ctx, two); !errors.As(err, &condition) || condition.Code != "busy" || !condition.Retry {
		t.Fatalf("a second machine got the place: %v", err)
	}
	again, err := all[1].Acquire(ctx, one) // through another replica, after its reboot
	if err != nil {
		t.Fatal(err)
	}
	if err := all[0].Renew(ctx, first); !errors.Is(err, joinservice.ErrConflict) {
		t.Errorf("the machine's older exchange renewed: %v", err)
	}
	if err := all[0].Release(ctx, first); !errors.Is(err, joinservice.ErrConflict) {
		t.Errorf("the machine's older exchange gave its newer one's place up: %v", err)
	}
	// A holder that renews keeps the place for as long as it likes.
	for range 4 {
		now = now.Add(leaseDuration / 2)
		if err := all[1].Renew(ctx, again); err != nil {
			t.Fatal(err)
		}
		if _, err := all[0].Acquire(ctx, two); conditionCode(err) != "busy" {
			t.Fatalf("a renewed place was taken: %v", err)
		}
	}
	// The holder dies. Each replica counts from when it saw the last renewal.
	now = now.Add(leaseDuration - time.Second)
	if _, err := all[0].Acquire(ctx, two); conditionCode(err) != "busy" {
		t.Fatalf("taken a second too early: %v", err)
	}
	now = now.Add(time.Second)
	if _, err := all[1].Acquire(ctx, two); conditionCode(err) != "busy" {
		t.Fatalf("taken by a replica that had not watched it: %v", err)
	}
	taken, err := all[0].Acquire(ctx, two)
	if err != nil {
		t.Fatal(err)
	}
	if err := all[1].Renew(ctx, again); !errors.Is(err, joinservice.ErrConflict) {
		t.Errorf("the dead one came back and renewed: %v", err)
	}
	if err := all[0].Release(ctx, taken); err != nil {
		t.Fatal(err)
	}
	if err := all[0].Release(ctx, taken); !errors.Is(err, joinservice.ErrConflict) {
		t.Errorf("given up twice: %v", err)
	}
	last, err := all[1].Acquire(ctx, one) // at once
	if err != nil || last.Number != taken.Number+1 {
		t.Errorf("a free place: %+v, %v", last, err)
	}
}

func TestStaleNodeIsRemovedUnlessReady(t *testing.T) {
	ctx, name := t.Context(), "stale"
	if err := service.RemoveStaleNode(ctx, name); err != nil {
		t.Errorf("there is none: %v", err)
	}
	if _, err := admin.nodes.create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}); err != nil {
		t.Fatal(err)
	}
	// The controllers of the API write to it, too: whoever loses the race tries again.
	set := func(status corev1.ConditionStatus) error {
		fresh, err := admin.nodes.get(ctx, name)
		if err != nil {
			return err
		}
		fresh.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: status, LastHeartbeatTime: metav1.Now()}}
		_, err = admin.nodes.update(ctx, name, fresh, "status")
		return err
	}
	eventually(t, "make the Node Ready", func() error { return set(corev1.ConditionTrue) })
	if err := service.RemoveStaleNode(ctx, name); conditionCode(err) != "node-alive" || !strings.Contains(err.Error(), name) {
		t.Errorf("a Ready Node: %v", err)
	}
	if ready, err := service.NodeReady(ctx, name); !ready || err != nil {
		t.Fatalf("the Ready Node: %v, %v", ready, err)
	}
	eventually(t, "remove a Node that is not Ready", func() error {
		return errors.Join(set(corev1.ConditionUnknown), service.RemoveStaleNode(ctx, name))
	})
	if _, err := admin.nodes.get(ctx, name); !apierrors.IsNotFound(err) {
		t.Errorf("Node: %v", err)
	}
}
