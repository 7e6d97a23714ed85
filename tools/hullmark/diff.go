package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/hullmark/hullmark/image/build"
	"github.com/hullmark/hullmark/inspect"
	"github.com/hullmark/hullmark/pcrs"
	"github.com/hullmark/hullmark/pcrs/machine"
)

// errDiffer says that the images differ, which is no failure of the command.
var errDiffer = errors.New("the images differ")

// diffOptions are the flags of `hullmark diff`.
type diffOptions struct{ tools, machine, output string }

func newDiffCommand() *cobra.Command {
	var o diffOptions
	cmd := &cobra.Command{
		Use:   "diff A B",
		Short: "Say what differs between two images",
		Long: `Say what differs between two images: versions, sizes, command line, kernel and its configuration, packages and Go modules, units, files, and the
registers that a boot will show, event by event.

Packages and modules are read from the SBOM beside each image, which has to be about it; where there is none, that is said. The root file systems are
unpacked by the tools tree that built one of them, each into a temporary folder; owners, times and extended attributes of files are not compared. Registers
are predicted for the same machine: that of --machine, or the tools tree's firmware.

Exit codes: 0 byte-equal, 3 they differ, 1 failed, 2 usage.`,
		Example: "  hullmark diff old/hullmark.raw out/hullmark.raw\n  hullmark diff old/hullmark.raw out/hullmark.raw -o json | jq '.differences[] | select(.kind == \"package\")'",
		Args:    exactArgs(2, "diff", "two images"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkOutput("diff", o.output); err != nil {
				return err
			}
			return o.run(cmd.Context(), cmd.OutOrStdout(), args[0], args[1])
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.tools, "tools", "", "tools tree `FOLDER` (default: the link tools beside A or B)")
	f.StringVar(&o.machine, "machine", "", "machine `FILE` to predict registers for")
	f.StringVarP(&o.output, "output", "o", "text", "`FORMAT` of the output: text or json")
	return cmd
}

func (o diffOptions) run(ctx context.Context, out io.Writer, a, b string) error {
	tools, err := o.findTools(a, b)
	if err != nil {
		return fmt.Errorf("diff: %w", err)
	}
	boot, err := o.openBoot(tools)
	if err != nil {
		return fmt.Errorf("diff: %w", err)
	}
	walk := func(ctx context.Context, root io.Reader, visit func(string, string, fs.FileInfo) error) error {
		return build.WalkRoot(ctx, tools, root, visit)
	}
	c, err := inspect.Compare(ctx, boot, walk, a, b)
	if err != nil {
		return fmt.Errorf("diff: %w", err)
	}
	if err := writeComparison(out, o.output, c, a, b); err != nil || c.Equal {
		return err
	}
	return withCode(exitMismatch, errDiffer)
}

// openBoot reads what registers are predicted for: the named machine, or the tools tree's firmware.
func (o diffOptions) openBoot(tools string) (pcrs.Boot, error) {
	if o.machine != "" {
		return measureOptions{machine: o.machine}.openBoot()
	}
	m, err := inspect.OpenMachine(machine.Hardware{Tools: tools})
	return pcrs.Boot{Machine: m}, err
}

// findTools returns the tools tree, which has to be there.
func (o diffOptions) findTools(images ...string) (string, error) {
	candidates := []string{o.tools}
	if o.tools == "" {
		candidates = nil
		for _, i := range images {
			candidates = append(candidates, filepath.Join(filepath.Dir(i), "tools"))
		}
	}
	for _, c := range candidates {
		tree, err := filepath.EvalSymlinks(c)
		if err != nil {
			continue
		}
		if _, err := os.Stat(filepath.Join(tree, "usr/bin/fsck.erofs")); err == nil {
			return filepath.Abs(tree)
		}
	}
	return "", withCode(exitUsage, fmt.Errorf("no tools tree with fsck.erofs in %q: name one with --tools, for instance the folder tools that hullmark build leaves beside an image", candidates))
}

// writeComparison prints the differences, grouped by kind.
func writeComparison(w io.Writer, output string, r inspect.Comparison, a, b string) error {
	if output == "json" {
		return writeJSON(w, r)
	}
	if r.Equal {
		_, err := fmt.Fprintf(w, "%s and %s are byte-equal\n", a, b)
		return err
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	before := inspect.Kind("")
	for _, d := range r.Differences {
		if d.Kind != before {
			fmt.Fprintf(t, "%s\n", d.Kind)
			before = d.Kind
		}
		name, x, y := oneLine(d.Name), oneLine(d.A), oneLine(d.B)
		if x == y { // They differ in what is not shown.
			x, y = strconv.QuoteToASCII(d.A), strconv.QuoteToASCII(d.B)
		}
		switch {
		case x == "":
			fmt.Fprintf(t, "  + %s\t%s\n", name, y)
		case y == "":
			fmt.Fprintf(t, "  - %s\t%s\n", name, x)
		default:
			fmt.Fprintf(t, "  ~ %s\t%s\t-> %s\n", name, x, y)
		}
	}
	for _, n := range r.NotCompared {
		fmt.Fprintf(t, "%s\n  not compared: %s\n", n.Kind, oneLine(n.Reason))
	}
	return t.Flush()
}
