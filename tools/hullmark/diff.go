package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"text/tabwriter"

	"github.com/spf13/cobra"
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

Packages and modules are read from the bill of materials beside each image, which has to be about it; where there is none, that is said. The root file systems are
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

// difference is something that two images have otherwise: what only one has is empty on the other's side.
type difference struct {
	// Kind is one of kinds.
	Kind string `json:"kind"`
	Name string `json:"name"`
	A    string `json:"a,omitempty"`
	B    string `json:"b,omitempty"`
}

// diffReport is the JSON that hullmark diff writes.
type diffReport struct {
	Equal       bool         `json:"equal"`
	Differences []difference `json:"differences"`
	// NotCompared are kinds that could not be looked at in both images, with the reason.
	NotCompared []notCompared `json:"notCompared"`
}

type notCompared struct {
	Kind   string `json:"kind"`
	Reason string `json:"reason"`
}

func (o diffOptions) run(ctx context.Context, out io.Writer, a, b string) error {
	tools, err := o.findTools(a, b)
	if err != nil {
		return fmt.Errorf("diff: %w", err)
	}
	look := lookup{tools: tools, machine: o.machine}
	x, err := look.image(a)
	if err != nil {
		return fmt.Errorf("diff: %s: %w", a, err)
	}
	defer x.Close()
	y, err := look.image(b)
	if err != nil {
		return fmt.Errorf("diff: %s: %w", b, err)
	}
	defer y.Close()
	if !slices.Equal(x.rootHash, y.rootHash) {
		if err := look.roots(ctx, x, y); err != nil {
			return fmt.Errorf("diff: %w", err)
		}
	}
	r := compareInventories(x.inventory, y.inventory)
	if err := r.write(out, o.output, a, b); err != nil || r.Equal {
		return err
	}
	return withCode(exitMismatch, errDiffer)
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

// compareInventories lists what differs, by kind and name.
func compareInventories(a, b inventory) diffReport {
	r := diffReport{Equal: true, Differences: []difference{}, NotCompared: []notCompared{}}
	for _, kind := range kinds {
		if reason := cmp.Or(a.missing[kind], b.missing[kind]); reason != "" {
			r.NotCompared = append(r.NotCompared, notCompared{kind, reason})
			continue
		}
		x, y := a.found[kind], b.found[kind]
		both := maps.Clone(x)
		if both == nil {
			both = map[string]string{}
		}
		maps.Copy(both, y)
		for _, name := range slices.Sorted(maps.Keys(both)) {
			if x[name] != y[name] {
				r.Differences = append(r.Differences, difference{kind, name, x[name], y[name]})
			}
		}
	}
	r.Equal = len(r.Differences) == 0
	return r
}

func (r diffReport) write(w io.Writer, output, a, b string) error {
	if output == "json" {
		return writeJSON(w, r)
	}
	if r.Equal {
		_, err := fmt.Fprintf(w, "%s and %s are byte-equal\n", a, b)
		return err
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	before := ""
	for _, d := range r.Differences {
		if d.Kind != before {
			fmt.Fprintf(t, "%s\n", d.Kind)
			before = d.Kind
		}
		name, x, y := printable(d.Name), printable(d.A), printable(d.B)
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
		fmt.Fprintf(t, "%s\n  not compared: %s\n", n.Kind, printable(n.Reason))
	}
	return t.Flush()
}
