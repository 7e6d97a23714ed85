//go:build long

package addons

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/hullmark/hullmark/cluster/render"
)

// wantFailed wants an error that says what failed, and that everything was put back.
func wantFailed(t *testing.T, err error, says ...string) {
	t.Helper()
	for _, text := range append(says, "everything was put back as it was") {
		if err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%v, want %q", err, text)
		}
	}
}

func wantRefused(t *testing.T, err error, says ...string) {
	t.Helper()
	for _, text := range says {
		if !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), text) {
			t.Errorf("%v, want a refusal with %q", err, text)
		}
	}
}

// onWrite calls do before the first write that ends so passes.
func (s *site) onWrite(method, ending string, do func()) {
	once := false
	s.wire.before = func(r *http.Request) {
		if r.Method == method && strings.HasSuffix(r.URL.Path, ending) && !once {
			once = true
			do()
		}
	}
}

// A hook fails after it has deleted and changed custom resources: they come back, with their owners, finalizers and status.
func TestFailedHook(t *testing.T) {
	s, c := newSite(t), direct(t)
	before := s.furnished(t, c)
	to := c.objects.Resource(s.widgets("v1")).Namespace(s.namespace)
	s.onWrite(http.MethodPost, "/jobs", func() {
		for _, name := range []string{"one", "two"} { // the second waits for somebody who removes its finalizer
			if err := to.Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
				t.Error(err)
			}
		}
		if _, err := to.Patch(t.Context(), "demo-default", types.MergePatchType, []byte(`{"metadata":{"labels":{"by":"hook"}},"spec":{"size":99}}`), metav1.PatchOptions{}); err != nil {
			t.Error(err)
		}
		time.AfterFunc(8*time.Second, func() {
			_, err := to.Patch(context.Background(), "two", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
			if err != nil {
				t.Error(err)
			}
		})
		waitGone(t, func() (*object, error) { return to.Get(t.Context(), "a-child", metav1.GetOptions{}) }) // Kubernetes deletes what has no owner
	})
	_, err := s.Apply(t.Context(), s.demo(2, map[string]any{"hook": true}))
	wantFailed(t, err, "demo-prepare", "pre-upgrade")
	s.wantPicture(t, c, before)
	time.Sleep(3 * time.Second) // Whatever has a wrong owner is deleted by now.
	s.wantPicture(t, c, before)
}

func waitGone(t *testing.T, get func() (*object, error)) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		if _, err := get(); err != nil {
			return
		}
	}
	t.Error("it is there still")
}

// A Deployment that never gets ready fails an upgrade, and an installation, which leaves nothing but its namespace.
func TestNeverReady(t *testing.T) {
	s, c := newSite(t), direct(t)
	s.Timeout = 3 * time.Second
	_, err := s.Apply(t.Context(), s.demo(1, map[string]any{"replicas": 1}))
	wantFailed(t, err, "demo", "not ready")
	s.Timeout = patience
	if left := s.picture(t, c); len(left) > 0 {
		t.Errorf("left are %v", left)
	}
	if !strings.Contains(strings.Join(s.said, "\n"), "Namespace "+s.namespace+" stays") {
		t.Error("nobody is told that the namespace stays")
	}
	before := s.furnished(t, c)
	s.Timeout = 3 * time.Second
	_, err = s.Apply(t.Context(), s.demo(2, map[string]any{"replicas": 1}))
	s.Timeout = patience
	wantFailed(t, err, "not ready")
	s.wantPicture(t, c, before)
}

// Who presses Ctrl-C stops everything at once, and puts it back by another command. Meanwhile nobody else begins.
func TestInterrupted(t *testing.T) {
	s, c := newSite(t), direct(t)
	s.furnished(t, c)
	ctx, interrupt := context.WithCancel(t.Context())
	var second error
	s.onWrite(http.MethodPatch, "/deployments/demo", func() { // which never gets ready
		go func() {
			other := New(s.Options)
			other.Config = c.config
			_, second = other.Apply(t.Context(), s.demo(2, nil))
			interrupt()
		}()
	})
	s.widget(t, c, "last", nil)
	before := s.picture(t, c)
	_, err := s.Apply(ctx, s.demo(2, map[string]any{"replicas": 1}))
	if !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "hullmark addons rollback") {
		t.Fatalf("got %v", err)
	}
	if !errors.Is(second, ErrRefused) || !strings.Contains(second.Error(), "one does at a time") {
		t.Errorf("the second run: %v", second)
	}
	s.wire.mutex.Lock()
	n := len(s.wire.passed)
	s.wire.mutex.Unlock()
	time.Sleep(3 * time.Second)
	if s.wire.mutex.Lock(); len(s.wire.passed) != n {
		t.Errorf("after it returned it wrote %q", s.wire.passed[n:])
	}
	s.wire.mutex.Unlock()
	if _, err := s.Apply(t.Context(), s.demo(2, nil)); !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "was interrupted") {
		t.Errorf("another before it is put back: %v", err)
	}
	s.rollback(t, "")
	s.wantPicture(t, c, before)
	if restored := s.rollback(t, ""); restored.Run != "" {
		t.Errorf("nothing is unfinished, and it put back %+v", restored)
	}
}

