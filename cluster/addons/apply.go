package addons

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"helm.sh/helm/v4/pkg/action"
	"helm.sh/helm/v4/pkg/kube"
	"k8s.io/client-go/rest"

	"github.com/hullmark/hullmark/cluster/render"
)

// maxHistory is how many revisions of a release Helm keeps, as the helm command does.
const maxHistory = 10

// Apply brings these add-ons, and Hullmark's own, to the cluster, in their order: it plans, saves what may change, and changes it. If
// one fails, everything of this call is put back, and the error says so, and what could not be; if ctx ends, or this process,
// Rollback puts it back. The plan is returned with each error that came after it.
func (a *Addons) Apply(ctx context.Context, wanted []render.Addon) (*Plan, error) {
	c, err := a.reach(ctx)
	if err != nil {
		return nil, err
	}
	run := newRun()
	l, err := a.acquire(ctx, c, run)
	if err != nil {
		return nil, err
	}
	defer l.close(ctx)
	ctx = l.keep(ctx)
	if other := l.noted(unfinished); other != "" {
		return nil, fmt.Errorf("%w: run %s was interrupted; next: hullmark addons rollback puts back what was before it, then this can be done", ErrRefused, other)
	}
	plan, err := a.plan(ctx, c, wanted)
	if err == nil {
		err = plan.Refused()
	}
	if err != nil || !plan.Changes() {
		return plan, err
	}
	h, err := a.header(plan, run, l.noted(latest))
	if err != nil {
		return plan, err
	}
	if err := a.save(ctx, c, plan, h); err != nil {
		return plan, err
	}
	if err := l.note(ctx, map[string]string{unfinished: run}); err != nil {
		return plan, err
	}
	if err := a.change(ctx, plan); err != nil {
		return plan, a.fail(ctx, l, run, err)
	}
	return plan, l.note(ctx, map[string]string{unfinished: "", latest: run})
}

// header is the beginning of what is saved for a plan.
func (a *Addons) header(plan *Plan, run, previous string) (h header, err error) {
	h = header{Run: run, Previous: previous, Time: time.Now().UTC().Truncate(time.Second)}
	h.Definitions = slices.Sorted(maps.Keys(plan.touchedDefinitions()))
	for i, u := range plan.units {
		if !plan.Addons[i].Changes {
			continue
		}
		h.Addons = append(h.Addons, u.addon.Name)
		if u.isChart() {
			release := savedRelease{Namespace: u.namespace(), Name: u.addon.Name}
			if u.last != nil {
				release.Revision = u.last.Version
			}
			h.Releases = append(h.Releases, release)
		}
	}
	h.Cluster, err = a.cluster()
	return h, err
}

// fail puts back what a run changed that failed, unless it was interrupted: then somebody wants it to stop.
func (a *Addons) fail(ctx context.Context, l *lock, run string, cause error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("%w; what was changed so far stays until hullmark addons rollback puts it back, from %s", context.Cause(ctx), a.file(run))
	}
	a.say("failed: %v", cause)
	var restored Restored
	c, err := a.reach(ctx) // An API server that went away may be why it failed.
	if err == nil {
		restored, err = a.restore(ctx, c, l, a.file(run), run)
	}
	for _, note := range restored.Notes {
		a.say("%s", note)
	}
	switch {
	case err != nil:
		return fmt.Errorf("%w; and not all is put back: %w", cause, err)
	case len(restored.Problems) > 0:
		return fmt.Errorf("%w; everything was put back as it was, but for: %s", cause, strings.Join(restored.Problems, "; "))
	}
	return fmt.Errorf("%w; everything was put back as it was", cause)
}

// change does what a plan says. Once it returns, nothing more is changed by it, whatever goes on in the background.
func (a *Addons) change(ctx context.Context, plan *Plan) error {
	passage := &gate{}
	defer passage.shut()
	defer context.AfterFunc(ctx, passage.shut)()
	config := passage.wrap(a.Config)
	c, err := connect(config)
	if err != nil {
		return err
	}
	for i, u := range plan.units {
		if !plan.Addons[i].Changes {
			continue
		}
		a.say("%s: bringing %s", u.addon.Name, u.next())
		if err := a.changeUnit(ctx, c, config, u); err != nil {
			return fmt.Errorf("%s: %w", u.addon.Name, err)
		}
		a.done("%s: brought %s", u.addon.Name, u.next())
	}
	return nil
}

// changeUnit brings one add-on: its definitions, and then the rest.
func (a *Addons) changeUnit(ctx context.Context, c *client, config *rest.Config, u *unit) error {
	d := definer{a, c}
	for _, o := range u.definitions {
		if err := d.apply(ctx, u, o, true); err != nil {
			return fmt.Errorf("definition %s: %w", o.GetName(), err)
		}
	}
	for _, o := range u.templateDefinitions() {
		if err := d.apply(ctx, u, o, false); err != nil {
			return fmt.Errorf("definition %s: %w", o.GetName(), err)
		}
	}
	if u.isChart() {
		return a.changeRelease(ctx, config, u)
	}
	c.refresh()
	return a.changeManifests(ctx, c, config, u)
}

