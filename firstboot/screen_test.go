package firstboot

import (
	"bytes"
	"flag"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/diff"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/firstboot/network"
)

var updateScreens = flag.Bool("update", false, "write what the screen shows into testdata")

var (
	// sequences are what a terminal obeys and does not show; inReverse are the dots of large letters, which it shows as blocks.
	sequences = regexp.MustCompile(`\x1b\[[?0-9;]*[A-Za-z]`)
	inReverse = regexp.MustCompile(`\x1b\[7m +`)
	// controls are what nobody's text may bring to a terminal, but for the ends of lines.
	controls = regexp.MustCompile(`[\x00-\x09\x0b-\x1f\x7f\x{80}-\x{9f}\x{202e}]`)
)

// readable is what somebody sees of what is written to a terminal.
func readable(written string) string {
	written = inReverse.ReplaceAllStringFunc(written, func(row string) string { return strings.Repeat("#", len(row)-len(reverse)) })
	return sequences.ReplaceAllString(written, "")
}

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
		return strings.Split(readable(all[strings.LastIndex(all, home):]), "\n")
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
		if len(lines) != 22 {
			t.Errorf("%s: %d lines", name, len(lines))
		}
	}
	s.Enter(StepAttest)
	s.Know(hullmark.EKID{0xab, 0xcd})
	s.Say("waiting for the operator on :7443")
	has("waiting", "HULLMARK 1.2.3, step 3 of 8: ATTEST", "waiting for the operator", "EKID abcd0000 00000000", "address 192.0.2.15", "hullmark init --node 192.0.2.15:7443 --ekid")
	s.Ask("192.0.2.7:7444", []string{"192.0.2.7:7444"})
	s.Answered("192.0.2.7:7444", &hullmark.Condition{Code: "not-a-member", Title: "no rule admits this machine"})
	has("joining", "asking the join service at 192.0.2.7:7444", "192.0.2.7:7444: no rule admits this machine", "hullmark policy add member --ekid")
	s.Enter(StepInstall)
	s.Fail(&hullmark.Condition{
		Code: "install-disk-used", Step: StepInstall, Title: "the disk is not empty\x1b[2J", Expected: "an empty disk", Got: strings.Repeat("g", 100), Next: "name another",
	})
	has("failed", "install-disk-used the disk is not empty", "Next: name another", "expected: an empty disk", "got:", strings.Repeat("g", 50))
	// What a disk says of itself, or a join service says, moves nothing on the page: here to where the EKID is.
	s.Fail(&hullmark.Condition{Code: "install-disk-used", Title: "disk \u009b5;1HEKID\u0085\u202e\r\n\x1b[5;1H", Next: "n"})
	if text := strings.Join(shown(), "\n"); controls.MatchString(text) {
		t.Errorf("%q", text)
	}
	s.Enter(StepInstall)
	s.Say("writing to /dev/sda, 40 %%")
	has("installing", "HULLMARK 1.2.3 ", "writing to /dev/sda, 40 %")
	s.Ask("192.0.2.7:7444", []string{"192.0.2.7:7444"})
	s.Answered("192.0.2.7:7444", &hullmark.Condition{Code: "not-a-member", Title: "no rule admits this machine"})
	s.Enter(StepDisk)
	if text := strings.Join(shown(), " "); strings.Contains(text, "no rule admits") {
		t.Errorf("after it was let in: %s", text)
	}
	s.Finish()
	has("Ready", "step 8 of 8: READY", "It serves its cluster", "address 192.0.2.15")
	if text := strings.Join(shown(), " "); strings.Contains(text, "10.244.0.1") || strings.Contains(text, "192.0.2.16") {
		t.Errorf("an address of the pod network, or of an interface that is nobody's: %s", text)
	}
	s.Connected([]network.Link{{Name: "bond0", Up: true, Addresses: []netip.Prefix{netip.MustParsePrefix("192.0.2.16/24")}}})
	has("a bond of its configuration", "address 192.0.2.15 address 192.0.2.16")
}

// shownState is what a node can show, and how its status comes there. The name is that of its cluster, once it has that.
type shownState struct {
	title, name string
	come        func(*Status)
}

