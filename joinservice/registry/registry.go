// Package registry keeps a cluster's machines, tokens and policy as objects of
// its Kubernetes API, and decides over kubelets' certificate requests.
//
// Everything lies in the namespace hullmark, but bootstrap tokens, which
// Kubernetes wants in kube-system, and vouchers, which others write. Replicas share nothing but these objects.
package registry

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/joinservice"
)

const (
	// Namespace holds all objects but tokens and vouchers; Manifest makes it.
	Namespace = "hullmark"
	// User is the common name of the join service's client certificate, which Manifest gives its permissions.
	User = "hullmark:join-service"
	// tokenNamespace is where Kubernetes looks for bootstrap tokens.
	tokenNamespace = "kube-system"
)

// The labels of every object.
const (
	managedLabel = "app.kubernetes.io/managed-by"
	managedBy    = "hullmark"
	// kindLabel tells the kinds of object apart, for lists and watches.
	kindLabel = "app.kubernetes.io/component"
)

// callTimeout bounds each call of the API, the reading of its answer included.
const callTimeout = 15 * time.Second

// Registry is a client of one cluster's API. It implements joinservice.Records,
// joinservice.Tokens and joinservice.Lease by its parts, and is safe for concurrent use. Each of its calls has
// a deadline. A call that the API did not answer, or not yet, returns a
// *hullmark.Condition with Retry: api-unreachable, or api-forbidden where the
// permissions of Manifest are missing.
type Registry struct {
	*connection
	*Machines
	*Policies
	*Tokens
	*Leases
	*Endpoints
	*Vouchers
}

// Machines are the records of machines, their names, addresses and groups.
type Machines struct {
	*connection
	*Groups
	// tokens are revoked with a record.
	tokens *Tokens
	// absent is since when Nodes are not Ready whose machines hold addresses that others want.
	absent *absences
}

// Groups count their machines.
type Groups struct {
	*connection
	enrolling enrolments
}

// Policies are what the operator pushes and join services watch: the signed policy and its documents.
type Policies struct {
	*connection
	// read is what was read last.
	read *readPolicy
}

// Tokens are kubelets' bootstrap tokens.
type Tokens struct{ *connection }

// Leases are the Lease of the control plane that joins.
type Leases struct {
	*connection
	// joining is what is known of the age of that Lease.
	joining *watched
}

// Endpoints are where nodes, kubelets and addons find each other.
type Endpoints struct{ *connection }

// connection has the objects of a cluster's API that Hullmark deals with.
type connection struct {
	configMaps objects[*corev1.ConfigMap, *corev1.ConfigMapList]
	// vouchers are the ConfigMaps of VoucherNamespace.
	vouchers objects[*corev1.ConfigMap, *corev1.ConfigMapList]
	// system are the ConfigMaps of kube-system.
	system   objects[*corev1.ConfigMap, *corev1.ConfigMapList]
	secrets  objects[*corev1.Secret, *corev1.SecretList]
	events   objects[*corev1.Event, *corev1.EventList]
	nodes    objects[*corev1.Node, *corev1.NodeList]
	leases   objects[*coordinationv1.Lease, *coordinationv1.LeaseList]
	requests objects[*certificatesv1.CertificateSigningRequest, *certificatesv1.CertificateSigningRequestList]
	// roleBindings are those of the namespace hullmark.
	roleBindings objects[*rbacv1.RoleBinding, *rbacv1.RoleBindingList]
	// server is where the API is, for errors; timeout bounds a call.
	server  string
	timeout time.Duration
}

var (
	_ joinservice.Records = (*Registry)(nil)
	_ joinservice.Tokens  = (*Registry)(nil)
	_ joinservice.Lease   = (*Registry)(nil)

	_ joinservice.Vouchers = (*Registry)(nil)
)

