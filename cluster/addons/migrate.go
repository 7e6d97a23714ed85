package addons

import (
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
)

// definer changes definitions.
type definer struct {
	*Addons
	client *client
}

// await waits until the API serves a definition's objects.
func (d definer) await(ctx context.Context, name string) error {
	for began := time.Now(); ; {
		trouble, err := d.trouble(ctx, name)
		if err != nil || trouble == "" {
			return err
		}
		if time.Since(began) > d.Timeout {
			return fmt.Errorf("definition %s: %s, for %v", name, trouble, d.Timeout)
		}
		if err := sleep(ctx, pause/4); err != nil {
			return err
		}
	}
}

// trouble says why the API does not serve a definition's objects; empty if it does.
func (d definer) trouble(ctx context.Context, name string) (string, error) {
	o, err := d.client.objects.Resource(definitions).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	is, err := defined(o)
	if err != nil {
		return "", err
	}
	if trouble := is.trouble(); trouble != "" || is.read() == "" {
		return trouble, nil
	}
	// What converts objects may come with the add-on: that it does not answer yet is no reason to wait here.
	if _, err := d.client.objects.Resource(is.resource(is.read())).List(ctx, metav1.ListOptions{Limit: 1}); apierrors.IsNotFound(err) {
		return "its objects are not served yet", nil
	}
	return "", ctx.Err()
}

// migrate has all objects of a definition written anew in a version that target has, too, so that the versions which target drops
// are in nobody's way. By what converts them today.
func (d definer) migrate(ctx context.Context, live, target *object) error {
	bridge, storage := bridged(live, target)
	name := live.GetName()
	d.say("%s: writing its objects anew in %s", name, storage)
	if !reflect.DeepEqual(live.Object["spec"], bridge.Object["spec"]) {
		if _, err := d.client.objects.Resource(definitions).Update(ctx, bridge, metav1.UpdateOptions{FieldManager: restoreManager}); err != nil {
			return fmt.Errorf("have them stored in %s: %w", storage, err)
		}
		if err := d.await(ctx, name); err != nil {
			return err
		}
		if err := sleep(ctx, d.settle); err != nil {
			return err
		}
	}
	n, err := d.rewrite(ctx, bridge)
	if err != nil {
		return fmt.Errorf("write its objects anew in %s: %w", storage, err)
	}
	patch, err := json.Marshal(map[string]any{"status": map[string]any{"storedVersions": []string{storage}}})
	if err != nil {
		return err
	}
	_, err = d.client.objects.Resource(definitions).Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: restoreManager}, "status")
	if err != nil {
		return fmt.Errorf("note that all are stored in %s: %w", storage, err)
	}
	d.done("%s: %d objects are written anew in %s", name, n, storage)
	return nil
}

// rewrite writes each object of a definition as it is, which stores it in the definition's stored version, and counts them.
func (d definer) rewrite(ctx context.Context, o *object) (n int, err error) {
	is, err := defined(o)
	if err != nil {
		return 0, err
	}
	of := is.resource(is.read())
	err = d.client.each(ctx, of, func(o *object) error {
		n++
		to := d.client.objects.Resource(of)
		_, err := to.Namespace(o.GetNamespace()).Update(ctx, o, metav1.UpdateOptions{FieldManager: restoreManager})
		if apierrors.IsConflict(err) || apierrors.IsNotFound(err) { // Who changed it meanwhile stored it so, too.
			return nil
		}
		if err != nil {
			return fmt.Errorf("%s: %w", nameOf(o), err)
		}
		return nil
	})
	return n, err
}

// definitions puts definitions back, and returns those that cannot be. final says that there is no later attempt.
func (r *restorer) definitions(ctx context.Context, all []saved, final bool) (failed []saved) {
	d := definer{r.Addons, r.client}
	for _, s := range all {
		var err error
		switch {
		case ctx.Err() != nil:
			return all
		case s.object != nil:
			err = r.definition(ctx, d, s.object)
		case !final: // Its objects are removed before.
			failed = append(failed, s)
		default:
			err = r.dropDefinition(ctx, s.name)
		}
		if err == nil {
			continue
		}
		if failed = append(failed, s); final {
			r.problem(s.name, fmt.Errorf("it stays as it is now: %w", err))
		} else {
			r.say("%s: tried again later: %v", s.name, err)
		}
	}
	return failed
}

// definition makes a definition what it was.
func (r *restorer) definition(ctx context.Context, d definer, was *object) error {
	to := r.client.objects.Resource(definitions)
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
	if live != nil && !reflect.DeepEqual(content(live, false), content(was, false)) {
		if live, err = r.goBack(ctx, d, live, was); err != nil {
			return err
		}
	}
	wanted := stripped(was)
	unstructured.RemoveNestedField(wanted.Object, "status")
	is, err := r.write(ctx, to, wanted, live, false)
	if err != nil {
		return err
	}
	if err := d.await(ctx, was.GetName()); err != nil {
		return err
	}
	return r.managers(ctx, to, was, is)
}

// goBack prepares a definition for what it was, if that drops versions which objects are stored in by now.
func (r *restorer) goBack(ctx context.Context, d definer, live, was *object) (*object, error) {
	now, err := defined(live)
	if err != nil {
		return nil, err
	}
	before, err := defined(was)
	if err != nil || len(now.dropped(before)) == 0 {
		return live, err
	}
	if err := d.migrate(ctx, live, was); err != nil {
		return nil, err
	}
	return r.client.objects.Resource(definitions).Get(ctx, was.GetName(), metav1.GetOptions{})
}

// dropDefinition removes a definition that was not there before, unless it has objects: those are not of the run.
func (r *restorer) dropDefinition(ctx context.Context, n Name) error {
	live, err := r.client.get(ctx, n)
	if err != nil || live == nil {
		return err
	}
	is, err := defined(live)
	if err != nil {
		return err
	}
	if is.read() != "" && is.trouble() == "" {
		count, err := r.client.count(ctx, is.resource(is.read()))
		if err != nil {
			return err
		}
		if count > 0 {
			r.note("%s stays: it was not there before, and has %d objects that are not the add-on's; kubectl delete crd %s removes it with them", n, count, n.Name)
			return nil
		}
	}
	if err := r.client.delete(ctx, n); err != nil {
		return err
	}
	r.changed("removed", n)
	return r.gone(ctx, n)
}

// gone waits until a definition is: its objects go before it.
func (r *restorer) gone(ctx context.Context, n Name) error {
	for began := time.Now(); ; {
		live, err := r.client.get(ctx, n)
		if err != nil || live == nil {
			return err
		}
		if time.Since(began) > r.Timeout {
			return errLeaving
		}
		if err := sleep(ctx, pause/4); err != nil {
			return err
		}
	}
}
