package firstboot

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest/wire"
)

// comeBackWithFiles plays a worker's return with files of its pool.
func (s *stage) comeBackWithFiles(t *testing.T, files ...*wire.File) *wire.Progress {
	t.Helper()
	return s.comeBackTo(t, &wire.Proceed{Files: files})
}

func (s *stage) shown(name string) string {
	text, err := os.ReadFile(filepath.Join(s.agent.RunDir, shownDir, strings.TrimPrefix(name, keptDir)))
	if err != nil {
		return ""
	}
	return string(text)
}

// What this boot's policy says of mirrors, the collector and time is all that there is: nothing of an earlier one.
func TestSurroundings(t *testing.T) {
	s := newStage(t)
	gone := hullmark.RegistriesFolder + "registry.example/hosts.toml"
	old, ok := keptName(gone)
	if !ok {
		t.Fatal("mirrors are not in the manifest")
	}
	s.keep(old, "server = \"https://gone.example\"\n")
	s.keep(keptFiles+"site.yaml", "stays")
	hosts := hullmark.RegistriesFolder + "docker.io/hosts.toml"
	last := s.comeBackWithFiles(t,
		&wire.File{Path: hosts, Mode: 0o600, Content: []byte("server = \"https://mirror.example\"\n")},
		&wire.File{Path: hullmark.TimeFile, Mode: 0o644, Content: []byte(hullmark.TimeSettings([]string{"time.example"}))})
	if !last.GetReady() {
		t.Fatalf("last = %v", last)
	}
	if got := s.shown(hosts); !strings.Contains(got, "mirror.example") {
		t.Errorf("containerd is shown %q", got)
	}
	if info, err := os.Stat(filepath.Join(s.agent.RunDir, shownDir, "pool/registries/docker.io/hosts.toml")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	if got := s.shown(gone); got != "" {
		t.Errorf("a mirror that no policy names is shown: %q", got)
	}
	if got := s.shown("/var/lib/hullmark/site.yaml"); got != "stays" {
		t.Errorf("a file of the user's own is %q", got)
	}
	if text, err := os.ReadFile(filepath.Join(s.agent.SystemdDir, timeSettings)); err != nil || string(text) != "[Time]\nNTP=\nNTP=time.example\n" {
		t.Errorf("time: %q, %v", text, err)
	}
	for _, did := range []string{"restart " + timeUnit, "start " + journalUnit, "start " + metricsUnit} {
		if !s.machine.Has(did) {
			t.Errorf("no %s: %q", did, s.machine.Did())
		}
	}
}

// A node works without the journal's forwarder, and says that it does.
func TestServiceThatIsDown(t *testing.T) {
	s := newStage(t)
	s.machine.Fail = "start " + journalUnit
	if last := s.comeBackWithFiles(t); !last.GetReady() {
		t.Fatalf("last = %v", last)
	}
	if c := s.agent.Status.standing(); c == nil || c.Code != "service-down" {
		t.Errorf("the status says %v", c)
	}
}

// A node without a name server is Ready, and says why its cluster has no DNS.
func TestNoNameServer(t *testing.T) {
	for name, text := range map[string]string{"none known": "# No DNS servers known.\nsearch .\n", "a name alone": "nameserver\n"} {
		s := newStage(t)
		if err := os.WriteFile(s.agent.ResolvFile, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if last := s.comeBackWithFiles(t); !last.GetReady() {
			t.Fatalf("%s: last = %v", name, last)
		}
		if c := s.agent.Status.standing(); c == nil || c.Code != "no-name-server" {
			t.Errorf("%s: the status says %v", name, c)
		}
	}
}

func TestForwarderThatIsRefused(t *testing.T) {
	s := newStage(t)
	s.agent.Timing.Certificate = time.Millisecond
	if last := s.comeBackWithFiles(t); !last.GetReady() {
		t.Fatalf("last = %v", last)
	}
	say := func(c *hullmark.Condition) {
		text, err := json.Marshal(hullmark.Forward{Condition: c})
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(s.agent.ForwardFile, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	stands := func(code string) {
		t.Helper()
		for range 500 {
			if c := s.agent.Status.standing(); c == nil && code == "" || c != nil && c.Code == code {
				return
			}
			time.Sleep(10 * time.Millisecond)
		}
		t.Errorf("the status says %v, want %q", s.agent.Status.standing(), code)
	}
	stands("")
	say(&hullmark.Condition{Code: "journal-refused", Title: "the collector is somebody else"})
	stands("journal-refused")
	say(nil)
	stands("")
	// The forwarder's word is for nothing else.
	say(&hullmark.Condition{Code: "rollback-detected", Title: "made up"})
	time.Sleep(50 * time.Millisecond)
	stands("")
}
