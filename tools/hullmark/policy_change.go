package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/cluster/operate"
	"github.com/hullmark/hullmark/measurements"
	"github.com/hullmark/hullmark/pcrs"
)

func newPolicyAddCommand() *cobra.Command {
	return group("add", "Accept a release, or machines", newPolicyAddDocumentCommand(), newPolicyAddMemberCommand(), newPolicyAddGroupCommand())
}

func newPolicyAddDocumentCommand() *cobra.Command {
	var o policyOptions
	var enforce string
	var attestations []string
	cmd := &cobra.Command{
		Use:   "document FILE",
		Short: "Accept a release, or change what is enforced of it",
		Long: `Accept a release, or change what is enforced of it.

Where the policy names builders (hullmark policy builders), no node boots the release until enough of them have signed its document. --attestation takes a file that one or
more of them signed, as hullmark reproduce --attest or hullmark sign makes it; signatures of an earlier call stay.

PCR 4, 9, 11, 12 and 13 always have to match a document, and so do those of PCR 0, 2, 3, 6, 7 and 14 that it predicts. --enforce says which of PCR 1, the machine's
tables, and PCR 5, its disk's partitions, have to as well; if it is left out, PCR 1 if the document predicts it, or what is enforced of a document that is accepted already.
A least trust class of the document, which policy sign set, stays.`,
		Example: "  hullmark policy add document node.json --cluster prod.cluster --enforce 1,5",
		Args:    exactArg("policy add document", "the measurement document"),
		RunE: func(cmd *cobra.Command, args []string) error {
			document, err := readDocument(args[0])
			if err != nil {
				return err
			}
			var registers []pcrs.Register
			if cmd.Flags().Changed("enforce") {
				if registers, err = parseEnforced(enforce); err != nil {
					return err
				}
			}
			var signed [][]byte
			for _, file := range attestations {
				content, err := readBounded(file, measurements.MaxEnvelope)
				if err != nil {
					return err
				}
				if _, err := measurements.Merge(content); err != nil {
					return fmt.Errorf("%s: %w", file, err)
				}
				signed = append(signed, content)
			}
			return o.changeAny(cmd, operate.AddDocument(document, registers, signed...))
		},
	}
	o.addFlags(cmd)
	cmd.Flags().StringVar(&enforce, "enforce", "", enforceUsage)
	cmd.Flags().StringArrayVar(&attestations, "attestation", nil, "`FILE` in which builders signed the document; repeat for more")
	return cmd
}

const enforceUsage = "`REGISTERS` that have to match beside those that always have, out of 1,5, or none (default: 1 if the document predicts it)"

// parseEnforced reads the flag.
func parseEnforced(list string) ([]pcrs.Register, error) {
	registers, err := parseRegisters(list)
	if err != nil {
		return nil, withCode(exitUsage, fmt.Errorf("--enforce: %w", err))
	}
	return registers, nil
}

// parseRegisters reads register numbers with commas between them, or none.
func parseRegisters(list string) ([]pcrs.Register, error) {
	if list == "none" {
		return []pcrs.Register{}, nil
	}
	var registers []pcrs.Register
	for text := range strings.SplitSeq(list, ",") {
		n, err := strconv.ParseUint(strings.TrimSpace(text), 10, 8)
		if err != nil {
			return nil, fmt.Errorf("%q: want register numbers with commas between them, or none", list)
		}
		registers = append(registers, pcrs.Register(n))
	}
	slices.Sort(registers)
	return slices.Compact(registers), nil
}

func newPolicyAddMemberCommand() *cobra.Command {
	var o policyOptions
	var ek, role, name, pool, providerID string
	cmd := &cobra.Command{
		Use:   "member",
		Short: "Admit a machine, by its endorsement key",
		Long: `Admit a machine, by its endorsement key.

Whatever machine shows that key and boots an accepted release is given this role and this name; what a machine says of itself counts for nothing.`,
		Example: "  hullmark policy add member --cluster prod.cluster --ekid $(cat ek.id) --role worker --name worker-1",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			member, err := parseMember(ek, role, name)
			if err != nil {
				return withCode(exitUsage, err)
			}
			member.Pool, member.ProviderID = pool, providerID
			return o.changeAny(cmd, operate.AddMember(member))
		},
	}
	o.addFlags(cmd)
	cmd.Flags().StringVar(&ek, "ekid", "", "the `EKID`: 64 hexadecimal digits")
	cmd.Flags().StringVar(&role, "role", "", "control-plane or worker: the `ROLE` that the machine gets")
	cmd.Flags().StringVar(&name, "name", "", "the `NAME` of its node, a DNS label")
	cmd.Flags().StringVar(&pool, "pool", "", "the policy's `POOL` that says what the node is given (default: none)")
	cmd.Flags().StringVar(&providerID, "provider-id", "", "the node's provider `ID`, as Cluster API or a cloud's controllers know the machine (default: none)")
	require(cmd, "ekid", "role", "name")
	return cmd
}

