package operate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"k8s.io/client-go/rest"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/cluster"
	"github.com/hullmark/hullmark/joinservice"
	"github.com/hullmark/hullmark/joinservice/registry"
	"github.com/hullmark/hullmark/kubeadm"
	"github.com/hullmark/hullmark/upgrade/kube"
)

// apiValidity is how long the certificate of one API is good for, clocks that differ included, unless its options say otherwise.
const apiValidity = time.Hour

// apiPause lies between two questions to an API server that did not answer.
const apiPause = 3 * time.Second

// APIOptions say how a cluster's API is reached.
type APIOptions struct {
	// Server is where an API server is reached, HOST:PORT; if it is empty, at the control plane's endpoint.
	Server string
	// Wait is how long a server that does not answer is asked again.
	Wait time.Duration
	// Validity is how long its certificate is good for; an hour if it is 0. The methods of API make another one before it is over.
	Validity time.Duration
	// NewestLost goes on with a cluster file although another copy of it, which is lost, brought the cluster its policy (policy push).
	NewestLost bool
	// Progress hears of a server that is waited for, and once of one whose certificate ends soon.
	Progress Progress
	// Wrap, if it is set, is put between the clients and the connection, for whoever trusts the server less than an operator does.
	Wrap func(http.RoundTripper) http.RoundTripper
	// Done hears of each change when it is made. A call that fails may have made some: it can be repeated, and goes on.
	Done Progress
}

// Reader is the Kubernetes API of a cluster, as whoever may look reaches it: whoever holds the cluster file, or an operator. Its methods
// only read.
type Reader struct {
	APIOptions
	// known is what the file knows of the cluster, credentials what the API is shown, both in PEM. operator is the one whose file it is;
	// empty of the cluster file.
	known       func() *cluster.Cluster
	credentials func(now time.Time, validity time.Duration) (certificate, key []byte, err error)
	operator    string
	// server is where it is reached; warned says that its certificate ends soon.
	server string
	warned sync.Once

	// What follows is of the certificate that was made last, and is made anew from renewal on.
	renewal  time.Time
	config   *rest.Config
	client   *registry.Registry
	upgrades *kube.Cluster
}

// API is the Kubernetes API of a cluster, as whoever holds the cluster file reaches it: as an administrator, with certificates
// that live for an hour unless more is asked for. Its methods are what can be done by it, a file for each subject, one at a time. Errors
// that the server or the cluster's rules cause carry a hullmark.Condition, or are of the kinds of this package.
type API struct {
	*Reader
	file *cluster.File
}

// Connect prepares a client of the cluster's API; it asks nothing yet. The error is ErrUsage if nobody says where the API is.
func Connect(file *cluster.File, o APIOptions) (*API, error) {
	r := &Reader{APIOptions: o, known: func() *cluster.Cluster { return file.Cluster }}
	r.credentials = func(now time.Time, validity time.Duration) (certificate, key []byte, err error) {
		return file.Cluster.Administrator(now, validity)
	}
	if err := r.locate(); err != nil {
		return nil, err
	}
	return &API{Reader: r, file: file}, r.logIn(time.Now())
}

// ConnectOperator prepares what an operator reads the API by, who has to be one that may look.
func ConnectOperator(file *cluster.OperatorFile, o APIOptions) (*Reader, error) {
	r := &Reader{APIOptions: o, known: func() *cluster.Cluster { return file.Grant.Known }, operator: file.Grant.Who.Name}
	r.credentials = func(time.Time, time.Duration) (certificate, key []byte, err error) { return file.Grant.Client() }
	if err := r.locate(); err != nil {
		return nil, err
	}
	return r, r.logIn(time.Now())
}

// locate decides where the API is.
func (r *Reader) locate() error {
	switch r.server = r.Server; {
	case r.server == "":
		settings, err := r.known().CurrentSettings()
		if err != nil {
			return as(ErrUsage, fmt.Errorf("%w; name it (--server)", err))
		}
		r.server = settings.ControlPlaneEndpoint
	case !hullmark.ValidEndpoint(r.server):
		return as(ErrUsage, fmt.Errorf("--server %q: want HOST:PORT", r.server))
	}
	return nil
}

// logIn makes a certificate, and the clients that show it.
func (r *Reader) logIn(now time.Time) error {
	validity := cmp.Or(r.Validity, apiValidity)
	certificate, key, err := r.credentials(now, validity)
	if err != nil {
		return err
	}
	r.config = &rest.Config{
		Host: "https://" + r.server,
		TLSClientConfig: rest.TLSClientConfig{
			// The name that every API server's certificate has, whatever the way to it.
			ServerName: "kubernetes",
			CAData:     r.known().KubernetesCA(), CertData: certificate, KeyData: key,
		},
		WrapTransport: func(next http.RoundTripper) http.RoundTripper {
			if r.Wrap != nil {
				next = r.Wrap(next)
			}
			return &expiryWarner{next: next, progress: r.Progress, once: &r.warned}
		},
	}
	if r.client, err = registry.New(r.config); err != nil {
		return err
	}
	if r.upgrades, err = kube.New(r.config); err != nil {
		return err
	}
	r.renewal = now.Round(0).Add(validity / 2) // By the wall clock: the API server's goes on while this machine sleeps.
	return nil
}

// renew logs in again before the certificate ends: whoever follows an upgrade does so for hours.
func (r *Reader) renew() error {
	if now := time.Now().Round(0); !now.Before(r.renewal) {
		return r.logIn(now)
	}
	return nil
}

// Config is how the API is reached, for who asks it for objects of any kind (cluster/addons).
func (a *API) Config() *rest.Config { return rest.CopyConfig(a.config) }

// persist repeats an action until the API server answers or Wait is over. The action can be repeated however far it came.
func (r *Reader) persist(ctx context.Context, action func() error) error {
	began := time.Now()
	for {
		if err := r.renew(); err != nil {
			return err
		}
		err := action()
		var condition *hullmark.Condition
		waited := time.Since(began).Round(time.Second)
		if !errors.As(err, &condition) || condition.Code != joinservice.CodeUnreachable || waited >= r.Wait {
			return r.refused(err)
		}
		r.Progress.say("waiting for the API server (%v of %v): %s", waited, r.Wait, condition.Root().Title)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(apiPause):
		}
	}
}

// refused says of an operator what it means that the API refuses him.
func (r *Reader) refused(err error) error {
	var c *hullmark.Condition
	if r.operator == "" || !errors.As(err, &c) || c.Code != joinservice.CodeForbidden {
		return err
	}
	return &hullmark.Condition{
		Code: "operator-not-permitted", Step: "API", Title: fmt.Sprintf("the API does not let operator %s look: %s", r.operator, c.Title), Expected: string(hullmark.MayLook),
		Next: "ask whoever holds the cluster file: the operator was withdrawn, has another file by now, the policy that names him was not pushed yet, or Hullmark's manifest in the cluster is of an earlier release",
	}
}

// expiryWarner says once if the API server's certificate ends soon.
type expiryWarner struct {
	next     http.RoundTripper
	progress Progress
	once     *sync.Once
}

// RoundTrip does one request.
func (w *expiryWarner) RoundTrip(request *http.Request) (*http.Response, error) {
	answer, err := w.next.RoundTrip(request)
	if err != nil || answer.TLS == nil {
		return answer, err
	}
	if until := answer.TLS.PeerCertificates[0].NotAfter; time.Until(until) < kubeadm.EndsSoon {
		w.once.Do(func() {
			w.progress.say("warning: the certificate of the API server ends on %s; reboot its control plane, which makes another", until.UTC().Format(time.DateOnly))
		})
	}
	return answer, nil
}
