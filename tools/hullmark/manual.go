package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

// newManualCommand is hidden: it serves who packages this program. It is a verb, because nothing else knows all verbs.
func newManualCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "manual FOLDER",
		Short: "Write the man pages, and what shells complete by, into a folder",
		Long: `Write the man pages, and what shells complete by, into a folder.

In FOLDER/man is a page for each verb, and in FOLDER/completions a file for each of bash, zsh and fish. The pages' date is SOURCE_DATE_EPOCH, or
today's without it; all else depends on the program alone.`,
		Example: "  SOURCE_DATE_EPOCH=1795659286 hullmark manual out/manual",
		Hidden:  true,
		Args:    exactArg("manual", "the folder"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := writeManual(cmd.Root(), args[0]); err != nil {
				return fmt.Errorf("manual: %w", err)
			}
			return nil
		},
	}
}

// writeManual writes all files. It leaves changed texts in the commands.
func writeManual(root *cobra.Command, folder string) error {
	pages, completions := filepath.Join(folder, "man"), filepath.Join(folder, "completions")
	for _, dir := range []string{pages, completions} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	for name, write := range map[string]func(io.Writer) error{
		"hullmark.bash": func(w io.Writer) error { return root.GenBashCompletionV2(w, true) },
		"hullmark.zsh":  root.GenZshCompletion,
		"hullmark.fish": func(w io.Writer) error { return root.GenFishCompletion(w, true) },
	} {
		var text bytes.Buffer
		if err := write(&text); err != nil {
			return err
		}
		if err := writeWhole(filepath.Join(completions, name), text.Bytes(), 0o644); err != nil {
			return err
		}
	}
	date, err := pageDate(os.Getenv("SOURCE_DATE_EPOCH"))
	if err != nil {
		return err
	}
	root.DisableAutoGenTag = true // It would have today's date.
	return writePages(root, pages, date)
}

// pageDate is the date of pages, in UTC: of one moment, a page has the month of each time zone otherwise. Without an epoch it is today.
func pageDate(epoch string) (time.Time, error) {
	if epoch == "" {
		return time.Now().UTC(), nil
	}
	seconds, err := strconv.ParseInt(epoch, 10, 64)
	if err != nil {
		return time.Time{}, fmt.Errorf("SOURCE_DATE_EPOCH %q: want seconds since 1970", epoch)
	}
	return time.Unix(seconds, 0).UTC(), nil
}

// writePages writes the page of a command and of all below it.
func writePages(cmd *cobra.Command, dir string, date time.Time) error {
	for _, sub := range cmd.Commands() {
		if !sub.IsAvailableCommand() || sub.IsAdditionalHelpTopicCommand() {
			continue
		}
		if err := writePages(sub, dir, date); err != nil {
			return err
		}
	}
	cmd.Long, cmd.Short = markdown(cmd.Long), markdown(cmd.Short)
	var page bytes.Buffer
	if err := doc.GenMan(cmd, &doc.GenManHeader{Section: "1", Date: &date, Source: "Hullmark", Manual: "Hullmark"}, &page); err != nil {
		return err
	}
	name := strings.ReplaceAll(cmd.CommandPath(), " ", "-") + ".1"
	return writeWhole(filepath.Join(dir, name), page.Bytes(), 0o644)
}

// marks are the characters that Markdown, which pages are made of, would take for more than themselves in a verb's description.
const marks = "\\`*_{}[]<>#|~"

// markdown writes plain text as Markdown. Lines that begin with two spaces stay as they are laid out.
func markdown(text string) string {
	const fence = "```\n"
	var b strings.Builder
	laidOut := false
	for line := range strings.Lines(text) {
		if indented := strings.HasPrefix(line, "  "); indented != laidOut {
			laidOut = indented
			b.WriteString(fence)
		}
		if laidOut {
			b.WriteString(line)
			continue
		}
		for _, r := range line {
			if strings.ContainsRune(marks, r) {
				b.WriteByte('\\')
			}
			b.WriteRune(r)
		}
	}
	if laidOut {
		b.WriteString("\n" + fence)
	}
	return b.String()
}
