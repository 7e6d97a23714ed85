package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/hullmark/hullmark"
)

// part is a piece of the upgrades' demo that can be run alone, on a cluster that an earlier run has left.
type part struct {
	name  string
	steps []step
}

// parts are a node's releases that do not work, and a cluster's that do.
func (d *demo) upgradeParts() []part {
	failed := func(name, reason string) part {
		return part{name, []step{
			{name + ": build and measure it", func(ctx context.Context) error {
				d.releases[name].source = d.releases[d.workers[0].runs].source // It has the Kubernetes that runs.
				return d.offer(ctx, d.releases[name], d.workers...)
			}},
			{name + ": the worker tries it", func(ctx context.Context) error { return d.fallBack(ctx, d.releases[name], reason) }},
		}}
	}
	rolled := func(name string) part {
		return part{name, []step{
			{name + ": build and measure it", func(ctx context.Context) error { return d.offer(ctx, d.releases[name], d.nodes()...) }},
			{name + ": the cluster takes it", func(ctx context.Context) error { return d.roll(ctx, d.releases[name]) }},
		}}
	}
	return []part{
		{"refused", []step{{"refused: no policy accepts it", d.refuseRelease}}},
		failed("panic", "did not get as far as its state disk, or hung"),
		failed("hang", "did not get as far as its state disk, or hung"),
		failed("unready", "did not get Ready"),
		rolled("packages"),
		rolled("kubernetes"),
	}
}

// upgradeSteps are those of the named parts, of all if none is named, in their order. The cluster is made before, unless an earlier run
// has left one.
func (d *demo) upgradeSteps(names string) (steps []step, err error) {
	if d.resumed {
		steps = []step{{"switch the machines on, recover", d.resume}}
	} else {
		steps = []step{
			{"build the release to begin with", func(ctx context.Context) error { return d.buildRelease(ctx, d.releases["base"]) }},
			{"make a cluster file", d.makeCluster},
			{"predict the machine's registers", d.predict},
			{"boot a machine", d.boot},
			{"await it, attest, release, init", d.release},
			{"predict the worker's registers", d.predictWorkers},
			{"worker-1 joins by itself", func(ctx context.Context) error { return d.join(ctx, d.workers[0]) }},
			{"a pod answers on each node", d.serveSteadily},
			{"their registers", func(context.Context) error {
				return d.booted(map[string][]string{d.first.name: {"base"}, d.workers[0].name: {"base"}})
			}},
		}
	}
	left := strings.FieldsFunc(names, func(r rune) bool { return r == ',' || r == ' ' })
	all := len(left) == 0
	var known []string
	for _, p := range d.upgradeParts() {
		known = append(known, p.name)
		if i := slices.Index(left, p.name); i >= 0 {
			left = slices.Delete(left, i, i+1)
		} else if !all {
			continue
		}
		steps = append(steps, p.steps...)
	}
	if len(left) > 0 {
		return nil, fmt.Errorf("--parts: there is no %q; the parts are %s", left[0], strings.Join(known, ", "))
	}
	return append(steps, step{"ask the cluster at the end", d.ask}), nil
}

func (d *demo) nodes() []*node { return append([]*node{d.first}, d.workers...) }

// clusterFile are the flags with which a command opens the cluster file.
func (d *demo) clusterFile() []string {
	return []string{"--cluster", d.path("cluster"), "--passphrase-file", d.path("passphrase")}
}

// toNode and toAPI ask a node's agent, and the API server.
func (d *demo) toNode(n *node) []string {
	return append(d.clusterFile(), "--node", "127.0.0.1:"+n.agent)
}
func (d *demo) toAPI() []string { return append(d.clusterFile(), "--server", "127.0.0.1:"+d.api) }

// resume switches the machines on that an earlier run has left, and lets the control plane go on; the worker follows.
func (d *demo) resume(ctx context.Context) error {
	if err := d.startNetwork(ctx); err != nil {
		return err
	}
	for _, n := range d.nodes() {
		if err := d.power(ctx, n); err != nil {
			return err
		}
	}
	if err := d.hullmark(ctx, append([]string{"recover", "--yes", "--wait", "10m"}, d.toNode(d.first)...)...); err != nil {
		return err
	}
	if err := os.Remove(d.path("kubeconfig")); err != nil { // It names the earlier run's port.
		return err
	}
	if err := d.hullmark(ctx, append([]string{"cluster", "kubeconfig", d.path("kubeconfig"), "--endpoint", "127.0.0.1:" + d.api}, d.clusterFile()...)...); err != nil {
		return err
	}
	if err := d.awaitReady(ctx, d.nodes()...); err != nil {
		return err
	}
	if err := d.steady(ctx); err != nil {
		return err
	}
	return d.booted(nil)
}

