package main

import (
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/spf13/cobra"

	"github.com/hullmark/hullmark/joinservice/cluster"
	"github.com/hullmark/hullmark/measurements"
	"github.com/hullmark/hullmark/pcrs"
)

func newPolicyCommand() *cobra.Command {
	cmd := group("policy", "Say which boots and machines a cluster accepts",
		newPolicyShowCommand(), newPolicyAddCommand(), newPolicyRemoveCommand(), newPolicySignCommand(), newPolicyCheckCommand())
	cmd.Long = `Say which boots and machines a cluster accepts.

The policy is in the cluster file, signed by the cluster's root key. Every change gives it a higher version; of two policies the higher is in force. What is
not in it is not accepted: a release is withdrawn by removing its document or by raising the minimum security version, never by a clock.`
	return cmd
}

// policyOptions are the flags that all of policy's verbs have.
type policyOptions struct {
	cluster, passphraseFile string
}

func (o *policyOptions) addFlags(cmd *cobra.Command) {
	clusterFlags(cmd, &o.cluster, &o.passphraseFile)
}

// open reads the cluster file and the policy in it, which is the zero value before the first.
func (o *policyOptions) open(notes io.Writer) (*cluster.File, measurements.Policy, error) {
	operator := operatorOptions{cluster: o.cluster, passphraseFile: o.passphraseFile}
	file, err := operator.open(notes)
	if err != nil {
		return nil, measurements.Policy{}, err
	}
	if len(file.Cluster.Policy) == 0 {
		return file, measurements.Policy{}, nil
	}
	policy, err := measurements.OpenPolicy(file.Cluster.Policy, file.Cluster.ID())
	return file, policy, err
}

// sign puts a policy into the cluster file in place of an older one.
func (o *policyOptions) sign(file *cluster.File, policy measurements.Policy, out io.Writer) error {
	err := file.Update(func(c *cluster.Cluster) (err error) {
		c.Policy, err = measurements.SignPolicy(c.Root.Key, c.ID(), policy)
		return err
	})
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "policy version %d: %d documents from security version %d, %d members\n",
		policy.Version, len(policy.Documents), policy.MinimumSVN, len(policy.Members))
	return err
}

func newPolicyShowCommand() *cobra.Command {
	var o policyOptions
	cmd := &cobra.Command{
		Use:   "show",
		Short: "Print the policy in force, after checking its signature",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, policy, err := o.open(cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			if policy.Version == 0 {
				return errors.New("the cluster has no policy yet; init makes the first, or hullmark policy add")
			}
			text, err := policy.Encode()
			if err != nil {
				return err
			}
			_, err = cmd.OutOrStdout().Write(text)
			return err
		},
	}
	o.addFlags(cmd)
	return cmd
}

func newPolicyAddCommand() *cobra.Command {
	var o policyOptions
	var document string
	var enforce []int
	var minimum uint32
	cmd := &cobra.Command{
		Use:   "add",
		Short: "Accept a release, or no more of the old ones",
		Long: `Accept a release, or no more of the old ones.

With --document a measurement document is accepted: PCR 4, 9, 11, 12 and 13 always have to match it, and those that --enforce lists. With
--minimum-svn documents of a lower security version are refused from now on, those too that the policy names; it is never lowered.`,
		Example: "  hullmark policy add --cluster prod.cluster --document node.json --enforce 2,3,7 --minimum-svn 4",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if document == "" && !cmd.Flags().Changed("minimum-svn") {
				return withCode(exitUsage, errors.New("policy add: name a --document, a --minimum-svn, or both"))
			}
			if document == "" && enforce != nil {
				return withCode(exitUsage, errors.New("policy add: --enforce belongs to a --document; name that, too"))
			}
			file, policy, err := o.open(cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			if document != "" {
				if err := accept(&policy, document, enforce); err != nil {
					return err
				}
			}
			if minimum < policy.MinimumSVN && cmd.Flags().Changed("minimum-svn") {
				return withCode(exitUsage, fmt.Errorf("--minimum-svn %d: it is %d already and is never lowered", minimum, policy.MinimumSVN))
			}
			policy.MinimumSVN = max(policy.MinimumSVN, minimum)
			policy.Version++
			return o.sign(file, policy, cmd.OutOrStdout())
		},
	}
	o.addFlags(cmd)
	cmd.Flags().StringVar(&document, "document", "", "measurement document `FILE` to accept")
	cmd.Flags().IntSliceVar(&enforce, "enforce", nil, "`REGISTERS` that have to match beside those that always have")
	cmd.Flags().Uint32Var(&minimum, "minimum-svn", 0, "lowest security version `NUMBER` to accept")
	return cmd
}

// accept adds a document, or changes what is enforced of one that is there.
func accept(policy *measurements.Policy, file string, enforce []int) error {
	document, err := readDocument(file)
	if err != nil {
		return err
	}
	id, err := document.Digest()
	if err != nil {
		return err
	}
	accepted := measurements.Accepted{Document: id}
	predicted := document.Values(pcrs.SHA256)
	for _, n := range enforce {
		r := pcrs.Register(n)
		if _, ok := predicted[r]; !ok {
			return withCode(exitUsage, fmt.Errorf("--enforce %d: %s does not predict it", n, file))
		}
		accepted.Enforce = append(accepted.Enforce, r)
	}
	slices.Sort(accepted.Enforce)
	policy.Documents = slices.DeleteFunc(slices.Clone(policy.Documents), func(a measurements.Accepted) bool { return a.Document == id })
	policy.Documents = append(policy.Documents, accepted)
	return nil
}

