//go:build long

package registry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/joinservice"
)

const objectsPath = "/api/v1/namespaces/hullmark/configmaps"

// put replaces an object, or makes it.
func (c caller) put(ctx context.Context, name string, object *corev1.ConfigMap) error {
	object.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"}
	body, err := json.Marshal(object)
	if err != nil {
		return err
	}
	if name == "" {
		_, err = c.post(ctx, objectsPath, string(body))
		return err
	}
	_, err = said(c.requests.Put().AbsPath(objectsPath+"/"+name).Body(body).SetHeader("Content-Type", "application/json").Do(ctx).Raw())
	return err
}

// merge sends a merge patch.
func (c caller) merge(ctx context.Context, path, body string) error {
	_, err := said(c.requests.Patch(types.MergePatchType).AbsPath(path).Body([]byte(body)).Do(ctx).Raw())
	return err
}

// TestEnginesAccount tries with the upgrade engine's certificate what RBAC cannot tell apart, and its admission policies do.
func TestEnginesAccount(t *testing.T) {
	s := withWorkers(t)
	ctx, engine := t.Context(), userCaller(t, UpgradeUser)
	mineNode, hisNode := nodesPath+"/"+mine, nodesPath+"/"+victim
	if err := s.root.patch(ctx, hisNode, `{"spec":{"unschedulable":true}}`); err != nil {
		t.Fatal(err)
	}
	awaitPolicy(t, func() error {
		return engine.merge(ctx, mineNode, `{"metadata":{"labels":{"example.net/tried":"yes"}}}`)
	})
	awaitPolicy(t, func() error {
		return engine.put(ctx, "", &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "tried-", Namespace: Namespace}})
	})
	t.Run("positive control", func(t *testing.T) {
		for what, patch := range map[string]string{
			"cordon":   `{"metadata":{"annotations":{"hullmark/upgrade":"0123456789abcdef"}},"spec":{"unschedulable":true}}`,
			"the same": `{"metadata":{"annotations":{"hullmark/upgrade":"0123456789abcdef"}},"spec":{"unschedulable":true}}`,
		} {
			if err := engine.merge(ctx, mineNode, patch); err != nil {
				t.Errorf("%s: %v", what, err)
			}
		}
		if err := engine.merge(ctx, mineNode, `{"metadata":{"annotations":{"hullmark/upgrade":null}},"spec":{"unschedulable":false}}`); err != nil {
			t.Errorf("uncordon: %v", err)
		}
	})
	refused(t, append(nodeAttempts(engine, s, mineNode, hisNode), objectAttempts(t, engine)...))
}

// nodeAttempts are what the engine must not do to Nodes; the second is one that an administrator has cordoned.
func nodeAttempts(engine caller, s site, mineNode, hisNode string) []attempt {
	merging := func(path, patch string) func(context.Context) error {
		return func(ctx context.Context) error { return engine.merge(ctx, path, patch) }
	}
	return []attempt{
		{"a cordon of somebody else's, back", merging(hisNode, `{"spec":{"unschedulable":false}}`)},
		{"a note beside somebody else's cordon, and the cordon back in one", merging(hisNode, `{"metadata":{"annotations":{"hullmark/upgrade":null}},"spec":{"unschedulable":null}}`)},
		{"a cordon without a note", merging(mineNode, `{"spec":{"unschedulable":true}}`)},
		{"a note without a cordon", merging(mineNode, `{"metadata":{"annotations":{"hullmark/upgrade":"0123456789abcdef"}}}`)},
		{"another annotation", merging(mineNode, `{"metadata":{"annotations":{"flannel.alpha.coreos.com/public-ip":"192.0.2.1"}}}`)},
		{"without another annotation", merging(mineNode, `{"metadata":{"annotations":{"volumes.kubernetes.io/controller-managed-attach-detach":null}}}`)},
		{"a label", merging(mineNode, `{"metadata":{"labels":{"node-role.kubernetes.io/control-plane":""}}}`)},
		{"a finalizer", merging(mineNode, `{"metadata":{"finalizers":["example.net/a"]}}`)},
		{"a taint", merging(mineNode, `{"spec":{"taints":null}}`)},
		{"a Node's pods' addresses", merging(mineNode, `{"spec":{"providerID":"x://y"}}`)},
		{"a Node's status", merging(mineNode+"/status", `{"status":{"conditions":[]}}`)},
		{"a Node less", func(ctx context.Context) error { return engine.remove(ctx, mineNode) }},
		// Nor does a kubelet pass an administrator's cordon for the engine's, which would take it back.
		{"a kubelet's note on its own Node", func(ctx context.Context) error {
			return s.kubelet.patch(ctx, mineNode, `{"metadata":{"annotations":{"hullmark/upgrade":"0123456789abcdef"}}}`)
		}},
	}
}

