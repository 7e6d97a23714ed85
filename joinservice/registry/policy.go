package registry

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"github.com/hullmark/hullmark/joinservice"
	"github.com/hullmark/hullmark/measurements"
)

// The policy's object and those of its documents; each kind is also the key of its content.
const (
	policyKind, policyObject = "policy", "policy"
	documentKind             = "document"
)

// pushedBy is the annotation of the policy's object that says for people who brought it.
const pushedBy = "hullmark/pushed-by"

// maxObject bounds the content of one ConfigMap, in bytes; the API refuses more.
const maxObject = 1 << 20

func documentObject(id measurements.DocumentID) string { return documentKind + "." + id.String() }

// WatchPolicy calls deliver with the policy in its signed form and all
// documents that lie beside it, once at the start and again after each change, until ctx
// ends; it returns ctx's error. It verifies nothing: what it delivers is what
// anyone with access to the namespace wrote, bounded only by the API's limits. While there
// is no policy, deliver is not called; objects that do not decode are refused (Refused) as
// a whole with what lies beside them. It survives outages of the API.
func (r *Policies) WatchPolicy(ctx context.Context, deliver func(envelope []byte, documents map[measurements.DocumentID][]byte)) error {
	choose := func(o metav1.ListOptions) metav1.ListOptions {
		o.LabelSelector = policySelector()
		return o
	}
	return mirror(ctx, &corev1.ConfigMap{}, &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return r.configMaps.list(ctx, choose(o))
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return r.configMaps.watch(ctx, choose(o))
		},
	}, 0, func(ctx context.Context, objects []any) {
		envelope, documents, err := policyOf(objects)
		switch {
		case err != nil:
			// Who watches goes on with what was delivered before.
			slog.WarnContext(ctx, "policy refused", "reason", err, "event", r.Refused(ctx, err.Error()))
		case envelope != nil:
			deliver(envelope, documents)
		}
	})
}

// policySelector chooses the policy and its documents.
func policySelector() string { return selector(" in (" + policyKind + "," + documentKind + ")") }

// policyOf takes a policy apart from its documents; without a policy the envelope is nil.
func policyOf(objects []any) (envelope []byte, documents map[measurements.DocumentID][]byte, err error) {
	documents = map[measurements.DocumentID][]byte{}
	for _, o := range objects {
		object := o.(*corev1.ConfigMap)
		key := object.Labels[kindLabel]
		content, ok := object.BinaryData[key]
		if !ok || len(object.BinaryData) != 1 || len(object.Data) != 0 {
			return nil, nil, fmt.Errorf("ConfigMap %s/%s: want the one key %s, in binaryData; push the policy again", Namespace, object.Name, key)
		}
		if key == policyKind && object.Name == policyObject {
			envelope = content
			continue
		}
		var id measurements.DocumentID
		if err := id.UnmarshalText([]byte(strings.TrimPrefix(object.Name, documentKind+"."))); err != nil || object.Name != documentObject(id) {
			return nil, nil, fmt.Errorf("ConfigMap %s/%s: the name is neither %s nor %s.DIGEST; delete the object", Namespace, object.Name, policyObject, documentKind)
		}
		documents[id] = content
	}
	return envelope, documents, nil
}

// AnyVersion is that of whatever policy is there, or of none.
const AnyVersion joinservice.Version = "*"

// ErrPushedMeanwhile says that what is there is not of the version that a push was to replace.
var ErrPushedMeanwhile = errors.New("somebody pushed a policy meanwhile, and nothing was put in its place; next: run the command again")

