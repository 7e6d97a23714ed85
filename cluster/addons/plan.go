package addons

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/hullmark/hullmark/cluster/render"
)

// What a plan does with an object.
const (
	created = "created"
	changed = "changed"
	deleted = "deleted"
	// kept is an object that its add-on names no more, and that stays.
	kept = "kept"
)

// Plan is what applying a document's add-ons would do.
type Plan struct {
	Addons []AddonPlan `json:"addons"`
	// Saved counts what is saved before anything changes.
	Saved SavedPlan `json:"saved"`

	units []*unit
}

// AddonPlan is what becomes of one add-on.
type AddonPlan struct {
	Name string `json:"name"`
	// Kind is chart, manifests, or own for Hullmark's.
	Kind      string `json:"kind"`
	Namespace string `json:"namespace,omitempty"`
	// Now is what there is, empty if nothing; Next is what comes.
	Now  string `json:"now,omitempty"`
	Next string `json:"next"`
	// Waits is why it is left as it is, empty if it is not.
	Waits string `json:"waits,omitempty"`
	// Changes says that anything of it does.
	Changes bool `json:"changes"`
	// Definitions and Objects are those that change, Hooks the objects that run on the way.
	Definitions []DefinitionPlan `json:"definitions,omitempty"`
	Objects     []ObjectPlan     `json:"objects,omitempty"`
	Hooks       []HookPlan       `json:"hooks,omitempty"`
	// Final is what putting back would not bring back.
	Final []string `json:"final,omitempty"`
	// Problems are why the plan cannot be applied, each with what to do.
	Problems []string `json:"problems,omitempty"`
	// Notes are what is to be known of it, whether it changes or not.
	Notes []string `json:"notes,omitempty"`
}

// DefinitionPlan is what becomes of a CustomResourceDefinition.
type DefinitionPlan struct {
	Name   string `json:"name"`
	Change string `json:"change"`
	// Now and Next are its versions.
	Now  string `json:"now,omitempty"`
	Next string `json:"next,omitempty"`
	// Objects counts its custom resources, and Dropped are the versions that some may be stored in and that the next has no more.
	Objects int64    `json:"objects"`
	Dropped []string `json:"dropped,omitempty"`
}

// ObjectPlan is what becomes of an object.
type ObjectPlan struct {
	Name
	Change string `json:"change"`
	// Note says what is not known, or what else is to be known of it.
	Note string `json:"note,omitempty"`
}

// HookPlan is an object that Helm creates, and waits for.
type HookPlan struct {
	Name
	// At names the moments, such as pre-upgrade.
	At string `json:"at"`
}

// SavedPlan counts what is saved.
type SavedPlan struct {
	Definitions int `json:"definitions"`
	// CustomResources counts the objects of each definition that has any.
	CustomResources map[string]int64 `json:"customResources,omitempty"`
	// Unread are definitions of none of these add-ons whose objects cannot be read, and so are not saved, with the reason.
	Unread map[string]string `json:"unread,omitempty"`
}

// Changes reports whether applying the plan would change anything.
func (p *Plan) Changes() bool {
	return slices.ContainsFunc(p.Addons, func(a AddonPlan) bool { return a.Changes })
}

// Refused is an error that names all problems, or nil if the plan can be applied.
func (p *Plan) Refused() error {
	var all []error
	for _, a := range p.Addons {
		for _, problem := range a.Problems {
			all = append(all, fmt.Errorf("%w: %s: %s", ErrRefused, a.Name, problem))
		}
	}
	return errors.Join(all...)
}

// planner looks at a cluster without changing it. Its methods are the parts of one plan, each about one kind of what add-ons bring.
type planner struct {
	*Addons
	client *client
	// live are the definitions by their names; planned are those that units bring, by the kinds of their objects.
	live    map[string]*object
	planned map[schema.GroupKind]definition
	// namespaces are those that come with an add-on.
	namespaces map[string]bool
	// named are the add-ons by what they name.
	named map[key]*unit
}