// objectAttempts are what the engine must not write in the namespace.
func objectAttempts(t *testing.T, engine caller) (attempts []attempt) {
	t.Helper()
	node := hullmark.EKID{81}
	for _, name := range []string{MachineObject(node), NameObject("kept"), policyObject, UpgradeRequest, "upgrade.other", "direction.x", "direction." + strings.Repeat("A", 64), "x" + DirectionObject(node), documentObject(hullmark.DocumentID{1})} {
		attempts = append(attempts, attempt{"the object " + name, func(ctx context.Context) error {
			return engine.put(ctx, "", &corev1.ConfigMap{ObjectMeta: meta(upgradeKind, name), Data: map[string]string{upgradeKey: "{}"}})
		}})
		if strings.ToLower(name) != name {
			attempts = attempts[:len(attempts)-1] // The API has no such names.
		}
	}
	good := &corev1.ConfigMap{}
	if err := PutDirection(good, node, hullmark.UpdateDirection{Serial: 1, Action: hullmark.UpdateRestart}); err != nil {
		t.Fatal(err)
	}
	fixed := true
	for what, change := range map[string]func(*corev1.ConfigMap){
		"a direction that passes for a record": func(o *corev1.ConfigMap) { o.Labels[kindLabel] = nodeKind },
		"a direction that nobody finds":        func(o *corev1.ConfigMap) { o.Labels = nil },
		"a direction with more":                func(o *corev1.ConfigMap) { o.Data["machine"] = "{}" },
		"a direction with a policy":            func(o *corev1.ConfigMap) { o.BinaryData = map[string][]byte{policyKind: {1}} },
		"a direction for good":                 func(o *corev1.ConfigMap) { o.Immutable = &fixed },
		"a direction that stays":               func(o *corev1.ConfigMap) { o.Finalizers = []string{"example.net/a"} },
	} {
		object := good.DeepCopy()
		change(object)
		attempts = append(attempts, attempt{what, func(ctx context.Context) error { return engine.put(ctx, "", object) }})
	}
	return append(attempts, attempt{"another Lease", func(ctx context.Context) error {
		_, err := engine.post(ctx, "/apis/coordination.k8s.io/v1/namespaces/hullmark/leases", `{"apiVersion":"coordination.k8s.io/v1","kind":"Lease","metadata":{"name":"control-plane-join"}}`)
		return err
	}})
}

// The engine's client does with its own account what an upgrade needs, each change a compare-and-swap.
func TestUpgradesCompareAndSwap(t *testing.T) {
	config, err := api.Config(UpgradeUser)
	if err != nil {
		t.Fatal(err)
	}
	u, err := NewUpgrades(config)
	if err != nil {
		t.Fatal(err)
	}
	ctx, node := t.Context(), hullmark.EKID{82}
	t.Cleanup(func() {
		for _, name := range []string{UpgradeState, DirectionObject(node)} {
			_ = admin.configMaps.delete(context.Background(), name)
		}
	})
	if text, v, err := u.Text(ctx, UpgradeState); text != "" || v != "" || err != nil {
		t.Fatal(text, v, err)
	}
	first, err := u.StoreText(ctx, UpgradeState, "one", "")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := u.StoreText(ctx, UpgradeState, "two", ""); !errors.Is(err, joinservice.ErrConflict) {
		t.Errorf("made twice: %v", err)
	}
	second, err := u.StoreText(ctx, UpgradeState, "two", first)
	if err != nil || second == first {
		t.Fatal(second, err)
	}
	if _, err := u.StoreText(ctx, UpgradeState, "three", first); !errors.Is(err, joinservice.ErrConflict) {
		t.Errorf("an old version was replaced: %v", err)
	}
	if text, v, err := u.Text(ctx, UpgradeState); text != "two" || v != second || err != nil {
		t.Error(text, v, err)
	}
	if err := u.Direct(ctx, node, hullmark.UpdateDirection{Serial: 1, Action: hullmark.UpdateRestart}, ""); err != nil {
		t.Fatal(err)
	}
	if d, err := service.Direction(ctx, node); err != nil || d.Serial != 1 || d.Action != hullmark.UpdateRestart {
		t.Errorf("the join service reads %+v, %v", d, err)
	}
	_, directions, err := u.MachinesAndDirections(ctx)
	if err != nil || len(directions) != 1 {
		t.Fatal(directions, err)
	}
	if err := u.Direct(ctx, node, hullmark.UpdateDirection{}, joinservice.Version(directions[0].ResourceVersion)); err != nil {
		t.Fatalf("it is not withdrawn: %v", err)
	}
	if d, err := service.Direction(ctx, node); err != nil || d.Serial != 0 {
		t.Errorf("the join service reads %+v, %v", d, err)
	}
	if err := u.Direct(ctx, node, hullmark.UpdateDirection{Serial: 2, Action: hullmark.UpdateRestart}, joinservice.Version(directions[0].ResourceVersion)); !errors.Is(err, joinservice.ErrConflict) {
		t.Errorf("an engine that was overtaken directs: %v", err)
	}
	holdsLease(t, u)
}

