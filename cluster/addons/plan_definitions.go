package addons

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// definitions is the resource of CustomResourceDefinitions.
var definitions = schema.GroupVersionResource{Group: definitionKind.Group, Version: definitionKind.Version, Resource: "customresourcedefinitions"}

// place gives each object that names no namespace the add-on's, if its kind has namespaces, and none if it has not.
func (p *planner) place(_ context.Context, u *unit, plan *AddonPlan) error {
	all := slices.Concat(u.objects, u.definitions, u.former)
	for _, h := range u.hooks {
		all = append(all, h.object)
	}
	for _, o := range all {
		namespaced, err := p.namespaced(o)
		switch {
		case errors.Is(err, errUnserved): // object and unforeseen say what that means
		case err != nil:
			return fmt.Errorf("%s: %w", nameOf(o), err)
		case !namespaced:
			o.SetNamespace("")
		case o.GetNamespace() == "":
			o.SetNamespace(u.namespace())
		}
	}
	u.twice(plan)
	plan.Problems = append(plan.Problems, p.shared(u)...)
	return nil
}

// shared notes what a unit names, and finds what another names, too: each would take back what the other brings, and the last would win,
// over Hullmark's own as well. Several may name a namespace that they are in, and charts bring the same definitions.
func (p *planner) shared(u *unit) (problems []string) {
	all := slices.Concat(u.definitions, u.objects)
	for _, h := range u.hooks {
		all = append(all, h.object)
	}
	for _, o := range all {
		n := nameOf(o)
		other, taken := p.named[n.key()]
		switch {
		case !taken:
			p.named[n.key()] = u
		case other != u && (other.own || n.Kind != "Namespace" && !isDefinition(n)):
			problems = append(problems, fmt.Sprintf("%s: the add-on %s names it, too; next: leave it out of one of the two", n, other.addon.Name))
		}
	}
	return problems
}

// namespaced reports whether a kind has namespaces.
func (p *planner) namespaced(o *object) (bool, error) {
	if d, ok := p.planned[o.GroupVersionKind().GroupKind()]; ok {
		return d.namespaced(), nil
	}
	mapping, err := p.client.resource(o.GroupVersionKind(), true)
	if err != nil {
		return false, err
	}
	return mapping.Scope.Name() == "namespace", nil
}

// twice finds objects that are named twice: the last would win, and nobody could tell.
func (u *unit) twice(plan *AddonPlan) {
	seen := map[key]bool{}
	for _, o := range slices.Concat(u.definitions, u.objects) {
		if n := nameOf(o); seen[n.key()] {
			plan.Problems = append(plan.Problems, n.String()+": it is named twice; next: name it once")
		} else {
			seen[n.key()] = true
		}
	}
}

// templateDefinitions are those that a chart has among its templates. Helm applies them, and deletes them once the chart has them no more.
func (u *unit) templateDefinitions() (all []*object) {
	for _, o := range u.objects {
		if isDefinition(nameOf(o)) {
			all = append(all, o)
		}
	}
	return all
}

// addDefinitions says what becomes of definitions, and what stands in their way.
func (p *planner) addDefinitions(ctx context.Context, u *unit, plan *AddonPlan) error {
	for _, o := range slices.Concat(u.definitions, u.templateDefinitions()) {
		one, problems, err := p.definition(ctx, u, o)
		if err != nil {
			return fmt.Errorf("%s: %w", nameOf(o), err)
		}
		if one.Change != "" {
			plan.Definitions = append(plan.Definitions, one)
		}
		for _, problem := range problems {
			plan.Problems = append(plan.Problems, "definition "+one.Name+": "+problem)
		}
	}
	for _, o := range u.former {
		if !isDefinition(nameOf(o)) || u.names(o) {
			continue
		}
		if err := p.leaving(ctx, o, plan); err != nil {
			return fmt.Errorf("%s: %w", nameOf(o), err)
		}
	}
	return nil
}

// definition compares a definition with the cluster's.
func (p *planner) definition(ctx context.Context, u *unit, o *object) (one DefinitionPlan, problems []string, err error) {
	next, err := defined(o)
	if err != nil {
		return one, nil, err
	}
	one = DefinitionPlan{Name: o.GetName(), Change: created, Next: next.versions()}
	live := p.live[o.GetName()]
	if live == nil {
		problem, err := p.dryRun(ctx, u, o)
		return one, problem, err
	}
	now, err := defined(live)
	if err != nil {
		return one, nil, err
	}
	one.Change, one.Now, one.Dropped = changed, now.versions(), now.dropped(next)
	if one.Objects, err = p.countOf(ctx, now); err != nil {
		return one, []string{unsaved(err)}, nil
	}
	if field := now.fixed(next); field != "" {
		return one, []string{"it cannot change in place: " + field + "; next: see how its makers tell to migrate"}, nil
	}
	if len(one.Dropped) > 0 { // The API server refuses that even as a dry run.
		return one, p.migration(one, live, o), nil
	}
	return p.unchanged(ctx, u, o, live, one)
}