// New returns a client for the API that config names. Its rate limit is not
// used: the API server bounds its clients itself.
func New(config *rest.Config) (*Registry, error) {
	scheme := runtime.NewScheme()
	if err := errors.Join(corev1.AddToScheme(scheme), certificatesv1.AddToScheme(scheme), coordinationv1.AddToScheme(scheme), rbacv1.AddToScheme(scheme)); err != nil {
		return nil, fmt.Errorf("registry: %w", err)
	}
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	core, err := client(config, scheme, "/api", corev1.SchemeGroupVersion)
	if err != nil {
		return nil, fmt.Errorf("registry: %w", err)
	}
	certificates, err := client(config, scheme, "/apis", certificatesv1.SchemeGroupVersion)
	if err != nil {
		return nil, fmt.Errorf("registry: %w", err)
	}
	coordination, err := client(config, scheme, "/apis", coordinationv1.SchemeGroupVersion)
	if err != nil {
		return nil, fmt.Errorf("registry: %w", err)
	}
	rbac, err := client(config, scheme, "/apis", rbacv1.SchemeGroupVersion)
	if err != nil {
		return nil, fmt.Errorf("registry: %w", err)
	}
	codec := runtime.NewParameterCodec(scheme)
	a := &connection{
		configMaps: objects[*corev1.ConfigMap, *corev1.ConfigMapList]{
			core, codec, "configmaps", Namespace, fresh[corev1.ConfigMap], fresh[corev1.ConfigMapList],
		},
		vouchers: objects[*corev1.ConfigMap, *corev1.ConfigMapList]{
			core, codec, "configmaps", VoucherNamespace, fresh[corev1.ConfigMap], fresh[corev1.ConfigMapList],
		},
		system: objects[*corev1.ConfigMap, *corev1.ConfigMapList]{
			core, codec, "configmaps", tokenNamespace, fresh[corev1.ConfigMap], fresh[corev1.ConfigMapList],
		},
		secrets: objects[*corev1.Secret, *corev1.SecretList]{core, codec, "secrets", tokenNamespace, fresh[corev1.Secret], fresh[corev1.SecretList]},
		events:  objects[*corev1.Event, *corev1.EventList]{core, codec, "events", Namespace, fresh[corev1.Event], fresh[corev1.EventList]},
		nodes:   objects[*corev1.Node, *corev1.NodeList]{core, codec, "nodes", "", fresh[corev1.Node], fresh[corev1.NodeList]},
		leases: objects[*coordinationv1.Lease, *coordinationv1.LeaseList]{
			coordination, codec, "leases", Namespace, fresh[coordinationv1.Lease], fresh[coordinationv1.LeaseList],
		},
		requests: objects[*certificatesv1.CertificateSigningRequest, *certificatesv1.CertificateSigningRequestList]{
			certificates, codec, "certificatesigningrequests", "",
			fresh[certificatesv1.CertificateSigningRequest], fresh[certificatesv1.CertificateSigningRequestList],
		},
		roleBindings: objects[*rbacv1.RoleBinding, *rbacv1.RoleBindingList]{
			rbac, codec, "rolebindings", Namespace, fresh[rbacv1.RoleBinding], fresh[rbacv1.RoleBindingList],
		},
		server: config.Host, timeout: callTimeout,
	}
	tokens := &Tokens{a}
	return &Registry{
		connection: a,
		Machines:   &Machines{connection: a, Groups: &Groups{connection: a, enrolling: enrolments{waiting: map[string][]*enrolment{}}}, tokens: tokens, absent: &absences{now: time.Now}},
		Policies:   &Policies{a, &readPolicy{}}, Tokens: tokens, Endpoints: &Endpoints{a}, Vouchers: &Vouchers{a},
		Leases: &Leases{connection: a, joining: &watched{duration: leaseDuration, now: time.Now}},
	}, nil
}

// client speaks one group of the API in JSON. Only the groups in use are
// linked: client-go's own clientset brings every type of Kubernetes.
func client(config *rest.Config, scheme *runtime.Scheme, path string, group schema.GroupVersion) (*rest.RESTClient, error) {
	c := rest.CopyConfig(config)
	c.APIPath, c.GroupVersion = path, &group
	c.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	c.QPS = -1
	if c.UserAgent == "" {
		c.UserAgent = "hullmark"
	}
	return rest.RESTClientFor(c)
}

// meta names an object of the namespace hullmark.
func meta(kind, name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Name: name, Namespace: Namespace,
		Labels: map[string]string{managedLabel: managedBy, kindLabel: kind},
	}
}

func selector(requirement string) string {
	return managedLabel + "=" + managedBy + "," + kindLabel + requirement
}

// call runs one call under its deadline and says what it was for if it fails.
func call[T any](ctx context.Context, r *connection, what string, do func(context.Context) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	result, err := do(ctx)
	return result, r.explain(what, err)
}

// explain makes a condition of an error that is expected to pass. An error that
// says something about the object itself is only wrapped, so that callers can tell.
func (r *connection) explain(what string, err error) error {
	var answer apierrors.APIStatus
	switch {
	case err == nil:
		return nil
	case errors.Is(err, context.Canceled):
		return fmt.Errorf("%s: %w", what, err)
	case apierrors.IsForbidden(err), apierrors.IsUnauthorized(err):
		return &hullmark.Condition{
			Code: joinservice.CodeForbidden, Title: what + ": the Kubernetes API refuses it: " + brief(err.Error()), Retry: true,
			Next: "wait: an API server that has just started refuses everybody; if this stays, apply Hullmark's manifest again",
		}
	case !errors.As(err, &answer), transient(answer.Status().Code):
		return &hullmark.Condition{
			Code: joinservice.CodeUnreachable, Title: what + ": the Kubernetes API at " + r.server + " does not answer: " + brief(err.Error()), Retry: true,
			Next: "wait; if this stays, look at the API server and etcd of the control plane",
		}
	default:
		return fmt.Errorf("%s: %w", what, err)
	}
}

// transient reports whether an HTTP status says only that the API server cannot answer now.
func transient(code int32) bool {
	return code >= http.StatusInternalServerError || code == http.StatusTooManyRequests || code == http.StatusRequestTimeout
}

// brief bounds a text that others wrote, in bytes.
func brief(text string) string {
	const most = 512
	if len(text) > most {
		return text[:most] + "…"
	}
	return text
}

// strict reads what an object holds; etcd bounds that.
func strict(text string, into any) error { return hullmark.DecodeStrict([]byte(text), len(text), into) }
