package main

import (
	"errors"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/hullmark/hullmark/inspect"
	"github.com/hullmark/hullmark/measurements"
	"github.com/hullmark/hullmark/pcrs"
	"github.com/hullmark/hullmark/pcrs/machine"
)

// measureOptions are the files that a prediction is made from.
type measureOptions struct {
	machine         string // empty: the machine is described by the fields that follow
	firmware, vars  string
	log, list       string       // the list has the registers of the log's boot
	quote           quoteOptions // of those registers
	roms            []string
	nodeConfig      string // empty: the prediction is for all nodes
	release         measurements.Release
	lock            string // empty: the document does not name it, nor those that follow
	sbom, cycloneDX string
	unprovenStub    bool
	fallback        bool
	medium          bool
}

func newMeasureCommand() *cobra.Command {
	var o measureOptions
	var output, file string
	cmd := &cobra.Command{
		Use:   "measure IMAGE (--machine FILE | --firmware FILE --vars FILE | --log FILE)",
		Short: "Predict what an image will measure when it boots on a machine",
		Long: `Predict what an image will measure when it boots on a machine.

Nothing is run: the image's partition table, kernel image and root hash are read, and every event that the boot will extend into a
register of the TPM is computed from the bytes that it is made of. The result is the measurement document: JSON with -o json, a table
for people otherwise. The image's content is checked against its own root hash first.

A machine file says all that a boot depends on beside the image. With what hullmark learn stored for it, every register from 0 to 15 is predicted;
without, and with --firmware and --vars alone, PCR 0, 1 and 10 are not. Without a node configuration the document is for all nodes, and PCR 8, which holds
it, is not in it.

With --log, what the firmware measured is learned from the log of a boot of such a machine, of whatever image, and the image's part is computed: hullmark learn --log shows
what is taken, and what that proves. Registers that cannot be told stay open, with the reason. Name the registers of that boot (--pcrs), and a quote of them (--quote,
--signature and --ak, as tpm2_quote and tpm2_createak write them), and the log has to lead to their values.`,
		Example: "  hullmark measure out/node.raw --machine machine.json\n  hullmark measure out/node.raw --firmware OVMF_CODE_4M.fd --vars OVMF_VARS_4M.fd -o json\n" +
			"  hullmark measure out/node.raw --log machine.log --pcrs registers --out node.json",
		Args: exactArg("measure", "one image"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.run(args[0], file, output, cmd.OutOrStdout())
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.machine, "machine", "", "machine `FILE`")
	f.StringVar(&o.firmware, "firmware", "", "firmware `FILE` (OVMF code)")
	f.StringVar(&o.vars, "vars", "", "`FILE` with the firmware's variables before the boot (OVMF vars)")
	f.StringArrayVar(&o.roms, "rom", nil, "option ROM `FILE` of a device, in the order of the devices; repeat for more")
	f.StringVar(&o.log, "log", "", "event log `FILE` of such a machine, whose firmware cannot be had")
	f.StringVar(&o.list, "pcrs", "", "`FILE` with the registers of the log's boot, as tpm2_pcrread prints them")
	o.quote.register(cmd)
	f.StringVar(&o.nodeConfig, "config", "", "node configuration `FILE`, for PCR 8")
	f.StringVar(&o.lock, "lock", "", "lock `FILE` to name in the document")
	f.BoolVar(&o.unprovenStub, "unproven-stub", false, "accept a systemd-stub whose rules were read in its source but never compared with a boot")
	f.BoolVar(&o.fallback, "fallback", false, "a boot in which the slot on trial did not start, and the firmware went on to this image")
	f.BoolVar(&o.medium, "medium", false, "the boot of a medium that installs the image (hullmark install --medium)")
	f.StringVar(&file, "out", "", "`FILE` to write the document to, in place of standard output")
	f.StringVar(&o.sbom, "sbom", "", "SBOM `FILE` (SPDX) to name in the document")
	f.StringVar(&o.cycloneDX, "cyclonedx", "", "SBOM `FILE` (CycloneDX) to name in the document")
	f.StringVar(&o.release.Builder, "builder", "", "`PATH@VERSION` of the program that built the image, to name in the document")
	registerRelease(cmd, &o.release)
	f.StringVarP(&output, "output", "o", "text", "`FORMAT` of the output: text or json")
	return cmd
}

// registerRelease defines the flags of what only the releaser knows.
func registerRelease(cmd *cobra.Command, r *measurements.Release) {
	f := cmd.Flags()
	f.StringVar(&r.Name, "release", "", "`NAME` of the release (default: the image's version)")
	f.Uint32Var(&r.SVN, "svn", 1, "security version `NUMBER` of the release")
}

// run measures an image, and writes the document to a file, or in a format to out.
func (o measureOptions) run(path, file, output string, out io.Writer) error {
	if err := checkOutput("measure", output); err != nil {
		return err
	}
	if o.log == "" && (o.list != "" || o.quote != quoteOptions{}) {
		return withCode(exitUsage, errors.New("measure: --pcrs, --quote, --signature and --ak are about a log (--log)"))
	}
	if err := o.quote.check(o.list); err != nil {
		return err
	}
	described := o.firmware != "" || o.vars != "" || o.roms != nil
	if o.machine != "" && (described || o.nodeConfig != "") || o.log != "" && (described || o.machine != "") || o.machine == "" && o.log == "" && (o.firmware == "" || o.vars == "") {
		return withCode(exitUsage, errors.New("measure: name a machine file (--machine), firmware and variables (--firmware, --vars), or a log (--log), one of them"))
	}
	read := append([]string{path, o.machine, o.log, o.firmware, o.vars, o.nodeConfig, o.lock, o.sbom, o.cycloneDX}, o.roms...)
	if err := notOver(file, read...); err != nil {
		return fmt.Errorf("measure: %w", err)
	}
	document, err := o.measure(path)
	if err != nil {
		return fmt.Errorf("measure %s: %w", path, err)
	}
	if file == "" {
		return writeDocument(out, document, output)
	}
	text, err := document.Encode()
	if err != nil {
		return err
	}
	if err := writeWhole(file, text, 0o644); err != nil {
		return err
	}
	_, err = fmt.Fprintln(out, file)
	return err
}

// measure reads an image and predicts its boot.
func (o measureOptions) measure(path string) (measurements.Document, error) {
	boot, err := o.openBoot()
	if err != nil {
		return measurements.Document{}, err
	}
	boot.AllowUnprovenStub, boot.Fallback, boot.Medium = o.unprovenStub, o.fallback, o.medium
	release, err := o.released()
	if err != nil {
		return measurements.Document{}, err
	}
	return inspect.MeasureFile(path, boot, release)
}

// released completes the release with the digests of the files that it names.
func (o measureOptions) released() (r measurements.Release, err error) {
	r = o.release
	if r.Lock, err = digestOf(o.lock); err != nil {
		return r, fmt.Errorf("lock: %w", err)
	}
	if r.SBOM, err = digestOf(o.sbom); err != nil {
		return r, fmt.Errorf("SBOM: %w", err)
	}
	if r.CycloneDX, err = digestOf(o.cycloneDX); err != nil {
		return r, fmt.Errorf("SBOM: %w", err)
	}
	return r, nil
}

// openBoot reads all that a boot depends on beside the image.
func (o measureOptions) openBoot() (b pcrs.Boot, err error) {
	if o.machine != "" {
		m, err := inspect.ReadMachine(o.machine)
		if err != nil {
			return b, err
		}
		return inspect.OpenBoot(m)
	}
	if b.NodeConfig, err = machine.NodeConfig(o.nodeConfig, readBounded); err != nil {
		return b, err
	}
	if o.log != "" {
		b.Machine.Log, err = o.openLog()
		return b, err
	}
	files := machine.Files{Firmware: machine.Firmware{Code: o.firmware, Vars: o.vars}, ROMs: o.roms}
	b.Machine, err = files.Open(readBounded)
	return b, err
}

// digestOf is the SHA-256 of a file; nil if none is named.
func digestOf(path string) (pcrs.Digest, error) {
	if path == "" {
		return nil, nil
	}
	return inspect.Digest(path)
}

func writeDocument(w io.Writer, d measurements.Document, output string) error {
	if output == "text" {
		return writeDocumentTable(w, d)
	}
	encoded, err := d.Encode()
	if err != nil {
		return err
	}
	_, err = w.Write(encoded)
	return err
}

// firmwareOf says what a document knows of a machine's firmware.
func firmwareOf(m measurements.Machine) string {
	switch {
	case m.Log == nil:
		return m.Firmware.String()
	case m.Log.Quote == nil:
		return fmt.Sprintf("known by log %v, the machine's own claim", m.Log.SHA256)
	}
	return fmt.Sprintf("known by log %v, to whose values the key %.16s… has signed a quote", m.Log.SHA256, m.Log.Quote.Key)
}

func writeDocumentTable(w io.Writer, d measurements.Document) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "image\t%s %s\nrelease\t%s\nKubernetes\t%v, etcd %v\nroot hash\t%v\nkernel image\t%v (systemd-stub %s)\nfirmware\t%s\nsecurity version\t%d\n\n",
		oneLine(d.Image.ID), oneLine(d.Image.Version), oneLine(d.Name), d.Image.Kubernetes, d.Image.Etcd, d.Image.RootHash, d.Image.UKI, oneLine(d.Image.Stub), firmwareOf(d.Machine), d.SVN)
	for _, r := range d.Registers {
		bank := r.Register.In(pcrs.SHA256)
		fmt.Fprintf(t, "%v\t%v\n", r.Register, r.Values[bank])
		for _, e := range r.Events {
			fmt.Fprintf(t, "\t  %s  %s (%s)\n", e.Digests[bank].String()[:16], oneLine(e.Source.String()), e.Origin)
		}
	}
	for _, u := range d.NotPredicted {
		fmt.Fprintf(t, "%v\tnot predicted: %s\n", u.Register, u.Reason)
	}
	return t.Flush()
}
