package main

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/hullmark/hullmark/cluster"
	"github.com/hullmark/hullmark/joinservice"
	"github.com/hullmark/hullmark/joinservice/registry"
	kubeadmrun "github.com/hullmark/hullmark/kubeadm/run"
	"github.com/hullmark/hullmark/measurements"
)

func newEndpointCommand() *cobra.Command {
	return group("endpoint", "Move the control plane to another address or name", newEndpointSetCommand(), newEndpointShowCommand())
}

// endpointOptions are the flags of `hullmark endpoint set`.
type endpointOptions struct {
	apiOptions
	names  []string
	served bool
}

func newEndpointSetCommand() *cobra.Command {
	var o endpointOptions
	cmd := &cobra.Command{
		Use:   "set HOST:PORT",
		Short: "Change the control plane's endpoint, and the names of its API servers",
		Long: `Change the control plane's endpoint, and the names of its API servers.

The endpoint is signed into the policy and pushed. Nothing moves before it can: each control plane makes the certificate for it at its next boot, and each worker goes over
at its own next boot after that; kube-proxy and flannel do at their next start on a node. So reboot the control planes, one at a time; run this command again, which sees that they all serve the endpoint and lets the
addons use it; reboot the workers. With several control planes boot and join no worker between the two: it may find one that does not serve the endpoint yet. A name that was in a certificate stays in it, and the old endpoint has to work until the last worker has gone over.

With the endpoint that is in force, and other names, only the certificates change. Name --server until nodes serve the new endpoint: it is what all commands use from now on if you do not.`,
		Example: "  hullmark endpoint set api.example.net:6443 --name 203.0.113.7 --cluster prod.cluster --server 192.0.2.7:6443",
		Args:    exactArg("endpoint set", "the endpoint"),
		RunE: func(cmd *cobra.Command, args []string) error {
			endpoint := measurements.Endpoint{Address: args[0], Names: o.names}
			if err := endpoint.Check(); err != nil {
				return withCode(exitUsage, fmt.Errorf("endpoint set: %w", err))
			}
			if err := o.set(cmd.Context(), endpoint, cmd.OutOrStdout(), cmd.ErrOrStderr()); err != nil {
				return fmt.Errorf("endpoint set: %w", tellAPI(err))
			}
			return nil
		},
	}
	o.addFlags(cmd)
	cmd.Flags().StringArrayVar(&o.names, "name", nil, "a further DNS name or IP `ADDRESS` of the API servers; repeat for more")
	cmd.Flags().BoolVar(&o.served, "served", false, "go on although some control planes cannot be reached from here: you saw that they serve the endpoint")
	return cmd
}

func (o *endpointOptions) set(ctx context.Context, endpoint measurements.Endpoint, out, notes io.Writer) error {
	file, client, err := o.connect(notes)
	if err != nil {
		return err
	}
	if _, err := file.Cluster.CurrentSettings(); err != nil {
		return err
	}
	return o.persist(ctx, notes, func() error {
		if err := signAndPush(ctx, client, file, out, setEndpoint(endpoint)); err != nil {
			return err
		}
		if err := client.NoteEndpoint(ctx, endpoint); err != nil {
			return err
		}
		return o.move(ctx, client, file.Cluster, out)
	})
}

// setEndpoint changes a policy's endpoint.
func setEndpoint(endpoint measurements.Endpoint) policyEdit {
	return func(policy *measurements.Policy) (string, []measurements.Document, error) {
		if last := policy.Endpoint; last != nil && last.Address == endpoint.Address && slices.Equal(last.Names, endpoint.Names) {
			return "", nil, nil
		}
		policy.Endpoint = &endpoint
		return "the control plane's endpoint is to be " + endpoint.Address, nil, nil
	}
}

