package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/hullmark/hullmark/cluster/operate"
	"github.com/hullmark/hullmark/measurements"
)

func newPolicyBuildersCommand() *cobra.Command {
	var o policyOptions
	var threshold int
	var none bool
	cmd := &cobra.Command{
		Use:   "builders NAME=KEY...",
		Short: "Say how many of which builders have to have signed a release",
		Long: `Say how many of which builders have to have signed a release.

Each builder has a name and a public key (PEM: ECDSA P-256 or Ed25519), and makes the release again from its sources (hullmark reproduce --attest). A release that fewer than
--threshold of them have signed is not accepted, though the policy names it: no machine that boots it gets a ticket, and no node is directed to it. The list replaces the
earlier one; --none takes the demand back.

Signatures of the releases that run have to be there first, or their nodes do not come back from their next boot: name the builders, add each release again with its
attestations (hullmark policy add document --attestation), and push the policy then; policy push refuses to leave a machine without a release.`,
		Example: "  hullmark policy builders --threshold 2 us=us.pub university=university.pub auditor=auditor.pub --cluster prod.cluster",
		RunE: func(cmd *cobra.Command, args []string) error {
			if none == (len(args) > 0) || none && threshold != 0 {
				return withCode(exitUsage, errors.New("policy builders: name builders and --threshold, or --none alone"))
			}
			builders := measurements.Builders{Threshold: threshold}
			for _, arg := range args {
				name, file, ok := strings.Cut(arg, "=")
				if !ok {
					return withCode(exitUsage, fmt.Errorf("builder %q: want NAME=KEY, the key's file", arg))
				}
				builder, _, err := readBuilder(name, file)
				if err != nil {
					return err
				}
				builders.Of = append(builders.Of, builder)
			}
			return o.change(cmd, operate.SetBuilders(builders))
		},
	}
	o.addFlags(cmd)
	cmd.Flags().IntVar(&threshold, "threshold", 0, "how `MANY` of them have to sign")
	cmd.Flags().BoolVar(&none, "none", false, "demand nobody's signature any more")
	return cmd
}
