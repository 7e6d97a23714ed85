//go:build long

package addons

import (
	"flag"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/hullmark/hullmark/joinservice/registry"
)

// every leaves cuts out: an upgrade and its way back have some dozens of writes, and each cut takes seconds.
var every = flag.Int("every", 5, "cut the power before each so manyth write")

// A chart with definitions is installed, upgraded to other versions of them, and brought back, with its custom resources.
func TestUpgradeAndBack(t *testing.T) {
	s, c := newSite(t), direct(t)
	plan := s.apply(t, s.demo(1, nil))
	t.Log(plan)
	s.widget(t, c, "one", nil)
	s.widget(t, c, "two", func(o *object) { o.SetFinalizers([]string{"example.net/keep"}) })
	before := s.picture(t, c)
	s.apply(t, s.demo(2, map[string]any{"text": "changed"}))
	after := s.picture(t, c)
	restored := s.rollback(t, s.latest(t))
	if len(restored.Problems) > 0 {
		t.Error(strings.Join(restored.Problems, "\n"))
	}
	s.wantPicture(t, c, before)
	t.Log(len(after))
	for range 2 { // once more is harmless
		if again := s.rollback(t, s.latest(t)); again.Objects != 0 {
			t.Errorf("%+v", again)
		}
	}
	s.wantPicture(t, c, before)
}

// The power goes before writes of an upgrade, one after the other: what is there afterwards is put back, whatever that is.
func TestCuts(t *testing.T) {
	s, c := newSite(t), direct(t)
	before := s.furnished(t, c)
	for n := 1; ; n += *every {
		s.cut(n)
		_, err := s.Apply(t.Context(), s.demo(2, map[string]any{"text": "changed"}))
		if err == nil {
			t.Logf("an upgrade has %d writes: %q", len(s.wire.passed), s.wire.passed)
			break
		}
		if !strings.Contains(err.Error(), errCut.Error()) {
			t.Fatalf("cut after %d writes: %v", n, err)
		}
		s.cut(-1)
		s.expire(t, c)
		if restored := s.rollback(t, ""); len(restored.Problems) > 0 {
			t.Errorf("cut after %d writes: %q", n, restored.Problems)
		}
		if s.wantPicture(t, c, before); t.Failed() {
			t.Fatalf("cut after %d writes: %q", n, s.wire.passed)
		}
	}
	s.cut(-1)
	s.rollback(t, s.latest(t))
	s.wantPicture(t, c, before)
}

// The power goes before writes of putting back, too.
func TestCutsOfRollback(t *testing.T) {
	s, c := newSite(t), direct(t)
	before := s.furnished(t, c)
	for n := 1; ; n += *every {
		s.apply(t, s.demo(2, map[string]any{"text": "changed"}))
		s.cut(n)
		s.Timeout = 0 // Nothing answers any more.
		_, err := s.Rollback(t.Context(), s.latest(t))
		s.cut(-1)
		s.Timeout = patience
		if err == nil {
			t.Logf("putting back has %d writes", len(s.wire.passed))
			break
		}
		s.expire(t, c)
		if n%2 == 0 || n == 1 { // with the file or without: it is the same once putting back has begun
			s.rollback(t, s.latest(t))
		} else {
			s.rollback(t, "")
		}
		if s.wantPicture(t, c, before); t.Failed() {
			t.Fatalf("cut after %d writes of putting back", n)
		}
	}
	s.wantPicture(t, c, before)
}

// furnished brings the chart, and custom resources of a user's, and returns what there is then.
func (s *site) furnished(t *testing.T, c *client) map[string]any {
	t.Helper()
	s.apply(t, s.demo(1, nil))
	owner := s.widget(t, c, "one", nil)
	s.widget(t, c, "two", func(o *object) { o.SetFinalizers([]string{"example.net/keep"}) })
	s.widget(t, c, "a-child", func(o *object) { o.SetOwnerReferences([]metav1.OwnerReference{ownedBy(owner)}) })
	return s.picture(t, c)
}

func ownedBy(o *object) metav1.OwnerReference {
	return metav1.OwnerReference{APIVersion: o.GetAPIVersion(), Kind: o.GetKind(), Name: o.GetName(), UID: o.GetUID()}
}

// cut lets n more writes pass, and nothing after them; a negative n lets everything pass.
func (s *site) cut(n int) {
	s.wire.mutex.Lock()
	defer s.wire.mutex.Unlock()
	s.wire.left, s.wire.passed = n, nil
}

// expire lets the Lease's time go by.
func (s *site) expire(t *testing.T, c *client) {
	t.Helper()
	to := c.objects.Resource(leases).Namespace(registry.Namespace)
	lease, err := to.Get(t.Context(), lockName, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	unstructured.RemoveNestedField(lease.Object, "spec", "holderIdentity")
	if _, err := to.Update(t.Context(), lease, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}
