package cache

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestBlobKeepsOnlyWhatItsNameSays(t *testing.T) {
	s := Store{Root: t.TempDir()}
	const hello = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"
	write := func(text string) func(io.Writer) error {
		return func(w io.Writer) error { _, err := io.WriteString(w, text); return err }
	}
	if _, err := s.Blob(hello, write("hellO")); !errors.Is(err, ErrContent) || !strings.Contains(err.Error(), hello) {
		t.Fatalf("wrong content: got error %v", err)
	}
	if _, err := os.Stat(s.BlobPath(hello)); err == nil {
		t.Fatal("wrong content was kept")
	}
	path, err := s.Blob(hello, write("hello"))
	if err != nil || path != s.BlobPath(hello) {
		t.Fatalf("right content: %q, %v", path, err)
	}
	if err := os.WriteFile(path, []byte("hellO"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Blob(hello, write("hello")); err != nil {
		t.Fatalf("damaged content was not fetched anew: %v", err)
	}
	never := func(io.Writer) error { t.Error("fetched again"); return nil }
	if _, err := s.Blob(hello, never); err != nil {
		t.Fatal(err)
	}
}

func TestStepIsWholeOrAbsent(t *testing.T) {
	s := Store{Root: t.TempDir()}
	broken := errors.New("broken")
	fill := func(err error) func(string) error {
		return func(dir string) error {
			return errors.Join(os.WriteFile(filepath.Join(dir, "half"), nil, 0o600), err)
		}
	}
	if _, _, err := s.Step("kind", "key", fill(broken)); !errors.Is(err, broken) {
		t.Fatalf("got %v", err)
	}
	for _, want := range []bool{false, true} {
		dir, hit, err := s.Step("kind", "key", fill(nil))
		if err != nil || hit != want {
			t.Fatalf("hit %v, %v; want %v", hit, err, want)
		}
		if _, err := os.Stat(filepath.Join(dir, "half")); err != nil {
			t.Fatal(err)
		}
	}
	left, err := filepath.Glob(filepath.Join(s.Root, "kind", ".making-*"))
	if err != nil || len(left) != 0 {
		t.Fatalf("left behind: %v %v", left, err)
	}
}

func TestKeySeparatesParts(t *testing.T) {
	if Key("ab", "c") == Key("a", "bc") {
		t.Fatal("two lists share a key")
	}
}

func TestDirPrefersItsOwnVariable(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", "/x")
	t.Setenv("HULLMARK_CACHE", "")
	if d, err := Dir(); err != nil || d != "/x/hullmark" {
		t.Fatalf("got %q, %v", d, err)
	}
	t.Setenv("HULLMARK_CACHE", "/y")
	if d, err := Dir(); err != nil || d != "/y" {
		t.Fatalf("got %q, %v", d, err)
	}
}

func TestStepIsMadeAnewWhenDamaged(t *testing.T) {
	s := Store{Root: t.TempDir()}
	made := 0
	step := func() (dir string, hit bool) {
		t.Helper()
		dir, hit, err := s.Step("kind", "key", func(dir string) error {
			made++
			return errors.Join(os.WriteFile(filepath.Join(dir, "a"), []byte("content"), 0o600), os.Symlink("a", filepath.Join(dir, "b")))
		})
		if err != nil {
			t.Fatal(err)
		}
		if content, err := os.ReadFile(filepath.Join(dir, "b")); err != nil || string(content) != "content" {
			t.Fatalf("%q, %v", content, err)
		}
		return dir, hit
	}
	dir, _ := step()
	for what, damage := range map[string]func() error{
		"a bit":          func() error { return os.WriteFile(filepath.Join(dir, "a"), []byte("cOntent"), 0o600) },
		"a file is gone": func() error { return os.Remove(filepath.Join(dir, "a")) },
		"a file came":    func() error { return os.WriteFile(filepath.Join(dir, "c"), nil, 0o600) },
		"a mode":         func() error { return os.Chmod(filepath.Join(dir, "a"), 0o755) },
		"a link": func() error {
			return errors.Join(os.Remove(filepath.Join(dir, "b")), os.Symlink("/etc/passwd", filepath.Join(dir, "b")))
		},
		"its hash": func() error { return os.Truncate(s.sumFile("kind", "key"), 3) },
		"no hash":  func() error { return os.Remove(s.sumFile("kind", "key")) },
	} {
		if _, hit := step(); !hit {
			t.Errorf("before %s: not a hit", what)
		}
		if err := damage(); err != nil {
			t.Fatal(err)
		}
		if _, hit := step(); hit {
			t.Errorf("%s: a hit", what)
		}
	}
	if made != 8 {
		t.Errorf("made %d times, want 8", made)
	}
}

func TestTrimKeepsWhatIsUsed(t *testing.T) {
	s := Store{Root: t.TempDir()}
	step := func(key string, age time.Duration) {
		t.Helper()
		dir, _, err := s.Step("kind", key, func(dir string) error { return os.WriteFile(filepath.Join(dir, "a"), []byte(key), 0o600) })
		if err == nil {
			at := time.Now().Add(-age)
			err = os.Chtimes(dir, at, at)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for i, key := range []string{"new", "used", "kept", "old", "older"} {
		step(key, time.Duration(i)*40*time.Minute)
	}
	if err := s.Trim("kind", 3); err != nil {
		t.Fatal(err)
	}
	step("used", 0) // once more
	for key, want := range map[string]bool{"new": true, "used": true, "kept": true, "old": false, "older": false} {
		if whole := s.Whole("kind", key); whole != want {
			t.Errorf("%s: %t", key, whole)
		}
	}
	if err := s.Trim("kind", 0); err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]bool{"new": true, "used": true, "kept": false} {
		if whole := s.Whole("kind", key); whole != want {
			t.Errorf("%s, which was used just now or long ago: %t", key, whole)
		}
	}
}

func TestStepRemovesWhatAKilledProcessLeft(t *testing.T) {
	s := Store{Root: t.TempDir()}
	left := filepath.Join(s.Root, "kind", ".key.new", "half")
	if err := os.MkdirAll(left, 0o755); err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.Step("kind", "key", func(string) error { return nil }); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(left); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s is left: %v", left, err)
	}
}
