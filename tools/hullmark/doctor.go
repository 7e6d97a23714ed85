package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/hullmark/hullmark/internal/needs"
)

func newDoctorCommand() *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "doctor [VERB...]",
		Short: "Tell what this machine lacks for each verb, and what to do",
		Long: `Tell what this machine lacks for each verb, and what to do.

Programs, files and what the system allows are looked for, for the verbs that are named, or for all; a verb is the first word of a command. What a
verb needs for a part of its work alone is optional, and told with that part. A verb that is not listed needs nothing but this program. Nothing is changed or
fetched, no network is asked, and root is not needed: ask as the user who will work.

Exit codes: 0 nothing needed is missing, 2 usage, 3 something is.`,
		Example:           "  hullmark doctor\n  hullmark doctor build vm\n  hullmark doctor build -o json",
		ValidArgsFunction: completeVerbs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkOutput("doctor", output); err != nil {
				return err
			}
			verbs, err := verbsOf(cmd.Root(), args)
			if err != nil {
				return err
			}
			m, err := needs.This()
			if err != nil {
				return fmt.Errorf("doctor: %w", err)
			}
			return examine(cmd.Context(), cmd.OutOrStdout(), m, verbs, output)
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "text", "`FORMAT` of the output: text or json")
	return cmd
}

// completeVerbs offers the verbs that need something.
func completeVerbs(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	return needs.Verbs(), cobra.ShellCompDirectiveNoFileComp
}

// verbsOf checks that the words are verbs, and names each once; without words they are all that need something.
func verbsOf(root *cobra.Command, words []string) ([]string, error) {
	if len(words) == 0 {
		return needs.Verbs(), nil
	}
	var verbs []string
	for _, word := range words {
		if !slices.ContainsFunc(root.Commands(), func(c *cobra.Command) bool { return c.Name() == word }) {
			return nil, withCode(exitUsage, fmt.Errorf("doctor: hullmark has no verb %q: name the first word of a command", word))
		}
		if !slices.Contains(verbs, word) {
			verbs = append(verbs, word)
		}
	}
	return verbs, nil
}

// examined is the JSON that hullmark doctor writes.
type examined struct {
	// Verbs are those that were asked for, and Stopped those of them that something needed is missing for.
	Verbs   []string `json:"verbs"`
	Stopped []string `json:"stopped"`
	// Packages are the Debian packages of what is missing, optional things left out.
	Packages []string        `json:"packages"`
	Findings []needs.Finding `json:"findings"`
}

// examine looks at a machine, and prints what it found.
func examine(ctx context.Context, w io.Writer, m needs.Machine, verbs []string, output string) error {
	e := examined{Verbs: verbs, Stopped: []string{}, Packages: []string{}, Findings: []needs.Finding{}}
	for _, f := range needs.Look(ctx, m, verbs) {
		e.Findings = append(e.Findings, f)
		if !f.Stops() {
			continue
		}
		if !slices.Contains(e.Stopped, f.Verb) {
			e.Stopped = append(e.Stopped, f.Verb)
		}
		if f.State == needs.Missing {
			e.Packages = append(e.Packages, f.Packages...)
		}
	}
	slices.Sort(e.Packages)
	e.Packages = slices.Compact(e.Packages)
	write := e.writeTable
	if output == "json" {
		write = func(w io.Writer) error { return writeJSON(w, e) }
	}
	if err := write(w); err != nil {
		return err
	}
	if len(e.Stopped) > 0 {
		return withCode(exitMismatch, fmt.Errorf("this machine lacks what is needed for: %s", strings.Join(e.Stopped, ", ")))
	}
	return nil
}

// writeTable prints a line for each thing, and the command that installs all that is missing.
func (e examined) writeTable(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, f := range e.Findings {
		state, say := string(f.State), f.Note
		if f.State == needs.Wrong {
			say += ": " + f.Remedy
		}
		if f.State == needs.Missing {
			say = f.Remedy
		}
		if f.When != "" {
			state += ", optional"
			say = strings.TrimSuffix(f.When+"; "+say, "; ")
		}
		if say = oneLine(say); say != "" {
			say = "\t" + say
		}
		fmt.Fprintf(t, "%s\t%s\t%s%s\n", f.Verb, f.What, state, say)
	}
	for _, verb := range e.Verbs {
		if !slices.ContainsFunc(e.Findings, func(f needs.Finding) bool { return f.Verb == verb }) {
			fmt.Fprintf(t, "%s\tnothing but this program\n", verb)
		}
	}
	if err := t.Flush(); err != nil || len(e.Packages) == 0 {
		return err
	}
	_, err := fmt.Fprintf(w, "\nas root: apt-get install %s\n", strings.Join(e.Packages, " "))
	return err
}
