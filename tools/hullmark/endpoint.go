package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/hullmark/hullmark/cluster"
	"github.com/hullmark/hullmark/cluster/operate"
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
			return o.do(cmd, "endpoint set", func(api *operate.API, _ *cluster.File) error {
				report, err := api.SetEndpoint(cmd.Context(), endpoint, o.served)
				if err != nil {
					return err
				}
				if err := writeEndpoint(cmd.OutOrStdout(), report); err != nil {
					return err
				}
				return tellMove(cmd.OutOrStdout(), report)
			})
		},
	}
	o.addFlags(cmd)
	cmd.Flags().StringArrayVar(&o.names, "name", nil, "a further DNS name or IP `ADDRESS` of the API servers; repeat for more")
	cmd.Flags().BoolVar(&o.served, "served", false, "go on although some control planes cannot be reached from here: you saw that they serve the endpoint")
	return cmd
}

// tellMove says whether the endpoint moved, and what is left to do.
func tellMove(out io.Writer, r operate.EndpointReport) error {
	if !r.Moved {
		_, err := fmt.Fprintln(out, "next: reboot the control planes that do not serve it yet, one at a time, and run this command again")
		return err
	}
	if len(r.Absent) > 0 {
		fmt.Fprintf(out, "the cluster has no %s of Hullmark's: tell what you have in its place where the API server is\n", strings.Join(slices.Sorted(slices.Values(r.Absent)), " and no "))
	}
	_, err := fmt.Fprintf(out, "nodes use %s from their next boot on\nnext: reboot the workers; sign kubeconfigs for it (hullmark cluster kubeconfig)\n", r.Endpoint)
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
			return o.do(cmd, "endpoint show", func(api *operate.API, _ *cluster.File) error {
				report, err := api.Endpoint(cmd.Context())
				if err != nil {
					return err
				}
				return writeEndpoint(cmd.OutOrStdout(), report)
			})
		},
	}
	o.addFlags(cmd)
	return cmd
}

// writeEndpoint prints what each API server says of itself.
func writeEndpoint(out io.Writer, r operate.EndpointReport) error {
	fmt.Fprintf(out, "endpoint %s, further names: %s\n", r.Endpoint, orNone(r.Names))
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, s := range r.Servers {
		switch {
		case s.Unreached != nil:
			fmt.Fprintf(t, "%s\t%s\tnot reached from here: %s\n", s.Name, s.Address, oneLine(s.Unreached.Error()))
		case s.Missing != "":
			fmt.Fprintf(t, "%s\t%s\tdoes not serve %s yet\tcertificate until %s\n", s.Name, s.Address, oneLine(s.Missing), s.Certificate.NotAfter.UTC().Format("2006-01-02"))
		default:
			fmt.Fprintf(t, "%s\t%s\tserves it\tcertificate until %s\n", s.Name, s.Address, s.Certificate.NotAfter.UTC().Format("2006-01-02"))
		}
	}
	return t.Flush()
}

func orNone(names []string) string {
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ", ")
}
