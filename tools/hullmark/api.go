package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/cluster"
	"github.com/hullmark/hullmark/cluster/operate"
	"github.com/hullmark/hullmark/joinservice"
)

// apiOptions are the flags of the verbs that speak to a cluster's API server.
type apiOptions struct {
	policyOptions
	server     string
	wait       time.Duration
	newestLost bool // policy push alone
}

func (o *apiOptions) addFlags(cmd *cobra.Command) {
	o.policyOptions.addFlags(cmd)
	cmd.Flags().StringVar(&o.server, "server", "", "`HOST:PORT` at which you reach the API server (default: the control plane's endpoint)")
	cmd.Flags().DurationVar(&o.wait, "wait", time.Minute, "how long to keep asking an API server that does not answer")
}

// connect opens the cluster file and prepares a client of its API.
func (o *apiOptions) connect(cmd *cobra.Command) (*operate.API, *cluster.File, error) {
	if err := o.checkServer(); err != nil {
		return nil, nil, err
	}
	file, err := o.operator().open(cmd.ErrOrStderr())
	if err != nil {
		return nil, nil, err
	}
	api, err := operate.Connect(file, o.options(cmd))
	return api, file, err
}

// checkServer refuses a server that cannot be one, before a passphrase is asked for.
func (o *apiOptions) checkServer() error {
	if o.server != "" && !hullmark.ValidEndpoint(o.server) {
		return withCode(exitUsage, fmt.Errorf("--server %q: want HOST:PORT", o.server))
	}
	return nil
}

// options say how the API is reached, and who hears of it.
func (o *apiOptions) options(cmd *cobra.Command) operate.APIOptions {
	return operate.APIOptions{Server: o.server, Wait: o.wait, NewestLost: o.newestLost, Progress: lines(cmd.ErrOrStderr()), Done: lines(cmd.OutOrStdout())}
}

// do connects and does one thing; verb begins its error.
func (o *apiOptions) do(cmd *cobra.Command, verb string, action func(*operate.API, *cluster.File) error) error {
	api, file, err := o.connect(cmd)
	if err == nil {
		err = action(api, file)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", verb, tellAPI(err))
	}
	return nil
}

// look connects as whoever may look, and does one thing; verb begins its error. An operator's file takes the newest policy up before.
func (o *apiOptions) look(cmd *cobra.Command, verb string, action func(*operate.Reader, *cluster.Cluster) error) error {
	reader, h, err := o.connectReader(cmd, verb)
	if err == nil && h.operator != nil {
		var condition *hullmark.Condition
		if err = reader.TakePolicy(cmd.Context(), h.operator); err != nil && !errors.As(err, &condition) {
			lines(cmd.ErrOrStderr())("warning: the file keeps the policy that it has: " + err.Error())
			err = nil
		}
	}
	if err == nil {
		err = action(reader, h.known())
	}
	if err != nil {
		return fmt.Errorf("%s: %w", verb, tellAPI(err))
	}
	return nil
}

// connectReader opens the cluster file, or an operator's, and prepares a client that reads the API.
func (o *apiOptions) connectReader(cmd *cobra.Command, verb string) (*operate.Reader, holder, error) {
	if err := o.checkServer(); err != nil {
		return nil, holder{}, err
	}
	h, err := o.operator().openFor(verb, hullmark.MayLook, cmd.ErrOrStderr())
	if err != nil {
		return nil, holder{}, err
	}
	if h.operator != nil {
		reader, err := operate.ConnectOperator(h.operator, o.options(cmd))
		return reader, h, err
	}
	api, err := operate.Connect(h.file, o.options(cmd))
	if err != nil {
		return nil, holder{}, err
	}
	return api.Reader, h, nil
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
	var withdraw bool
	cmd := &cobra.Command{
		Use:   "push",
		Short: "Send the signed policy and its documents to the cluster",
		Long: `Send the signed policy and its documents to the cluster.

Every join service checks the signature and that the version rises, and takes the policy up without a restart; one that refuses it says why by an event in the
namespace hullmark. Exit code 5 if the API server is not reached.

A policy is not sent that leaves a machine without a ticket at its next boot, because what its disk starts is not accepted any more, or too few builders signed it (exit code 4),
unless --withdraw says that this is meant. A machine that only loses its way back to the release before is named.

Neither is one of an older copy of the cluster file (exit code 4): another copy was used since, and what it changed is not in this one. If that copy is lost,
--newest-lost goes on with this one, with a policy of a higher version than the cluster's.

What an operator changed meanwhile the cluster file takes up. From an operator's file what he changed is sent; if somebody else changed the policy meanwhile, the file holds that
then, and he changes it again (exit code 4).`,
		Example: "  hullmark policy push --cluster prod.cluster --server 192.0.2.7:6443",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.push(cmd, withdraw); err != nil {
				return fmt.Errorf("policy push: %w", err)
			}
			return nil
		},
	}
	o.addFlags(cmd)
	cmd.Flags().BoolVar(&o.newestLost, "newest-lost", false, "go on with this copy of the cluster file: the newer one is lost")
	cmd.Flags().BoolVar(&withdraw, "withdraw", false, "send it also if machines get no ticket by it at their next boot")
	return cmd
}

// push sends the policy in the cluster file, or in the file of an operator who may change it.
func (o *apiOptions) push(cmd *cobra.Command, withdraw bool) error {
	if err := o.checkServer(); err != nil {
		return err
	}
	h, err := o.operator().openFor("policy push", hullmark.MayChange, cmd.ErrOrStderr())
	if err != nil {
		return tellAPI(err)
	}
	if h.operator == nil {
		api, err := operate.Connect(h.file, o.options(cmd))
		if err != nil {
			return err
		}
		return pushChecked(cmd, withdraw, api.CheckWithdrawn, api.PushPolicy)
	}
	reader, err := operate.ConnectOperator(h.operator, o.options(cmd))
	if err != nil {
		return err
	}
	return pushChecked(cmd, withdraw, reader.CheckWithdrawn, func(ctx context.Context) error { return reader.PushChange(ctx, h.operator) })
}

// pushChecked pushes, unless machines would get no ticket then: withdraw says that this is meant.
func pushChecked(cmd *cobra.Command, withdraw bool, check func(context.Context) ([]operate.Withdrawn, error), push func(context.Context) error) error {
	all, err := check(cmd.Context())
	if err != nil && (!withdraw || !errors.Is(err, operate.ErrDenied)) {
		return tellAPI(err)
	}
	for _, w := range all {
		fmt.Fprintln(cmd.ErrOrStderr(), oneLine("withdrawn: "+w.Name+": "+w.What))
	}
	return tellAPI(push(cmd.Context()))
}
