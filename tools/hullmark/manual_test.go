package main

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
)

// writtenManual writes the manual into a new folder.
func writtenManual(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "manual")
	code, out := hullmarkCLI(t, "manual", dir)
	wantExit(t, code, 0, out)
	return dir
}

var (
	// roffRequest is the beginning of a line that lays out, roffFont a change of fonts, and roffRest what is left of an escape.
	roffRequest = regexp.MustCompile(`(?m)^\.[A-Z]+ ?`)
	roffFont    = regexp.MustCompile(`\\f[A-Z]`)
	roffRest    = regexp.MustCompile(`\\(&|\(aq)?`)
)

// wordsOf are the words of a text. Quotes and backslashes are left out.
func wordsOf(text string) []string {
	return strings.Fields(strings.NewReplacer("`", "", `"`, "", "'", "").Replace(text))
}

// Each verb has a page, on which stands all that its help says.
func TestEveryVerbHasAPage(t *testing.T) {
	t.Setenv("SOURCE_DATE_EPOCH", "1700000000")
	pages := filepath.Join(writtenManual(t), "man")
	found := names(t, pages)
	var check func(*cobra.Command)
	check = func(cmd *cobra.Command) {
		for _, sub := range cmd.Commands() {
			if !sub.Hidden && sub.Name() != "help" {
				check(sub)
			}
		}
		name := strings.ReplaceAll(cmd.CommandPath(), " ", "-") + ".1"
		i := slices.Index(found, name)
		if i < 0 {
			t.Errorf("no page %s", name)
			return
		}
		found = slices.Delete(found, i, i+1)
		page, err := os.ReadFile(filepath.Join(pages, name))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Contains(page, []byte(`"1" "Nov 2023" "Hullmark" "Hullmark"`)) || bytes.Contains(page, []byte("cobra")) {
			t.Errorf("%s begins %.200q, or tells what made it", name, page)
		}
		text := strings.Join(wordsOf(roffRest.ReplaceAllString(roffFont.ReplaceAllString(roffRequest.ReplaceAllString(string(page), ""), ""), "")), " ")
		for said := range strings.SplitSeq(strings.Join([]string{cmd.Short, cmd.Long, cmd.Example}, "\n\n"), "\n\n") {
			if want := strings.Join(wordsOf(said), " "); !strings.Contains(text, want) {
				t.Errorf("%s does not say %q:\n%s", name, want, page)
			}
		}
	}
	check(newRootCommand())
	for _, name := range found {
		if !strings.HasPrefix(name, "hullmark-completion") { // Made as the program starts.
			t.Errorf("page %s is of no verb", name)
		}
	}
}

// groff lays out each page without a word, and has words for one that it cannot.
func TestGroffLaysOutThePages(t *testing.T) {
	pages, err := filepath.Glob(filepath.Join(writtenManual(t), "man", "*.1"))
	if err != nil || len(pages) < 100 {
		t.Fatalf("%d pages, %v", len(pages), err)
	}
	if said := groffSays(t, pages...); said != "" {
		t.Errorf("of the pages it says:\n%s", said)
	}
	wrong := filepath.Join(t.TempDir(), "wrong.1")
	write(t, wrong, []byte(".TH WRONG 1\n.NONE\n"))
	if groffSays(t, wrong) == "" {
		t.Error("it is silent about a macro that there is not")
	}
}

// groffSays is what groff complains of in pages, which are in UTF-8, as man takes them. Nothing is printed.
func groffSays(t *testing.T, pages ...string) string {
	t.Helper()
	said, err := exec.CommandContext(t.Context(), "groff", append([]string{"-K", "utf8", "-man", "-ww", "-z"}, pages...)...).CombinedOutput()
	if err != nil {
		t.Fatalf("groff: %v (apt-get install groff-base)\n%s", err, said)
	}
	return string(said)
}