func newPolicyRemoveCommand() *cobra.Command {
	var o policyOptions
	var document, member string
	cmd := &cobra.Command{
		Use:     "remove",
		Short:   "Accept a release or a machine no more",
		Example: "  hullmark policy remove --cluster prod.cluster --document 5f70bf18a086007016e948b04aed3b82103a36bea41755b6cddfaf10ace3c6ef\n  hullmark policy remove --cluster prod.cluster --member worker-3",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if (document == "") == (member == "") {
				return withCode(exitUsage, errors.New("policy remove: name a --document or a --member"))
			}
			file, policy, err := o.open(cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			before := len(policy.Documents) + len(policy.Members)
			policy.Documents = slices.DeleteFunc(slices.Clone(policy.Documents), func(a measurements.Accepted) bool { return a.Document.String() == document })
			policy.Members = slices.DeleteFunc(slices.Clone(policy.Members), func(m measurements.Member) bool { return m.Name == member })
			if len(policy.Documents)+len(policy.Members) == before {
				return fmt.Errorf("policy remove: the policy names no %s%s; hullmark policy show lists what it names", document, member)
			}
			policy.Version++
			return o.sign(file, policy, cmd.OutOrStdout())
		},
	}
	o.addFlags(cmd)
	cmd.Flags().StringVar(&document, "document", "", "`DIGEST` of the document")
	cmd.Flags().StringVar(&member, "member", "", "`NAME` of the machine's node")
	return cmd
}

func newPolicySignCommand() *cobra.Command {
	var o policyOptions
	cmd := &cobra.Command{
		Use:     "sign POLICY",
		Short:   "Put an edited policy in force",
		Long:    "Put an edited policy in force: the output of hullmark policy show, changed, with a higher version.",
		Example: "  hullmark policy sign policy.json --cluster prod.cluster",
		Args:    exactArg("policy sign", "the policy"),
		RunE: func(cmd *cobra.Command, args []string) error {
			text, err := readBounded(args[0], measurements.MaxPolicy)
			if err != nil {
				return err
			}
			next, err := measurements.ParsePolicy(text)
			if err != nil {
				return fmt.Errorf("%s: %w", args[0], err)
			}
			file, policy, err := o.open(cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			if next.Version <= policy.Version || next.MinimumSVN < policy.MinimumSVN {
				return fmt.Errorf("%s: version %d with security version %d: in force are %d and %d; want a higher version, and no lower security version",
					args[0], next.Version, next.MinimumSVN, policy.Version, policy.MinimumSVN)
			}
			return o.sign(file, next, cmd.OutOrStdout())
		},
	}
	o.addFlags(cmd)
	return cmd
}

// policyCheckOptions are the flags of `hullmark policy check`.
type policyCheckOptions struct {
	policyOptions
	list, bank, output string
}

func newPolicyCheckCommand() *cobra.Command {
	var o policyCheckOptions
	cmd := &cobra.Command{
		Use:   "check DOCUMENT...",
		Short: "Say whether the policy accepts a machine's registers, with every reason",
		Long: `Say whether the policy accepts a machine's registers, with every reason.

All registers that count have to match one and the same of the documents, and the policy has to accept that one. Exit codes: 0 accepted, 4 denied.`,
		Example: "  hullmark policy check node.json --cluster prod.cluster --pcrs registers",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return errors.New("policy check: name the documents to compare with (see hullmark policy check --help)")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.run(args, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	o.addFlags(cmd)
	cmd.Flags().StringVar(&o.list, "pcrs", "", "`FILE` with the machine's registers, as tpm2_pcrread prints them")
	cmd.Flags().StringVar(&o.bank, "bank", "sha256", "`BANK` to compare: sha256, sha384 or sha512")
	cmd.Flags().StringVarP(&o.output, "output", "o", "text", "`FORMAT` of the output: text or json")
	require(cmd, "pcrs")
	return cmd
}

func (o *policyCheckOptions) run(files []string, out, notes io.Writer) error {
	if err := checkOutput("policy check", o.output); err != nil {
		return err
	}
	bank, err := pcrs.ParseBank(o.bank)
	if err != nil {
		return withCode(exitUsage, fmt.Errorf("--bank: %w", err))
	}
	var documents []measurements.Document
	for _, file := range files {
		document, err := readDocument(file)
		if err != nil {
			return err
		}
		documents = append(documents, document)
	}
	boot, err := (&explainOptions{list: o.list}).read(bank)
	if err != nil {
		return err
	}
	_, policy, err := o.open(notes)
	if err != nil {
		return err
	}
	verdict := measurements.Judge(policy, documents, bank, boot.measured)
	if o.output == "json" {
		if err := writeJSON(out, judged(verdict)); err != nil {
			return err
		}
	}
	if !verdict.Accepted() {
		return withCode(exitDenied, errors.New(verdict.String()))
	}
	if o.output == "json" {
		return nil
	}
	_, err = fmt.Fprintln(out, verdict)
	return err
}

// verdictJSON is the JSON that hullmark policy check writes.
type verdictJSON struct {
	Accepted bool `json:"accepted"`
	// Document, SVN and Matched say which document was met, and in which registers; they are absent in a denial.
	Document *measurements.DocumentID `json:"document,omitempty"`
	SVN      uint32                   `json:"svn,omitempty"`
	Matched  []pcrs.Register          `json:"matched,omitempty"`
	Reasons  []string                 `json:"reasons,omitempty"`
}

func judged(v measurements.Verdict) verdictJSON {
	out := verdictJSON{Accepted: v.Accepted()}
	if out.Accepted {
		out.Document, out.SVN, out.Matched = &v.Document, v.SVN, v.Matched
	}
	for _, r := range v.Reasons {
		out.Reasons = append(out.Reasons, r.String())
	}
	return out
}