// Plan says what applying these add-ons, and Hullmark's own, would do. It changes nothing.
func (a *Addons) Plan(ctx context.Context, wanted []render.Addon) (*Plan, error) {
	c, err := a.reach(ctx)
	if err != nil {
		return nil, err
	}
	return a.plan(ctx, c, wanted)
}

func (a *Addons) plan(ctx context.Context, c *client, wanted []render.Addon) (*Plan, error) {
	p := &planner{Addons: a, client: c, live: map[string]*object{}, planned: map[schema.GroupKind]definition{}, namespaces: map[string]bool{}, named: map[key]*unit{}}
	err := c.each(ctx, definitions, func(o *object) error {
		p.live[o.GetName()] = o
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list the CustomResourceDefinitions: %w", err)
	}
	plan := &Plan{}
	if plan.units, err = p.units(ctx, wanted); err != nil {
		return nil, err
	}
	for _, u := range plan.units {
		one, err := p.addon(ctx, u)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", u.addon.Name, err)
		}
		plan.Addons = append(plan.Addons, one)
	}
	plan.Saved, err = p.saved(ctx, plan)
	return plan, err
}

// units reads all add-ons, Hullmark's own first.
func (p *planner) units(ctx context.Context, wanted []render.Addon) ([]*unit, error) {
	all, err := p.ownUnits(ctx)
	if err != nil {
		return nil, err
	}
	for _, a := range wanted {
		u, err := p.unit(ctx, a)
		if err != nil {
			return nil, err
		}
		all = append(all, u)
	}
	for _, u := range all {
		if err := p.brings(u); err != nil {
			return nil, fmt.Errorf("%s: %w", u.addon.Name, err)
		}
	}
	return all, nil
}

// brings notes which kinds and namespaces come with a unit: what others of them are of, or in, may not be there yet.
func (p *planner) brings(u *unit) error {
	if u.isChart() {
		p.namespaces[u.namespace()] = true // Helm makes it.
	}
	for _, o := range u.objects {
		if o.GetKind() == "Namespace" {
			p.namespaces[o.GetName()] = true
		}
	}
	for _, o := range slices.Concat(u.definitions, u.templateDefinitions()) {
		d, err := defined(o)
		if err != nil {
			return err
		}
		p.planned[d.kind()] = d
	}
	return nil
}

// addon says what becomes of a unit.
func (p *planner) addon(ctx context.Context, u *unit) (AddonPlan, error) {
	kind := "manifests"
	if u.own {
		kind = "own"
	} else if u.isChart() {
		kind = "chart"
	}
	plan := AddonPlan{Name: u.addon.Name, Kind: kind, Namespace: u.addon.Namespace, Now: u.now(), Next: u.next(), Waits: u.waits, Notes: u.notes}
	if u.waits != "" {
		p.shared(u) // Nobody else changes them meanwhile.
		return plan, nil
	}
	for _, step := range []func(context.Context, *unit, *AddonPlan) error{p.place, p.addDefinitions, p.addObjects, p.addFormer, p.addHooks, p.addRelease} {
		if err := step(ctx, u, &plan); err != nil {
			return plan, err
		}
	}
	return plan, nil
}

// addObjects says which objects are created and changed.
func (p *planner) addObjects(ctx context.Context, u *unit, plan *AddonPlan) error {
	if u.isChart() && u.last == nil {
		if err := p.addNamespace(ctx, u, plan); err != nil {
			return err
		}
	}
	for _, o := range u.objects {
		if isDefinition(nameOf(o)) { // of a chart's templates: addDefinitions has told of it
			continue
		}
		one, problem, err := p.object(ctx, u, o)
		if err != nil {
			return fmt.Errorf("%s: %w", nameOf(o), err)
		}
		if problem != "" {
			plan.Problems = append(plan.Problems, nameOf(o).String()+": "+problem)
		}
		if one.Change != "" {
			plan.Objects = append(plan.Objects, one)
		}
	}
	return nil
}