var shownStates = []shownState{
	{"starting", "localhost", func(s *Status) {
		s.Screen.Links = func() []network.Link { return nil }
		s.Enter(StepConfig)
	}},
	{"waiting", "localhost", func(s *Status) {
		s.Enter(StepAttest)
		s.Say("waiting for the operator on :7443")
	}},
	{"joining", "localhost", func(s *Status) {
		s.Enter(StepAttest)
		s.Say("waiting for the operator on :7443, and asking 1 join services")
		s.Ask("192.0.2.7:7444", []string{"192.0.2.7:7444"})
		s.Answered("192.0.2.7:7444", unreachable("192.0.2.7:7444", os.ErrDeadlineExceeded))
		s.AskAgainIn(8 * time.Second)
	}},
	{"refused", "localhost", func(s *Status) {
		s.Enter(StepAttest)
		s.Fail(&hullmark.Condition{Code: "not-a-member", Step: StepAttest, Title: "no membership rule admits this machine", Next: "add a rule for its identity to the policy"})
	}},
	{"retrying", "localhost", func(s *Status) {
		s.Screen.Links = func() []network.Link { return nil }
		s.Enter(StepAttest)
		s.Fail(&hullmark.Condition{
			Code: "no-network", Step: StepAttest, Title: "no network interface has an address", Retry: true,
			Next: "check the machine's network card and DHCP, or give addresses in the node config",
		})
	}},
	{"stopped", "worker-1", func(s *Status) {
		s.Enter(StepKubeadm)
		s.Fail(&hullmark.Condition{
			Code: "folder-refused", Step: StepKubeadm, Title: "the state disk has a link where a folder belongs", Expected: "a folder", Got: "a link",
			Next: "treat the node as taken over",
		})
	}},
	{"installing", "localhost", func(s *Status) {
		s.Enter(StepInstall)
		s.Say("writing to /dev/sda, 40 %%")
	}},
	{"a disk that is not empty", "localhost", func(s *Status) {
		s.Enter(StepInstall)
		s.Fail(&hullmark.Condition{
			Code: "install-disk-used", Step: StepInstall, Title: "the disk to install is not empty; it was not touched", Expected: "an empty disk",
			Got: `/dev/sda: a table of 1 partitions: "Windows"`, Next: `name another disk, or say there "overwrite": "S-1"`,
		})
	}},
	{"installed", "localhost", func(s *Status) {
		s.Enter(StepInstall)
		s.Fail(&hullmark.Condition{
			Code: "installed", Step: StepInstall, Title: "/dev/sda is installed", Retry: true, Next: "take the medium out; the machine restarts, and starts from its disk",
		})
	}},
	{"admitted", "worker-1", func(s *Status) {
		s.Enter(StepKubeadm)
		s.Say("preflight: checks the machine")
	}},
	{"Ready", "worker-1", (*Status).Finish},
	{"Ready, but", "worker-1", func(s *Status) {
		s.Finish()
		s.Warn(endedCertificate(hullmark.Worker))
	}},
	{"a name that does not fit", strings.Repeat("rack-17.", 3) + "hall-2.example.com", (*Status).Finish},
}

// show brings a new screen into a state, and returns what it shows.
func (s shownState) show(t *testing.T, columns, rows int) (*Status, []string) {
	t.Helper()
	status, shown := screen(t, columns, rows)
	status.Screen.Hostname = func() (string, error) { return s.name, nil }
	status.Know(hullmark.EKID{0xab, 0xcd})
	s.come(status)
	return status, shown()
}

