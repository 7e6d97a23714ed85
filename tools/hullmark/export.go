package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"

	"github.com/hullmark/hullmark/measurements/export"
	"github.com/hullmark/hullmark/pcrs"
)

// exportOptions are the flags of `hullmark export`.
type exportOptions struct {
	format, out string
	registers   []int
}

func newExportCommand() *cobra.Command {
	var o exportOptions
	cmd := &cobra.Command{
		Use:   "export DOCUMENT --format FORMAT",
		Short: "Write a measurement document's registers for another verifier",
		Long: `Write a measurement document's registers for another verifier.

  json      the registers, by bank and number
  corim     an unsigned CoRIM with one CoMID: reference values by register
  keylime   a tpm_policy for Keylime
  rvps      a message for Trustee's reference value provider service
  pcrlock   a folder of components for systemd-pcrlock

A register that the document does not predict is in none of them. A signed document is given to hullmark verify first, which writes the document in it.`,
		Example: "  hullmark export node.json --format keylime --registers 2,4,9,11 --out tpm_policy.json\n  hullmark export node.json --format pcrlock --out pcrlock.d",
		Args:    exactArg("export", "the measurement document"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.run(cmd.OutOrStdout(), args[0])
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.format, "format", "", "`FORMAT` to write: "+export.Names())
	f.StringVar(&o.out, "out", "", "`FILE` to write, or the folder for pcrlock (default: standard output)")
	f.IntSliceVar(&o.registers, "registers", nil, "`REGISTERS` to write (default: all that the document predicts)")
	require(cmd, "format")
	return cmd
}

func (o *exportOptions) run(w io.Writer, file string) error {
	format, err := export.ParseFormat(o.format)
	if err != nil {
		return withCode(exitUsage, fmt.Errorf("--%w", err))
	}
	if format.Several() && o.out == "" {
		return withCode(exitUsage, fmt.Errorf("export: %s is several files; name a folder for them with --out", format))
	}
	if err := notOver(o.out, file); err != nil {
		return fmt.Errorf("export: %w", err)
	}
	document, err := readDocument(file)
	if err != nil {
		return err
	}
	var chosen []pcrs.Register
	for _, n := range o.registers {
		chosen = append(chosen, pcrs.Register(n))
	}
	files, err := export.Export(document, format, chosen...)
	if errors.Is(err, export.ErrRegisters) {
		return withCode(exitUsage, fmt.Errorf("%s: %w with --registers", file, err))
	}
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	return o.write(w, format, files)
}

// write writes an export to standard output, a file or a folder, and prints the names of files that it wrote.
func (o *exportOptions) write(w io.Writer, format export.Format, files []export.File) error {
	if o.out == "" {
		_, err := w.Write(files[0].Content)
		return err
	}
	if !format.Several() {
		files[0].Name = o.out
		return writeFiles(w, files)
	}
	if err := checkFolder(o.out, files); err != nil {
		return fmt.Errorf("export: %w", err)
	}
	for i := range files {
		files[i].Name = filepath.Join(o.out, files[i].Name)
	}
	return writeFiles(w, files)
}

// checkFolder makes a folder that holds nothing but earlier versions of the files: whoever reads it takes all that lies there.
func checkFolder(folder string, files []export.File) error {
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	entries, err := os.ReadDir(folder)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if !slices.ContainsFunc(files, func(f export.File) bool { return f.Name == entry.Name() }) {
			return fmt.Errorf("%s holds %s, which this export would not replace; name an empty folder", folder, oneLine(entry.Name()))
		}
	}
	return nil
}

func writeFiles(w io.Writer, files []export.File) error {
	for _, f := range files {
		if err := writeWhole(f.Name, f.Content, 0o644); err != nil {
			return fmt.Errorf("export: %w", err)
		}
		if _, err := fmt.Fprintln(w, f.Name); err != nil {
			return err
		}
	}
	return nil
}
