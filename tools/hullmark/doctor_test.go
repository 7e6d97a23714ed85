package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/hullmark/hullmark/internal/needs"
)

// onlyIn has programs found in a new folder alone.
func onlyIn(t *testing.T, programs ...string) {
	t.Helper()
	dir := t.TempDir()
	for _, name := range programs {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", dir)
}

func TestDoctorTellsWhatIsMissing(t *testing.T) {
	onlyIn(t, "sh")
	code, out := hullmarkCLI(t, "doctor", "lock", "keys", "eventlog", "lock")
	wantExit(t, code, exitMismatch, out, "lacks what is needed for: lock", "as root: apt-get install ", "eventlog")
	if strings.Count(out, "apt-get install dpkg\n") != 1 {
		t.Errorf("dpkg-deb is not told once:\n%s", out)
	}
	for line := range strings.Lines(out) {
		if words := strings.Fields(line); len(words) > 2 && words[0] == "keys" && words[2] != "found," {
			t.Errorf("sh is there: %s", line)
		}
	}
	code, out = hullmarkCLI(t, "doctor", "keys", "eventlog")
	wantExit(t, code, 0, out, "keys", "found, optional", "a signer's command", "nothing but this program")
	onlyIn(t)
	code, out = hullmarkCLI(t, "doctor", "keys")
	wantExit(t, code, 0, out, "missing, optional", "a signer's command; apt-get install dash")
}

func TestDoctorSpeaksToPrograms(t *testing.T) {
	onlyIn(t, "sh", "apt-get")
	code, out := hullmarkCLI(t, "doctor", "lock", "-o", "json")
	wantExit(t, code, exitMismatch, out)
	var e examined
	if err := json.NewDecoder(strings.NewReader(out)).Decode(&e); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(e.Stopped, []string{"lock"}) || !slices.Contains(e.Packages, "bubblewrap") || slices.Contains(e.Packages, "apt") {
		t.Errorf("it says %+v", e)
	}
	i := slices.IndexFunc(e.Findings, func(f needs.Finding) bool { return f.What == "bwrap" })
	if i < 0 || e.Findings[i].State != needs.Missing || e.Findings[i].Remedy != "apt-get install bubblewrap" || e.Findings[i].When != "" {
		t.Errorf("it says %+v", e.Findings)
	}
}

func TestDoctorRefuses(t *testing.T) {
	code, out := hullmarkCLI(t, "doctor", "bild")
	wantExit(t, code, exitUsage, out, `no verb "bild"`)
	code, out = hullmarkCLI(t, "doctor", "-o", "yaml")
	wantExit(t, code, exitUsage, out, "text or json")
}

// A verb with a flag for a web server or a registry needs the authorities that certify them.
func TestDoctorKnowsWhoFetches(t *testing.T) {
	wantLooks(t, "certificate authorities", 4, func(flag string) bool {
		return strings.Contains(flag, "http or https address") || strings.Contains(flag, registryScheme)
	})
}

// A verb with a flag for a signer's command needs the shell that runs it.
func TestDoctorKnowsWhoSigns(t *testing.T) {
	wantLooks(t, "sh", 40, func(flag string) bool { return strings.Contains(flag, "signer COMMAND") })
}

// wantLooks wants doctor to look for a thing for each verb that has such a flag, of which there are so many at least.
func wantLooks(t *testing.T, thing string, least int, such func(flag string) bool) {
	t.Helper()
	found := 0
	var check func(verb string, cmd *cobra.Command)
	check = func(verb string, cmd *cobra.Command) {
		for _, sub := range cmd.Commands() {
			check(verb, sub)
		}
		for flag := range strings.Lines(cmd.Flags().FlagUsages()) {
			if !such(flag) {
				continue
			}
			found++
			if !slices.ContainsFunc(needs.Look(t.Context(), needs.Machine{}, []string{verb}), func(n needs.Finding) bool { return n.What == thing }) {
				t.Errorf("doctor does not look for %s, which a flag of %s needs:%s", thing, cmd.CommandPath(), flag)
			}
		}
	}
	for _, cmd := range newRootCommand().Commands() {
		check(cmd.Name(), cmd)
	}
	if found < least {
		t.Errorf("only %d flags need %s", found, thing)
	}
}

// The page names all that need anything, since it says that others need nothing.
func TestInstallPageNamesTheVerbs(t *testing.T) {
	page, err := os.ReadFile("../../docs/install.md")
	if err != nil {
		t.Fatal(err)
	}
	_, list, _ := strings.Cut(string(page), "| what is looked for |")
	list, _, _ = strings.Cut(list, "\n\n")
	for _, verb := range needs.Verbs() {
		if !strings.Contains(list, "`"+verb+"`") {
			t.Errorf("its table lacks %s", verb)
		}
	}
}

// What needs something is a verb.
func TestDoctorKnowsVerbs(t *testing.T) {
	if _, err := verbsOf(newRootCommand(), needs.Verbs()); err != nil {
		t.Error(err)
	}
	onlyIn(t)
	code, out := hullmarkCLI(t, "doctor")
	wantExit(t, code, exitMismatch, out, "build", "reproduce", "vm", "/dev/kvm")
}