// PushPolicy gives the cluster a signed policy with every document that it
// names: documents first, then the policy; documents that are not among the given
// are removed last. It verifies no signature. Replicas take the policy up by
// WatchPolicy, or refuse it with an event. Beside it stands by, a line that says for people who brought it; it may be empty.
// It takes the place of the policy of a version (PushedBy), which is empty if there has to be none; of another one the error is
// ErrPushedMeanwhile.
func (r *Policies) PushPolicy(ctx context.Context, by string, version joinservice.Version, envelope []byte, documents map[measurements.DocumentID][]byte) error {
	if len(envelope) == 0 || len(envelope) > maxObject {
		return fmt.Errorf("push policy: it has %d bytes, and the API keeps at most %d: remove members, resets or overrides that are spent", len(envelope), maxObject)
	}
	ids := slices.SortedFunc(maps.Keys(documents), func(a, b measurements.DocumentID) int { return bytes.Compare(a[:], b[:]) })
	for _, id := range ids {
		if err := r.pushDocument(ctx, id, documents[id]); err != nil {
			return fmt.Errorf("push policy: %w", err)
		}
	}
	if err := r.pushEnvelope(ctx, by, version, envelope); err != nil {
		return fmt.Errorf("push policy: %w", err)
	}
	if err := r.prune(ctx, documents); err != nil {
		return fmt.Errorf("push policy: the policy is in place, but documents that it no longer names are left: %w", err)
	}
	return nil
}

// Pushed returns the policy that was pushed last, in its signed form, which nobody has verified; nil if there is none.
func (r *Policies) Pushed(ctx context.Context) ([]byte, error) {
	envelope, _, _, err := r.PushedBy(ctx)
	return envelope, err
}

// PushedBy is Pushed with what PushPolicy noted beside it, which anybody who can write in the namespace may have written, and with the
// version of the object, empty if there is none.
func (r *Policies) PushedBy(ctx context.Context) (envelope []byte, by string, version joinservice.Version, err error) {
	object, err := r.pushed(ctx)
	if err != nil || object == nil {
		return nil, "", "", err
	}
	return object.BinaryData[policyKind], object.Annotations[pushedBy], joinservice.Version(object.ResourceVersion), nil
}

// pushed returns the policy's object; nil if there is none.
func (r *Policies) pushed(ctx context.Context) (*corev1.ConfigMap, error) {
	object, err := r.configMap(ctx, "read the policy in force", policyObject)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return object, nil
}

// readPolicy is a signed policy by the version of its object. It has a line for each member, and each ticket asks for the newest: of one
// that was read before, the version is asked for alone.
type readPolicy struct {
	mutex    sync.Mutex // guards what follows
	version  string
	envelope []byte
}

// is reports whether an envelope is what the object of a version holds.
func (p *readPolicy) is(envelope []byte, version string) bool {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	return p.version != "" && p.version == version && bytes.Equal(p.envelope, envelope)
}

func (p *readPolicy) keep(envelope []byte, version string) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	p.envelope, p.version = envelope, version
}

// Newest returns the policy that the API holds with all documents beside it, as WatchPolicy delivers them, unless its envelope
// is held, or there is none: then nothing. Nobody has verified it.
func (r *Policies) Newest(ctx context.Context, held []byte) (envelope []byte, documents map[measurements.DocumentID][]byte, err error) {
	version, err := call(ctx, r.connection, "read which policy is in force", func(ctx context.Context) (string, error) {
		return r.configMaps.version(ctx, policyObject)
	})
	if apierrors.IsNotFound(err) || err == nil && r.read.is(held, version) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, err
	}
	object, err := r.pushed(ctx)
	if err != nil || object == nil || object.BinaryData[policyKind] == nil {
		return nil, nil, err
	}
	envelope = object.BinaryData[policyKind]
	r.read.keep(envelope, object.ResourceVersion)
	if bytes.Equal(envelope, held) {
		return nil, nil, nil
	}
	list, err := call(ctx, r.connection, "read the policy in force with its documents", func(ctx context.Context) (*corev1.ConfigMapList, error) {
		return r.configMaps.list(ctx, metav1.ListOptions{LabelSelector: policySelector()})
	})
	if err != nil {
		return nil, nil, err
	}
	var objects []any
	for i := range list.Items {
		objects = append(objects, &list.Items[i])
	}
	return policyOf(objects)
}

