package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/hullmark/hullmark/cluster/operate"
)

func newPolicyPlatformsCommand() *cobra.Command {
	var o policyOptions
	cmd := &cobra.Command{
		Use:   "platforms FILE",
		Short: "Say what machines' platforms have to show, and the least class of trust",
		Long: `Say what machines' platforms have to show, and the least class of trust of each role.

The file is JSON with the fields trust and platforms of a policy, and replaces both. Evidence of a kind that is not there counts for nothing; {} takes all demands
back. Classes, from the least on: tpm, tpm-provider, cvm-paravisor, cvm; for tests, test-cvm-paravisor and test-cvm, which satisfy no demand for the others.`,
		Example: "  hullmark policy platforms platforms.json --cluster prod.cluster",
		Args:    exactArg("policy platforms", "the file with the demands"),
		RunE: func(cmd *cobra.Command, args []string) error {
			text, err := readBounded(args[0], operate.MaxDemands)
			if err != nil {
				return err
			}
			least, platforms, err := operate.ParsePlatforms(text)
			if err != nil {
				return fmt.Errorf("%s: %w", args[0], err)
			}
			return o.change(cmd, operate.SetPlatforms(least, platforms))
		},
	}
	o.addFlags(cmd)
	return cmd
}