// addNamespace tells of the namespace that Helm makes for a release.
func (p *planner) addNamespace(ctx context.Context, u *unit, plan *AddonPlan) error {
	n := namespaceName(u.namespace())
	there, err := p.client.get(ctx, n)
	if err == nil && there == nil {
		plan.Objects = append(plan.Objects, ObjectPlan{Name: n, Change: created})
		plan.Final = append(plan.Final, n.String()+" stays, because others may have put things into it")
	}
	return err
}

// object asks the API server what it would make of an object.
func (p *planner) object(ctx context.Context, u *unit, o *object) (one ObjectPlan, problem string, err error) {
	one = ObjectPlan{Name: nameOf(o)}
	live, err := p.client.get(ctx, nameOf(o))
	if err != nil {
		return one, "", err
	}
	one.Change = changed
	if live == nil {
		one.Change = created
	} else if u.isChart() && !u.consistsOf(o) && !u.helm.owns(live, u.addon.Name) {
		return one, "it is there, and not this release's, so Helm refuses to change it; next: delete it, or give it the label and the annotations by which Helm knows its own", nil
	}
	if u.isChart() {
		o = o.DeepCopy()
		u.helm.own(o, u.addon.Name)
	}
	would, err := p.client.apply(ctx, o, u.manager(), u.forces(), true)
	if err != nil {
		problem, one.Note, err = p.unforeseen(o, err)
		return one, problem, err
	}
	if live != nil && reflect.DeepEqual(content(live, false), content(would, false)) {
		one.Change = ""
	}
	return one, "", nil
}

// unforeseen tells what an error of a dry run means: a problem, a note, or that nothing can be said.
func (p *planner) unforeseen(o *object, err error) (problem, note string, _ error) {
	planned, comes := p.planned[o.GroupVersionKind().GroupKind()]
	_, has := planned.find(o.GroupVersionKind().Version)
	switch {
	case errors.Is(err, errUnserved) && comes && has:
		return "", "its version comes with the definition, so nobody can check it before", nil
	case errors.Is(err, errUnserved):
		return "the API has no such kind: " + err.Error() + "; next: bring its CustomResourceDefinition first", "", nil
	case apierrors.IsNotFound(err) && p.namespaces[o.GetNamespace()]:
		return "", "its namespace comes with the add-ons, so nobody can check it before", nil
	case apierrors.IsNotFound(err):
		return err.Error() + "; next: name the namespace among the manifests, or create it", "", nil
	case isApplyConflict(err):
		return err.Error() + "; next: leave these fields out, or have their manager give them up", "", nil
	case noDryRun(err):
		return "", "a webhook that does not know dry runs is asked of it, so nobody can check it before", nil
	case apierrors.IsInvalid(err), apierrors.IsBadRequest(err), apierrors.IsForbidden(err), isMistyped(err):
		return err.Error(), "", nil
	}
	return "", "", err
}

// addFormer says what becomes of objects that the add-on names no more.
func (p *planner) addFormer(ctx context.Context, u *unit, plan *AddonPlan) error {
	for _, o := range u.former {
		if problem := p.unreadable(u, o); problem != "" {
			plan.Problems = append(plan.Problems, problem)
		}
		if u.names(o) || isDefinition(nameOf(o)) {
			continue
		}
		live, err := p.client.get(ctx, nameOf(o))
		if err != nil {
			return fmt.Errorf("%s: %w", nameOf(o), err)
		}
		if live == nil {
			continue
		}
		one := ObjectPlan{Name: nameOf(o), Change: deleted}
		switch {
		case keeps(live):
			one.Change, one.Note = kept, "it says so itself"
		case o.GetKind() == "PersistentVolumeClaim":
			plan.Final = append(plan.Final, one.Name.String()+" is deleted: what its volume holds may be gone with it")
		}
		plan.Objects = append(plan.Objects, one)
	}
	return nil
}

