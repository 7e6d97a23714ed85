package upgrade_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/internal/nodetest"
	"github.com/hullmark/hullmark/internal/upgradetest"
	"github.com/hullmark/hullmark/upgrade"
)

// plan plans, as the command does.
func (s *site) plan(t *testing.T, spec upgrade.Spec, judge upgrade.Judge) upgrade.Plan {
	t.Helper()
	view, err := s.Look(t.Context(), upgrade.Need{AllPods: true, Servers: true})
	if err != nil {
		t.Fatal(err)
	}
	r, _, err := s.Request(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return upgrade.MakePlan(spec, view, r, s.Last(), judge)
}

func codes(p upgrade.Plan) (codes []string) {
	for _, c := range p.Against {
		codes = append(codes, c.Code)
	}
	return codes
}

func TestPlan(t *testing.T) {
	s := newSite(t, 3, 5)
	s.fill()
	spec := s.spec()
	spec.Pools = map[string]int{"a": 2}
	p := s.plan(t, spec, nil)
	if len(p.Against) > 0 {
		t.Fatalf("against it: %v", codes(p))
	}
	var order []string
	var batches []int
	for _, step := range p.Steps {
		order, batches = append(order, step.Node), append(batches, step.Batch)
		if step.Away != 0 || step.Attended || step.Document != upgradetest.ID(s.wanted) || step.Node == "w-1" && step.Evicted != 1 {
			t.Errorf("%+v", step)
		}
	}
	if !slices.Equal(order, all) || !slices.Equal(batches, []int{1, 2, 3, 4, 4, 5, 6, 7}) {
		t.Errorf("the order is %v, in batches %v", order, batches)
	}
	s.Want(request(spec))
	s.Unavailable = 2
	if got := codes(s.plan(t, spec, nil)); !slices.Equal(got, []string{"upgrade-under-way"}) {
		t.Errorf("while it is asked for: %v", got)
	}
	s.over(t, upgrade.Done)
	if got := codes(s.plan(t, spec, nil)); !slices.Equal(got, []string{"nothing-to-do"}) {
		t.Errorf("after it: %v", got)
	}
	// Each node's last absence is remembered.
	for _, step := range s.plan(t, restart(spec), nil).Steps {
		if time.Duration(step.Away) < 3*time.Minute || step.There {
			t.Errorf("%+v", step)
		}
	}
}

// What stops an upgrade is said before it begins.
func TestPlanAgainst(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*site, *upgrade.Spec)
		want   []string
		says   string
	}{
		"a document that the policy does not accept": {func(s *site, _ *upgrade.Spec) { s.Policy.Documents = s.Policy.Documents[:1] }, []string{"document-not-accepted"}, "policy add document"},
		"a document that is not there":               {func(s *site, _ *upgrade.Spec) { delete(s.Documents, upgradetest.ID(s.wanted)) }, []string{"document-not-accepted", "document-missing"}, ""},
		"a release that no builder signed":           {func(s *site, _ *upgrade.Spec) { s.Policy.Builders, _ = nodetest.Alice(t) }, []string{"builders-too-few"}, "hullmark reproduce --attest"},
		"a release below the minimum":                {func(s *site, _ *upgrade.Spec) { s.Policy.MinimumSVN = 2 }, []string{"svn-too-low"}, "later release"},
		"documents of several releases": {func(s *site, spec *upgrade.Spec) {
			spec.Documents = append(spec.Documents, upgradetest.ID(s.present))
		}, []string{"document-mixed"}, "one image"},
		"a machine whose document is gone": {func(s *site, _ *upgrade.Spec) { s.Machines["w-1"].Document = hullmark.DocumentID{9} }, []string{"document-unknown"}, "w-1"},
		"a machine of another kind": {func(s *site, _ *upgrade.Spec) {
			other := upgradetest.Document(1, 7)
			s.Documents[upgradetest.ID(other)] = other
			s.Machines["w-1"].Document = upgradetest.ID(other)
		}, []string{"document-missing"}, "hullmark measure"},
		"a node that is not Ready":         {func(s *site, _ *upgrade.Spec) { s.Machines["w-2"].Ready = false }, []string{"node-not-ready"}, "--except w-2"},
		"one that is left out":             {func(s *site, spec *upgrade.Spec) { s.Machines["w-2"].Ready = false; spec.Except = []string{"w-2"} }, nil, ""},
		"a control plane that is left out": {func(s *site, spec *upgrade.Spec) { s.Machines["cp-2"].Ready = false; spec.Except = []string{"cp-2"} }, []string{"control-plane-down"}, "cp-2"},
		"an API server that is not ready":  {func(s *site, _ *upgrade.Spec) { s.Down["cp-3"] = true }, []string{"control-plane-down"}, "cp-3"},
		"a budget that is never met":       {func(s *site, _ *upgrade.Spec) { s.Budgets["shop/web"].Desired = 3 }, []string{"budget-never-met"}, "shop/web"},
		"a pod of two budgets": {func(s *site, _ *upgrade.Spec) {
			s.Budgets["shop/b"] = &upgradetest.Budget{}
			s.Pods["shop/web-a"].Budgets = []string{"shop/b", "shop/web"}
		}, []string{"budgets-overlap"}, "shop/web-a"},
		"a pod that nobody makes anew": {func(s *site, _ *upgrade.Spec) { s.Run("w-3", upgrade.Pod{Namespace: "a", Name: "bare"}) }, []string{"pods-lost"}, "a/bare"},
		"one that may be lost": {func(s *site, spec *upgrade.Spec) {
			s.Run("w-3", upgrade.Pod{Namespace: "a", Name: "bare"})
			spec.Drain.Force = true
		}, nil, ""},
		"data that is lost": {func(s *site, _ *upgrade.Spec) {
			s.Run("w-3", upgrade.Pod{Namespace: "a", Name: "c", Controlled: true, EmptyDir: true})
		}, []string{"pods-lost"}, "a/c"},
		"positive control, with nothing new": {func(*site, *upgrade.Spec) {}, nil, ""},
	} {
		s := newSite(t, 3, 5)
		s.fill()
		spec := s.spec()
		c.change(s, &spec)
		p := s.plan(t, spec, nil)
		text, err := json.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		if got := slices.Compact(codes(p)); !slices.Equal(got, c.want) || !strings.Contains(string(text), c.says) {
			t.Errorf("%s: against it %v, want %v and %q: %s", name, got, c.want, c.says, text)
		}
	}
}

