//go:build long

package addons

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"helm.sh/helm/v4/pkg/action"
	"helm.sh/helm/v4/pkg/kube"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/hullmark/hullmark/cluster/render"
)

// chart makes a chart of one template.
func (s *site) chart(t *testing.T, name, template string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Join(s.Folder, name, "templates"), 0o700); err != nil {
		t.Fatal(err)
	}
	s.write(t, name+"/Chart.yaml", "apiVersion: v2\nname: "+name+"\nversion: 1.0.0\n")
	s.write(t, name+"/templates/all.yaml", template)
}

// definitionIn reads the definition of a chart that the site has.
func (s *site) definitionIn(t *testing.T, chart string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(s.Folder, chart, "crds", "widgets.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// Of a definition among a chart's templates Helm would delete all objects with it, and neither asks nor brings them back.
func TestTemplateDefinition(t *testing.T) {
	s, c := newSite(t), direct(t)
	s.chart(t, "inside", "{{ if eq .Values.crd \"one\" }}\n"+s.definitionIn(t, "demo-1")+"{{ else if eq .Values.crd \"three\" }}\n"+s.definitionIn(t, "demo-3")+"{{ end }}")
	wanted := func(crd string) []render.Addon {
		return []render.Addon{{Name: "inside", Namespace: s.namespace, Chart: "inside", Values: map[string]any{"crd": crd}}}
	}
	s.apply(t, wanted("one"))
	s.widget(t, c, "one", nil)
	before := s.picture(t, c)

	_, err := s.Apply(t.Context(), wanted("none"))
	for _, text := range []string{"the chart has it no more", "its 1 objects", "kubectl annotate crd widgets." + s.group + " helm.sh/resource-policy=keep"} {
		if !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), text) {
			t.Errorf("%v, want %q", err, text)
		}
	}
	if _, err := s.Apply(t.Context(), wanted("three")); !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "it drops v1") {
		t.Errorf("got %v", err)
	}
	s.wantPicture(t, c, before)

	s.Migrate = true // Its objects are written anew before Helm brings the definition.
	s.apply(t, wanted("three"))
	s.wantStored(t, c, "v2")
	s.rollback(t, s.latest(t))
	s.wantPicture(t, c, before)

	crds := c.objects.Resource(definitions)
	if _, err := crds.Patch(t.Context(), "widgets."+s.group, types.MergePatchType, []byte(`{"metadata":{"annotations":{"helm.sh/resource-policy":"keep"}}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	kept := s.picture(t, c)
	s.apply(t, wanted("none"))
	if _, err := crds.Get(t.Context(), "widgets."+s.group, metav1.GetOptions{}); err != nil {
		t.Errorf("a definition that says that it stays: %v", err)
	}
	s.rollback(t, s.latest(t))
	s.wantPicture(t, c, kept)

	// Without objects it may go, and comes back.
	if _, err := crds.Patch(t.Context(), "widgets."+s.group, types.MergePatchType, []byte(`{"metadata":{"annotations":{"helm.sh/resource-policy":null}}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := c.objects.Resource(s.widgets("v1")).Namespace(s.namespace).Delete(t.Context(), "one", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	empty := s.picture(t, c)
	plan := s.apply(t, wanted("none"))
	if i := slices.IndexFunc(plan.Addons, func(a AddonPlan) bool { return a.Name == "inside" }); len(plan.Addons[i].Definitions) != 1 || plan.Addons[i].Definitions[0].Change != deleted {
		t.Errorf("the plan was %+v", plan.Addons[i])
	}
	waitGone(t, func() (*object, error) { return crds.Get(t.Context(), "widgets."+s.group, metav1.GetOptions{}) })
	s.rollback(t, s.latest(t))
	s.wantPicture(t, c, empty)
}

// The helm command left a failed revision, of which some objects are there: the next one goes on from it, and it comes back, too. A
// release that was uninstalled, with its history, is refused.
func TestAfterHelm(t *testing.T) {
	s, c := newSite(t), direct(t)
	s.furnished(t, c)
	h, err := newHelm(c.config, s.namespace)
	if err != nil {
		t.Fatal(err)
	}
	crd := definer{s.Addons, c}
	if err := crd.apply(t.Context(), &unit{addon: s.demo(2, nil)[0]}, parsed(t, s.definitionIn(t, "demo-2")), true); err != nil {
		t.Fatal(err)
	}
	ch, err := s.Options.chart(t.Context(), s.demo(2, nil)[0])
	if err != nil {
		t.Fatal(err)
	}
	up := action.NewUpgrade(h.cfg)
	up.Namespace, up.Timeout, up.WaitStrategy = s.namespace, time.Second, kube.StatusWatcherStrategy
	if _, err := up.RunWithContext(t.Context(), "demo", ch, map[string]any{"replicas": 1}); err == nil {
		t.Fatal("it got ready")
	}
	left := "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: demo-of-1, namespace: " + s.namespace + "}\n" // as if it had failed earlier
	if err := env.Apply(t.Context(), []byte(left)); err != nil {
		t.Fatal(err)
	}
	before := s.picture(t, c)
	plan := s.apply(t, s.demo(2, map[string]any{"text": "x"}))
	if got := changesOf(plan, "demo"); !slices.Contains(got, "deleted ConfigMap "+s.namespace+"/demo-of-1") {
		t.Errorf("the plan was %q", got)
	}
	s.rollback(t, s.latest(t))
	s.wantPicture(t, c, before)
	down := action.NewUninstall(h.cfg)
	down.KeepHistory, down.WaitStrategy, down.Timeout = true, kube.HookOnlyStrategy, time.Minute
	if _, err := down.Run("demo"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Apply(t.Context(), s.demo(2, nil)); !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "is uninstalled") {
		t.Errorf("got %v", err)
	}
}

// A chart whose templates name something else each time makes what nobody planned, and so nobody saved.
func TestOtherNamesEachTime(t *testing.T) {
	s, c := newSite(t), direct(t)
	s.chart(t, "random", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: 'made-{{ randAlphaNum 8 | lower }}'}\n")
	_, err := s.Apply(t.Context(), []render.Addon{{Name: "random", Namespace: s.namespace, Chart: "random"}})
	wantFailed(t, err, "which it did not when it was planned")
	if left := s.picture(t, c); len(left) > 0 {
		t.Errorf("left are %v", left)
	}
}

// The API server goes away in the middle, and comes back: what failed by it is put back then.
func TestAPIGoesAway(t *testing.T) {
	s, c := newSite(t), direct(t)
	before := s.furnished(t, c)
	s.Wait = time.Minute
	back := make(chan error, 1)
	s.onWrite("PATCH", "/configmaps/demo-of-2", func() {
		if err := env.StopAPI(); err != nil {
			t.Error(err)
		}
		go func() {
			time.Sleep(2 * time.Second)
			back <- env.StartAPI(t.Context())
		}()
	})
	_, err := s.Apply(t.Context(), s.demo(2, nil))
	if err := <-back; err != nil {
		t.Fatal(err)
	}
	if errors.Is(err, errLost) { // It took so long that another run might have begun.
		s.expire(t, c)
		s.rollback(t, "")
	} else {
		wantFailed(t, err, "demo")
	}
	s.wantPicture(t, c, before)
}

// An add-on does not change what is Hullmark's own, or another add-on's, whatever it is allowed to.
func TestAddonNamesWhatIsAnothers(t *testing.T) {
	s, c := newSite(t), direct(t)
	s.namespaceIsThere(t)
	s.apply(t, nil) // Hullmark's own
	n := Name{APIVersion: "admissionregistration.k8s.io/v1", Kind: "ValidatingAdmissionPolicyBinding", Name: "hullmark-upgrade-nodes"}
	before, err := c.get(t.Context(), n)
	if err != nil || before == nil {
		t.Fatal(before, err)
	}
	s.write(t, "own.yaml", "apiVersion: "+n.APIVersion+"\nkind: "+n.Kind+"\nmetadata: {name: "+n.Name+"}\nspec: {policyName: hullmark-upgrade-nodes, validationActions: [Audit]}\n")
	_, err = s.Apply(t.Context(), []render.Addon{{Name: "evil", Manifests: []string{"own.yaml"}}})
	wantRefused(t, err, n.String(), "the add-on hullmark names it, too")
	after, err := c.get(t.Context(), n)
	if err != nil || after.GetResourceVersion() != before.GetResourceVersion() {
		t.Errorf("it was changed: %v, %v", after, err)
	}
	s.write(t, "one.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: one, namespace: NAMESPACE}\n---\napiVersion: v1\nkind: Namespace\nmetadata: {name: NAMESPACE}\n")
	both := []render.Addon{{Name: "a", Manifests: []string{"one.yaml"}}, {Name: "b", Manifests: []string{"one.yaml"}}}
	_, err = s.Apply(t.Context(), both)
	wantRefused(t, err, "ConfigMap "+s.namespace+"/one: the add-on a names it, too")
	if err != nil && strings.Contains(err.Error(), "Namespace") {
		t.Errorf("a namespace may be named by several: %v", err)
	}
	s.apply(t, both[:1])
}

// A hook takes the place of nothing that is there: Helm would delete that first.
func TestHookOverWhatIsThere(t *testing.T) {
	s, c := newSite(t), direct(t)
	s.namespaceIsThere(t)
	const hook = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: theirs, annotations: {helm.sh/hook: 'pre-install,pre-upgrade'}}\ndata: {text: '{{ .Values.text }}'}\n"
	s.chart(t, "hooked", hook)
	wanted := func(text string) []render.Addon {
		return []render.Addon{{Name: "hooked", Namespace: s.namespace, Chart: "hooked", Values: map[string]any{"text": text}}}
	}
	if err := env.Apply(t.Context(), []byte("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: theirs, namespace: "+s.namespace+"}\ndata: {text: theirs}\n")); err != nil {
		t.Fatal(err)
	}
	before := s.picture(t, c)
	_, err := s.Apply(t.Context(), wanted("one"))
	wantRefused(t, err, "theirs: it is there, and no hook of this release's")
	s.wantPicture(t, c, before)
	theirs := Name{APIVersion: "v1", Kind: "ConfigMap", Namespace: s.namespace, Name: "theirs"}
	if err := c.delete(t.Context(), theirs); err != nil {
		t.Fatal(err)
	}
	waitGone(t, func() (*object, error) {
		if o, err := c.get(t.Context(), theirs); err != nil || o != nil {
			return o, err
		}
		return nil, os.ErrNotExist
	})
	s.apply(t, wanted("one"))
	s.apply(t, wanted("two")) // Its own hook is there by now.
}