func parseMember(ek, role, name string) (measurements.Member, error) {
	node, err := hullmark.ParseEKID(ek)
	switch {
	case err != nil:
		return measurements.Member{}, fmt.Errorf("--ekid: %w", err)
	case !hullmark.Role(role).Valid():
		return measurements.Member{}, fmt.Errorf("--role %q: want control-plane or worker", role)
	case !hullmark.ValidNodeName(name):
		return measurements.Member{}, fmt.Errorf("--name %q: want a DNS label: at most 63 lower-case letters, digits and hyphens", name)
	}
	return measurements.Member{EKID: node, Role: hullmark.Role(role), Name: name}, nil
}

func newPolicyRemoveCommand() *cobra.Command {
	return group("remove", "Accept a release, or machines, no more", newPolicyRemoveDocumentCommand(), newPolicyRemoveMemberCommand(), newPolicyRemoveGroupCommand())
}

func newPolicyRemoveDocumentCommand() *cobra.Command {
	return policyRemoval("document DIGEST", "its digest", &cobra.Command{
		Short:   "Accept a release no more",
		Long:    "Accept a release no more. Nodes that booted it run on; none of them comes back from its next boot.",
		Example: "  hullmark policy remove document 5f70bf18a086007016e948b04aed3b82103a36bea41755b6cddfaf10ace3c6ef --cluster prod.cluster",
	}, operate.RemoveDocument)
}

func newPolicyRemoveMemberCommand() *cobra.Command {
	return policyRemoval("member NAME", "its node, or its EKID", &cobra.Command{
		Short: "Admit a machine no more",
		Long: `Admit a machine no more. Its node runs on until its next boot; hullmark node remove ends it in Kubernetes.

A machine of a group is given by its EKID, which hullmark node list -o json shows. Either is put on the deny list of all groups, too; policy sign lifts that.`,
		Example: "  hullmark policy remove member worker-3 --cluster prod.cluster",
	}, operate.RemoveMember)
}

// policyRemoval makes a verb of policy remove, by an edit that takes out what the argument names.
func policyRemoval(use, argument string, cmd *cobra.Command, remove func(which string) operate.Edit) *cobra.Command {
	var o policyOptions
	kind, _, _ := strings.Cut(use, " ")
	cmd.Use, cmd.Args = use, exactArg("policy remove "+kind, argument)
	cmd.RunE = func(cmd *cobra.Command, args []string) error { return o.changeAny(cmd, remove(args[0])) }
	o.addFlags(cmd)
	return cmd
}

func newPolicyMinimumCommand() *cobra.Command {
	var o policyOptions
	cmd := &cobra.Command{
		Use:     "minimum-svn NUMBER",
		Short:   "Refuse all releases of a lower security version",
		Long:    "Refuse all releases of a lower security version from now on, those too whose documents the policy names. The number is never lowered.",
		Example: "  hullmark policy minimum-svn 4 --cluster prod.cluster",
		Args:    exactArg("policy minimum-svn", "the lowest security version to accept"),
		RunE: func(cmd *cobra.Command, args []string) error {
			n, err := strconv.ParseUint(args[0], 10, 32)
			if err != nil {
				return withCode(exitUsage, fmt.Errorf("policy minimum-svn %q: want a number", args[0]))
			}
			return o.changeAny(cmd, operate.RaiseMinimum(uint32(n)))
		},
	}
	o.addFlags(cmd)
	return cmd
}

func newPolicyRevokeOperatorsCommand() *cobra.Command {
	var o policyOptions
	cmd := &cobra.Command{
		Use:   "revoke-operators",
		Short: "Refuse operators' certificates that were made until now",
		Long: `Refuse operators' certificates that were made until now.

init, recover, node status and node logs make a certificate for each connection, good for that verb alone and kept nowhere. If one leaked all the same, nodes that hold this
policy, or are brought it, refuse it from then on. A machine whose state disk is empty holds none. Operators whom the policy names are withdrawn, all of them: their files are
of that time, too (hullmark operator new).`,
		Example: "  hullmark policy revoke-operators --cluster prod.cluster",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.change(cmd, operate.RevokeOperators())
		},
	}
	o.addFlags(cmd)
	return cmd
}
