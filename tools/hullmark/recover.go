package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/cluster/operate"
)

// recoverOptions are the flags of `hullmark recover`.
type recoverOptions struct {
	exchangeOptions
	measurements        []string
	acceptRollback, yes bool
}

func newRecoverCommand() *cobra.Command {
	var o recoverOptions
	cmd := &cobra.Command{
		Use:   "recover",
		Short: "Bring back a control plane when no other is up to do it",
		Long: `Bring back a control plane when no other is up to do it.

The node is verified as by init, by the policy and the documents in the cluster file; its disk has to hold a control plane that was
Ready before, and is never formatted. No API server can say how recent that disk must be: the command shows the epoch that it holds and its last boot beside
the newest that the cluster file knows, refuses an older one, and asks. All other nodes then come back by themselves: of several control planes, recover only one, whose disk is the newest.
After hullmark cluster rotate it brings the first of them its new keys, while the others run.

With the file of an operator who may recover (hullmark operator new), the node is verified by the policy in that file, and brought nothing: it goes by the policy, the
settings and the keys on its own disk.

Exit codes: 0 Ready, 1 failed, 2 usage, 3 the node booted something else, 4 denied, 5 not reached.`,
		Example: "  hullmark recover --cluster prod.cluster --node 192.0.2.7",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkOutput("recover", o.output); err != nil {
				return err
			}
			if err := o.run(cmd); err != nil {
				return fmt.Errorf("recover: %w", tell(err))
			}
			return nil
		},
	}
	o.addFlags(cmd)
	f := cmd.Flags()
	f.StringArrayVar(&o.measurements, "measurements", nil, "accepted measurement document `FILE` to verify by, in place of the cluster file's; repeat for more")
	f.BoolVar(&o.acceptRollback, "accept-rollback", false, "go on although the disk is older than the cluster file knows, or another one")
	f.BoolVarP(&o.yes, "yes", "y", false, "do not ask before the node goes on with the disk that it shows")
	return cmd
}

func (o *recoverOptions) run(cmd *cobra.Command) (err error) {
	notes := cmd.ErrOrStderr()
	recovery := operate.RecoverOptions{AcceptRollback: o.acceptRollback}
	if !o.yes {
		if !term.IsTerminal(int(os.Stdin.Fd())) {
			return withCode(exitUsage, errors.New("no terminal to ask on whether the disk is the newest; decide beforehand (--yes)"))
		}
		recovery.Confirm = func() error { return ask(os.Stdin, notes, "Go on with this disk?") }
	}
	if recovery.Target, err = o.target(cmd.OutOrStdout(), notes); err != nil {
		return err
	}
	if recovery.Documents, err = readDocuments(o.measurements); err != nil {
		return err
	}
	h, err := o.openFor("recover", hullmark.MayRecover, notes)
	if err != nil {
		return err
	}
	if h.operator != nil {
		return operate.RecoverByOperator(cmd.Context(), h.operator, recovery)
	}
	return operate.Recover(cmd.Context(), h.file, recovery)
}

// ask wants the operator's yes; anything else is a condition that the node is told.
func ask(in io.Reader, notes io.Writer, question string) error {
	fmt.Fprint(notes, question+" [y/N] ")
	line, err := bufio.NewReader(io.LimitReader(in, maxPassphrase)).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("read the answer: %w", err)
	}
	if answer := strings.ToLower(strings.TrimSpace(line)); answer == "y" || answer == "yes" {
		return nil
	}
	return &hullmark.Condition{
		Code: "operator-declined", Step: "EPOCH", Title: "the operator did not go on with this disk",
		Next: "attach the right disk and run the command again",
	}
}
