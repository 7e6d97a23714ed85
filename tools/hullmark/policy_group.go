package main

import (
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/hullmark/hullmark/attest/verifier"
	"github.com/hullmark/hullmark/cluster/operate"
	"github.com/hullmark/hullmark/measurements"
)

func newPolicyAddGroupCommand() *cobra.Command {
	var o policyOptions
	var ca, pool string
	var subject []string
	var most int
	cmd := &cobra.Command{
		Use:   "group NAME",
		Short: "Admit machines that somebody vouches for, as workers",
		Long: `Admit machines that somebody vouches for, as workers.

For machines whose keys nobody knows beforehand, as a cloud makes them: every one is admitted whose endorsement key has a certificate that the
CAs signed themselves, with all of these attributes in its subject, and that boots an accepted release. Its node is named after the group and
the beginning of its key's ID. Take attributes that your provider writes for you alone, as Google's cloud writes the project into OU, and CAs that sign the keys of TPMs
and nothing else: whoever gets such a certificate gets a worker.`,
		Example: "  hullmark policy add group gce --cluster prod.cluster --ek-ca ek-ca.pem --subject OU=my-project",
		Args:    exactArg("policy add group", "its name"),
		RunE: func(cmd *cobra.Command, args []string) error {
			rule, err := parseGroup(args[0], ca, subject)
			if err != nil {
				return withCode(exitUsage, err)
			}
			rule.Pool, rule.Max = pool, most
			return o.change(cmd, operate.AddGroup(rule))
		},
	}
	o.addFlags(cmd)
	cmd.Flags().StringVar(&ca, "ek-ca", "", "PEM `FILE` of the CAs that sign the endorsement keys' certificates themselves")
	cmd.Flags().StringArrayVar(&subject, "subject", nil, "`TYPE=VALUE` that each certificate's subject has, with TYPE one of CN, O, OU, L, ST and C; repeat for more")
	cmd.Flags().StringVar(&pool, "pool", "", "the policy's `POOL` that says what the nodes are given (default: none)")
	cmd.Flags().IntVar(&most, "max", 100, "how many machines the group may have: a `NUMBER` up to 10000")
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
	if err != nil {
		return rule, fmt.Errorf("--ek-ca %s: %w", ca, err)
	}
	for _, authority := range authorities {
		rule.Authorities = append(rule.Authorities, authority.Raw)
	}
	for _, attribute := range subject {
		kind, value, found := strings.Cut(attribute, "=")
		if !found {
			return rule, fmt.Errorf("--subject %q: want TYPE=VALUE, as OU=my-project", attribute)
		}
		rule.Subject = append(rule.Subject, measurements.Attribute{Type: kind, Value: value})
	}
	return rule, nil
}

func newPolicyRemoveGroupCommand() *cobra.Command {
	return policyRemoval("group NAME", "its name", &cobra.Command{
		Short:   "Admit machines of a group no more",
		Long:    "Admit machines of a group no more. Nodes of it run on until their next boot; hullmark node remove ends them in Kubernetes.",
		Example: "  hullmark policy remove group gce --cluster prod.cluster",
	}, operate.RemoveGroup)
}
