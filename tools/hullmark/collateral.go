package main

import (
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/hullmark/hullmark/attest/collateral"
	"github.com/hullmark/hullmark/attest/verifier/snp"
	"github.com/hullmark/hullmark/attest/verifier/tdx"
)

func newCollateralCommand() *cobra.Command {
	return group("collateral", "Fetch and show what processors' makers say of their platforms", newCollateralFetchCommand(), newCollateralShowCommand())
}

// collateralOptions are the flags of `hullmark collateral fetch`.
type collateralOptions struct {
	fmspc, product, key string
	from, rootCRL, out  string
}

func newCollateralFetchCommand() *cobra.Command {
	var o collateralOptions
	cmd := &cobra.Command{
		Use:   "fetch (--fmspc DIGITS | --product PRODUCT) --out FILE",
		Short: "Fetch Intel's collateral of a model, or AMD's list of revoked keys",
		Long: `Fetch Intel's collateral of a model, or AMD's list of revoked keys.

A policy takes both: TDX's as one of collaterals, SNP's as one of crls. Verifiers have no network, and judge by what the policy holds; so fetch it anew before it
ends, and sign the policy. Intel's is checked up to Intel's root before it is written.`,
		Example: "  hullmark collateral fetch --fmspc 90c06f000000 --out tdx.json\n  hullmark collateral fetch --product Genoa --out genoa.crl",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			content, err := o.fetch(cmd)
			if err != nil {
				return fmt.Errorf("collateral fetch: %w", err)
			}
			return writeWhole(o.out, content, 0o644)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.fmspc, "fmspc", "", "Intel's model of the platform, 12 `DIGITS`, as hullmark evidence verify names it")
	f.StringVar(&o.product, "product", "", "AMD's `PRODUCT`: Milan, Genoa or Turin")
	f.StringVar(&o.key, "key", string(snp.VCEK), "kind of AMD's keys: vcek or vlek")
	f.StringVar(&o.from, "from", "", "`URL` of the service, or of a cache of it (default: the maker's own)")
	f.StringVar(&o.rootCRL, "root-crl", collateral.IntelRootCRL, "`URL` of the list of Intel's root")
	f.StringVar(&o.out, "out", "", "`FILE` to write")
	require(cmd, "out")
	return cmd
}

func (o *collateralOptions) fetch(cmd *cobra.Command) ([]byte, error) {
	service := func(maker string) string {
		if o.from != "" {
			return o.from
		}
		return maker
	}
	switch {
	case (o.fmspc == "") == (o.product == ""):
		return nil, withCode(exitUsage, errors.New("name one of --fmspc and --product"))
	case o.product != "":
		return collateral.SNP(cmd.Context(), service(collateral.AMDService), o.product, snp.Key(o.key))
	}
	model, err := hex.DecodeString(o.fmspc)
	if err != nil {
		return nil, withCode(exitUsage, fmt.Errorf("--fmspc: %w", err))
	}
	c, err := collateral.TDX(cmd.Context(), service(collateral.IntelService), o.rootCRL, model)
	if err != nil {
		return nil, err
	}
	if _, err := (&tdx.Verifier{}).About(c); err != nil {
		return nil, err
	}
	return json.Marshal(c)
}

func newCollateralShowCommand() *cobra.Command {
	var output, ca string
	cmd := &cobra.Command{
		Use:     "show FILE",
		Short:   "Check the signatures of Intel's collateral, and say what it is about",
		Long:    "Check the signatures of Intel's collateral, and say what it is about: the model, until when it is good, the number that a policy may demand, and its digest.",
		Example: "  hullmark collateral show tdx.json",
		Args:    exactArg("collateral show", "the collateral"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkOutput("collateral show", output); err != nil {
				return err
			}
			about, err := aboutCollateral(args[0], ca)
			if err != nil {
				return err
			}
			if output == "json" {
				return writeJSON(cmd.OutOrStdout(), about)
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "model       %v\nissued      %v\nnext        %v\nevaluation  %d\ndigest      %v\n",
				about.FMSPC, about.Issued, about.Next, about.Evaluation, about.Digest)
			return err
		},
	}
	cmd.Flags().StringVar(&ca, "ca", "", "PEM `FILE` with a root in the place of Intel's")
	cmd.Flags().StringVarP(&output, "output", "o", "text", "`FORMAT` of the output: text or json")
	return cmd
}

func aboutCollateral(file, ca string) (tdx.About, error) {
	text, err := readBounded(file, tdx.MaxCollateral)
	if err != nil {
		return tdx.About{}, err
	}
	c, err := tdx.ParseCollateral(text)
	if err != nil {
		return tdx.About{}, fmt.Errorf("%s: %w", file, err)
	}
	verifier := &tdx.Verifier{}
	if ca != "" {
		root, err := os.ReadFile(ca)
		if err != nil {
			return tdx.About{}, err
		}
		block, _ := pem.Decode(root)
		if block == nil {
			return tdx.About{}, fmt.Errorf("%s: no PEM certificate", ca)
		}
		verifier.TestRoots = [][]byte{block.Bytes}
	}
	about, err := verifier.About(c)
	if err != nil {
		return about, fmt.Errorf("%s: %w", file, err)
	}
	return about, nil
}
