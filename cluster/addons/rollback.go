package addons

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// abreast is how many custom resources are compared and put back at once.
const abreast = 8

// maxPending bounds the custom resources that are tried again later, because they are kept in memory until then.
const maxPending = 10000

// Rollback puts back what was before a run that is unfinished: one that was interrupted, or whose changes could not all be put
// back. file names the saved state of a run that is finished, the latest, in its place; it is empty for an unfinished one. It can
// be called again however far it came, and changes nothing once everything is as it was. If there is nothing to put back, the
// result has no Run.
func (a *Addons) Rollback(ctx context.Context, file string) (Restored, error) {
	c, err := a.reach(ctx)
	if err != nil {
		return Restored{}, err
	}
	l, err := a.acquire(ctx, c, newRun())
	if err != nil {
		return Restored{}, err
	}
	defer l.close(ctx)
	ctx = l.keep(ctx)
	path, run, err := a.choose(l, file)
	if err != nil || path == "" {
		return Restored{}, err
	}
	return a.restore(ctx, c, l, path, run)
}

// choose returns the saved state that is to be put back, and the run that saved it, or nothing.
func (a *Addons) choose(l *lock, file string) (path, run string, err error) {
	run = l.noted(unfinished)
	if file == "" {
		if run == "" {
			return "", "", nil
		}
		if _, err := os.Stat(a.file(run)); err != nil {
			return "", "", fmt.Errorf("run %s is unfinished, and what it saved is not here: %w; next: do it where it ran, or bring its file here", run, err)
		}
		return a.file(run), run, nil
	}
	h, err := a.open(file, "", func(saved) error { return nil })
	if err != nil {
		return "", "", err
	}
	switch last := l.noted(latest); {
	case run != "" && run != h.Run:
		return "", "", fmt.Errorf("%w: run %s is unfinished, and this is what %s saved; next: hullmark addons rollback without a file", ErrRefused, run, h.Run)
	case run == h.Run, last == h.Run, last == h.Previous: // of the last, it was put back before
		return file, h.Run, nil
	default:
		return "", "", fmt.Errorf("%w: %s was saved by run %s, and run %s has changed add-ons since; next: put back what that one saved first", ErrRefused, file, h.Run, last)
	}
}

// state is what of a saved state is kept in memory: all but custom resources.
type state struct {
	header
	path                          string
	definitions, objects, records []saved
	// custom are the kinds of all custom resources, and kinds those of the ones that come back.
	custom, kinds map[schema.GroupKind]bool
}

func (a *Addons) read(path, run string) (s state, err error) {
	s = state{path: path, custom: map[schema.GroupKind]bool{}, kinds: map[schema.GroupKind]bool{}}
	s.header, err = a.open(path, run, func(o saved) error {
		switch o.part {
		case partDefinition:
			s.definitions = append(s.definitions, o)
		case partRecord:
			s.records = append(s.records, o)
		case partObject:
			s.objects = append(s.objects, o)
		}
		if len(s.definitions)+len(s.records)+len(s.objects) > maxPending*10 {
			return errors.New("more objects than any add-ons have")
		}
		return nil
	})
	if err != nil {
		return s, err
	}
	isTouched := func(d saved) bool { return slices.Contains(s.header.Definitions, d.name.Name) }
	for _, o := range s.definitions {
		if o.object == nil {
			continue
		}
		d, err := defined(o.object)
		if err != nil {
			return s, err
		}
		s.custom[d.kind()] = true
		s.kinds[d.kind()] = isTouched(o)
	}
	s.definitions = slices.DeleteFunc(s.definitions, func(d saved) bool { return !isTouched(d) })
	return s, nil
}

// restore puts a saved state back and notes that in the Lease. What could not be put back is in the result: the run is finished all
// the same, so that others can begin, and its file can be named again.
func (a *Addons) restore(ctx context.Context, c *client, l *lock, path, run string) (Restored, error) {
	s, err := a.read(path, run)
	if err != nil {
		return Restored{}, err
	}
	if err := a.untouched(ctx, c, s); err != nil {
		return Restored{}, err
	}
	if err := l.note(ctx, map[string]string{unfinished: s.Run}); err != nil {
		return Restored{}, err
	}
	r := &restorer{Addons: a, client: c, path: path, Restored: Restored{Run: s.Run}}
	a.say("putting back what run %s saved at %s", s.Run, s.Time.Format("2006-01-02 15:04:05 MST"))
	if err := r.state(ctx, s); err != nil {
		return r.Restored, fmt.Errorf("%w; next: hullmark addons rollback goes on", err)
	}
	return r.Restored, l.note(ctx, map[string]string{unfinished: "", latest: s.Previous})
}

