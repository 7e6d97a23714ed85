package addons

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"

	chart "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/kube"
	releasestatus "helm.sh/helm/v4/pkg/release/common"
	release "helm.sh/helm/v4/pkg/release/v1"

	"github.com/hullmark/hullmark/cluster/render"
)

// manifestManager is what applies plain manifests: the manager that kubectl apply --server-side is, which brought a cluster's own
// when it began, and may have brought others. What one of the two no longer says, the other takes back.
const manifestManager = "kubectl"

// unit is an add-on as it is to be, and as it is.
type unit struct {
	addon render.Addon
	// own says that it is one of Hullmark's own, and forces that its fields are its own.
	own bool
	// waits is why it is not its turn yet, or empty.
	waits string
	// notes are what is to be known of it, whether it changes or not.
	notes []string

	// definitions are applied before anything else of it; objects are all others; hooks run around them.
	definitions, objects []*object
	hooks                []hook
	// former are the objects that it consists of by now, as they were asked for.
	former []*object

	// What follows is a chart's alone: its release, and what that is made of.
	helm   *helm
	last   *release.Release
	chart  *chart.Chart
	values map[string]any
}

func (u *unit) isChart() bool { return u.addon.Chart != "" }

func (u *unit) manager() string {
	if u.isChart() {
		return chartManager
	}
	return manifestManager
}

// forces reports whether fields are taken from other managers. Helm does so where it merges on its own side.
func (u *unit) forces() bool {
	return u.own || u.isChart() && u.last != nil && u.last.ApplyMethod != string(release.ApplyMethodServerSideApply)
}

// namespace is where what names none itself lies.
func (u *unit) namespace() string {
	if u.addon.Namespace != "" {
		return u.addon.Namespace
	}
	return "default"
}

// next and now say what the add-on is to be and what it is, for people.
func (u *unit) next() string {
	switch {
	case u.isChart():
		return chartName(u.chart)
	case u.own:
		return "this release's manifests"
	}
	return "its manifests"
}

func (u *unit) now() string {
	switch {
	case u.last != nil:
		return fmt.Sprintf("%s, revision %d, %s", chartName(u.last.Chart), u.last.Version, u.last.Info.Status)
	case u.own || len(u.former) > 0:
		return "there"
	}
	return ""
}

func chartName(c *chart.Chart) string {
	if c == nil || c.Metadata == nil {
		return "an unknown chart"
	}
	return c.Metadata.Name + "-" + c.Metadata.Version
}

// asReleased reports whether Helm's newest revision says all that the chart says today.
func (u *unit) asReleased() (bool, error) {
	if u.last == nil || u.last.Info.Status != releasestatus.StatusDeployed || chartName(u.last.Chart) != chartName(u.chart) {
		return false, nil
	}
	was, err := json.Marshal(u.last.Config)
	if err != nil {
		return false, err
	}
	is, err := json.Marshal(u.values)
	return bytes.Equal(was, is) || len(u.last.Config) == 0 && len(u.values) == 0, err
}

// unit reads an add-on and asks the cluster what it consists of by now.
func (p *planner) unit(ctx context.Context, a render.Addon) (*unit, error) {
	u := &unit{addon: a}
	read := p.manifestUnit
	if u.isChart() {
		read = p.chartUnit
	}
	if err := read(ctx, u); err != nil {
		return nil, fmt.Errorf("%s: %w", a.Name, err)
	}
	return u, nil
}

// chartUnit renders a chart, and reads what its release consists of.
func (p *planner) chartUnit(ctx context.Context, u *unit) (err error) {
	if u.helm, err = newHelm(p.client.config, u.namespace()); err != nil {
		return err
	}
	if u.last, err = u.helm.last(u.addon.Name); err != nil {
		return err
	}
	if u.chart, err = p.chart(ctx, u.addon); err != nil {
		return err
	}
	if u.values, err = p.values(u.addon); err != nil {
		return err
	}
	made, err := u.helm.render(u.chart, u.values, u.addon.Name, u.last)
	if err != nil {
		return fmt.Errorf("chart %s: %w", u.addon.Chart, err)
	}
	u.definitions, u.objects, u.hooks = made.definitions, made.objects, made.hooks
	u.hooks = slices.DeleteFunc(u.hooks, func(h hook) bool { return h.runs(u.last != nil) == "" })
	u.former, err = u.helm.former(u.last)
	return err
}

func namespaceName(name string) Name { return Name{APIVersion: "v1", Kind: "Namespace", Name: name} }

// manifestUnit reads plain manifests, and what they consisted of when they were applied last.
func (p *planner) manifestUnit(ctx context.Context, u *unit) error {
	if u.objects == nil { // Hullmark's own are made by who knows them.
		objects, err := p.manifests(u.addon)
		if err != nil {
			return err
		}
		u.objects = objects
	}
	isTheirs := func(o *object) bool { return isDefinition(nameOf(o)) }
	for _, o := range u.objects {
		if isTheirs(o) {
			u.definitions = append(u.definitions, o)
		}
	}
	u.objects = slices.DeleteFunc(u.objects, isTheirs)
	former, err := readInventory(ctx, p.client, u.addon.Name)
	u.former = former
	return err
}

// keeps reports whether an object is to stay although its add-on consists of it no more.
func keeps(o *object) bool { return o.GetAnnotations()[kube.ResourcePolicyAnno] == kube.KeepPolicy }

// touched are the names of all objects that applying the unit may change, each once.
func (u *unit) touched() []Name {
	var names []Name
	seen := map[key]bool{}
	add := func(n Name) {
		if !seen[n.key()] {
			seen[n.key()] = true
			names = append(names, n)
		}
	}
	if u.isChart() && u.last == nil {
		add(namespaceName(u.namespace()))
	}
	for _, list := range [][]*object{u.objects, u.former, u.definitions} {
		for _, o := range list {
			add(nameOf(o))
		}
	}
	for _, h := range u.hooks {
		add(nameOf(h.object))
	}
	if !u.isChart() {
		add(inventoryName(u.addon.Name))
	}
	return names
}