// The same program writes the same, also at the turn of a month in another time zone.
func TestManualIsReproducible(t *testing.T) {
	t.Setenv("SOURCE_DATE_EPOCH", "1701388800") // 2023-12-01 00:00 UTC
	here := writtenManual(t)
	zone := time.Local
	time.Local = time.FixedZone("west", -5*60*60)
	defer func() { time.Local = zone }()
	if out, err := exec.CommandContext(t.Context(), "diff", "-r", here, writtenManual(t)).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestManualRefusesADate(t *testing.T) {
	t.Setenv("SOURCE_DATE_EPOCH", "yesterday")
	code, out := hullmarkCLI(t, "manual", t.TempDir())
	wantExit(t, code, exitFailed, out, `SOURCE_DATE_EPOCH "yesterday"`)
}

// doctor offers the verbs that need something, and no files.
func TestDoctorCompletes(t *testing.T) {
	code, out := hullmarkCLI(t, cobra.ShellCompRequestCmd, "doctor", "")
	wantExit(t, code, 0, out, "build\n", "reproduce\n", ":4\n")
}

// asProgram is set where this test's own binary is to be hullmark itself.
const asProgram = "HULLMARK_TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		os.Exit(run(os.Args[1:]))
	}
	os.Exit(m.Run())
}

// askBash has bash complete as a tab does, by the package bash-completion and the file $1.
const askBash = `
. /usr/share/bash-completion/bash_completion
. "$1"
complete -p hullmark
COMP_WORDS=(hullmark log wit) COMP_CWORD=2 COMP_LINE="hullmark log wit" COMP_POINT=16 COMP_TYPE=9
__start_hullmark
printf '%s\n' "${COMPREPLY[@]}"
`

// askZsh has another zsh, on a terminal, complete by the folder $1 after a tab, and waits for the whole word.
const askZsh = `
zmodload zsh/zpty
zpty shell zsh -f -i
zpty -w shell "fpath=($1 \$fpath); autoload -Uz compinit; compinit -u -D; PS1=rea''dy"
zpty -r shell said '*ready*'
zpty -w -n shell $'hullmark log wit\t'
zpty -r shell said '*witness*'
print -r -- "$said"
`

// Each shell itself, as Debian has it, asks hullmark how a verb goes on. A shell that is not answered is stopped.
func TestShellsComplete(t *testing.T) {
	completions := filepath.Join(writtenManual(t), "completions")
	programs := t.TempDir()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	hullmark := "#!/bin/sh\n" + asProgram + "=1 exec '" + self + "' \"$@\"\n"
	if err := os.WriteFile(filepath.Join(programs, "hullmark"), []byte(hullmark), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(filepath.Join(completions, "hullmark.zsh"), filepath.Join(completions, "_hullmark")); err != nil { // The name that zsh looks for.
		t.Fatal(err)
	}
	for shell, command := range map[string][]string{
		"bash": {"bash", "--norc", "-c", askBash, "bash", completions + "/hullmark.bash"},
		"zsh":  {"zsh", "-fc", askZsh, "zsh", completions},
		"fish": {"fish", "--no-config", "-c", "source " + completions + "/hullmark.fish; complete -C 'hullmark log wit'"},
	} {
		t.Run(shell, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			cmd := exec.CommandContext(ctx, command[0], command[1:]...)
			cmd.WaitDelay = time.Second // What the shell started may hold its output.
			cmd.Env = append(os.Environ(), "PATH="+programs+":"+os.Getenv("PATH"), "HOME="+t.TempDir(), "TERM=xterm")
			out, err := cmd.CombinedOutput()
			if err != nil || !strings.Contains(string(out), "witness") {
				t.Errorf("%v (apt-get install bash-completion fish zsh)\n%s", err, out)
			}
		})
	}
}

func TestMarkdown(t *testing.T) {
	const want = "a\\_b \\<c\\>\n\n```\n  d_e  *\n  f\n```\n\ng\n"
	if got := markdown("a_b <c>\n\n  d_e  *\n  f\n\ng\n"); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := markdown("a:\n  b"); got != "a:\n```\n  b\n```\n" {
		t.Errorf("got %q", got)
	}
}