// pushDocument creates a document's object, which is never changed. One of the same name with other content is replaced.
func (r *Policies) pushDocument(ctx context.Context, id measurements.DocumentID, content []byte) error {
	if sha256.Sum256(content) != id || len(content) > maxObject {
		return fmt.Errorf("document %s: %d bytes of another digest, or more than %d", id, len(content), maxObject)
	}
	fixed := true
	object := &corev1.ConfigMap{ObjectMeta: meta(documentKind, documentObject(id)), BinaryData: map[string][]byte{documentKind: content}, Immutable: &fixed}
	put := func(ctx context.Context) (*corev1.ConfigMap, error) {
		return r.configMaps.create(ctx, object)
	}
	what := "create document " + id.String()
	_, err := call(ctx, r.connection, what, put)
	if !apierrors.IsAlreadyExists(err) {
		return err
	}
	there, err := r.configMap(ctx, "read document "+id.String(), object.Name)
	if err != nil {
		return err
	}
	if _, kept, err := policyOf([]any{there}); err == nil && bytes.Equal(kept[id], content) {
		return nil
	}
	if err := r.remove(ctx, "delete the wrong document "+id.String(), r.configMaps.delete, object.Name); err != nil {
		return err
	}
	_, err = call(ctx, r.connection, what, put)
	return err
}

// pushEnvelope creates the policy's object, or replaces that of a version; one that somebody else changed meanwhile is left alone.
func (r *Policies) pushEnvelope(ctx context.Context, by string, version joinservice.Version, envelope []byte) error {
	object := &corev1.ConfigMap{ObjectMeta: meta(policyKind, policyObject), BinaryData: map[string][]byte{policyKind: envelope}}
	if by != "" {
		object.Annotations = map[string]string{pushedBy: by}
	}
	if version == AnyVersion {
		var err error
		if _, _, version, err = r.PushedBy(ctx); err != nil {
			return err
		}
	}
	_, err := call(ctx, r.connection, "store the policy", func(ctx context.Context) (*corev1.ConfigMap, error) {
		if version == "" {
			return r.configMaps.create(ctx, object)
		}
		object.ResourceVersion = string(version)
		return r.configMaps.update(ctx, object.Name, object)
	})
	if apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) || version != "" && apierrors.IsNotFound(err) {
		return ErrPushedMeanwhile
	}
	return err
}

// prune removes the documents that are not among those given.
func (r *Policies) prune(ctx context.Context, keep map[measurements.DocumentID][]byte) error {
	list, err := call(ctx, r.connection, "list the documents", func(ctx context.Context) (*corev1.ConfigMapList, error) {
		return r.configMaps.list(ctx, metav1.ListOptions{LabelSelector: selector("=" + documentKind)})
	})
	if err != nil {
		return err
	}
	named := map[string]bool{}
	for id := range keep {
		named[documentObject(id)] = true
	}
	for _, object := range list.Items {
		if named[object.Name] {
			continue
		}
		if err := r.remove(ctx, "delete the document "+object.Name, r.configMaps.delete, object.Name); err != nil {
			return err
		}
	}
	return nil
}

// Refused tells the cluster's operator, by a Kubernetes Event on the policy's
// ConfigMap, why a policy was not taken. The same reason for the same policy is
// told once, by however many replicas.
func (r *Policies) Refused(ctx context.Context, reason string) error {
	object, err := r.configMap(ctx, "read the refused policy", policyObject)
	if err != nil {
		return err
	}
	sum := sha256.Sum256([]byte(string(object.UID) + "\n" + object.ResourceVersion + "\n" + reason))
	now := metav1.NewTime(time.Now())
	event := &corev1.Event{
		ObjectMeta: meta("event", policyObject+"."+hex.EncodeToString(sum[:8])),
		InvolvedObject: corev1.ObjectReference{
			APIVersion: "v1", Kind: "ConfigMap", Namespace: Namespace, Name: policyObject, UID: object.UID, ResourceVersion: object.ResourceVersion,
		},
		Reason: "PolicyRefused", Message: brief(reason), Type: corev1.EventTypeWarning,
		Source: corev1.EventSource{Component: User}, FirstTimestamp: now, LastTimestamp: now, Count: 1,
	}
	_, err = call(ctx, r.connection, "tell why the policy was refused", func(ctx context.Context) (*corev1.Event, error) {
		return r.events.create(ctx, event)
	})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}