// unchanged asks the API server whether it would change a definition at all.
func (p *planner) unchanged(ctx context.Context, u *unit, o, live *object, one DefinitionPlan) (DefinitionPlan, []string, error) {
	would, err := p.client.apply(ctx, o, u.manager(), true, true)
	if err != nil {
		problem, _, err := p.unforeseen(o, err)
		return one, []string{problem}, err
	}
	if reflect.DeepEqual(content(live, false), content(would, false)) {
		one.Change = ""
	}
	return one, nil, nil
}

// dryRun has the API server check a new definition.
func (p *planner) dryRun(ctx context.Context, u *unit, o *object) ([]string, error) {
	_, err := p.client.apply(ctx, o, u.manager(), true, true)
	if err == nil {
		return nil, nil
	}
	problem, _, err := p.unforeseen(o, err)
	return []string{problem}, err
}

// migration is the problem of a definition that drops versions which objects may be stored in, unless they shall be written anew.
func (p *planner) migration(one DefinitionPlan, live, next *object) []string {
	if p.Migrate {
		return nil
	}
	_, storage := bridged(live, next)
	return []string{fmt.Sprintf("it drops %s, in which objects may be stored (status.storedVersions): nobody could read those any more; next: --migrate has its %d objects written anew in %s before, or bring a release of the add-on between the two",
		strings.Join(one.Dropped, " and "), one.Objects, storage)}
}

// leaving tells of a definition that a chart's templates name no more: Helm deletes it, and with it all objects of its kind.
func (p *planner) leaving(ctx context.Context, o *object, plan *AddonPlan) error {
	live := p.live[o.GetName()]
	if live == nil {
		return nil
	}
	now, err := defined(live)
	if err != nil {
		return err
	}
	one := DefinitionPlan{Name: o.GetName(), Change: deleted, Now: now.versions()}
	if keeps(live) || plan.Kind != "chart" { // What plain manifests brought stays: definitions are other people's, too.
		one.Change = kept
		return nil
	}
	if one.Objects, err = p.countOf(ctx, now); err != nil {
		plan.Problems = append(plan.Problems, "definition "+one.Name+": "+unsaved(err))
	} else if one.Objects > 0 {
		plan.Problems = append(plan.Problems, fmt.Sprintf("definition %s: the chart has it no more, so Helm would delete it, and its %d objects with it; next: kubectl annotate crd %[1]s helm.sh/resource-policy=keep, or delete the objects", one.Name, one.Objects))
	}
	plan.Definitions = append(plan.Definitions, one)
	return nil
}

// countOf counts the objects of a definition.
func (p *planner) countOf(ctx context.Context, d definition) (int64, error) {
	if d.read() == "" {
		return 0, errors.New("none of its versions is served")
	}
	return p.client.count(ctx, d.resource(d.read()))
}

// unsaved is the problem of a definition whose objects cannot be read.
func unsaved(err error) string {
	return "its objects cannot be read, so nobody can save them: " + err.Error() + "; next: bring its conversion webhook up, or take a backup of etcd and do it by hand"
}

// saved counts what is to be saved.
func (p *planner) saved(ctx context.Context, plan *Plan) (SavedPlan, error) {
	s := SavedPlan{Definitions: len(p.live), CustomResources: map[string]int64{}, Unread: map[string]string{}}
	touched := plan.touchedDefinitions()
	for name, o := range p.live {
		d, err := defined(o)
		if err != nil {
			return s, err
		}
		n, err := p.countOf(ctx, d)
		switch {
		case err == nil && n > 0:
			s.CustomResources[name] = n
		case err != nil && !touched[name]: // of those that are touched it is a problem already
			s.Unread[name] = err.Error()
		}
		if ctx.Err() != nil {
			return s, ctx.Err()
		}
	}
	return s, nil
}

// touchedDefinitions are the names of the definitions that the plan's add-ons have, had, or get.
func (p *Plan) touchedDefinitions() map[string]bool {
	names := map[string]bool{}
	for i, u := range p.units {
		if !p.Addons[i].Changes {
			continue
		}
		for _, n := range u.touched() {
			if isDefinition(n) {
				names[n.Name] = true
			}
		}
	}
	return names
}

// isMistyped reports whether an object has fields that its kind has not, or of another type. The API server calls that an error of
// its own (k8s.io/apimachinery, managedfields/internal, structuredmerge.go).
func isMistyped(err error) bool {
	return apierrors.IsInternalError(err) && strings.Contains(err.Error(), "failed to create typed patch object")
}

// noDryRun reports whether a webhook refused only that it is asked on trial (k8s.io/apiserver, webhook/errors).
func noDryRun(err error) bool {
	return apierrors.IsBadRequest(err) && strings.Contains(err.Error(), "does not support dry run")
}