// A definition drops a version that objects may be stored in: refused, unless they shall be written anew before.
func TestDroppedVersion(t *testing.T) {
	s, c := newSite(t), direct(t)
	s.furnished(t, c)
	s.apply(t, s.demo(2, nil))
	before := s.picture(t, c)
	_, err := s.Apply(t.Context(), s.demo(3, nil))
	for _, text := range []string{"it drops v1", "status.storedVersions", "--migrate", "its 4 objects written anew in v2"} {
		if !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), text) {
			t.Errorf("%v, want %q", err, text)
		}
	}
	s.wantPicture(t, c, before)
	s.Migrate = true
	s.apply(t, s.demo(3, nil))
	s.wantStored(t, c, "v2")
	s.rollback(t, s.latest(t))
	s.wantStored(t, c, "v2") // Nothing is stored in v1 any more, though it is there again.
	before["stored"] = []string{"v2"}
	s.wantPicture(t, c, before)
	s.rollback(t, s.before(t, 1)) // That of the upgrade from 1 to 2: its definition has no v2.
	s.wantStored(t, c, "v1")

	// Helm reads the whole release that it upgrades, and cannot if it names an object in a version that is gone.
	if _, err = s.Apply(t.Context(), s.demo(3, nil)); !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "revision 1 of the release has it in "+s.group+"/v1") {
		t.Errorf("got %v", err)
	}
}

// Two definitions share no version: objects are written anew with both of them at hand, forth and back.
func TestNoSharedVersion(t *testing.T) {
	s, c := newSite(t), direct(t)
	s.namespace = "default"
	wanted := func(version string) []render.Addon {
		return []render.Addon{{Name: "definition-alone", Manifests: []string{"demo-" + version + "/crds"}}}
	}
	s.apply(t, wanted("1"))
	s.widget(t, c, "one", nil)
	before := s.picture(t, c)
	s.Migrate = true
	s.apply(t, wanted("3"))
	s.wantStored(t, c, "v2")
	one, err := c.objects.Resource(s.widgets("v2")).Namespace(s.namespace).Get(t.Context(), "one", metav1.GetOptions{})
	if err != nil || nested(one, "spec", "colour") != "" { // v2 does not know it
		t.Errorf("%v, %v", one, err)
	}
	s.rollback(t, s.latest(t))
	s.wantPicture(t, c, before)
}

func (s *site) wantStored(t *testing.T, c *client, want string) {
	t.Helper()
	if stored := s.picture(t, c)["stored"].([]string); len(stored) != 1 || stored[0] != want {
		t.Errorf("stored are %q, want %s", stored, want)
	}
}

// A definition whose objects cannot be converted any more stays as it is, and is told; once they can, the same command brings it back.
func TestDefinitionCannotGoBack(t *testing.T) {
	s, c := newSite(t), direct(t)
	before := s.furnished(t, c)
	s.apply(t, s.demo(2, nil))
	crds := c.objects.Resource(definitions)
	dead := `{"spec":{"conversion":{"strategy":"Webhook","webhook":{"conversionReviewVersions":["v1"],"clientConfig":{"url":"https://127.0.0.1:1/convert"}}}}}`
	if _, err := crds.Patch(t.Context(), "widgets."+s.group, types.MergePatchType, []byte(dead), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	time.Sleep(time.Second)
	s.Timeout = 3 * time.Second
	restored, err := s.Rollback(t.Context(), s.latest(t))
	if err != nil {
		t.Fatal(err)
	}
	problems := strings.Join(restored.Problems, "\n")
	for _, text := range []string{"CustomResourceDefinition widgets." + s.group + ": it stays as it is now", "conversion webhook", "next: mend that, then hullmark addons rollback " + s.latest(t), "Widget " + s.namespace + "/demo-default"} {
		if !strings.Contains(problems, text) {
			t.Errorf("the problems do not say %q:\n%s", text, problems)
		}
	}
	live, err := crds.Get(t.Context(), "widgets."+s.group, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if d, err := defined(live); err != nil || d.storage() == "" || len(d.Spec.Versions) != 2 {
		t.Errorf("the definition is %+v, %v", d, err)
	}
	if _, err := crds.Patch(t.Context(), "widgets."+s.group, types.MergePatchType, []byte(`{"spec":{"conversion":{"strategy":"None","webhook":null}}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	time.Sleep(time.Second)
	s.Timeout = patience
	s.rollback(t, s.latest(t))
	s.wantPicture(t, c, before)
}

// Another program upgraded the release since: what it did is not thrown away unseen.
func TestRollbackMeetsOthers(t *testing.T) {
	s, c := newSite(t), direct(t)
	s.furnished(t, c)
	s.apply(t, s.demo(2, nil))
	to := c.objects.Resource(secrets).Namespace(s.namespace)
	record, err := to.Get(t.Context(), "sh.helm.release.v1.demo.v2", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	later := stripped(record)
	later.SetName("sh.helm.release.v1.demo.v3")
	_ = unstructured.SetNestedField(later.Object, "3", "metadata", "labels", "version")
	if _, err := to.Create(t.Context(), later, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Rollback(t.Context(), s.latest(t)); !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "revision 3") {
		t.Errorf("got %v", err)
	}
	// And a saved state that is not the latest is not put back over later ones.
	if err := to.Delete(t.Context(), later.GetName(), metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Rollback(t.Context(), s.before(t, 1)); !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "put back what that one saved first") {
		t.Errorf("got %v", err)
	}
}
