package registry

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/joinservice"
	"github.com/hullmark/hullmark/measurements"
)

// Several join services change one list: whoever loses a race tries again, later each time.
const editTries, editPause = 8, 15 * time.Millisecond

// longestPause is the longest before a try; all together leave a decision its time.
func longestPause(try int) time.Duration { return editPause << try }

// Leave takes a machine out of a group; see joinservice.Records.
func (r *Groups) Leave(ctx context.Context, group string, node hullmark.EKID) error {
	return r.editGroup(ctx, group, func(machines map[string]string) (bool, error) {
		_, counted := machines[node.String()]
		delete(machines, node.String())
		return counted, nil
	})
}

// leaveAll takes a machine out of each group that counts it. Its record does not say which: one that got a rule of its own since names
// none, and one that was counted and got no ticket has no record.
func (r *Groups) leaveAll(ctx context.Context, node hullmark.EKID) error {
	list, err := r.groups(ctx)
	if err != nil {
		return err
	}
	for _, object := range list.Items {
		if _, counted := object.Data[node.String()]; !counted {
			continue
		}
		if err := r.Leave(ctx, strings.TrimPrefix(object.Name, GroupObjects), node); err != nil {
			return err
		}
	}
	return nil
}

// groups are the lists of all groups.
func (r *Groups) groups(ctx context.Context) (*corev1.ConfigMapList, error) {
	return call(ctx, r.connection, "list the machines of groups", func(ctx context.Context) (*corev1.ConfigMapList, error) {
		return r.configMaps.list(ctx, metav1.ListOptions{LabelSelector: selector("=" + groupKind)})
	})
}

// editGroup changes a group's list by compare-and-swap, unless edit reports that there is nothing to change.
func (r *Groups) editGroup(ctx context.Context, group string, edit func(machines map[string]string) (changed bool, err error)) error {
	return r.editList(ctx, groupKind, GroupObjects+group, func(object *corev1.ConfigMap) (bool, error) {
		if _, err := ParseCounted(object); err != nil {
			return false, err
		}
		return edit(object.Data)
	})
}

// editList changes a list of machines by compare-and-swap, unless edit reports that there is nothing to change. One that is
// absent is empty.
func (r *connection) editList(ctx context.Context, kind, name string, edit func(*corev1.ConfigMap) (changed bool, err error)) error {
	for try := range editTries {
		if try > 0 {
			select {
			case <-time.After(rand.N(longestPause(try))):
			case <-ctx.Done():
				return contended(ctx, name)
			}
		}
		object, absent, err := r.list(ctx, kind, name)
		if err != nil {
			return err
		}
		changed, err := edit(object)
		if err != nil || !changed {
			return err
		}
		_, err = call(ctx, r, "store the list "+name, func(ctx context.Context) (*corev1.ConfigMap, error) {
			if absent {
				return r.configMaps.create(ctx, object)
			}
			return r.configMaps.update(ctx, object.Name, object)
		})
		if !apierrors.IsConflict(err) && !apierrors.IsAlreadyExists(err) && (absent || !apierrors.IsNotFound(err)) {
			return err
		}
	}
	return contended(ctx, name)
}

// contended says that others changed the list at each try; only whoever gave up himself is told nothing else.
func contended(ctx context.Context, name string) error {
	if err := ctx.Err(); errors.Is(err, context.Canceled) {
		return err
	}
	return &hullmark.Condition{
		Code: joinservice.CodeContended, Title: name + " was changed by others again and again", Retry: true,
		Next: "try again in a while; a node does so by itself",
	}
}

// list reads a list of machines; one that is absent is made, and not stored.
func (r *connection) list(ctx context.Context, kind, name string) (object *corev1.ConfigMap, absent bool, err error) {
	object, err = r.configMap(ctx, "read the list "+name, name)
	if apierrors.IsNotFound(err) {
		return &corev1.ConfigMap{ObjectMeta: meta(kind, name), Data: map[string]string{}}, true, nil
	}
	if err != nil {
		return nil, false, err
	}
	if object.Data == nil {
		object.Data = map[string]string{}
	}
	return object, false, nil
}

// Counted returns the machines that groups count, each with its identity, name and role alone. A machine is counted before its
// first ticket is recorded, so that one may have no record: Delete takes it out all the same.
func (r *Groups) Counted(ctx context.Context) ([]joinservice.Machine, error) {
	list, err := r.groups(ctx)
	if err != nil {
		return nil, err
	}
	var machines []joinservice.Machine
	for i := range list.Items {
		nodes, err := ParseCounted(&list.Items[i])
		if err != nil {
			return nil, err
		}
		group := measurements.Group{Name: strings.TrimPrefix(list.Items[i].Name, GroupObjects)}
		for _, node := range nodes {
			member := group.Member(node)
			machines = append(machines, joinservice.Machine{EKID: node, Name: member.Name, Role: member.Role})
		}
	}
	return machines, nil
}