// move lets the addons use the endpoint if all control planes serve it, and says what is left to do.
func (o *endpointOptions) move(ctx context.Context, client *registry.Registry, c *cluster.Cluster, out io.Writer) error {
	unserved, unreached, err := o.showEndpoint(ctx, client, c, out)
	if err != nil {
		return err
	}
	if unserved || unreached && !o.served {
		_, err := fmt.Fprintln(out, "next: reboot the control planes that do not serve it yet, one at a time, and run this command again")
		return err
	}
	settings, err := c.CurrentSettings()
	if err != nil {
		return err
	}
	absent, err := client.MoveAddons(ctx, settings.ControlPlaneEndpoint)
	if err != nil {
		return err
	}
	if len(absent) > 0 {
		slices.Sort(absent)
		fmt.Fprintf(out, "the cluster has no %s of Hullmark's: tell what you have in its place where the API server is\n", strings.Join(absent, " and no "))
	}
	_, err = fmt.Fprintf(out, "nodes use %s from their next boot on\nnext: reboot the workers; sign kubeconfigs for it (hullmark cluster kubeconfig)\n", settings.ControlPlaneEndpoint)
	return err
}

func newEndpointShowCommand() *cobra.Command {
	var o endpointOptions
	cmd := &cobra.Command{
		Use:   "show",
		Short: "Show the control plane's endpoint, and which API servers serve it until when",
		Long: `Show the control plane's endpoint, which API servers have a certificate for it, and until when those are good.

Each control plane makes its certificates anew at its first boot after four months of their year.`,
		Example: "  hullmark endpoint show --cluster prod.cluster --server 192.0.2.7:6443",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			file, client, err := o.connect(cmd.ErrOrStderr())
			if err == nil {
				err = o.persist(cmd.Context(), cmd.ErrOrStderr(), func() error {
					_, _, err := o.showEndpoint(cmd.Context(), client, file.Cluster, cmd.OutOrStdout())
					return err
				})
			}
			if err != nil {
				return fmt.Errorf("endpoint show: %w", tellAPI(err))
			}
			return nil
		},
	}
	o.addFlags(cmd)
	return cmd
}

// showEndpoint prints what each API server says of itself, and reports whether any does not serve the endpoint, or could not be asked.
func (o *endpointOptions) showEndpoint(ctx context.Context, client *registry.Registry, c *cluster.Cluster, out io.Writer) (unserved, unreached bool, err error) {
	settings, err := c.CurrentSettings()
	if err != nil {
		return false, false, err
	}
	planes, err := client.ControlPlanes(ctx)
	if err != nil {
		return false, false, err
	}
	if len(planes) == 0 {
		return false, false, errors.New("the cluster has no node of the role control-plane")
	}
	fmt.Fprintf(out, "endpoint %s, further names: %s\n", settings.ControlPlaneEndpoint, orNone(settings.Names))
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, p := range planes {
		address := netip.AddrPortFrom(p.Address, apiPort).String()
		if len(planes) == 1 && o.server != "" { // There is no other that could answer there.
			address = o.server
		}
		certificate, err := kubeadmrun.ServerCertificate(ctx, c.KubernetesCA(), address)
		missing := ""
		if err == nil {
			missing = missingName(certificate, settings)
		}
		switch {
		case err != nil:
			fmt.Fprintf(t, "%s\t%s\tnot reached from here: %s\n", p.Name, address, printable(err.Error()))
		case missing != "":
			fmt.Fprintf(t, "%s\t%s\tdoes not serve %s yet\tcertificate until %s\n", p.Name, address, missing, certificate.NotAfter.UTC().Format("2006-01-02"))
		default:
			fmt.Fprintf(t, "%s\t%s\tserves it\tcertificate until %s\n", p.Name, address, certificate.NotAfter.UTC().Format("2006-01-02"))
		}
		unserved, unreached = unserved || missing != "", unreached || err != nil
	}
	return unserved, unreached, t.Flush()
}

// apiPort is that of a control plane's API server.
const apiPort = 6443

// missingName returns the first name of an endpoint that a certificate is not for.
func missingName(certificate *x509.Certificate, settings joinservice.Settings) string {
	host, _, err := net.SplitHostPort(settings.ControlPlaneEndpoint)
	if err != nil {
		return settings.ControlPlaneEndpoint
	}
	for _, name := range append([]string{host}, settings.Names...) {
		if certificate.VerifyHostname(strings.Replace(name, "*", "any", 1)) != nil {
			return name
		}
	}
	return ""
}

func orNone(names []string) string {
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ", ")
}
