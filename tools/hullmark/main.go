// Hullmark builds reproducible disk images, predicts what their boot will
// measure, and releases keys to the nodes that prove it.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/cluster"
	"github.com/hullmark/hullmark/cluster/addons"
	"github.com/hullmark/hullmark/cluster/operate"
)

// The exit codes that scripts may rely on; 0 is success.
const (
	exitFailed      = 1
	exitUsage       = 2
	exitMismatch    = 3
	exitDenied      = 4
	exitUnreachable = 5
)

// codedError is an error that ends the program with a code of its own.
type codedError struct {
	code int
	err  error
}

func (e codedError) Error() string { return e.err.Error() }
func (e codedError) Unwrap() error { return e.err }

// withCode makes err end the program with the given exit code.
func withCode(code int, err error) error { return codedError{code: code, err: err} }

func main() { os.Exit(run(os.Args[1:])) }

// untilInterrupted returns a context that ends with the first interrupt. The second ends the program: what does not look at its context,
// such as a chart's template that computes without end, would run on.
func untilInterrupted() (context.Context, context.CancelFunc) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	return ctx, stop
}

func run(args []string) int {
	ctx, stop := untilInterrupted()
	defer stop()
	root := newRootCommand()
	root.SetArgs(args)
	var began bool
	note(root, &began)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	fmt.Fprintln(os.Stderr, "hullmark:", printable(err.Error()))
	if !began {
		return exitUsage
	}
	return exitCode(err)
}

// note sets began when a command's own work starts: whatever fails before that is wrong usage.
func note(cmd *cobra.Command, began *bool) {
	if do := cmd.RunE; do != nil {
		cmd.RunE = func(cmd *cobra.Command, args []string) error {
			*began = true
			return do(cmd, args)
		}
	}
	for _, sub := range cmd.Commands() {
		note(sub, began)
	}
}

// clusterErrors are the errors of the rooms below cluster that have an exit code of their own.
var clusterErrors = []struct {
	err  error
	code int
}{
	{operate.ErrUsage, exitUsage},
	{cluster.ErrRootElsewhere, exitUsage},
	{operate.ErrMismatch, exitMismatch},
	{operate.ErrDenied, exitDenied},
	{operate.ErrUnreachable, exitUnreachable},
	{cluster.ErrNotGranted, exitDenied},
	{hullmark.ErrReserved, exitDenied},
	{addons.ErrRefused, exitDenied},
	{addons.ErrUnreachable, exitUnreachable},
}

// hasCode says whether an error ends the program with a code of its own.
func hasCode(err error) bool { return exitCode(err) != exitFailed }

func exitCode(err error) int {
	var coded codedError
	if errors.As(err, &coded) {
		return coded.code
	}
	for _, kind := range clusterErrors {
		if errors.Is(err, kind.err) {
			return kind.code
		}
	}
	return exitFailed
}

func newRootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:           "hullmark",
		Short:         "Know every byte that a node boots, before it boots",
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          cobra.NoArgs,
		Version:       thisBuilder(),
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetVersionTemplate("{{.Version}}\n")
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return withCode(exitUsage, fmt.Errorf("%w (see %s --help)", err, cmd.CommandPath()))
	})
	root.AddCommand(
		newLockCommand(),
		newBuildCommand(),
		newReproduceCommand(),
		newConvertCommand(),
		newInstallCommand(),
		newDiffCommand(),
		newMeasureCommand(), newLaunchCommand(),
		newLearnCommand(),
		newSignCommand(),
		newVerifyCommand(),
		newPublishCommand(),
		newFetchCommand(),
		newLogCommand(),
		newKeysCommand(),
		newExplainCommand(),
		newEvidenceCommand(), newCollateralCommand(), newEKCommand(),
		newExportCommand(),
		newEventlogCommand(),
		newVMCommand(),
		newClusterCommand(), newOperatorCommand(),
		newPolicyCommand(), newVoucherCommand(),
		newRenderCommand(),
		newInitCommand(),
		newRecoverCommand(),
		newNodeCommand(), newReportCommand(),
		newUpdateCommand(),
		newUpgradeCommand(),
		newEndpointCommand(),
		newAddonsCommand(),
		newEtcdCommand(),
		newCacheCommand(),
		newDoctorCommand(),
		newManualCommand(),
	)
	return root
}

// group is a command that has only verbs of its own.
func group(use, short string, verbs ...*cobra.Command) *cobra.Command {
	cmd := &cobra.Command{Use: use, Short: short, Args: cobra.NoArgs, RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() }}
	cmd.AddCommand(verbs...)
	return cmd
}

// checkOutput checks the --output that verbs have whose result programs can read, too.
func checkOutput(verb, format string) error {
	if format != "text" && format != "json" {
		return withCode(exitUsage, fmt.Errorf("%s: output %q: want text or json", verb, format))
	}
	return nil
}

// writeJSON writes v as a document for programs.
func writeJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(v)
}