// refuseRelease asks for a release that no policy accepts, of a node and then of the cluster: nothing is begun.
func (d *demo) refuseRelease(ctx context.Context) error {
	r, w := d.releases["panic"], d.workers[0]
	if err := d.publish(ctx, r, w); err != nil {
		return err
	}
	before, err := d.updateStatus(ctx, w)
	if err != nil {
		return err
	}
	if err := d.hullmarkEnds(ctx, exitDenied, append([]string{"update", "stage", d.document(r, w), "--from", d.shelf}, d.toNode(w)...)...); err != nil {
		return err
	}
	if err := d.hullmarkEnds(ctx, exitDenied, append([]string{"upgrade", "apply", d.document(r, w), "--from", d.shelf}, d.toAPI()...)...); err != nil {
		return err
	}
	after, err := d.updateStatus(ctx, w)
	if err == nil && !reflect.DeepEqual(after, before) {
		err = fmt.Errorf("%s said %+v, and now %+v, want nothing begun", w.name, before, after)
	}
	return err
}

// fallBack has a worker stage and try a release, and expects that it comes back by itself, with the release from before, and says why.
func (d *demo) fallBack(ctx context.Context, r *release, reason string) error {
	w := d.workers[0]
	if err := d.hullmark(ctx, append([]string{"update", "stage", d.document(r, w), "--from", d.shelf}, d.toNode(w)...)...); err != nil {
		return err
	}
	w.boot = "" // After a resume the cluster may have told of a boot of the run before.
	if err := d.awaitReady(ctx, w); err != nil {
		return err
	}
	if err := d.hullmark(ctx, append([]string{"update", "try", d.document(r, w)}, d.toNode(w)...)...); err != nil {
		return err
	}
	began, before := time.Now(), w.runs
	if err := d.awaitReadyFor(ctx, time.Hour, w); err != nil {
		return err
	}
	fmt.Printf("%s is back after %.0f s\n", w.name, time.Since(began).Seconds())
	status, err := d.updateStatus(ctx, w)
	if err != nil {
		return err
	}
	if status.Phase != hullmark.UpdateFailed || status.Running != status.Default || status.Failed == nil || status.Failed.Code != "trial-failed" {
		return fmt.Errorf("%s says %+v, want a trial that failed", w.name, status)
	}
	fmt.Println(status.Failed)
	if !strings.Contains(fmt.Sprint(status.Failed), reason) {
		return fmt.Errorf("%s says %v, want %q in it", w.name, status.Failed, reason)
	}
	return d.booted(map[string][]string{w.name: {r.name, before}})
}

// roll takes a release through the cluster, whose engine does it; the demo is the operator of its only control plane. Meanwhile somebody
// asks the pods from outside, every second.
func (d *demo) roll(ctx context.Context, r *release) error {
	documents := []string{d.document(r, d.first), d.document(r, d.workers[0])}
	from := append([]string{"--from", d.shelf}, d.toAPI()...)
	if err := d.hullmark(ctx, slices.Concat([]string{"upgrade", "plan"}, documents, from)...); err != nil {
		return err
	}
	asked := d.askPods(ctx)
	err := d.hullmark(ctx, slices.Concat([]string{"upgrade", "apply"}, documents, from)...)
	if err == nil {
		err = d.hullmark(ctx, slices.Concat([]string{"upgrade", "attend", d.first.name, "--yes", "--node", "127.0.0.1:" + d.agent}, d.toAPI())...)
	}
	if err == nil {
		err = d.hullmark(ctx, append([]string{"upgrade", "status", "--follow", "--wait", "10m"}, d.toAPI()...)...)
	}
	if err = errors.Join(err, asked()); err != nil {
		return err
	}
	for _, n := range d.nodes() {
		n.boot = "" // Whichever boot it is: the engine has waited for it.
	}
	if err := d.awaitReady(ctx, d.nodes()...); err != nil {
		return err
	}
	want := map[string][]string{}
	for _, n := range d.nodes() {
		want[n.name] = []string{r.name}
		status, err := d.updateStatus(ctx, n)
		if err != nil {
			return err
		}
		if status.Phase != hullmark.UpdateIdle || status.Running != status.Default || status.Failed != nil {
			return fmt.Errorf("%s says %+v, want the release kept", n.name, status)
		}
	}
	return d.booted(want)
}

// booted holds every boot since it was last called to what was predicted of it before, and the releases of each node's to those that are
// wanted, where a node is named.
func (d *demo) booted(want map[string][]string) error {
	for _, n := range d.nodes() {
		names, err := d.judgeBoots(n)
		if err != nil {
			return err
		}
		if wanted, ok := want[n.name]; ok && !slices.Equal(names, wanted) {
			return fmt.Errorf("%s booted %v, want %v", n.name, names, wanted)
		}
	}
	return nil
}
