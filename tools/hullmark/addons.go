package main

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/cluster"
	"github.com/hullmark/hullmark/cluster/addons"
	"github.com/hullmark/hullmark/cluster/operate"
	"github.com/hullmark/hullmark/cluster/render"
)

// addonsValidity is how long the certificate of one call is good for: many add-ons may be waited for.
const addonsValidity = 12 * time.Hour

func newAddonsCommand() *cobra.Command {
	return group("addons", "Bring a cluster's add-ons, and what they were before", newAddonsPlanCommand(), newAddonsApplyCommand(), newAddonsRollbackCommand())
}

// addonsOptions are the flags of the verbs of addons.
type addonsOptions struct {
	cluster, passphraseFile string
	server, output          string
	wait, timeout           time.Duration
	migrate                 bool
}

func (o *addonsOptions) addFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	clusterFlags(cmd, &o.cluster, &o.passphraseFile)
	f.StringVar(&o.server, "server", "", "`HOST:PORT` at which you reach the API server (default: the control plane's endpoint)")
	f.DurationVar(&o.wait, "wait", time.Minute, "how long to keep asking an API server that does not answer, before anything changes")
	f.StringVarP(&o.output, "output", "o", "text", "`FORMAT` of the output: text or json")
}

// addTimeout adds the flag of the verbs that change something.
func (o *addonsOptions) addTimeout(cmd *cobra.Command) {
	cmd.Flags().DurationVar(&o.timeout, "timeout", 5*time.Minute, "how long to wait for an add-on to get ready, for a hook to end, and for what is put back to be taken")
}

// addMigrate adds the flag of the verbs that bring definitions.
func (o *addonsOptions) addMigrate(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&o.migrate, "migrate", false, "have objects written anew whose definition drops the version that they may be stored in")
}

// connect opens the cluster file and prepares its add-ons, with the names of files counting from the document's folder. A document of
// another cluster is refused.
func (o *addonsOptions) connect(cmd *cobra.Command, document addonsDocument) (*addons.Addons, error) {
	if o.server != "" && !hullmark.ValidEndpoint(o.server) {
		return nil, withCode(exitUsage, fmt.Errorf("--server %q: want HOST:PORT", o.server))
	}
	operator := operatorOptions{cluster: o.cluster, passphraseFile: o.passphraseFile}
	file, err := operator.open(cmd.ErrOrStderr())
	if err != nil {
		return nil, err
	}
	if err := document.isOf(file); err != nil {
		return nil, err
	}
	notes := lines(cmd.ErrOrStderr())
	api, err := operate.Connect(file, operate.APIOptions{Server: o.server, Validity: addonsValidity, Progress: notes})
	if err != nil {
		return nil, err
	}
	var network *render.Network
	if document.path != "" {
		network = &document.Network
	}
	login, err := dockerLogin()
	return addons.New(addons.Options{
		Network: network, Config: api.Config(), File: file, Saved: o.cluster + ".addons", Folder: filepath.Dir(document.path), Credential: login,
		Wait: o.wait, Timeout: o.timeout, Migrate: o.migrate, Progress: notes, Done: notes,
	}), err
}

// addonsDocument is the cluster document that names add-ons. The zero value names none but Hullmark's own.
type addonsDocument struct {
	path string
	render.Cluster
}

func readAddons(args []string) (d addonsDocument, err error) {
	if len(args) == 0 {
		return d, nil
	}
	d.path = args[0]
	text, err := readBounded(d.path, render.MaxCluster)
	if err != nil {
		return d, err
	}
	if d.Cluster, err = render.Parse(text); err != nil {
		return d, fmt.Errorf("%s: %w", d.path, err)
	}
	return d, nil
}

// isOf refuses a document of another cluster than the file's.
func (d addonsDocument) isOf(file *cluster.File) error {
	if d.path == "" {
		return nil
	}
	roots, err := file.Cluster.Roots()
	if err == nil && !slices.Contains(roots, d.Root) {
		err = withCode(exitDenied, fmt.Errorf("%s is of another cluster: its clusterRoot is %s, the cluster file's %s; next: name the document of this cluster, or that one's file", d.path, d.Root, roots[0]))
	}
	return err
}

func newAddonsPlanCommand() *cobra.Command {
	var o addonsOptions
	cmd := &cobra.Command{
		Use:   "plan [DOCUMENT]",
		Short: "Say what applying a cluster document's add-ons would change",
		Long: `Say what applying a cluster document's add-ons would change, and change nothing.

It names each object that is created, changed or deleted, as the API server says in a dry run, the definitions of custom resources with their versions, the hooks, what is
saved before, and what could not be brought back. Hullmark's own add-ons are of this release, and are always among them; without a document they alone are.

Exit codes: 0 it can be applied, 1 failed, 2 usage, 4 it cannot, and says why, 5 the API server is not reached.`,
		Example: "  hullmark addons plan prod.yaml --cluster prod.cluster --server 192.0.2.7:6443",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.do(cmd, "addons plan", args, func(a *addons.Addons, wanted []render.Addon) (*addons.Plan, error) {
				plan, err := a.Plan(cmd.Context(), wanted)
				if err != nil {
					return nil, err
				}
				return plan, plan.Refused()
			})
		},
	}
	o.addFlags(cmd)
	o.addMigrate(cmd)
	return cmd
}

