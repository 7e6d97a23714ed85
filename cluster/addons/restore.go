package addons

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
)

// restoreManager is what puts objects back. It manages none of their fields afterwards: who did before does again.
const restoreManager = "hullmark"

// Restored is what came of putting a saved state back.
type Restored struct {
	// Run is the one whose changes were put back.
	Run string `json:"run"`
	// Objects counts those that were changed for it.
	Objects int `json:"objects"`
	// Notes are what is otherwise than before, as it has to be; Problems what could not be put back, each with what to do.
	Notes    []string `json:"notes,omitempty"`
	Problems []string `json:"problems,omitempty"`
}

// restorer puts objects back. It is safe for concurrent use.
type restorer struct {
	*Addons
	client *client
	path   string // of what was saved

	mutex sync.Mutex
	Restored
}

func (r *restorer) note(format string, args ...any) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	r.Notes = append(r.Notes, fmt.Sprintf(format, args...))
}

func (r *restorer) problem(n Name, err error) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	r.Problems = append(r.Problems, fmt.Sprintf("%s: %v; next: mend that, then hullmark addons rollback %s", n, err, r.path))
}

func (r *restorer) changed(what string, n Name) {
	r.mutex.Lock()
	r.Objects++
	r.mutex.Unlock()
	r.say("%s %s", what, n)
}

// Errors of what may pass by itself, or once others are put back.
var (
	errLeaving = errors.New("it is still being deleted: something has to remove its finalizers")
	errOrphan  = errors.New("its owner is not there")
)

// item is one thing to be put back.
type item struct {
	saved
	// isRemoval says that it was not there before.
	isRemoval bool
	// isCustom says that it is a custom resource, whose status nobody computes anew.
	isCustom bool
}

// all puts items back, in their order, again and again until all are, or for as long as Timeout nothing more could be.
func (r *restorer) all(ctx context.Context, items []item) error {
	for progress := time.Now(); len(items) > 0; {
		left, err := r.round(ctx, items)
		if err != nil {
			return err
		}
		if len(left) < len(items) {
			progress = time.Now()
		}
		if items = left; len(items) == 0 {
			break
		}
		if time.Since(progress) > r.Timeout {
			return r.last(ctx, items)
		}
		if err := sleep(ctx, pause); err != nil {
			return err
		}
	}
	return nil
}

// round tries each item once, and returns those that are left.
func (r *restorer) round(ctx context.Context, items []item) (left []item, err error) {
	removals := slices.ContainsFunc(items, func(i item) bool { return i.isRemoval })
	for _, i := range items {
		err := r.one(ctx, i, false)
		switch {
		case err == nil:
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case passes(err), removals: // What is still there may hold what is wanted: a port, a name.
			left = append(left, i)
		default:
			r.problem(i.name, err)
		}
	}
	return left, nil
}

// last tries each item a last time, without owners that did not come back, and says what could not be put back.
func (r *restorer) last(ctx context.Context, items []item) error {
	for _, i := range items {
		if err := r.one(ctx, i, true); err != nil {
			r.problem(i.name, err)
		}
	}
	return ctx.Err()
}

func (r *restorer) one(ctx context.Context, i item, orphans bool) error {
	if i.isRemoval {
		return r.remove(ctx, i.name)
	}
	return r.putBack(ctx, i.object, i.isCustom, orphans)
}

// remove deletes an object that was not there before.
func (r *restorer) remove(ctx context.Context, n Name) error {
	live, err := r.client.get(ctx, n)
	if err != nil || live == nil {
		return err
	}
	if n.Kind == "Namespace" {
		r.note("%s stays: others may have put things into it; kubectl delete namespace %s removes it", n, n.Name)
		return nil
	}
	if live.GetDeletionTimestamp() != nil {
		return errLeaving
	}
	if err := r.client.delete(ctx, n); err != nil {
		return err
	}
	r.changed("removed", n)
	return errLeaving
}

// putBack makes an object what it was when it was saved, its status too if withStatus says so; orphans says that owners which are
// not there are left out.
func (r *restorer) putBack(ctx context.Context, was *object, withStatus, orphans bool) error {
	to, err := r.client.exactly(nameOf(was))
	if err != nil {
		return err
	}
	live, err := to.Get(ctx, was.GetName(), metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		live, err = nil, nil
	}
	if err != nil {
		return err
	}
	if live != nil && live.GetDeletionTimestamp() != nil {
		return errLeaving
	}
	if was.GetKind() == "Job" && !withStatus {
		if done, err := r.job(ctx, was, live); done || err != nil {
			return err
		}
	}
	wanted, err := r.wanted(ctx, was, orphans)
	if err != nil {
		return err
	}
	is, err := r.write(ctx, to, wanted, live, withStatus)
	if err != nil {
		return err
	}
	return r.managers(ctx, to, was, is)
}

// wanted is what is sent of a saved object: without what is the API server's to write, and with the identities that its owners have by now.
func (r *restorer) wanted(ctx context.Context, was *object, orphans bool) (*object, error) {
	wanted := stripped(was)
	var owners []metav1.OwnerReference
	for _, o := range was.GetOwnerReferences() {
		owner, err := r.client.get(ctx, Name{APIVersion: o.APIVersion, Kind: o.Kind, Namespace: was.GetNamespace(), Name: o.Name})
		switch {
		case err != nil:
			return nil, err
		case owner != nil && owner.GetDeletionTimestamp() == nil:
			o.UID = owner.GetUID()
			owners = append(owners, o)
		case !orphans:
			return nil, fmt.Errorf("%s %s: %w", o.Kind, o.Name, errOrphan)
		default: // Kubernetes deletes whatever has an owner that is not there.
			r.note("%s is put back without its owner %s %s, which is not there", nameOf(was), o.Kind, o.Name)
		}
	}
	wanted.SetOwnerReferences(owners)
	return wanted, nil
}

