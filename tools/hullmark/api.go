package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/cluster"
	"github.com/hullmark/hullmark/joinservice"
	"github.com/hullmark/hullmark/joinservice/registry"
	"github.com/hullmark/hullmark/kubeadm"
	"github.com/hullmark/hullmark/measurements"
)

// apiValidity is how long the certificate of one command is good for, clocks that differ included.
const apiValidity = time.Hour

// apiOptions are the flags of the verbs that speak to a cluster's API server.
type apiOptions struct {
	policyOptions
	server string
	wait   time.Duration
}

func (o *apiOptions) addFlags(cmd *cobra.Command) {
	o.policyOptions.addFlags(cmd)
	cmd.Flags().StringVar(&o.server, "server", "", "`HOST:PORT` at which you reach the API server (default: the control plane's endpoint)")
	cmd.Flags().DurationVar(&o.wait, "wait", time.Minute, "how long to keep asking an API server that does not answer")
}

// apiPause lies between two questions to an API server that did not answer.
const apiPause = 3 * time.Second

// persist repeats an action until the API server answers or --wait is over. The action can be repeated however far it came.
func (o *apiOptions) persist(ctx context.Context, notes io.Writer, action func() error) error {
	began := time.Now()
	for {
		err := action()
		var condition *hullmark.Condition
		waited := time.Since(began).Round(time.Second)
		if !errors.As(err, &condition) || condition.Code != joinservice.CodeUnreachable || waited >= o.wait {
			return err
		}
		fmt.Fprintf(notes, "waiting for the API server (%v of %v): %s\n", waited, o.wait, printable(condition.Root().Title))
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(apiPause):
		}
	}
}

// connect opens the cluster file and prepares a client of its API, with an
// administrator's certificate for this command alone.
func (o *apiOptions) connect(notes io.Writer) (*cluster.File, *registry.Registry, error) {
	if o.server != "" && !hullmark.ValidEndpoint(o.server) {
		return nil, nil, withCode(exitUsage, fmt.Errorf("--server %q: want HOST:PORT", o.server))
	}
	operator := operatorOptions{cluster: o.cluster, passphraseFile: o.passphraseFile}
	file, err := operator.open(notes)
	if err != nil {
		return nil, nil, err
	}
	client, err := o.client(file.Cluster, notes)
	return file, client, err
}

func (o *apiOptions) client(c *cluster.Cluster, notes io.Writer) (*registry.Registry, error) {
	server := o.server
	if server == "" {
		settings, err := c.CurrentSettings()
		if err != nil {
			return nil, withCode(exitUsage, fmt.Errorf("%w; name it (--server)", err))
		}
		server = settings.ControlPlaneEndpoint
	}
	certificate, key, err := c.Administrator(time.Now(), apiValidity)
	if err != nil {
		return nil, err
	}
	return registry.New(&rest.Config{
		Host: "https://" + server,
		TLSClientConfig: rest.TLSClientConfig{
			// The name that every API server's certificate has, whatever the way to it.
			ServerName: "kubernetes",
			CAData:     c.KubernetesCA(), CertData: certificate, KeyData: key,
		},
		WrapTransport: func(next http.RoundTripper) http.RoundTripper { return &expiryWarner{next: next, notes: notes} },
	})
}

// expiryWarner says once if the API server's certificate ends soon.
type expiryWarner struct {
	next  http.RoundTripper
	notes io.Writer
	once  sync.Once
}

// RoundTrip does one request.
func (w *expiryWarner) RoundTrip(request *http.Request) (*http.Response, error) {
	answer, err := w.next.RoundTrip(request)
	if err != nil || answer.TLS == nil {
		return answer, err
	}
	if until := answer.TLS.PeerCertificates[0].NotAfter; time.Until(until) < kubeadm.EndsSoon {
		w.once.Do(func() {
			fmt.Fprintf(w.notes, "warning: the certificate of the API server ends on %s; reboot its control plane, which makes another\n", until.UTC().Format(time.DateOnly))
		})
	}
	return answer, nil
}

// tellAPI gives an error of the API its full text and exit code.
func tellAPI(err error) error {
	var condition *hullmark.Condition
	if !errors.As(err, &condition) {
		return err
	}
	condition = hullmark.AsCondition(err, "API", "api-failed")
	if condition.Code == joinservice.CodeUnreachable {
		return withCode(exitUnreachable, told{condition})
	}
	return tell(condition)
}

func newPolicyPushCommand() *cobra.Command {
	var o apiOptions
	cmd := &cobra.Command{
		Use:   "push",
		Short: "Send the signed policy and its documents to the cluster",
		Long: `Send the signed policy and its documents to the cluster.

Every join service checks the signature and that the version rises, and takes the policy up without a restart; one that refuses it says why by an event in the
namespace hullmark. Exit code 5 if the API server is not reached.`,
		Example: "  hullmark policy push --cluster prod.cluster --server 192.0.2.7:6443",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			file, client, err := o.connect(cmd.ErrOrStderr())
			if err == nil {
				err = o.persist(cmd.Context(), cmd.ErrOrStderr(), func() error {
					return pushPolicy(cmd.Context(), client, file.Cluster, cmd.OutOrStdout())
				})
			}
			if err != nil {
				return fmt.Errorf("policy push: %w", tellAPI(err))
			}
			return nil
		},
	}
	o.addFlags(cmd)
	return cmd
}

// pushPolicy sends the cluster file's policy.
func pushPolicy(ctx context.Context, client *registry.Registry, c *cluster.Cluster, out io.Writer) error {
	policy, err := c.OpenPolicy()
	if err != nil {
		return err
	}
	if policy.Version == 0 {
		return errNoPolicy
	}
	if err := checkSuperseded(ctx, client, c); err != nil {
		return err
	}
	if err := client.PushPolicy(ctx, c.Policy, c.Documents); err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "policy version %d is in the cluster, with %d documents\n", policy.Version, len(c.Documents))
	return err
}

// checkSuperseded refuses a cluster file whose root has handed over to the one that signs by now: join services take nothing of the earlier one.
func checkSuperseded(ctx context.Context, client *registry.Registry, c *cluster.Cluster) error {
	envelope, err := client.Pushed(ctx)
	if err != nil || envelope == nil {
		return err
	}
	// A policy that nobody signed is replaced like any other.
	signer, err := measurements.PolicySigner(envelope)
	if err != nil || signer == c.ID() {
		return nil
	}
	policy, err := measurements.OpenPolicy(envelope, signer)
	if err != nil {
		return nil
	}
	if roots, err := joinservice.RootsOf(policy, signer); err == nil && slices.Contains(roots, c.ID()) {
		return fmt.Errorf("the cluster's root is %s by now, and this cluster file is a copy from before it was exchanged; next: use the newest one", signer)
	}
	return nil
}
