//go:build long

package addons

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/hullmark/hullmark/cluster/render"
	"github.com/hullmark/hullmark/joinservice/registry"
	"github.com/hullmark/hullmark/kubeadm"
)

// write writes a file of the site's folder, with the site's namespace and group in it.
func (s *site) write(t *testing.T, name, text string) {
	t.Helper()
	text = strings.NewReplacer("NAMESPACE", s.namespace, "GROUP", s.group).Replace(text)
	if err := os.WriteFile(filepath.Join(s.Folder, name), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// changesOf lists what a plan does with objects of an add-on, sorted.
func changesOf(p *Plan, addon string) (all []string) {
	for _, a := range p.Addons {
		for _, o := range a.Objects {
			if a.Name == addon {
				all = append(all, o.Change+" "+o.Name.String())
			}
		}
	}
	slices.Sort(all)
	return all
}

const manifestsBefore = `
apiVersion: v1
kind: ConfigMap
metadata: {name: board, namespace: NAMESPACE}
data: {text: before}
---
apiVersion: v1
kind: List
items:
- apiVersion: v1
  kind: ConfigMap
  metadata: {name: gone, namespace: NAMESPACE}
- apiVersion: v1
  kind: ConfigMap
  metadata: {name: stays, namespace: NAMESPACE, annotations: {helm.sh/resource-policy: keep}}
`

const manifestsAfter = `
apiVersion: v1
kind: ConfigMap
metadata: {name: board, namespace: NAMESPACE}
data: {text: after}
---
apiVersion: v1
kind: Service
metadata: {name: board, namespace: NAMESPACE}
spec: {ports: [{port: 80}], selector: {app: board}}
`

// Plain manifests are applied, changed, and what they name no more is removed; a failure puts all of it back, also what was there
// before the add-on and not its own.
func TestManifests(t *testing.T) {
	s, c := newSite(t), direct(t)
	s.namespaceIsThere(t)
	wanted := []render.Addon{{Name: "boards", Manifests: []string{"boards.yaml"}}}
	// One was brought by kubectl, with what somebody else added.
	s.write(t, "boards.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: board, namespace: NAMESPACE}\ndata: {text: old, leftover: kubectl}\n")
	brought, err := os.ReadFile(filepath.Join(s.Folder, "boards.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	if err := env.Apply(t.Context(), brought); err != nil {
		t.Fatal(err)
	}
	maps := c.objects.Resource(schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}).Namespace(s.namespace)
	if _, err := maps.Patch(t.Context(), "board", types.MergePatchType, []byte(`{"data":{"extra":"theirs"}}`), metav1.PatchOptions{FieldManager: "somebody"}); err != nil {
		t.Fatal(err)
	}
	began := s.picture(t, c)

	s.write(t, "boards.yaml", manifestsBefore)
	plan := s.apply(t, wanted)
	if got, want := changesOf(plan, "boards"), []string{"changed ConfigMap " + s.namespace + "/board", "created ConfigMap " + s.namespace + "/gone", "created ConfigMap " + s.namespace + "/stays"}; !slices.Equal(got, want) {
		t.Errorf("the plan was %q, want %q", got, want)
	}
	board, err := maps.Get(t.Context(), "board", metav1.GetOptions{})
	if data, _, _ := unstructured.NestedStringMap(board.Object, "data"); err != nil || data["text"] != "before" || data["extra"] != "theirs" || data["leftover"] != "" {
		t.Errorf("the board says %q, %v", data, err)
	}
	if again := s.apply(t, wanted); again.Changes() {
		t.Errorf("the same again changes %+v", again.Addons)
	}
	before := s.picture(t, c)

	s.write(t, "boards.yaml", manifestsAfter)
	plan = s.apply(t, wanted)
	if got, want := changesOf(plan, "boards"), []string{
		"changed ConfigMap " + s.namespace + "/board", "created Service " + s.namespace + "/board", "deleted ConfigMap " + s.namespace + "/gone", "kept ConfigMap " + s.namespace + "/stays",
	}; !slices.Equal(got, want) {
		t.Errorf("the plan was %q, want %q", got, want)
	}
	if is := s.picture(t, c); is["ConfigMap "+s.namespace+"/gone"] != nil || is["ConfigMap "+s.namespace+"/stays"] == nil {
		t.Error("what is named no more is there, or what says that it stays is not")
	}
	s.rollback(t, s.latest(t))
	s.wantPicture(t, c, before)

	s.Timeout = 3 * time.Second
	s.write(t, "boards.yaml", manifestsAfter+"---\n"+neverReady)
	_, err = s.Apply(t.Context(), wanted)
	wantFailed(t, err, "boards", "not ready")
	s.wantPicture(t, c, before)
	s.Timeout = patience

	s.rollback(t, s.before(t, 2)) // the first: what was there is not the add-on's
	s.wantPicture(t, c, began)
}

const neverReady = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: never, namespace: NAMESPACE}
spec:
  selector: {matchLabels: {app: never}}
  template:
    metadata: {labels: {app: never}}
    spec: {containers: [{name: main, image: localhost/none}]}
`

func (s *site) namespaceIsThere(t *testing.T) {
	t.Helper()
	if err := env.Apply(t.Context(), []byte("apiVersion: v1\nkind: Namespace\nmetadata: {name: "+s.namespace+"}\n")); err != nil {
		t.Fatal(err)
	}
}

// What cannot be is told before anything changes.
func TestPlanRefuses(t *testing.T) {
	s, c := newSite(t), direct(t)
	s.namespaceIsThere(t)
	there := "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: NAME, namespace: NAMESPACE}\ndata: {text: theirs}\n"
	for _, name := range []string{"demo-settings", "mine"} {
		if err := env.Apply(t.Context(), []byte(strings.NewReplacer("NAMESPACE", s.namespace, "NAME", name).Replace(there))); err != nil {
			t.Fatal(err)
		}
	}
	maps := c.objects.Resource(schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}).Namespace(s.namespace)
	if _, err := maps.Patch(t.Context(), "mine", types.MergePatchType, []byte(`{"data":{"text":"really theirs"}}`), metav1.PatchOptions{FieldManager: "somebody"}); err != nil {
		t.Fatal(err)
	}
	before := s.picture(t, c)
	for name, test := range map[string]struct{ manifest, says string }{
		"another manager's field": {"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: mine, namespace: NAMESPACE}\ndata: {text: mine}\n", `conflict with "somebody"`},
		"an invalid object":       {"apiVersion: v1\nkind: Service\nmetadata: {name: bad, namespace: NAMESPACE}\nspec: {ports: [{port: 700000}]}\n", "Service " + s.namespace + "/bad: "},
		"an unknown field":        {"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: odd, namespace: NAMESPACE}\ncolour: red\n", "colour"},
		"an unknown kind":         {"apiVersion: GROUP/v1\nkind: Widget\nmetadata: {name: none, namespace: NAMESPACE}\n", "next: bring its CustomResourceDefinition first"},
		"twice the same":          {manifestsBefore + "---\n" + manifestsBefore, "it is named twice"},
	} {
		s.write(t, "bad.yaml", test.manifest)
		plan, err := s.Plan(t.Context(), []render.Addon{{Name: "bad", Manifests: []string{"bad.yaml"}}})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if err := plan.Refused(); !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), test.says) {
			t.Errorf("%s: %v, want %q", name, err, test.says)
		}
	}
	_, err := s.Apply(t.Context(), s.demo(1, nil)) // Its settings are there, and not its own.
	if !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "ConfigMap "+s.namespace+"/demo-settings: it is there, and not this release's") {
		t.Errorf("got %v", err)
	}
	s.wantPicture(t, c, before)
	if saved, _ := filepath.Glob(filepath.Join(s.Saved, "*")); len(saved) > 0 {
		t.Errorf("%q is saved", saved)
	}
}

// The objects of a definition cannot be read: what touches it is refused, and what does not says that they are not saved.
func TestUnreadable(t *testing.T) {
	s, c := newSite(t), direct(t)
	s.furnished(t, c)
	s.apply(t, s.demo(2, nil)) // Objects are stored in two versions.
	dead := `{"spec":{"conversion":{"strategy":"Webhook","webhook":{"conversionReviewVersions":["v1"],"clientConfig":{"url":"https://127.0.0.1:1/convert"}}}}}`
	if _, err := c.objects.Resource(definitions).Patch(t.Context(), "widgets."+s.group, types.MergePatchType, []byte(dead), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	defer func() {
		alive := []byte(`{"spec":{"conversion":{"strategy":"None","webhook":null}}}`)
		if _, err := c.objects.Resource(definitions).Patch(t.Context(), "widgets."+s.group, types.MergePatchType, alive, metav1.PatchOptions{}); err != nil {
			t.Error(err)
		}
	}()
	time.Sleep(time.Second)
	if _, err := s.Apply(t.Context(), s.demo(2, map[string]any{"text": "x"})); !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "nobody can save them") {
		t.Errorf("got %v", err)
	}
	s.write(t, "other.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: other, namespace: NAMESPACE}\n")
	plan := s.apply(t, []render.Addon{{Name: "other", Manifests: []string{"other.yaml"}}})
	if plan.Saved.Unread["widgets."+s.group] == "" || !strings.Contains(strings.Join(s.said, "\n"), "not saved: the objects of widgets."+s.group) {
		t.Errorf("what is saved is %+v", plan.Saved)
	}
}

// More custom resources than fit into a page are saved, and those of them that were changed or deleted come back.
func TestManyCustomResources(t *testing.T) {
	s, c := newSite(t), direct(t)
	s.apply(t, s.demo(1, nil))
	const many = 2*pageSize + 7
	for i := range many {
		s.widget(t, c, fmt.Sprint("w-", i), nil)
	}
	before := s.picture(t, c)
	s.onWrite("PATCH", "/deployments/demo", func() {
		to := c.objects.Resource(s.widgets("v1")).Namespace(s.namespace)
		for i := 0; i < many; i += 10 {
			if err := to.Delete(t.Context(), fmt.Sprint("w-", i), metav1.DeleteOptions{}); err != nil {
				t.Error(err)
			}
		}
	})
	s.Timeout = 3 * time.Second
	_, err := s.Apply(t.Context(), s.demo(2, map[string]any{"replicas": 1}))
	wantFailed(t, err, "not ready")
	s.wantPicture(t, c, before)
}

// enforcesPolicies has flannel enforce NetworkPolicies by the document, which names another network besides, and takes it back.
func (s *site) enforcesPolicies(t *testing.T, c *client) {
	t.Helper()
	runs := func() bool {
		flannel, err := c.get(t.Context(), Name{APIVersion: "apps/v1", Kind: "DaemonSet", Namespace: "kube-system", Name: "flannel"})
		if err != nil {
			t.Fatal(err)
		}
		return strings.Contains(fmt.Sprint(flannel.Object["spec"]), "--network-policies")
	}
	yes := true
	s.Network = &render.Network{PodSubnet: "10.77.0.0/16,fd00:77::/56", ServiceSubnet: "10.96.0.0/16", Policies: &yes}
	defer func() { s.Network = nil }()
	plan := s.apply(t, nil)
	if notes := strings.Join(plan.Addons[2].Notes, "\n"); !runs() || strings.Contains(notes, "not enforced") || !strings.Contains(notes, "network.podSubnet is 10.77.0.0/16,fd00:77::/56, and the cluster began with 10.77.0.0/16") || strings.Contains(notes, "serviceSubnet") {
		t.Errorf("policies are enforced: %t, and the notes are %q", runs(), notes)
	}
	s.Network.Policies = nil // Nothing said is nothing changed.
	if plan = s.apply(t, nil); plan.Changes() || !runs() {
		t.Errorf("the document that says nothing of policies changes %+v", plan.Addons)
	}
	s.rollback(t, s.latest(t))
	if runs() {
		t.Error("flannel enforces policies after the way back")
	}
}

// What an older release brought is made what this one has, once all nodes run it, and stays in every setting as it was.
func TestOwnAddons(t *testing.T) {
	s, c := newSite(t), direct(t)
	parameters := kubeadm.Params{
		NodeName: "cp", AdvertiseAddress: netip.MustParseAddr("192.0.2.1"), Endpoint: "old.example.net:6443", WireGuard: true,
		ServiceSubnet: kubeadm.MustParseSubnets("10.96.0.0/16"), PodSubnet: kubeadm.MustParseSubnets("10.77.0.0/16"),
	}
	var older []byte
	for _, make := range []func(kubeadm.Params) ([]byte, error){kubeadm.KubeProxy, kubeadm.Flannel} {
		manifest, err := make(parameters)
		if err != nil {
			t.Fatal(err)
		}
		older = append(append(older, "---\n"...), manifest...)
	}
	text := strings.NewReplacer(kubeadm.NodeImage, kubeadm.Repository+"/kube-proxy:v1.35.4",
		"priorityClassName: system-node-critical", "priorityClassName: system-cluster-critical").Replace(string(older))
	configuration := "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: kubeadm-config, namespace: kube-system}\ndata:\n  ClusterConfiguration: |\n    apiVersion: kubeadm.k8s.io/v1beta4\n    kind: ClusterConfiguration\n    networking: {podSubnet: 10.77.0.0/16, serviceSubnet: 10.96.0.0/16}\n---\n"
	if err := env.Apply(t.Context(), []byte(configuration+text)); err != nil {
		t.Fatal(err)
	}
	// And the endpoint was moved since, as hullmark endpoint set does.
	mover, err := registry.New(c.config)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := mover.MoveAddons(t.Context(), "new.example.net:443"); err != nil {
		t.Fatal(err)
	}
	s.node(t, c, "v1.35.4")
	plan := s.apply(t, nil)
	if a := plan.Addons[1]; a.Name != "kube-proxy" || !strings.Contains(a.Waits, "node laggard runs v1.35.4") || plan.Changes() {
		t.Errorf("while a node runs an older release the plan is %+v", plan.Addons)
	}
	s.node(t, c, kubeadm.Version)
	plan = s.apply(t, nil)
	for _, want := range []string{"changed DaemonSet kube-system/flannel"} {
		if !slices.Contains(changesOf(plan, "flannel"), want) {
			t.Errorf("the plan was %q, want %q", changesOf(plan, "flannel"), want)
		}
	}
	if got := changesOf(plan, "flannel"); slices.Contains(got, "changed ConfigMap kube-system/flannel") {
		t.Errorf("the settings change: %q", got)
	}
	flannel, err := c.get(t.Context(), Name{APIVersion: "apps/v1", Kind: "DaemonSet", Namespace: "kube-system", Name: "flannel"})
	if err != nil || !strings.Contains(fmt.Sprint(flannel.Object), kubeadm.NodeImage) || !strings.Contains(fmt.Sprint(flannel.Object), "WIREGUARD_KEY_FILE") || strings.Contains(fmt.Sprint(flannel.Object), "system-cluster-critical") {
		t.Errorf("flannel is %v, %v", flannel, err)
	}
	settings, err := c.get(t.Context(), Name{APIVersion: "v1", Kind: "ConfigMap", Namespace: "kube-system", Name: "flannel"})
	if err != nil || nested(settings, "data", "api-host") != "new.example.net" || !strings.Contains(nested(settings, "data", "net-conf.json"), "10.77.0.0/16") {
		t.Errorf("its settings are %v, %v", settings, err)
	}
	if plan = s.apply(t, nil); plan.Changes() || !strings.Contains(strings.Join(plan.Addons[2].Notes, ""), "NetworkPolicies are not enforced") {
		t.Errorf("the same again changes, or does not say that policies are not enforced: %+v", plan.Addons)
	}
	back := s.latest(t)
	s.enforcesPolicies(t, c)
	s.rollback(t, back)
	flannel, err = c.get(t.Context(), Name{APIVersion: "apps/v1", Kind: "DaemonSet", Namespace: "kube-system", Name: "flannel"})
	if err != nil || !strings.Contains(fmt.Sprint(flannel.Object), "kube-proxy:v1.35.4") || !strings.Contains(fmt.Sprint(flannel.Object), "system-cluster-critical") {
		t.Errorf("flannel is not the older one again: %v, %v", flannel, err)
	}
	for _, name := range []string{"flannel", "kube-proxy"} { // Other tests have none.
		if err := c.delete(t.Context(), Name{APIVersion: "apps/v1", Kind: "DaemonSet", Namespace: "kube-system", Name: name}); err != nil {
			t.Error(err)
		}
	}
	if err := c.delete(t.Context(), Name{APIVersion: "v1", Kind: "Node", Name: "laggard"}); err != nil {
		t.Error(err)
	}
}

// node has a Node whose kubelet says that it is of a version.
func (s *site) node(t *testing.T, c *client, version string) {
	t.Helper()
	nodes := c.objects.Resource(schema.GroupVersionResource{Version: "v1", Resource: "nodes"})
	o := &object{Object: map[string]any{"metadata": map[string]any{"name": "laggard"}}}
	o.SetAPIVersion("v1")
	o.SetKind("Node")
	if _, err := nodes.Create(t.Context(), o, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	// The controllers of the cluster write the Node, too: a patch needs no version of it.
	status := fmt.Appendf(nil, `{"status": {"nodeInfo": {"kubeletVersion": %q}}}`, version)
	if _, err := nodes.Patch(t.Context(), "laggard", types.MergePatchType, status, metav1.PatchOptions{}, "status"); err != nil {
		t.Fatal(err)
	}
}