// untouched refuses a state after whose run somebody else changed a release: its revision is not the run's.
func (a *Addons) untouched(ctx context.Context, c *client, s state) error {
	for _, release := range s.Releases {
		list, err := c.records(ctx, release.Namespace, release.Name)
		if err != nil {
			return err
		}
		for i := range list {
			if n := revision(&list[i]); n > release.Revision+1 {
				return fmt.Errorf("%w: release %s has revision %d, and run %s made none after %d: another program changed it since; next: helm rollback %[2]s %[5]d, then repeat this",
					ErrRefused, release.Name, n, s.Run, release.Revision+1)
			}
		}
	}
	return nil
}

// state puts everything back, in an order in which it can be: definitions by what converts their objects today; all else; the
// definitions that could not be before; and then their objects.
func (r *restorer) state(ctx context.Context, s state) error {
	failed := r.definitions(ctx, s.definitions, false)
	r.client.refresh() // It knows the kinds that were served before.
	if err := r.all(ctx, items(s.objects, s.custom)); err != nil {
		return err
	}
	if err := r.records(ctx, s); err != nil {
		return err
	}
	r.definitions(ctx, failed, true)
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	r.client.refresh()
	return r.custom(ctx, s)
}

// items are what is to be done about saved objects: first those removed that were not there, what refuses others before all; then
// the others put back, what others need before all.
func items(objects []saved, custom map[schema.GroupKind]bool) []item {
	var all []item
	for _, o := range objects {
		all = append(all, item{saved: o, isRemoval: o.object == nil, isCustom: custom[o.name.kind().GroupKind()]})
	}
	place := func(i item) int {
		if i.isRemoval {
			return -1000 - rank(i.name.Kind)
		}
		return rank(i.name.Kind)
	}
	slices.SortStableFunc(all, func(a, b item) int { return place(a) - place(b) })
	return all
}

// records makes Helm's memory of the releases what it was.
func (r *restorer) records(ctx context.Context, s state) error {
	known := map[key]bool{}
	for _, o := range s.records {
		known[o.name.key()] = true
	}
	wanted := slices.Clone(s.records)
	for _, release := range s.Releases {
		list, err := r.client.records(ctx, release.Namespace, release.Name)
		if err != nil {
			return err
		}
		for i := range list {
			list[i].SetAPIVersion("v1") // of a list's items it may be left out
			list[i].SetKind("Secret")
			if n := nameOf(&list[i]); !known[n.key()] {
				wanted = append(wanted, saved{part: partRecord, name: n})
			}
		}
	}
	return r.all(ctx, items(wanted, nil))
}

// custom puts custom resources back, from the file, as many at once as it may; those that cannot be yet are tried again afterwards.
func (r *restorer) custom(ctx context.Context, s state) error {
	if len(s.header.Definitions) == 0 {
		return nil
	}
	var group errgroup.Group
	group.SetLimit(abreast)
	var pending []item
	_, err := r.open(s.path, s.Run, func(o saved) error {
		if o.part != partCustom || !s.kinds[o.name.kind().GroupKind()] {
			return nil
		}
		group.Go(func() error {
			err := r.putBack(ctx, o.object, true, false)
			if err == nil || ctx.Err() != nil {
				return nil
			}
			r.mutex.Lock()
			isKept := passes(err) && !errors.Is(err, errUnserved) && len(pending) < maxPending
			if isKept {
				pending = append(pending, item{saved: o, isCustom: true})
			}
			r.mutex.Unlock()
			if !isKept {
				r.problem(o.name, err)
			}
			return nil
		})
		return context.Cause(ctx)
	})
	_ = group.Wait() // no function returns one
	if err != nil || ctx.Err() != nil {
		return errors.Join(err, context.Cause(ctx))
	}
	return r.all(ctx, pending)
}
