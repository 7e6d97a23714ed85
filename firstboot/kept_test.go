package firstboot

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest/wire"
	"github.com/hullmark/hullmark/firstboot/statedisk"
)

func (s *stage) manifest() string { return filepath.Join(s.agent.StateDir, statedisk.ManifestFile) }

// The host exchanges the manifest under the running node for an older one of the same epoch: nothing of it is used.
func TestManifestIsExchangedUnderTheNode(t *testing.T) {
	s := newStage(t)
	s.open(t)
	old, err := os.ReadFile(s.manifest())
	if err != nil {
		t.Fatal(err)
	}
	if err := s.agent.recordIntent(statedisk.IntentStarted); err != nil {
		t.Fatal(err)
	}
	newest, err := os.ReadFile(s.manifest())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(s.manifest(), old, 0o600); err != nil {
		t.Fatal(err)
	}
	var c *hullmark.Condition
	if got, err := s.agent.intent(); !errors.As(err, &c) || c.Code != "manifest-refused" {
		t.Errorf("an older manifest under the node: %q, %v", got, err)
	}
	if err := s.agent.recordIntent(statedisk.IntentDone); err == nil {
		t.Error("it was changed")
	}
	if err := os.WriteFile(s.manifest(), newest, 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := s.agent.intent(); err != nil || got != statedisk.IntentStarted {
		t.Errorf("the newest: %q, %v", got, err)
	}
}

// What Proceed brings is kept all or none, with the keys and what says of which rotation they are, and shown to programs on a RAM disk.
func TestFilesAreKeptTogether(t *testing.T) {
	s := newStage(t)
	s.keep(keptFiles+"documents/old.json", "old")
	s.keep(keptFiles+"keyset.json", "own")
	s.open(t)
	if err := s.agent.makeShown(); err != nil {
		t.Fatal(err)
	}
	before, err := os.ReadFile(s.manifest())
	if err != nil {
		t.Fatal(err)
	}
	keys := func() []*wire.File {
		return []*wire.File{
			{Path: hullmark.RotationFile, Content: []byte("2"), Mode: 0o600}, {Path: keysetFile, Content: []byte("brought"), Mode: 0o600},
		}
	}
	bad := append(keys(), &wire.File{Path: "/etc/passwd", Content: []byte("x"), Mode: 0o644})
	if err := s.agent.keepFiles(bad); err == nil {
		t.Error("a file of another place was kept")
	}
	if after, err := os.ReadFile(s.manifest()); err != nil || !bytes.Equal(before, after) {
		t.Errorf("half of Proceed was kept: %v", err)
	}
	good := append(keys(), &wire.File{Path: hullmark.PolicyFile, Content: []byte("policy"), Mode: 0o644})
	if err := s.agent.keepFiles(good); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"keyset.json": "brought", "rotation": "2", "policy": "policy", "documents/old.json": ""} {
		got, err := os.ReadFile(filepath.Join(s.agent.RunDir, shownDir, name))
		if string(got) != want || (err != nil) != (want == "") {
			t.Errorf("%s is shown as %q, %v; want %q", name, got, err, want)
		}
		if _, err := os.Stat(filepath.Join(s.agent.StateDir, "var/lib/hullmark", name)); err == nil {
			t.Errorf("%s lies on the disk beside the manifest", name)
		}
	}
}

// An agent that begins anew in a boot goes on with the disk, also if it was killed between the manifest and its own note of it.
func TestKeptAfterARestartOfTheAgent(t *testing.T) {
	s := newStage(t)
	s.open(t)
	if err := s.agent.recordIntent(statedisk.IntentStarted); err != nil {
		t.Fatal(err)
	}
	noted, err := os.ReadFile(s.agent.kept.keysPath)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.agent.recordIntent(statedisk.IntentDone); err != nil {
		t.Fatal(err)
	}
	later := &kept{stateDir: s.agent.StateDir, keysPath: s.agent.kept.keysPath}
	if err := later.resume(); err != nil {
		t.Fatal(err)
	}
	if text, err := later.read(statedisk.IntentFile); err != nil || string(text) != statedisk.IntentDone {
		t.Errorf("%q, %v", text, err)
	}
	want, _ := s.agent.kept.opened()
	if got, err := later.opened(); err != nil || !got.epoch.Equal(want.epoch) || got.disk != want.disk || got.owner != want.owner || got.node != want.node || got.generation != want.generation {
		t.Errorf("the keys differ: %v", err)
	}
	if err := os.WriteFile(s.agent.kept.keysPath, noted, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := later.resume(); err != nil {
		t.Fatal(err)
	}
	if _, err := later.read(statedisk.IntentFile); err == nil {
		t.Error("a manifest that it never wrote was taken")
	}
}

func TestNothingIsKeptBeforeTheDiskIsOpen(t *testing.T) {
	s := newStage(t)
	if _, err := s.agent.intent(); !errors.Is(err, errNotOpen) {
		t.Error(err)
	}
	if err := s.agent.recordIntent(statedisk.IntentDone); !errors.Is(err, errNotOpen) {
		t.Error(err)
	}
}

// The agent may be killed at any moment of a change, and again in the next one: the manifest is its own all the same.
func TestTwoChangesAreCutShort(t *testing.T) {
	s := newStage(t)
	s.open(t)
	if err := s.agent.recordIntent(statedisk.IntentStarted); err != nil {
		t.Fatal(err)
	}
	cut := func(intent string, written bool) {
		before, err := os.ReadFile(s.manifest())
		if err != nil {
			t.Fatal(err)
		}
		last := s.agent.kept.keys.last
		if err := s.agent.recordIntent(intent); err != nil {
			t.Fatal(err)
		}
		s.agent.kept.keys.next, s.agent.kept.keys.last = s.agent.kept.keys.last, last // as they are noted before the manifest is written
		if err := s.agent.kept.storeKeysLocked(); err != nil {
			t.Fatal(err)
		}
		if !written {
			if err := os.WriteFile(s.manifest(), before, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.agent.kept.resume(); err != nil {
			t.Fatal(err)
		}
	}
	cut(statedisk.IntentDone, true)
	if got, err := s.agent.intent(); err != nil || got != statedisk.IntentDone {
		t.Fatalf("after one: %q, %v", got, err)
	}
	cut(statedisk.IntentStarted, false)
	if got, err := s.agent.intent(); err != nil || got != statedisk.IntentDone {
		t.Errorf("after two: %q, %v", got, err)
	}
}