// write creates or replaces an object, unless it is already what is wanted, says what the API server made otherwise, and returns it.
func (r *restorer) write(ctx context.Context, to dynamic.ResourceInterface, wanted, live *object, withStatus bool) (*object, error) {
	if live != nil && reflect.DeepEqual(content(live, withStatus), content(wanted, withStatus)) {
		return live, nil
	}
	var written *object
	var err error
	if live == nil {
		wanted = creatable(wanted)
		written, err = to.Create(ctx, wanted, metav1.CreateOptions{FieldManager: restoreManager})
		if volume := nested(wanted, "spec", "volumeName"); wanted.GetKind() == "PersistentVolumeClaim" && volume != "" {
			r.note("%s waits for the volume %s: see whether that is still there, and what holds it", nameOf(wanted), volume)
		}
	} else {
		next := wanted.DeepCopy()
		next.SetResourceVersion(live.GetResourceVersion())
		next.SetUID(live.GetUID())
		written, err = to.Update(ctx, next, metav1.UpdateOptions{FieldManager: restoreManager})
	}
	if err != nil {
		return nil, err
	}
	if written, err = r.status(ctx, to, wanted, written, withStatus); err != nil {
		return nil, err
	}
	r.changed("put back", nameOf(wanted))
	if paths := differences(content(wanted, withStatus), content(written, withStatus)); len(paths) > 0 {
		r.problem(nameOf(wanted), fmt.Errorf("the API server keeps other values than were saved, in %q", paths))
	}
	return written, nil
}

// status writes a status that the API server did not take with its object, because it is a subresource.
func (r *restorer) status(ctx context.Context, to dynamic.ResourceInterface, wanted, written *object, withStatus bool) (*object, error) {
	status, has := wanted.Object["status"]
	if !withStatus || !has || reflect.DeepEqual(written.Object["status"], status) {
		return written, nil
	}
	next := written.DeepCopy()
	next.Object["status"] = status
	return to.UpdateStatus(ctx, next, metav1.UpdateOptions{FieldManager: restoreManager})
}

// managers writes back who managed which field: whoever applies the object next meets the same managers as before. is is the object
// as it was seen last.
func (r *restorer) managers(ctx context.Context, to dynamic.ResourceInterface, was, is *object) error {
	for range 3 {
		if len(was.GetManagedFields()) == 0 || sameManagers(is, was) {
			return nil
		}
		next := is.DeepCopy()
		next.SetManagedFields(was.GetManagedFields())
		_, err := to.Update(ctx, next, metav1.UpdateOptions{FieldManager: restoreManager})
		if !apierrors.IsConflict(err) {
			return err
		}
		if is, err = to.Get(ctx, was.GetName(), metav1.GetOptions{}); err != nil {
			return err
		}
	}
	r.say("%s: others change it all the time, so who manages its fields stays as it is now", nameOf(was))
	return nil
}

// sameManagers compares who manages which field, whenever that began.
func sameManagers(a, b *object) bool {
	fields := func(o *object) string {
		list := o.GetManagedFields()
		for i := range list {
			list[i].Time = nil
		}
		slices.SortFunc(list, func(a, b metav1.ManagedFieldsEntry) int {
			return slices.Compare([]string{a.Manager, string(a.Operation), a.Subresource}, []string{b.Manager, string(b.Operation), b.Subresource})
		})
		text, _ := json.Marshal(list) // of plain fields
		return string(text)
	}
	return fields(a) == fields(b)
}

// job deals with Jobs, which cannot be changed and run when they are created. It reports whether nothing is left to do.
func (r *restorer) job(ctx context.Context, was, live *object) (bool, error) {
	if live != nil && live.GetUID() != was.GetUID() {
		return true, r.remove(ctx, nameOf(live))
	}
	if live == nil && isFinished(was) {
		r.note("%s had finished, and is not run again", nameOf(was))
		return true, nil
	}
	return false, nil
}

func isFinished(job *object) bool {
	conditions, _, _ := unstructured.NestedSlice(job.Object, "status", "conditions")
	return slices.ContainsFunc(conditions, func(c any) bool {
		condition, _ := c.(map[string]any)
		return condition["status"] == "True" && (condition["type"] == "Complete" || condition["type"] == "Failed")
	})
}

// creatable is an object without what only the API server can say of a new one of its kind.
func creatable(o *object) *object {
	c := o.DeepCopy()
	switch c.GetKind() {
	case "Job":
		if manual, _, _ := unstructured.NestedBool(c.Object, "spec", "manualSelector"); !manual {
			unstructured.RemoveNestedField(c.Object, "spec", "selector")
			for _, label := range []string{"controller-uid", "batch.kubernetes.io/controller-uid"} {
				unstructured.RemoveNestedField(c.Object, "spec", "template", "metadata", "labels", label)
				unstructured.RemoveNestedField(c.Object, "metadata", "labels", label)
			}
		}
	case "Pod":
		unstructured.RemoveNestedField(c.Object, "spec", "nodeName")
	case "PersistentVolumeClaim": // It waits for its volume, which may be held by the claim that was deleted, and takes no empty one.
		for _, annotation := range []string{"pv.kubernetes.io/bind-completed", "pv.kubernetes.io/bound-by-controller"} {
			unstructured.RemoveNestedField(c.Object, "metadata", "annotations", annotation)
		}
	}
	return c
}
