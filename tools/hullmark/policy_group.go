package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/hullmark/hullmark/cluster/operate"
	"github.com/hullmark/hullmark/measurements"
)

func newPolicyAddGroupCommand() *cobra.Command {
	var o policyOptions
	var cas authorityOptions
	var pool, enrollers string
	var subject []string
	var most int
	cmd := &cobra.Command{
		Use:   "group NAME",
		Short: "Admit machines that somebody vouches for, as workers",
		Long: `Admit machines that somebody vouches for, as workers.

For machines whose keys nobody knows beforehand, as a cloud makes them: every one is admitted whose endorsement key has a certificate that the
CAs signed themselves, with all of these attributes in its subject, and that boots an accepted release. Its node is named after the group and
the beginning of its key's ID. Take attributes that your provider writes for you alone, as Google's cloud writes the project into OU, and CAs that sign the keys of TPMs
and nothing else: whoever gets such a certificate gets a worker.

With --ek-root a certificate may also lead to a root, by those that the TPM has of its maker's CAs: hullmark ek makers lists the roots of makers. Makers write no attribute for one
customer, so that their CAs are of use beside --enrollers. The policy holds the certificates themselves; that hullmark knows some by name decides nothing.

With --enrollers the machines are those for which one of these keys signs a voucher (hullmark voucher), which names the node, too: a name that begins with the group's and a hyphen.
Add --ek-ca or --ek-root if the machines' endorsement keys have certificates. Without, who has an enroller's key says which machines are real, and may name a TPM that is a program of his.`,
		Example: "  hullmark policy add group gce --cluster prod.cluster --ek-ca ek-ca.pem --subject OU=my-project",
		Args:    exactArg("policy add group", "its name"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if certified := len(cas.ca)+len(cas.root) > 0; enrollers == "" && (!certified || len(subject) == 0) || enrollers != "" && len(subject) > 0 {
				return withCode(exitUsage, errors.New("policy add group: want --ek-ca or --ek-root, and --subject; or --enrollers, also with --ek-ca or --ek-root"))
			}
			rule, err := parseGroup(args[0], cas, subject, enrollers)
			if err != nil {
				return withCode(exitUsage, err)
			}
			rule.Pool, rule.Max = pool, most
			return o.changeAny(cmd, operate.AddGroup(rule))
		},
	}
	o.addFlags(cmd)
	cas.addFlags(cmd)
	cmd.Flags().StringArrayVar(&subject, "subject", nil, "`TYPE=VALUE` that each certificate's subject has, with TYPE one of CN, O, OU, L, ST and C; repeat for more")
	cmd.Flags().StringVar(&pool, "pool", "", "the policy's `POOL` that says what the nodes are given (default: none)")
	cmd.Flags().IntVar(&most, "max", 100, "how many machines the group may have: a `NUMBER` up to 10000")
	cmd.Flags().StringVar(&enrollers, "enrollers", "", "PEM `FILE` of the Ed25519 public keys that sign vouchers for the machines")
	return cmd
}

func parseGroup(name string, cas authorityOptions, subject []string, enrollers string) (measurements.Group, error) {
	rule := measurements.Group{Name: name}
	if enrollers != "" {
		text, err := readBounded(enrollers, maxKeyFile)
		if err != nil {
			return rule, fmt.Errorf("--enrollers: %w", err)
		}
		if rule.Enrollers, err = measurements.ParseEnrollers(text); err != nil {
			return rule, fmt.Errorf("--enrollers %s: %w", enrollers, err)
		}
	}
	authorities, roots, err := cas.read()
	if err != nil {
		return rule, err
	}
	rule.Authorities, rule.Roots = encoded(authorities), encoded(roots)
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
