package registry

import (
	"context"
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
)

// objects are those of one resource. client-go's own typed clients would do the same, but
// link their test doubles too: 12 MB more in every program.
type objects[O, L runtime.Object] struct {
	client *rest.RESTClient
	codec  runtime.ParameterCodec
	// namespace is empty for resources of the whole cluster.
	resource, namespace string
	// one and many make what answers are read into.
	one  func() O
	many func() L
}

func fresh[T any]() *T { return new(T) }

// at addresses the resource, or one of its objects if name is not empty.
func (o objects[O, L]) at(r *rest.Request, name string) *rest.Request {
	r = r.NamespaceIfScoped(o.namespace, o.namespace != "").Resource(o.resource)
	if name != "" {
		r = r.Name(name)
	}
	return r
}

func (o objects[O, L]) get(ctx context.Context, name string) (O, error) {
	result := o.one()
	return result, o.at(o.client.Get(), name).Do(ctx).Into(result)
}

// version returns an object's version alone: the server then sends nothing of its content.
func (o objects[O, L]) version(ctx context.Context, name string) (string, error) {
	answer, err := o.at(o.client.Get(), name).SetHeader("Accept", "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1").Do(ctx).Raw()
	if err != nil {
		return "", err
	}
	var object metav1.PartialObjectMetadata
	if err := json.Unmarshal(answer, &object); err != nil {
		return "", err
	}
	return object.ResourceVersion, nil
}

func (o objects[O, L]) create(ctx context.Context, object O) (O, error) {
	result := o.one()
	return result, o.at(o.client.Post(), "").Body(object).Do(ctx).Into(result)
}

// update replaces an object, or what belongs to it below the given path.
func (o objects[O, L]) update(ctx context.Context, name string, object O, below ...string) (O, error) {
	result := o.one()
	return result, o.at(o.client.Put(), name).SubResource(below...).Body(object).Do(ctx).Into(result)
}

// patch changes a part of an object by a merge patch (RFC 7386).
func (o objects[O, L]) patch(ctx context.Context, name string, patch []byte) (O, error) {
	result := o.one()
	return result, o.at(o.client.Patch(types.MergePatchType), name).Body(patch).Do(ctx).Into(result)
}

func (o objects[O, L]) delete(ctx context.Context, name string) error {
	return o.at(o.client.Delete(), name).Do(ctx).Error()
}

// deleteOnly deletes an object if it is still the one that is meant, else the error is a conflict.
func (o objects[O, L]) deleteOnly(ctx context.Context, name string, only metav1.Preconditions) error {
	return o.at(o.client.Delete(), name).Body(&metav1.DeleteOptions{Preconditions: &only}).Do(ctx).Error()
}

func (o objects[O, L]) list(ctx context.Context, options metav1.ListOptions) (L, error) {
	result := o.many()
	return result, o.at(o.client.Get(), "").VersionedParams(&options, o.codec).Do(ctx).Into(result)
}

func (o objects[O, L]) watch(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	options.Watch = true
	return o.at(o.client.Get(), "").VersionedParams(&options, o.codec).Watch(ctx)
}

const (
	// page is how many objects of a long list are asked for at once, so that no answer with all of them has to be held.
	page = 250
	// maxListed is how many there may be: Kubernetes is made for 5,000 Nodes, and Manifest's quota lets 10,000 vouchers be. A server that
	// says forever that there are more is not believed.
	maxListed = 20_000
)

// eachConfigMap calls do with each ConfigMap of a long list, page by page. Each page has a deadline of its own.
func (r *connection) eachConfigMap(
	ctx context.Context, what string, of objects[*corev1.ConfigMap, *corev1.ConfigMapList], labels string, do func(*corev1.ConfigMap),
) error {
	options := metav1.ListOptions{LabelSelector: labels, Limit: page}
	for range maxListed / page {
		list, err := call(ctx, r, what, func(ctx context.Context) (*corev1.ConfigMapList, error) { return of.list(ctx, options) })
		if err != nil {
			return err
		}
		for i := range list.Items {
			do(&list.Items[i])
		}
		if options.Continue = list.Continue; options.Continue == "" {
			return nil
		}
	}
	return fmt.Errorf("%s: there are more than %d", what, maxListed)
}
