package addons

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
)

// pageSize is how many objects are asked for at once.
const pageSize = 250

// client speaks to a cluster's API about objects of any kind. It is safe for concurrent use.
type client struct {
	config  *rest.Config
	objects dynamic.Interface
	kinds   discovery.CachedDiscoveryInterface
	mapper  *restmapper.DeferredDiscoveryRESTMapper
}

// connect prepares a client; it asks nothing yet.
func connect(config *rest.Config) (*client, error) {
	config = rest.CopyConfig(config)
	config.QPS = -1 // The API server bounds its clients itself.
	config.UserAgent = "hullmark"
	config.WarningHandler = rest.NoWarnings{}
	objects, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	kinds, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return nil, err
	}
	cached := memory.NewMemCacheClient(kinds)
	return &client{config: config, objects: objects, kinds: cached, mapper: restmapper.NewDeferredDiscoveryRESTMapper(cached)}, nil
}

// errUnserved says that the API has no objects of a kind, in the version asked for.
var errUnserved = errors.New("the API serves no such kind")

// resource finds the resource of a kind in its version, or in any other if anyVersion says so.
func (c *client) resource(kind schema.GroupVersionKind, anyVersion bool) (*meta.RESTMapping, error) {
	mapping, err := c.mapper.RESTMapping(kind.GroupKind(), kind.Version)
	if anyVersion && meta.IsNoMatchError(err) {
		mapping, err = c.mapper.RESTMapping(kind.GroupKind())
	}
	if meta.IsNoMatchError(err) {
		err = fmt.Errorf("%s: %w", kind, errUnserved)
	}
	return mapping, err
}

// in addresses the objects of a resource in a namespace, or the cluster's.
func (c *client) in(mapping *meta.RESTMapping, namespace string) dynamic.ResourceInterface {
	if mapping.Scope.Name() == meta.RESTScopeNameNamespace {
		return c.objects.Resource(mapping.Resource).Namespace(namespace)
	}
	return c.objects.Resource(mapping.Resource)
}

// get returns an object, in its version if that is served, else in another; nil if there is none.
func (c *client) get(ctx context.Context, n Name) (*object, error) {
	mapping, err := c.resource(n.kind(), true)
	if errors.Is(err, errUnserved) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	o, err := c.in(mapping, n.Namespace).Get(ctx, n.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	return o, err
}

// exactly addresses the resource of a name in its own version.
func (c *client) exactly(n Name) (dynamic.ResourceInterface, error) {
	mapping, err := c.resource(n.kind(), false)
	if err != nil {
		return nil, err
	}
	return c.in(mapping, n.Namespace), nil
}

// apply has the API server merge an object into what is there, as a manager of its fields; with dryRun it only says what would be.
// Without force, fields of other managers with other values are a conflict.
func (c *client) apply(ctx context.Context, o *object, manager string, force, dryRun bool) (*object, error) {
	to, err := c.exactly(nameOf(o))
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(stripped(o))
	if err != nil {
		return nil, err
	}
	options := metav1.PatchOptions{FieldManager: manager, Force: &force, FieldValidation: metav1.FieldValidationStrict}
	if dryRun {
		options.DryRun = []string{metav1.DryRunAll}
	}
	return to.Patch(ctx, o.GetName(), types.ApplyPatchType, text, options)
}

// delete removes an object; one that is gone is no error.
func (c *client) delete(ctx context.Context, n Name) error {
	mapping, err := c.resource(n.kind(), true)
	if errors.Is(err, errUnserved) {
		return nil
	}
	if err != nil {
		return err
	}
	background := metav1.DeletePropagationBackground
	err = c.in(mapping, n.Namespace).Delete(ctx, n.Name, metav1.DeleteOptions{PropagationPolicy: &background})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// each calls do for every object of a resource, in all namespaces, a page at a time. A list that takes longer than etcd keeps its
// state goes on with the present one.
func (c *client) each(ctx context.Context, of schema.GroupVersionResource, do func(*object) error) error {
	options := metav1.ListOptions{Limit: pageSize}
	for {
		list, err := c.objects.Resource(of).List(ctx, options)
		if next, ok := goesOn(err); ok && options.Continue != "" {
			options.Continue = next
			continue
		}
		if err != nil {
			return err
		}
		for i := range list.Items {
			if err := do(&list.Items[i]); err != nil {
				return err
			}
		}
		if options.Continue = list.GetContinue(); options.Continue == "" {
			return nil
		}
	}
}

// goesOn returns where a list goes on whose state is gone (410, with a token for the present state).
func goesOn(err error) (string, bool) {
	var answer apierrors.APIStatus
	if !errors.As(err, &answer) || !apierrors.IsResourceExpired(err) {
		return "", false
	}
	next := answer.Status().Continue
	return next, next != ""
}

// count returns how many objects of a resource there are.
func (c *client) count(ctx context.Context, of schema.GroupVersionResource) (int64, error) {
	list, err := c.objects.Resource(of).List(ctx, metav1.ListOptions{Limit: 1})
	if err != nil {
		return 0, err
	}
	n := int64(len(list.Items))
	if more := list.GetRemainingItemCount(); more != nil {
		n += *more
	}
	return n, nil
}

// refresh forgets which kinds the API serves: definitions have changed.
func (c *client) refresh() { c.mapper.Reset() }

// gate lets requests that change something pass until it is shut. Helm goes on in the background when its context ends: what it
// writes then would meet what is put back.
type gate struct {
	mutex  sync.RWMutex // held for reading by each request that changes something
	isShut bool
}

// shut returns once no request is on its way that changes something; later ones fail.
func (g *gate) shut() {
	g.mutex.Lock()
	defer g.mutex.Unlock()
	g.isShut = true
}

// wrap leads a configuration's requests through the gate.
func (g *gate) wrap(config *rest.Config) *rest.Config {
	config = rest.CopyConfig(config)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return gated{g, next} })
	return config
}

type gated struct {
	gate *gate
	next http.RoundTripper
}

var errShut = errors.New("interrupted: nothing more is changed")

// RoundTrip does one request.
func (g gated) RoundTrip(request *http.Request) (*http.Response, error) {
	if request.Method == http.MethodGet || request.Method == http.MethodHead {
		return g.next.RoundTrip(request)
	}
	g.gate.mutex.RLock()
	defer g.gate.mutex.RUnlock()
	if g.gate.isShut {
		return nil, errShut
	}
	return g.next.RoundTrip(request)
}

// passes reports whether an error is likely to pass by itself: the API server, or a webhook that it asks, does not answer, or
// somebody else changed the object at the same time.
func passes(err error) bool {
	var answer apierrors.APIStatus
	if !errors.As(err, &answer) {
		return !errors.Is(err, errShut) && !errors.Is(err, context.Canceled)
	}
	code := answer.Status().Code
	return code >= http.StatusInternalServerError || code == http.StatusTooManyRequests || code == http.StatusConflict && !isApplyConflict(err)
}

// isApplyConflict reports whether fields are another manager's.
func isApplyConflict(err error) bool {
	return apierrors.HasStatusCause(err, metav1.CauseTypeFieldManagerConflict)
}

// nested reads a string of an object's fields; empty if there is none.
func nested(o *object, path ...string) string {
	text, _, _ := unstructured.NestedString(o.Object, path...)
	return text
}
