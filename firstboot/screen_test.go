package firstboot

import (
	"bytes"
	"io"
	"net/netip"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/firstboot/network"
)

// sequences are what a terminal obeys and does not show.
var sequences = regexp.MustCompile(`\x1b\[[?0-9;]*[A-Za-z]`)

// screen is a status with a screen, and what that shows.
func screen(t *testing.T, columns, rows int) (*Status, func() []string) {
	t.Helper()
	var b bytes.Buffer
	s := &Status{
		File: filepath.Join(t.TempDir(), "status.json"), Console: io.Discard, Log: io.Discard, Notify: func(string) {},
		Screen: &Screen{
			W: &b, Image: "1.2.3", Size: func() (int, int) { return columns, rows },
			Hostname: func() (string, error) { return "worker-1", nil },
			Links: func() []network.Link {
				return []network.Link{
					{Name: "eth0", Card: true, Up: true, Addresses: []netip.Prefix{netip.MustParsePrefix("192.0.2.15/24")}},
					{Name: "cni0", Up: true, Addresses: []netip.Prefix{netip.MustParsePrefix("10.244.0.1/24")}},
					{Name: "bond0", Up: true, Addresses: []netip.Prefix{netip.MustParsePrefix("192.0.2.16/24")}},
				}
			},
		},
	}
	return s, func() []string {
		all := b.String()
		return strings.Split(sequences.ReplaceAllString(all[strings.LastIndex(all, home):], ""), "\n")
	}
}

func TestScreen(t *testing.T) {
	s, shown := screen(t, 64, 24)
	has := func(name string, words ...string) {
		t.Helper()
		lines := shown()
		text := strings.Join(strings.Fields(strings.Join(lines, " ")), " ")
		for _, w := range words {
			if !strings.Contains(text, w) {
				t.Errorf("%s: %q is missing in\n%s", name, w, strings.Join(lines, "\n"))
			}
		}
		for _, line := range lines {
			if len(line) >= 64 {
				t.Errorf("%s: a line of %d characters: %s", name, len(line), line)
			}
		}
		if len(lines) > 24 {
			t.Errorf("%s: %d lines", name, len(lines))
		}
	}
	s.Enter(StepAttest)
	s.Know(hullmark.EKID{0xab, 0xcd})
	s.Say("waiting for the operator on :7443")
	has("waiting", "HULLMARK 1.2.3", "ATTEST, step 3 of 8", "waiting for the operator", "address 192.0.2.15", "EKID abcd0000 00000000", "hullmark init --node 192.0.2.15:7443 --ekid")
	s.Ask("192.0.2.7:7444", []string{"192.0.2.7:7444"})
	s.Answered("192.0.2.7:7444", &hullmark.Condition{Code: "not-a-member", Title: "no rule admits this machine"})
	has("joining", "asking the join service at 192.0.2.7:7444", "192.0.2.7:7444: no rule admits this machine", "hullmark policy add member --ekid")
	s.Fail(&hullmark.Condition{
		Code: "install-disk-used", Step: "INSTALL", Title: "the disk is not empty\x1b[2J", Expected: "an empty disk", Got: strings.Repeat("g", 200), Next: "name another",
	})
	has("failed", "the disk is not empty", "code: install-disk-used", "expected: an empty disk", "got:", strings.Repeat("g", 50), "Next: name another")
	// What a disk says of itself, or a join service says, moves nothing on the page: here to where the EKID is.
	s.Fail(&hullmark.Condition{Code: "install-disk-used", Title: "disk \u009b5;1HEKID\u0085\u202e\r\n\x1b[5;1H", Next: "n"})
	if text := strings.Join(shown(), "\n"); regexp.MustCompile(`[\x00-\x09\x0b-\x1f\x7f\x{80}-\x{9f}\x{202e}]`).MatchString(text) {
		t.Errorf("%q", text)
	}
	s.Enter(StepInstall)
	s.Say("writing to /dev/sda, 40 %%")
	has("installing", "INSTALL", "writing to /dev/sda, 40 %")
	s.Ask("192.0.2.7:7444", []string{"192.0.2.7:7444"})
	s.Answered("192.0.2.7:7444", &hullmark.Condition{Code: "not-a-member", Title: "no rule admits this machine"})
	s.Enter(StepDisk)
	if text := strings.Join(shown(), " "); strings.Contains(text, "no rule admits") {
		t.Errorf("after it was let in: %s", text)
	}
	s.Finish()
	has("Ready", "READY: worker-1 serves its cluster", "address 192.0.2.15 EKID")
	s.Connected([]network.Link{{Name: "bond0", Up: true, Addresses: []netip.Prefix{netip.MustParsePrefix("192.0.2.16/24")}}})
	has("a bond of its configuration", "address 192.0.2.15 address 192.0.2.16 EKID")
}

// A small screen loses what is at the end, and nothing runs over its edge.
func TestSmallScreen(t *testing.T) {
	s, shown := screen(t, 20, 5)
	s.Fail(&hullmark.Condition{Code: "install-disk-used", Title: strings.Repeat("many words ", 40), Next: "n"})
	if lines := shown(); len(lines) != 5 {
		t.Errorf("%d lines: %q", len(lines), lines)
	}
}

// The kernel's font has no more than ASCII for sure, and a line is as long as it has bytes.
func TestScreenKeepsToItsFont(t *testing.T) {
	s, shown := screen(t, 40, 24)
	s.Fail(&hullmark.Condition{Code: "install-disk-used", Title: `"Données" is on it`, Next: `say {"serial": "…"}`})
	text := strings.Join(shown(), "\n")
	if !strings.Contains(text, `"Donn?es" is on it`) || !strings.Contains(text, `say {"serial": "..."}`) {
		t.Errorf("the screen shows\n%s", text)
	}
}

func TestWrap(t *testing.T) {
	for text, want := range map[string]string{
		"":                    "",
		"one two three":       "one two|three",
		"a verylongword here": "a|verylongwo|rd here",
		"  spaced   out  ":    "spaced out",
	} {
		if got := strings.Join(wrap(text, 10), "|"); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}