// TestScreenOfEachState holds what the screen shows to testdata, and one of these pictures to the page on the first boot.
func TestScreenOfEachState(t *testing.T) {
	page, err := os.ReadFile("../docs/boot.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, size := range [][2]int{{80, 25}, {128, 48}} {
		columns, rows := size[0], size[1]
		var all strings.Builder
		for _, state := range shownStates {
			_, lines := state.show(t, columns, rows)
			for i, line := range lines {
				if lines[i] = strings.TrimRight(line, " "); len(line) >= columns {
					t.Errorf("%s: a line of %d characters: %s", state.title, len(line), line)
				}
			}
			if len(lines) > rows-2 {
				t.Errorf("%s: %d lines", state.title, len(lines))
			}
			picture := strings.TrimRight(strings.Join(lines, "\n"), "\n") + "\n"
			fmt.Fprintf(&all, "== %s\n%s\n", state.title, picture)
			if state.title == "refused" && columns == 80 && !strings.Contains(string(page), "```\n"+picture+"```\n") {
				t.Errorf("docs/boot.md shows another picture than\n%s", picture)
			}
		}
		file := fmt.Sprintf("testdata/screen-%dx%d.txt", columns, rows)
		if *updateScreens {
			if err := os.WriteFile(file, []byte(all.String()), 0o644); err != nil {
				t.Fatal(err)
			}
			continue
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if all.String() != string(want) {
			t.Errorf("if this is right, go test ./firstboot -run TestScreenOfEachState -update writes it:\n%s", diff.Diff(file, want, "the screen", []byte(all.String())))
		}
	}
}

// What others write on the terminal scrolls below the page, and stays when that is drawn anew; a terminal of another size is cleared.
func TestScreenLeavesRowsToTheKernel(t *testing.T) {
	s, _ := screen(t, 80, 25)
	b := s.Screen.W.(*bytes.Buffer)
	s.Enter(StepConfig)
	s.Enter(StepAttest)
	if text := b.String(); strings.Count(text, clearAll) != 1 || strings.Count(text, "\x1b[24;25r"+home) != 2 || !strings.HasSuffix(text, clearLine+"\x1b[25;1H") {
		t.Errorf("%q", text)
	}
	s.Screen.Size = func() (int, int) { return 128, 48 }
	s.Enter(StepDisk)
	if text := b.String(); strings.Count(text, clearAll) != 2 || !strings.Contains(text, clearAll+"\x1b[45;48r"+home) {
		t.Errorf("%q", text)
	}
}

// Whatever a name or somebody's text holds, a terminal gets no sequence but the page's own, and a serial console none at all.
func TestTextsHaveNoSequences(t *testing.T) {
	hostile := "a\x1b[2Jb\u009b2Jc\x1b]0;d\x07e\u202ef\r\n\x00g\x7f" + strings.Repeat("h ", 2000)
	states := append([]shownState{
		{"its texts", hostile, func(s *Status) {
			s.Enter(StepAttest)
			s.Say("%s", hostile)
			s.Ask(hostile, []string{hostile})
			s.Answered(hostile, &hullmark.Condition{Code: hostile, Title: hostile, Next: hostile})
		}},
		{"its condition", hostile, func(s *Status) {
			s.Enter(StepAttest)
			s.Fail(&hullmark.Condition{Code: hostile, Step: hostile, Title: hostile, Expected: hostile, Got: hostile, Next: hostile})
		}},
	}, shownStates...)
	for _, state := range states {
		var serial bytes.Buffer
		come := state.come
		state.come = func(s *Status) {
			s.Console = &serial
			come(s)
		}
		s, lines := state.show(t, 80, 25)
		written := s.Screen.W.(*bytes.Buffer).String()
		if strings.Count(written, clearAll) != 1 || controls.MatchString(sequences.ReplaceAllString(written, "")) {
			t.Errorf("%s: the screen gets %q", state.title, written)
		}
		if text := serial.String(); controls.MatchString(text) {
			t.Errorf("%s: a serial console gets %q", state.title, text)
		}
		for _, line := range lines {
			if len(line) >= 80 {
				t.Errorf("%s: a line of %d characters: %s", state.title, len(line), line)
			}
		}
		if len(lines) != 23 {
			t.Errorf("%s: %d lines", state.title, len(lines))
		}
	}
	// However long a title is, what to do next can be read.
	s, shown := screen(t, 80, 25)
	s.Fail(&hullmark.Condition{Code: "busy", Step: StepAttest, Title: hostile, Next: "wait"})
	if text := strings.Join(shown(), "\n"); !strings.Contains(text, " ...\n Next: wait\n") {
		t.Error(text)
	}
}

// A small screen loses what is at the end and says so, and nothing runs over its edge.
func TestSmallScreen(t *testing.T) {
	s, shown := screen(t, 20, 5)
	s.Fail(&hullmark.Condition{Code: "install-disk-used", Title: strings.Repeat("many words ", 40), Next: "n"})
	if lines := shown(); len(lines) != 3 || lines[2] != " ..." {
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

func TestLargeLetters(t *testing.T) {
	for _, band := range sheet {
		for _, row := range band.rows {
			if len(row) != len(band.letters)*(dots+1)-1 {
				t.Errorf("%s: a row of %d dots: %q", band.letters, len(row), row)
			}
		}
	}
	got := strings.Join(enlarged("i.x", 2, 1), "\n")
	want := "  ######                ##      ##\n" +
		"    ##                    ##  ##\n" +
		"    ##                      ##\n" +
		"    ##        ####        ##  ##\n" +
		"  ######      ####      ##      ##"
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if got := enlarged("a", 1, 2); len(got) != 2*dots || got[0] != got[1] || got[1] == got[2] {
		t.Errorf("%q", got)
	}
	if got := enlarged("a_b", 1, 1); got != nil {
		t.Errorf("a letter without a picture: %q", got)
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
