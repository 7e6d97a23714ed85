package main

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/cluster"
	"github.com/hullmark/hullmark/cluster/operate"
	"github.com/hullmark/hullmark/measurements"
)

func newPolicyCommand() *cobra.Command {
	cmd := group("policy", "Say which boots and machines a cluster accepts",
		newPolicyShowCommand(), newPolicyAddCommand(), newPolicyRemoveCommand(), newPolicyMinimumCommand(), newPolicyRevokeOperatorsCommand(), newPolicyPlatformsCommand(), newPolicyBuildersCommand(),
		newPolicySignCommand(), newPolicyPushCommand(), newPolicyCheckCommand())
	cmd.Long = `Say which boots and machines a cluster accepts.

The policy is in the cluster file, signed by the cluster's root key. Every change gives it a higher version; of two policies the higher is in force. What is
not in it is not accepted: a release is withdrawn by removing its document or by raising the minimum security version, never by a clock. A cluster that runs
gets a changed policy by hullmark policy push.`
	return cmd
}

// policyOptions are the flags that all of policy's verbs have.
type policyOptions struct {
	cluster, passphraseFile string
	rootKey                 rootOptions
}

func (o *policyOptions) addFlags(cmd *cobra.Command) {
	clusterFlags(cmd, &o.cluster, &o.passphraseFile)
	o.rootKey.addFlag(cmd)
}

// operator are the same as flags of who opens a cluster file, or an operator's.
func (o *policyOptions) operator() *operatorOptions {
	return &operatorOptions{cluster: o.cluster, passphraseFile: o.passphraseFile, rootKey: o.rootKey}
}

// open reads the cluster file and the policy in it, which is the zero value before the first.
func (o *policyOptions) open(notes io.Writer) (*cluster.File, measurements.Policy, error) {
	file, err := o.operator().open(notes)
	if err != nil {
		return nil, measurements.Policy{}, err
	}
	policy, err := file.Cluster.OpenPolicy()
	return file, policy, err
}

// openAny reads the cluster file, or that of an operator, and the policy in it.
func (o *policyOptions) openAny(notes io.Writer) (holder, measurements.Policy, error) {
	h, err := o.operator().openAny(notes)
	if err != nil {
		return h, measurements.Policy{}, err
	}
	policy, err := h.known().OpenPolicy()
	return h, policy, err
}

// change edits the policy in the cluster file, which gets a higher version and a new signature.
func (o *policyOptions) change(cmd *cobra.Command, edit operate.Edit) error {
	file, _, err := o.open(cmd.ErrOrStderr())
	if err != nil {
		return err
	}
	changed, err := operate.Change(file, edit)
	if err != nil {
		return err
	}
	return o.tellChange(cmd.OutOrStdout(), file.Cluster, changed)
}

// changeAny is change for what an operator may change, too, in his file.
func (o *policyOptions) changeAny(cmd *cobra.Command, edit operate.Edit) error {
	_, verb, _ := strings.Cut(cmd.CommandPath(), " ") // after the program's name
	h, err := o.operator().openFor(verb, hullmark.MayChange, cmd.ErrOrStderr())
	if err != nil {
		return tell(err)
	}
	var changed string
	if h.operator != nil {
		changed, err = operate.ChangeByOperator(h.operator, edit)
	} else {
		changed, err = operate.Change(h.file, edit)
	}
	if err != nil {
		return err
	}
	return o.tellChange(cmd.OutOrStdout(), h.known(), changed)
}

// tellChange says what changed, what the policy holds now, and what brings it to the cluster.
func (o *policyOptions) tellChange(out io.Writer, c *cluster.Cluster, changed string) error {
	policy, err := c.OpenPolicy()
	if err != nil {
		return err
	}
	next := "hullmark policy push --cluster " + o.cluster
	if _, byOperator := measurements.PolicyChanger(c.Policy); c.Initialised == nil && !byOperator {
		next = "the cluster gets it with hullmark init; once that is done, hullmark policy push"
	}
	warning := ""
	documents, err := c.AcceptedDocuments()
	if err != nil {
		return err
	}
	if len(documents) > 0 && !slices.ContainsFunc(documents, func(d measurements.Document) bool { return d.SVN >= policy.MinimumSVN }) {
		warning = fmt.Sprintf("warning: no document that it names has security version %d or more: no node joins or comes back until one is added (hullmark build --svn, hullmark policy add document)\n", policy.MinimumSVN)
	}
	for _, d := range documents {
		agreement, err := policy.Agreement(d)
		if err != nil {
			return err
		}
		if !agreement.Met() {
			warning += fmt.Sprintf("warning: no machine that boots release %s gets a ticket: %v (hullmark policy add document --attestation)\n", oneLine(d.Name), agreement)
		}
	}
	_, err = fmt.Fprintf(out, "%s\npolicy version %d: %d documents from security version %d, %d members, %d groups\n%snext: %s\n",
		changed, policy.Version, len(policy.Documents), policy.MinimumSVN, len(policy.Members), len(policy.Groups), warning, next)
	return err
}

func newPolicySignCommand() *cobra.Command {
	var o policyOptions
	cmd := &cobra.Command{
		Use:   "sign POLICY",
		Short: "Put an edited policy in force",
		Long: `Put an edited policy in force: the output of hullmark policy show -o json, changed, with a higher version.

Documents that it names have to be in the cluster file: hullmark policy add document puts them there.`,
		Example: "  hullmark policy sign policy.json --cluster prod.cluster",
		Args:    exactArg("policy sign", "the policy"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.signFile(args[0], cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	o.addFlags(cmd)
	return cmd
}

func (o *policyOptions) signFile(name string, out, notes io.Writer) error {
	text, err := readBounded(name, measurements.MaxPolicy)
	if err != nil {
		return err
	}
	next, err := measurements.ParseEditedPolicy(text)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	file, _, err := o.open(notes)
	if err != nil {
		return err
	}
	if err := operate.PutPolicy(file, next); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return o.tellChange(out, file.Cluster, "policy signed: "+name)
}
