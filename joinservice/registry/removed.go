package registry

import (
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/joinservice"
)

// removedObject lists the names of removed machines whose certificates may live, each with the machine and until when:
// "IDENTITY TIME". While a name is there no Node is made by a certificate for it (an admission policy of Manifest), and no
// machine gets it, its own included: a certificate says which name its bearer has, and not which machine it is, nor which of
// its lives.
const removedObject = "removed"

// Removed is a machine that is removed, though it may have a certificate.
type Removed struct {
	// EKID is the machine.
	EKID hullmark.EKID
	// Until is when its last certificate has ended.
	Until time.Time
}

func (r Removed) String() string { return r.EKID.String() + " " + r.Until.UTC().Format(time.RFC3339) }

// ParseRemoved strictly reads what the list of removed machines says of a name.
func ParseRemoved(text string) (r Removed, err error) {
	node, until, _ := strings.Cut(text, " ")
	if r.EKID, err = hullmark.ParseEKID(node); err == nil {
		r.Until, err = time.Parse(time.RFC3339, until)
	}
	if err != nil {
		return Removed{}, fmt.Errorf("ConfigMap %s/%s: want a machine and a time, got %.100q; mend the object: %w", Namespace, removedObject, text, err)
	}
	return r, nil
}

// rest lets a name rest until a removed machine's certificate has ended, or an earlier one's for the name that ends later, and
// returns until when it does. By then the API server that it speaks to refuses the machine a Node; others learn it from etcd as
// fast.
func (r *Machines) rest(ctx context.Context, name string, removed Removed) (until time.Time, err error) {
	err = r.editList(ctx, removedObject, removedObject, func(list *corev1.ConfigMap) (bool, error) {
		now := time.Now()
		dropEnded(list.Data, now)
		until = removed.Until
		if text, rests := list.Data[name]; rests {
			earlier, err := ParseRemoved(text)
			if err != nil {
				return false, err
			}
			if !earlier.Until.Before(until) {
				until = earlier.Until
				return false, nil
			}
		}
		if longOver(until, now) {
			return false, nil
		}
		list.Data[name] = removed.String()
		return true, nil
	})
	if err != nil || longOver(until, time.Now()) {
		return until, err
	}
	return until, r.awaitRest(ctx, name)
}

// restKept is how long a name stays listed after its rest is over: one look by a clock that is ahead, an operator's or a
// replica's, must not end the rest of all others. Who gets the name takes it from the list.
const restKept = 7 * 24 * time.Hour

// longOver reports whether a rest was over so long ago that it need not be listed.
func longOver(until, now time.Time) bool { return now.Sub(until) > restKept }

// dropEnded forgets the names whose machines have had no certificate for long. What cannot be read stays.
func dropEnded(names map[string]string, now time.Time) {
	for name, text := range names {
		if removed, err := ParseRemoved(text); err == nil && longOver(removed.Until, now) {
			delete(names, name)
		}
	}
}

// checkRest refuses a name that rests, and ends a rest that is over.
func (r *Machines) checkRest(ctx context.Context, name string) error {
	removed, rests, err := r.Resting(ctx, name)
	if err != nil || !rests {
		return err
	}
	if time.Now().Before(removed.Until) {
		return joinservice.NameRests(name, removed.EKID, removed.Until)
	}
	return r.Free(ctx, name)
}

// Free ends the rest of a name. The caller knows that nobody has a certificate for it: it has ended, or its machine is gone for
// good, or has an empty disk and nobody copied its key.
func (r *Machines) Free(ctx context.Context, name string) error {
	return r.editList(ctx, removedObject, removedObject, func(list *corev1.ConfigMap) (bool, error) {
		_, resting := list.Data[name]
		delete(list.Data, name)
		return resting, nil
	})
}

// Resting returns the removed machine because of which a name rests, if one does.
func (r *Machines) Resting(ctx context.Context, name string) (removed Removed, rests bool, err error) {
	object, err := r.configMap(ctx, "read which machines are removed", removedObject)
	if apierrors.IsNotFound(err) {
		return Removed{}, false, nil
	}
	if err != nil {
		return Removed{}, false, err
	}
	text, listed := object.Data[name]
	if !listed {
		return Removed{}, false, nil
	}
	removed, err = ParseRemoved(text)
	return removed, err == nil, err
}

// removedPolicy is the admission policy of Manifest that keeps removed machines from making their Nodes.
const removedPolicy = "hullmark-removed-nodes"

// awaitTries and awaitPause bound how long an API server may take to know of a name that rests.
const awaitTries, awaitPause = 100, 100 * time.Millisecond

// awaitRest waits until the API server refuses the Node of a name that rests to whoever has a certificate for it.
func (r *Machines) awaitRest(ctx context.Context, name string) error {
	for range awaitTries {
		_, err := call(ctx, r.connection, "see that no Node "+name+" is made", func(ctx context.Context) (*corev1.Node, error) {
			node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
			return node, r.nodes.client.Post().Resource("nodes").Param("dryRun", metav1.DryRunAll).
				SetHeader("Impersonate-User", nodeUser+name).SetHeader("Impersonate-Group", nodeGroup).Body(node).Do(ctx).Error()
		})
		if err != nil && strings.Contains(err.Error(), removedPolicy) {
			return nil
		}
		if err != nil && !apierrors.IsAlreadyExists(err) {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(awaitPause):
		}
	}
	return &hullmark.Condition{
		Code: joinservice.CodeForbidden, Title: "the API server would let the removed machine make its Node " + name + " again", Retry: true,
		Next: "apply Hullmark's manifest again, and run the command again",
	}
}
