package main

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/cluster"
	"github.com/hullmark/hullmark/firstboot"
	"github.com/hullmark/hullmark/internal/jointest"
	"github.com/hullmark/hullmark/internal/testenv"
)

// One condition of the agent is the same on the console, in the status file, in the node's answer and in what the operator's
// command prints. The network goes away: that join services do not answer is hidden behind it, until it is back.
func TestOneConditionInFourPlaces(t *testing.T) {
	s := jointest.New(t, hullmark.Worker)
	s.Agent.Timing.FirstPause, s.Agent.Timing.LongestPause = 50*time.Millisecond, 50*time.Millisecond
	var err error
	if s.Agent.Listen, err = testenv.FreeAddress(); err != nil {
		t.Fatal(err)
	}
	o := operatorOptions{cluster: filepath.Join(t.TempDir(), "cluster"), passphraseFile: filepath.Join(t.TempDir(), "passphrase"), node: s.Agent.Listen, wait: time.Minute}
	if err := os.WriteFile(o.passphraseFile, []byte("correct horse\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	const cheap = 4 // This passphrase guards nothing.
	if _, err := cluster.Create(o.cluster, hullmark.NewSecret([]byte("correct horse")), s.Cluster, cheap); err != nil {
		t.Fatal(err)
	}
	s.Boot(t)
	for _, c := range []struct {
		code     string
		offline  int
		prevents []string
	}{
		{"service-unreachable", 0, nil},
		{"no-network", math.MaxInt, []string{"the join service at " + s.Address + " does not answer: "}},
		{"service-unreachable", 0, nil},
	} {
		s.Machine.SetOffline(c.offline)
		d := s.Await(t, c.code, func(d firstboot.Document) bool { return d.Condition != nil && d.Condition.Code == c.code })
		if d.Condition.Because != nil || len(d.Prevents) != len(c.prevents) || d.Joining.Endpoints[0].Condition.Code != c.code {
			t.Errorf("the status is %s", s.Agent.Status.Document())
		}
		for i, title := range c.prevents {
			if !strings.HasPrefix(d.Prevents[i], title) {
				t.Errorf("%s prevents %q, want %q", c.code, d.Prevents, c.prevents)
			}
		}
		want := blockOf(d)
		if want["title"] == nil || want["code"][0] != c.code || want["next"] == nil {
			t.Fatalf("the condition is %+v", d.Condition)
		}
		file, err := os.ReadFile(s.Agent.Status.File)
		if err != nil {
			t.Fatal(err)
		}
		code, printed := hullmarkCLI(t, "node", "status", "--node", o.node, "--cluster", o.cluster, "--passphrase-file", o.passphraseFile)
		wantExit(t, code, 0, printed)
		for place, got := range map[string]map[string][]string{
			"the console": blockIn(t, s.Console.String()), "the status file": blockOf(parse(t, file)),
			"the node's answer": blockOf(parse(t, askStatus(t, o, s.Cluster))), "hullmark node status": blockOf(parse(t, []byte(printed))),
		} {
			if !reflect.DeepEqual(got, want) {
				t.Errorf("%s says %q, want %q", place, got, want)
			}
		}
	}
}

// blockOf is what a status document says of its condition, by the console's words.
func blockOf(d firstboot.Document) map[string][]string {
	block := map[string][]string{"title": {d.Condition.Title}, "prevents": d.Prevents}
	for word, text := range map[string]string{
		"code": d.Condition.Code, "step": d.Condition.Step, "expected": d.Condition.Expected, "got": d.Condition.Got, "next": d.Condition.Next,
	} {
		if text != "" {
			block[word] = []string{text}
		}
	}
	if len(d.Prevents) == 0 {
		delete(block, "prevents")
	}
	return block
}

// blockIn reads the last block on a console.
func blockIn(t *testing.T, console string) map[string][]string {
	t.Helper()
	at := strings.LastIndex(console, "\nHULLMARK: ")
	if at < 0 {
		t.Fatalf("the console shows %q", console)
	}
	lines := slices.Collect(strings.Lines(console[at+1:]))
	block := map[string][]string{"title": {strings.TrimSuffix(strings.TrimPrefix(lines[0], "HULLMARK: "), "\n")}}
	for _, line := range lines[1:] {
		word, text, _ := strings.Cut(strings.TrimSpace(line), ":")
		block[word] = append(block[word], strings.TrimSpace(text))
	}
	return block
}

func parse(t *testing.T, text []byte) (d firstboot.Document) {
	t.Helper()
	if err := json.Unmarshal(text, &d); err != nil || d.Condition == nil {
		t.Fatalf("%v: %s", err, text)
	}
	return d
}

// askStatus asks the node as the command does, and returns its answer as it came.
func askStatus(t *testing.T, o operatorOptions, c *cluster.Cluster) []byte {
	t.Helper()
	status, err := o.at(t.Output()).Status(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	return status
}