func holdsLease(t *testing.T, u *Upgrades) {
	t.Helper()
	ctx := t.Context()
	if holder, term, v, err := u.Holder(ctx); holder != "" || term != 0 || v != "" || err != nil {
		t.Fatal(holder, term, v, err)
	}
	first, err := u.StoreHolder(ctx, "a", 1, leaseDuration, "")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := u.StoreHolder(ctx, "b", 2, leaseDuration, first); err != nil {
		t.Fatal(err)
	}
	for _, v := range []joinservice.Version{"", first} {
		if _, err := u.StoreHolder(ctx, "a", 3, leaseDuration, v); !errors.Is(err, joinservice.ErrConflict) {
			t.Errorf("an old version %q was replaced: %v", v, err)
		}
	}
	if holder, term, _, err := u.Holder(ctx); holder != "b" || term != 2 || err != nil {
		t.Error(holder, term, err)
	}
}

// Pods go as their budgets allow, and only the ones that were meant.
func TestEvictions(t *testing.T) {
	s := withWorkers(t)
	config, err := api.Config(UpgradeUser)
	if err != nil {
		t.Fatal(err)
	}
	u, err := NewUpgrades(config)
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	const budgets = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
	if _, err := s.root.post(ctx, budgets, `{"apiVersion":"policy/v1","kind":"PodDisruptionBudget","metadata":{"name":"web"},"spec":{"minAvailable":1,"selector":{"matchLabels":{"app":"web"}}}}`); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.root.remove(context.Background(), budgets+"/web") })
	const path = "/api/v1/namespaces/default/pods"
	pod := func(name, labels string) string {
		t.Helper()
		created, err := s.root.post(ctx, path, `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"`+name+`","labels":`+labels+`},"spec":{"nodeName":"`+mine+`","terminationGracePeriodSeconds":0,"containers":[{"name":"a","image":"a"}]}}`)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.root.remove(context.Background(), path+"/"+name) })
		var p corev1.Pod
		if err := json.Unmarshal(created, &p); err != nil {
			t.Fatal(err)
		}
		return string(p.UID)
	}
	kept, free := pod("kept", `{"app":"web"}`), pod("free", `{}`)
	ready := `{"status":{"phase":"Running","conditions":[{"type":"Ready","status":"True"}]}}`
	if err := s.root.patch(ctx, path+"/kept/status", ready); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the budget", func() error {
		list, err := u.Budgets(ctx)
		if err != nil || len(list) != 1 || list[0].Status.CurrentHealthy != 1 {
			return fmt.Errorf("%d budgets, %w", len(list), err)
		}
		return nil
	})
	if err := u.Evict(ctx, "default", "kept", kept); !errors.Is(err, ErrNoDisruption) {
		t.Errorf("against its budget: %v", err)
	}
	if err := u.Evict(ctx, "default", "free", "another"); err != nil {
		t.Errorf("another pod of this name: %v", err)
	}
	if pods, err := u.Pods(ctx, mine); err != nil || len(pods) != 3 { // and that of withWorkers
		t.Errorf("%d pods, %v", len(pods), err)
	}
	if err := u.Evict(ctx, "default", "free", free); err != nil {
		t.Error(err)
	}
	if err := u.Evict(ctx, "default", "nobody", free); err != nil {
		t.Errorf("one that is gone: %v", err)
	}
	eventually(t, "the eviction", func() error {
		pods, err := u.Pods(ctx, mine)
		for _, p := range pods {
			if p.Name == "free" && p.DeletionTimestamp == nil {
				return errors.New("it is there")
			}
		}
		return err
	})
	// A Node that was changed since it was seen is not cordoned.
	nodes, err := u.Nodes(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range nodes {
		if n.Name != mine {
			continue
		}
		if err := u.SetCordon(ctx, mine, n.ResourceVersion, "0123456789abcdef"); err != nil {
			t.Error(err)
		}
		if err := u.SetCordon(ctx, mine, n.ResourceVersion, ""); !errors.Is(err, joinservice.ErrConflict) {
			t.Errorf("a Node in an old version: %v", err)
		}
	}
}