// apply brings a definition, once nothing is stored in versions that it drops. always says that it is ours to apply, and not only
// if it has to be prepared for what Helm applies.
func (d definer) apply(ctx context.Context, u *unit, o *object, always bool) error {
	live, err := d.client.get(ctx, nameOf(o))
	if err != nil {
		return err
	}
	prepared, err := d.prepare(ctx, live, o)
	if err != nil || !prepared && !always {
		return err
	}
	if !always {
		o = o.DeepCopy()
		u.helm.own(o, u.addon.Name)
	}
	if _, err := d.client.apply(ctx, o, u.manager(), true, false); err != nil {
		return err
	}
	return d.await(ctx, o.GetName())
}

// prepare has the objects of a definition written anew, if that is wanted and the next drops versions that they may be stored in.
func (d definer) prepare(ctx context.Context, live, target *object) (bool, error) {
	if live == nil || !d.Migrate {
		return false, nil
	}
	now, err := defined(live)
	if err != nil {
		return false, err
	}
	next, err := defined(target)
	if err != nil || len(now.dropped(next)) == 0 {
		return false, err
	}
	return true, d.migrate(ctx, live, target)
}

// changeRelease has Helm install or upgrade a chart, and wait until it is ready.
func (a *Addons) changeRelease(ctx context.Context, config *rest.Config, u *unit) error {
	h, err := newHelm(config, u.namespace())
	if err != nil {
		return err
	}
	own, ok := h.cfg.KubeClient.(*kube.Client)
	if !ok {
		return fmt.Errorf("of Helm: a %T, want its own client", h.cfg.KubeClient)
	}
	planned := map[key]bool{}
	for _, n := range u.touched() {
		planned[n.key()] = true
	}
	h.cfg.KubeClient = held{own, planned}
	ch, err := a.chart(ctx, u.addon) // Helm changes what it renders, and this was rendered.
	if err != nil {
		return err
	}
	values, err := a.values(u.addon)
	if err != nil {
		return err
	}
	waits := []kube.WaitOption{kube.WithWaitContext(ctx)}
	if u.last == nil {
		there, err := h.client.get(ctx, namespaceName(h.namespace))
		if err != nil {
			return err
		}
		i := action.NewInstall(h.cfg)
		i.ReleaseName, i.Namespace, i.CreateNamespace, i.SkipCRDs = u.addon.Name, h.namespace, there == nil, true
		i.WaitStrategy, i.WaitOptions, i.WaitForJobs, i.Timeout = kube.StatusWatcherStrategy, waits, true, a.Timeout
		_, err = i.RunWithContext(ctx, ch, values)
		return err
	}
	up := action.NewUpgrade(h.cfg)
	up.Namespace, up.SkipCRDs, up.MaxHistory, up.ResetValues = h.namespace, true, maxHistory, true
	up.WaitStrategy, up.WaitOptions, up.WaitForJobs, up.Timeout = kube.StatusWatcherStrategy, waits, true, a.Timeout
	_, err = up.RunWithContext(ctx, u.addon.Name, ch, values)
	return err
}

// changeManifests applies plain manifests, removes what they name no more, and waits until they are ready.
func (a *Addons) changeManifests(ctx context.Context, c *client, config *rest.Config, u *unit) error {
	objects := slices.Clone(u.objects)
	slices.SortStableFunc(objects, func(a, b *object) int { return rank(a.GetKind()) - rank(b.GetKind()) })
	for _, o := range objects {
		if _, err := c.apply(ctx, o, u.manager(), u.forces(), false); err != nil {
			return fmt.Errorf("%s: %w", nameOf(o), err)
		}
	}
	for _, o := range u.former {
		if u.names(o) || isDefinition(nameOf(o)) {
			continue
		}
		if err := a.removeFormer(ctx, c, nameOf(o)); err != nil {
			return fmt.Errorf("%s: %w", nameOf(o), err)
		}
	}
	kept, err := inventory(u.addon.Name, slices.Concat(u.definitions, u.objects))
	if err != nil {
		return err
	}
	if _, err := c.apply(ctx, kept, restoreManager, true, false); err != nil {
		return fmt.Errorf("%s: %w", nameOf(kept), err)
	}
	return a.ready(ctx, config, u)
}

// removeFormer deletes what an add-on names no more, unless that says that it stays.
func (a *Addons) removeFormer(ctx context.Context, c *client, n Name) error {
	live, err := c.get(ctx, n)
	if err != nil || live == nil || keeps(live) {
		return err
	}
	return c.delete(ctx, n)
}

// ready waits until plain manifests are, as Helm waits for charts.
func (a *Addons) ready(ctx context.Context, config *rest.Config, u *unit) error {
	h, err := newHelm(config, u.namespace())
	if err != nil {
		return err
	}
	var stream bytes.Buffer
	for _, o := range u.objects {
		text, err := json.Marshal(o)
		if err != nil {
			return err
		}
		stream.WriteString("---\n")
		stream.Write(text)
		stream.WriteByte('\n')
	}
	own, ok := h.cfg.KubeClient.(*kube.Client)
	if !ok {
		return fmt.Errorf("of Helm: a %T, want its own client", h.cfg.KubeClient)
	}
	list, err := own.Build(&stream, false)
	if err != nil {
		return err
	}
	waiter, err := own.GetWaiterWithOptions(kube.StatusWatcherStrategy, kube.WithWaitContext(ctx))
	if err != nil {
		return err
	}
	if err := waiter.WaitWithJobs(list, a.Timeout); err != nil {
		if errors.Is(err, context.DeadlineExceeded) {
			return fmt.Errorf("not ready after %v: %w", a.Timeout, err)
		}
		return err
	}
	return nil
}