// unreadable is the problem of a release that names an object in a version which the API does not serve, or not any more: Helm reads
// all of a release before it upgrades it.
func (p *planner) unreadable(u *unit, o *object) string {
	if !u.isChart() {
		return ""
	}
	kind := o.GroupVersionKind()
	if planned, comes := p.planned[kind.GroupKind()]; comes {
		if v, ok := planned.find(kind.Version); ok && v.Served {
			return ""
		}
	} else if _, err := p.client.resource(kind, false); !errors.Is(err, errUnserved) {
		return ""
	}
	return fmt.Sprintf("%s: revision %d of the release has it in %s, which the API will not serve, so Helm could not read it; next: bring a release of the chart that has it in another version in between",
		nameOf(o), u.last.Version, o.GetAPIVersion())
}

// addHooks tells what runs on the way. Helm asks of no hook whose it is: it deletes what has its name, and creates it.
func (p *planner) addHooks(ctx context.Context, u *unit, plan *AddonPlan) error {
	for _, h := range u.hooks {
		n := nameOf(h.object)
		live, err := p.client.get(ctx, n)
		if err != nil {
			return fmt.Errorf("%s: %w", n, err)
		}
		had, err := u.hadHook(n)
		if err != nil {
			return err
		}
		if live != nil && !had {
			plan.Problems = append(plan.Problems, n.String()+": it is there, and no hook of this release's made it, so Helm would replace it; next: delete it, or have the chart name the hook otherwise")
		}
		plan.Hooks = append(plan.Hooks, HookPlan{Name: n, At: h.runs(u.last != nil)})
		plan.Final = append(plan.Final, "what the hook "+n.String()+" does cannot be undone, but for objects that are saved")
	}
	return nil
}

// hadHook reports whether the release has a hook of that name by now.
func (u *unit) hadHook(n Name) (bool, error) {
	if u.last == nil {
		return false, nil
	}
	had, err := parseHooks(u.last.Hooks)
	return slices.ContainsFunc(had, func(h hook) bool {
		was := nameOf(h.object)
		was.Namespace = cmp.Or(was.Namespace, n.Namespace)
		return was.key() == n.key()
	}), err
}

// addRelease says whether anything changes, be it only what is kept of the add-on.
func (p *planner) addRelease(_ context.Context, u *unit, plan *AddonPlan) error {
	isKept := func(o ObjectPlan) bool { return o.Change == kept }
	plan.Changes = len(plan.Definitions) > 0 || len(slices.DeleteFunc(slices.Clone(plan.Objects), isKept)) > 0
	if u.isChart() {
		same, err := u.asReleased()
		plan.Changes = plan.Changes || !same
		if err != nil || plan.Changes {
			return err
		}
	} else if !sameNames(u.former, slices.Concat(u.definitions, u.objects)) {
		plan.Changes = true
	}
	if !plan.Changes { // Then nothing runs.
		plan.Hooks, plan.Final = nil, nil
	}
	return nil
}

// names reports whether the unit names an object.
func (u *unit) names(o *object) bool {
	return slices.ContainsFunc(slices.Concat(u.objects, u.definitions), func(n *object) bool { return nameOf(n).key() == nameOf(o).key() })
}

// consistsOf reports whether an object is the add-on's by now.
func (u *unit) consistsOf(o *object) bool {
	return slices.ContainsFunc(u.former, func(n *object) bool { return nameOf(n).key() == nameOf(o).key() })
}

// sameNames reports whether two lists name the same objects, in whatever order.
func sameNames(a, b []*object) bool {
	set := func(list []*object) map[key]bool {
		names := map[key]bool{}
		for _, o := range list {
			names[nameOf(o).key()] = true
		}
		return names
	}
	return maps.Equal(set(a), set(b))
}
