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
	// Validity is how long its certificate is good for, for what takes its time; an hour if it is 0.
	Validity time.Duration
	// Progress hears of a server that is waited for, and once of one whose certificate ends soon.
	Progress Progress
	// Done hears of each change when it is made. A call that fails may have made some: it can be repeated, and goes on.
	Done Progress
}

// API is the Kubernetes API of a cluster, as whoever holds the cluster file reaches it: as an administrator, with a certificate
// that lives for an hour unless more is asked for. Its methods are what can be done by it, a file for each subject. Errors that
// the server or the cluster's rules cause carry a hullmark.Condition, or are of the kinds of this package.
type API struct {
	APIOptions
	file     *cluster.File
	config   *rest.Config
	client   *registry.Registry
	upgrades *kube.Cluster
}

// Connect prepares a client of the cluster's API; it asks nothing yet. The error is ErrUsage if nobody says where the API is.
func Connect(file *cluster.File, o APIOptions) (*API, error) {
	server := o.Server
	switch {
	case server == "":
		settings, err := file.Cluster.CurrentSettings()
		if err != nil {
			return nil, as(ErrUsage, fmt.Errorf("%w; name it (--server)", err))
		}
		server = settings.ControlPlaneEndpoint
	case !hullmark.ValidEndpoint(server):
		return nil, as(ErrUsage, fmt.Errorf("--server %q: want HOST:PORT", server))
	}
	certificate, key, err := file.Cluster.Administrator(time.Now(), cmp.Or(o.Validity, apiValidity))
	if err != nil {
		return nil, err
	}
	config := &rest.Config{
		Host: "https://" + server,
		TLSClientConfig: rest.TLSClientConfig{
			// The name that every API server's certificate has, whatever the way to it.
			ServerName: "kubernetes",
			CAData:     file.Cluster.KubernetesCA(), CertData: certificate, KeyData: key,
		},
		WrapTransport: func(next http.RoundTripper) http.RoundTripper {
			return &expiryWarner{next: next, progress: o.Progress}
		},
	}
	client, err := registry.New(config)
	if err != nil {
		return nil, err
	}
	upgrades, err := kube.New(config)
	return &API{APIOptions: o, file: file, config: config, client: client, upgrades: upgrades}, err
}

// Config is how the API is reached, for who asks it for objects of any kind (cluster/addons).
func (a *API) Config() *rest.Config { return rest.CopyConfig(a.config) }

// persist repeats an action until the API server answers or Wait is over. The action can be repeated however far it came.
func (a *API) persist(ctx context.Context, action func() error) error {
	began := time.Now()
	for {
		err := action()
		var condition *hullmark.Condition
		waited := time.Since(began).Round(time.Second)
		if !errors.As(err, &condition) || condition.Code != joinservice.CodeUnreachable || waited >= a.Wait {
			return err
		}
		a.Progress.say("waiting for the API server (%v of %v): %s", waited, a.Wait, condition.Root().Title)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(apiPause):
		}
	}
}

// expiryWarner says once if the API server's certificate ends soon.
type expiryWarner struct {
	next     http.RoundTripper
	progress Progress
	once     sync.Once
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
