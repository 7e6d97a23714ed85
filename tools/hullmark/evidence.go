package main

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/hullmark/hullmark/attest/verifier/recorded"
	"github.com/hullmark/hullmark/attest/verifier/tdx"
)

// evidenceOptions are the flags of `hullmark evidence`'s verbs.
type evidenceOptions struct {
	platform, output string
	ca, demands, at  string
	collaterals      []string
}

func newEvidenceCommand() *cobra.Command {
	return group("evidence", "Read and verify stored evidence of confidential machines", newEvidenceShowCommand(), newEvidenceVerifyCommand())
}

func newEvidenceShowCommand() *cobra.Command {
	var o evidenceOptions
	cmd := &cobra.Command{
		Use:   "show FILE... --platform PLATFORM",
		Short: "Show what stored evidence says, and verify nothing",
		Long: `Show what stored evidence says, and verify nothing.

The files are told apart by how they begin: SEV-SNP reports, TDX quotes, paravisors' reports (NV index 0x01400001), Nitro attestation
documents, launch endorsements of Google, and certificates in DER or PEM.`,
		Example: "  hullmark evidence show report.bin --platform snp",
		Args:    someFiles("evidence show"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.run(args, cmd.OutOrStdout(), func(e recorded.Evidence) (recorded.Result, error) { return e.Show(o.platform) })
		},
	}
	o.addFlags(cmd)
	return cmd
}

func newEvidenceVerifyCommand() *cobra.Command {
	var o evidenceOptions
	cmd := &cobra.Command{
		Use:   "verify FILE... --platform PLATFORM",
		Short: "Verify stored evidence, and say what was not checked",
		Long: `Verify stored evidence, and say what was not checked.

Without --demands, signatures, times, revocation, debug and the rating of firmware are judged; what strict demands would refuse beside that is listed. With
--demands, a file with the demands of a policy's platform, all of them are judged. Nothing asks a network: TDX takes collateral that hullmark collateral fetch stored.

Exit codes: 0 verified, 4 refused, 1 not readable.`,
		Example: "  hullmark evidence verify hcl-report.bin vcek.pem --platform azure-snp --at 2025-06-01T00:00:00Z -o json",
		Args:    someFiles("evidence verify"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.run(args, cmd.OutOrStdout(), o.verify)
		},
	}
	o.addFlags(cmd)
	f := cmd.Flags()
	f.StringVar(&o.ca, "ca", "", "PEM `FILE` with roots in the place of the makers' own: the verdict is that of a test")
	f.StringVar(&o.demands, "demands", "", "JSON `FILE` with the demands of a policy's platform")
	f.StringArrayVar(&o.collaterals, "collateral", nil, "`FILE` with Intel's answers, as hullmark collateral fetch stores them; repeat for more")
	f.StringVar(&o.at, "at", "", "`TIME` by which certificates are judged, as 2026-06-01T00:00:00Z (default: now)")
	return cmd
}

func someFiles(verb string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) == 0 {
			return withCode(exitUsage, fmt.Errorf("%s: name the files (see hullmark %s --help)", verb, verb))
		}
		return nil
	}
}

func (o *evidenceOptions) addFlags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&o.platform, "platform", "", "kind of evidence: "+strings.Join(recorded.Platforms(), ", "))
	cmd.Flags().StringVarP(&o.output, "output", "o", "text", "`FORMAT` of the output: text or json")
	require(cmd, "platform")
}

// run reads the files, has them judged, and prints the result.
func (o *evidenceOptions) run(names []string, out io.Writer, judge func(recorded.Evidence) (recorded.Result, error)) error {
	if err := checkOutput("evidence", o.output); err != nil {
		return err
	}
	var files []recorded.File
	for _, name := range names {
		content, err := readBounded(name, recorded.MaxFile)
		if err != nil {
			return err
		}
		files = append(files, recorded.File{Name: name, Content: content})
	}
	e, err := recorded.Read(files)
	if err != nil {
		return err
	}
	result, err := judge(e)
	if err != nil {
		return fmt.Errorf("evidence: %w", err)
	}
	if err := writeEvidence(out, o.output, result); err != nil {
		return err
	}
	if len(result.Reasons) > 0 {
		return withCode(exitDenied, errors.New("evidence: refused"))
	}
	return nil
}

func (o *evidenceOptions) verify(e recorded.Evidence) (recorded.Result, error) {
	judged := recorded.Options{At: time.Now()}
	var err error
	if o.at != "" {
		if judged.At, err = time.Parse(time.RFC3339, o.at); err != nil {
			return recorded.Result{}, withCode(exitUsage, fmt.Errorf("--at: %w", err))
		}
	}
	for _, f := range []struct {
		name string
		into *[]byte
	}{{o.ca, &judged.Roots}, {o.demands, &judged.Demands}} {
		if f.name == "" {
			continue
		}
		if *f.into, err = readBounded(f.name, recorded.MaxFile); err != nil {
			return recorded.Result{}, err
		}
	}
	for _, name := range o.collaterals {
		text, err := readBounded(name, recorded.MaxFile)
		if err != nil {
			return recorded.Result{}, err
		}
		collateral, err := tdx.ParseCollateral(text)
		if err != nil {
			return recorded.Result{}, fmt.Errorf("%s: %w", name, err)
		}
		judged.Collaterals = append(judged.Collaterals, collateral)
	}
	return e.Verify(o.platform, judged)
}

func writeEvidence(out io.Writer, output string, r recorded.Result) error {
	if output == "json" {
		return writeJSON(out, r)
	}
	for _, f := range r.Says {
		fmt.Fprintf(out, "%-16s %s\n", f.Name, oneLine(f.Value))
	}
	fmt.Fprintln(out)
	for _, c := range r.Checked {
		fmt.Fprintln(out, "checked:", c)
	}
	for _, reason := range r.Reasons {
		fmt.Fprintf(out, "refused (%s): %s\n", reason.Code, oneLine(reason.String()))
	}
	for _, reason := range r.Strict {
		fmt.Fprintf(out, "strict demands would refuse (%s): %s\n", reason.Code, oneLine(reason.String()))
	}
	for _, c := range r.NotChecked {
		fmt.Fprintln(out, "not checked:", c)
	}
	if r.Verified {
		fmt.Fprintf(out, "verified: %s, product %s, firmware %s\n", r.Platform, r.Claims.Product, r.Claims.TCB)
	}
	return nil
}