func newAddonsApplyCommand() *cobra.Command {
	var o addonsOptions
	cmd := &cobra.Command{
		Use:   "apply [DOCUMENT]",
		Short: "Bring a cluster document's add-ons to the cluster, or change nothing",
		Long: `Bring a cluster document's add-ons to the cluster, or change nothing.

Before anything changes, all definitions, all custom resources and every object that may change are saved beside the cluster file, in CLUSTER.addons, under its
passphrase. Then each add-on follows in its order: its definitions first, then the chart by Helm, or the manifests, until all is ready. If one fails, all of it is put back,
and the error says what could not be. If this command is interrupted, what it changed so far stays: hullmark addons rollback puts it back.

Exit codes: 0 done, 1 failed and put back, 2 usage, 4 refused and nothing was changed, 5 the API server is not reached.`,
		Example: "  hullmark addons apply prod.yaml --cluster prod.cluster --server 192.0.2.7:6443",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.do(cmd, "addons apply", args, func(a *addons.Addons, wanted []render.Addon) (*addons.Plan, error) {
				return a.Apply(cmd.Context(), wanted)
			})
		},
	}
	o.addFlags(cmd)
	o.addTimeout(cmd)
	o.addMigrate(cmd)
	return cmd
}

// do plans, and applies if the action does, and prints the plan whatever came of it.
func (o *addonsOptions) do(cmd *cobra.Command, verb string, args []string, action func(*addons.Addons, []render.Addon) (*addons.Plan, error)) error {
	if err := o.check(verb); err != nil {
		return err
	}
	document, err := readAddons(args)
	if err != nil {
		return fmt.Errorf("%s: %w", verb, err)
	}
	a, err := o.connect(cmd, document)
	if err != nil {
		return fmt.Errorf("%s: %w", verb, err)
	}
	plan, err := action(a, document.Addons)
	if plan != nil {
		err = errors.Join(o.writePlan(cmd.OutOrStdout(), plan), err)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", verb, err)
	}
	return nil
}

func (o *addonsOptions) check(verb string) error {
	if o.timeout < 0 || o.wait < 0 {
		return withCode(exitUsage, fmt.Errorf("%s: want times that are not negative", verb))
	}
	return checkOutput(verb, o.output)
}

func newAddonsRollbackCommand() *cobra.Command {
	var o addonsOptions
	cmd := &cobra.Command{
		Use:   "rollback [FILE]",
		Short: "Put back what was before an apply that was interrupted, or the last one",
		Long: `Put back what was before an apply that was interrupted, or, by the file that it saved, before the last one.

Objects, definitions and custom resources become what they were when they were saved: what was changed since then by others, too, is undone. Effects of hooks are not.
It says what could not be put back, and can be repeated: what is as it was stays as it is.

Exit codes: 0 all is as it was, or nothing was to do, 1 failed or not all could be put back, 2 usage, 4 refused, 5 the API server is not reached.`,
		Example: "  hullmark addons rollback --cluster prod.cluster --server 192.0.2.7:6443\n  hullmark addons rollback prod.cluster.addons/20261124-222551-i54srkvm.saved --cluster prod.cluster",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.check("addons rollback"); err != nil {
				return err
			}
			a, err := o.connect(cmd, addonsDocument{})
			if err != nil {
				return fmt.Errorf("addons rollback: %w", err)
			}
			restored, err := a.Rollback(cmd.Context(), append(args, "")[0])
			if err == nil || restored.Run != "" {
				err = errors.Join(o.writeRestored(cmd.OutOrStdout(), restored), err)
			}
			if err != nil {
				return fmt.Errorf("addons rollback: %w", err)
			}
			return nil
		},
	}
	o.addFlags(cmd)
	o.addTimeout(cmd)
	return cmd
}

// writeRestored prints what was put back; what could not be is an error.
func (o *addonsOptions) writeRestored(w io.Writer, r addons.Restored) error {
	if o.output == "json" {
		if err := writeJSON(w, r); err != nil {
			return err
		}
	} else if err := printRestored(w, r); err != nil {
		return err
	}
	if len(r.Problems) > 0 {
		return fmt.Errorf("%d objects could not be put back", len(r.Problems))
	}
	return nil
}