func TestPlanNotes(t *testing.T) {
	s := newSite(t, 1, 2)
	s.fill()
	s.SetCordon("w-1", true)
	s.Remove("w-2")
	spec := s.spec()
	spec.Except = []string{"nobody"}
	p := s.plan(t, spec, func(upgrade.Move) error { return nil })
	text := strings.Join(p.Notes, "\n")
	for _, want := range []string{"w-1 is cordoned already", "nobody, which is left out, is not known"} {
		if !strings.Contains(text, want) {
			t.Errorf("the notes lack %q:\n%s", want, text)
		}
	}
	if len(p.Against) > 0 || !p.Steps[0].Attended || p.Steps[1].Attended {
		t.Errorf("%v: %+v", codes(p), p.Steps)
	}
	view, err := s.Look(t.Context(), upgrade.Need{})
	if err != nil {
		t.Fatal(err)
	}
	view.Nodes["stranger"] = upgrade.Node{Name: "stranger", Ready: true}
	delete(view.Nodes, "w-1")
	notes := strings.Join(upgrade.MakePlan(spec, view, upgrade.Request{}, upgrade.State{}, nil).Notes, "\n")
	for _, want := range []string{"stranger has no record", "w-1 has a record and no Node"} {
		if !strings.Contains(notes, want) {
			t.Errorf("the notes lack %q:\n%s", want, notes)
		}
	}
	m := view.Machines[s.Machines["cp-1"].EKID]
	m.Update = nil
	view.Machines[m.EKID] = m
	if got := codes(upgrade.MakePlan(spec, view, upgrade.Request{}, upgrade.State{}, nil)); !slices.Equal(got, []string{"updates-unknown"}) {
		t.Errorf("of a node that says nothing: %v", got)
	}
	refuses := func(upgrade.Move) error {
		return &hullmark.Condition{Code: "version-skew", Title: "too new", Next: "wait"}
	}
	if got := codes(s.plan(t, spec, refuses)); !slices.Equal(slices.Compact(got), []string{"version-skew"}) {
		t.Errorf("of a step that is judged: %v", got)
	}
}
