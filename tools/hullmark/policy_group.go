package main

import (
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/hullmark/hullmark/attest/verifier"
	"github.com/hullmark/hullmark/measurements"
)

func newPolicyAddGroupCommand() *cobra.Command {
	var o policyOptions
	var ca, pool string
	var subject []string
	cmd := &cobra.Command{
		Use:   "group NAME",
		Short: "Admit machines that somebody vouches for, as workers",
		Long: `Admit machines that somebody vouches for, as workers.

For machines whose keys nobody knows beforehand, as a cloud makes them: every one is admitted whose endorsement key has a certificate that the
CA signed itself, with all of these attributes in its subject, and that boots an accepted release. Its node is named after the group and
the beginning of its key's ID. Take attributes that your provider writes for you alone, as Google's cloud writes the project into OU; whoever gets such a
certificate gets a worker.`,
		Example: "  hullmark policy add group gce --cluster prod.cluster --ek-ca ek-ca.pem --subject OU=my-project",
		Args:    exactArg("policy add group", "its name"),
		RunE: func(cmd *cobra.Command, args []string) error {
			rule, err := parseGroup(args[0], ca, subject)
			if err != nil {
				return withCode(exitUsage, err)
			}
			rule.Pool = pool
			return o.change(cmd, addGroup(rule))
		},
	}
	o.addFlags(cmd)
	cmd.Flags().StringVar(&ca, "ek-ca", "", "PEM `FILE` of the one CA that signs the endorsement keys' certificates itself")
	cmd.Flags().StringArrayVar(&subject, "subject", nil, "`TYPE=VALUE` that each certificate's subject has, with TYPE one of CN, O, OU, L, ST and C; repeat for more")
	cmd.Flags().StringVar(&pool, "pool", "", "the policy's `POOL` that says what the nodes are given (default: none)")
	require(cmd, "ek-ca", "subject")
	return cmd
}

func parseGroup(name, ca string, subject []string) (measurements.Group, error) {
	rule := measurements.Group{Name: name}
	text, err := os.ReadFile(ca)
	if err != nil {
		return rule, fmt.Errorf("--ek-ca: %w", err)
	}
	authorities, err := verifier.ParseAuthorities(text)
	if err == nil && len(authorities) != 1 {
		err = errors.New("more than one certificate; make a group for each CA")
	}
	if err != nil {
		return rule, fmt.Errorf("--ek-ca %s: %w", ca, err)
	}
	rule.Authority = authorities[0].Raw
	for _, attribute := range subject {
		kind, value, found := strings.Cut(attribute, "=")
		if !found {
			return rule, fmt.Errorf("--subject %q: want TYPE=VALUE, as OU=my-project", attribute)
		}
		rule.Subject = append(rule.Subject, measurements.Attribute{Type: kind, Value: value})
	}
	return rule, nil
}

// addGroup admits machines; a group that is there is never changed in passing.
func addGroup(rule measurements.Group) policyEdit {
	return func(policy *measurements.Policy) (string, []measurements.Document, error) {
		if slices.ContainsFunc(policy.Groups, func(g measurements.Group) bool { return g.Name == rule.Name }) {
			return "", nil, fmt.Errorf("the policy has a group %s already; to replace it, remove that first (hullmark policy remove group %s)", rule.Name, rule.Name)
		}
		policy.Groups = append(slices.Clone(policy.Groups), rule)
		return fmt.Sprintf("group %s added: workers with %s, by %s", rule.Name, subjectOf(rule), authorityOf(rule)), nil, nil
	}
}

func newPolicyRemoveGroupCommand() *cobra.Command {
	return policyRemoval("group NAME", "its name", &cobra.Command{
		Short:   "Admit machines of a group no more",
		Long:    "Admit machines of a group no more. Nodes of it run on until their next boot; hullmark node remove ends them in Kubernetes.",
		Example: "  hullmark policy remove group gce --cluster prod.cluster",
	}, func(policy *measurements.Policy, name string) string {
		policy.Groups = slices.DeleteFunc(slices.Clone(policy.Groups), func(g measurements.Group) bool { return g.Name == name })
		return "machines of group " + name + " are admitted no more"
	})
}

// subjectOf is what a group asks for, for people.
func subjectOf(g measurements.Group) string {
	var words []string
	for _, a := range g.Subject {
		words = append(words, a.Type+"="+a.Value)
	}
	return strings.Join(words, ", ")
}

// authorityOf names the CA of a group, for people.
func authorityOf(g measurements.Group) string {
	certificate, err := x509.ParseCertificate(g.Authority)
	if err != nil {
		return err.Error()
	}
	return certificate.Subject.String()
}
