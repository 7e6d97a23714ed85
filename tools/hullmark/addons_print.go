package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/hullmark/hullmark/cluster/addons"
)

// writePlan prints a plan as it was asked for.
func (o *addonsOptions) writePlan(w io.Writer, p *addons.Plan) error {
	if o.output == "json" {
		return writeJSON(w, p)
	}
	var text strings.Builder
	for _, a := range p.Addons {
		printAddon(&text, a)
	}
	printSaved(&text, p)
	_, err := io.WriteString(w, printable(text.String()))
	return err
}

// printAddon writes one add-on, a line for each thing that changes.
func printAddon(w io.Writer, a addons.AddonPlan) {
	switch {
	case a.Waits != "":
		fmt.Fprintf(w, "%s waits: %s\n", a.Name, a.Waits)
	case !a.Changes && len(a.Problems) == 0:
		fmt.Fprintf(w, "%s: unchanged, %s\n", a.Name, a.Next)
	case a.Now == "":
		fmt.Fprintf(w, "%s: new, %s\n", a.Name, a.Next)
	default:
		fmt.Fprintf(w, "%s: %s -> %s\n", a.Name, a.Now, a.Next)
	}
	for _, d := range a.Definitions {
		fmt.Fprintf(w, "  %-8s definition %s: %s; %d objects\n", d.Change, d.Name, versions(d), d.Objects)
	}
	for _, o := range a.Objects {
		line := fmt.Sprintf("  %-8s %s", o.Change, o.Name)
		if o.Note != "" {
			line += " (" + o.Note + ")"
		}
		fmt.Fprintln(w, line)
	}
	for _, h := range a.Hooks {
		fmt.Fprintf(w, "  %-8s %s (%s)\n", "hook", h.Name, h.At)
	}
	for _, final := range a.Final {
		fmt.Fprintf(w, "  %-8s %s\n", "final", final)
	}
	for _, problem := range a.Problems {
		fmt.Fprintf(w, "  %-8s %s\n", "problem", problem)
	}
	for _, note := range a.Notes {
		fmt.Fprintf(w, "  %-8s %s\n", "note", note)
	}
}

// versions says which versions a definition has, and has next.
func versions(d addons.DefinitionPlan) string {
	switch {
	case d.Now == "":
		return d.Next
	case d.Next == "" || d.Now == d.Next:
		return d.Now
	}
	return d.Now + " -> " + d.Next
}

// printSaved writes what is saved before anything changes.
func printSaved(w io.Writer, p *addons.Plan) {
	if !p.Changes() {
		fmt.Fprintln(w, "nothing changes")
		return
	}
	fmt.Fprintf(w, "saved before: %d definitions, and every object above\n", p.Saved.Definitions)
	for _, name := range slices.Sorted(maps.Keys(p.Saved.CustomResources)) {
		fmt.Fprintf(w, "  %d objects of %s\n", p.Saved.CustomResources[name], name)
	}
	for _, name := range slices.Sorted(maps.Keys(p.Saved.Unread)) {
		fmt.Fprintf(w, "  not those of %s, which cannot be read: %s\n", name, p.Saved.Unread[name])
	}
}

// printRestored writes what was put back, and what could not be.
func printRestored(w io.Writer, r addons.Restored) error {
	if r.Run == "" {
		_, err := fmt.Fprintln(w, "nothing is unfinished, so nothing was put back; name what an apply saved to put back what was before it")
		return err
	}
	var text strings.Builder
	fmt.Fprintf(&text, "put back what was before run %s: %d objects were changed for it\n", r.Run, r.Objects)
	for _, note := range r.Notes {
		fmt.Fprintf(&text, "  %-8s %s\n", "note", note)
	}
	for _, problem := range r.Problems {
		fmt.Fprintf(&text, "  %-8s %s\n", "problem", problem)
	}
	_, err := io.WriteString(w, printable(text.String()))
	return err
}
