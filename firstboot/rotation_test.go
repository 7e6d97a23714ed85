package firstboot

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest/wire"
)

const keysetFile = "/var/lib/hullmark/keyset.json"

// keysOf are the files of a rotation, and one that is none of them.
func keysOf(rotation, keyset string) []*wire.File {
	return []*wire.File{
		{Path: hullmark.RotationFile, Content: []byte(rotation), Mode: 0o644},
		{Path: keysetFile, Content: []byte(keyset), Mode: 0o600},
		{Path: "/var/lib/hullmark/settings.json", Content: []byte(keyset), Mode: 0o644},
	}
}

func (s *stage) kept(t *testing.T, name string) string {
	t.Helper()
	text, err := s.agent.readState(name)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return string(text)
}

// A control plane takes keys of a later rotation than its own, and leaves the others: they may be the only ones.
func TestNewerKeysStay(t *testing.T) {
	for name, c := range map[string]struct {
		held, brought string
		taken         bool
		code          string
	}{
		"the first that it gets":            {"", "0", true, ""},
		"later ones":                        {"1", "2", true, ""},
		"the same, or the service's":        {"2", "2", false, ""},
		"older ones":                        {"2", "1", false, "keys-older"},
		"older ones by the count, not text": {"10", "9", false, "keys-older"},
		"over a torn mark":                  {"x", "1", true, ""},
	} {
		t.Run(name, func(t *testing.T) {
			s, _ := returning(t, time.Now().Add(year))
			if c.held != "" {
				s.put(t, map[string][]byte{hullmark.RotationFile: []byte(c.held), keysetFile: []byte("own")})
			}
			last := s.againWith(t, &wire.Proceed{NodeName: "node-1", Role: string(hullmark.ControlPlane), Endpoint: "192.0.2.7:6443", Files: keysOf(c.brought, "brought")})
			if !last.GetReady() {
				t.Fatalf("last = %v", last)
			}
			want := map[string]string{hullmark.RotationFile: c.held, keysetFile: "own", "/var/lib/hullmark/settings.json": "brought"}
			if c.taken {
				want[hullmark.RotationFile], want[keysetFile] = c.brought, "brought"
			}
			for file, content := range want {
				if got := s.kept(t, file); got != content {
					t.Errorf("%s holds %q, want %q", file, got, content)
				}
			}
			if got := s.document(t).Condition; (got == nil) != (c.code == "") || got != nil && got.Code != c.code {
				t.Errorf("condition %v, want %q", got, c.code)
			}
		})
	}
}

// A control plane keeps the documents of the policy that it holds, and no others.
func TestDocumentsOfAnEarlierPolicyGo(t *testing.T) {
	const old, new, policy = hullmark.DocumentsFolder + "/old.json", hullmark.DocumentsFolder + "/new.json", "/var/lib/hullmark/policy"
	for name, c := range map[string]struct{ held, old, new, policy string }{
		"another rotation": {"1", "", "brought", "brought"},
		"the same":         {"2", "own", "", "own"},
	} {
		t.Run(name, func(t *testing.T) {
			s, _ := returning(t, time.Now().Add(year))
			s.put(t, map[string][]byte{hullmark.RotationFile: []byte(c.held), old: []byte("own"), policy: []byte("own")})
			brought := append(keysOf("2", "brought"), &wire.File{Path: policy, Content: []byte("brought"), Mode: 0o644}, &wire.File{Path: new, Content: []byte("brought"), Mode: 0o644})
			last := s.againWith(t, &wire.Proceed{NodeName: "node-1", Role: string(hullmark.ControlPlane), Endpoint: "192.0.2.7:6443", Files: brought})
			if !last.GetReady() {
				t.Fatalf("last = %v", last)
			}
			for file, want := range map[string]string{old: c.old, new: c.new, policy: c.policy} {
				if got := s.kept(t, file); got != want {
					t.Errorf("%s holds %q, want %q", file, got, want)
				}
			}
		})
	}
}

// The operator may bring the same keys in another form: wrapped by a keeper.
func TestOperatorExchangesKeysOfTheSameRotation(t *testing.T) {
	s := newStage(t)
	s.put(t, map[string][]byte{hullmark.RotationFile: []byte("2")})
	for service, want := range map[string]int{"": 2, "192.0.2.1:7444": 1} {
		x := &exchange{agent: s.agent, service: service}
		if files, mark, err := x.newKeys(keysOf("2", "wrapped")); err != nil || len(files) != want || (mark != nil) != (want == 2) {
			t.Errorf("from %q: %d files, mark %v: %v", service, len(files), mark, err)
		}
	}
	x := &exchange{agent: s.agent}
	others := []*wire.File{{Path: "/var/lib/hullmark/policy"}}
	if files, mark, err := x.newKeys(others); err != nil || !slices.Equal(files, others) || mark != nil {
		t.Errorf("without keys: %v, %v, %v", files, mark, err)
	}
}

// Keys of which it cannot be told how new they are, are not overwritten.
func TestUnreadableMarkOfARotation(t *testing.T) {
	s, _ := returning(t, time.Now().Add(year))
	s.put(t, map[string][]byte{keysetFile: []byte("own")})
	if err := os.Mkdir(filepath.Join(s.agent.StateDir, "var", "lib", "hullmark", "rotation"), 0o700); err != nil {
		t.Fatal(err)
	}
	last := s.againWith(t, &wire.Proceed{NodeName: "node-1", Role: string(hullmark.ControlPlane), Endpoint: "192.0.2.7:6443", Files: keysOf("2", "brought")})
	if last.GetFailed() == nil || s.kept(t, keysetFile) != "own" {
		t.Errorf("last = %v, and the keyset is %q", last, s.kept(t, keysetFile))
	}
}

// What says that the keys are of a rotation is there after they are.
func TestMarkOfARotationComesLast(t *testing.T) {
	s, _ := returning(t, time.Now().Add(year))
	s.put(t, map[string][]byte{hullmark.RotationFile: []byte("1")})
	if err := os.MkdirAll(filepath.Join(s.agent.StateDir, "var", "lib", "hullmark", "keyset.json", "in the way"), 0o700); err != nil {
		t.Fatal(err)
	}
	last := s.againWith(t, &wire.Proceed{NodeName: "node-1", Role: string(hullmark.ControlPlane), Endpoint: "192.0.2.7:6443", Files: keysOf("2", "brought")})
	if last.GetFailed() == nil || s.kept(t, hullmark.RotationFile) != "1" {
		t.Errorf("last = %v, and the disk's rotation is %q", last, s.kept(t, hullmark.RotationFile))
	}
}
