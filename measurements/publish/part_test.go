package publish

import (
	"bytes"
	"context"
	"crypto/sha256"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hullmark/hullmark/internal/fulldisk"
	"github.com/hullmark/hullmark/pcrs"
)

// shows is a source that has one content.
type shows struct {
	Source
	bytes []byte
}

func (s shows) content(_ context.Context, _ kind, _ pcrs.Digest, offset, n int64) (io.ReadCloser, error) {
	if n >= 0 {
		return nil, errWhole
	}
	return io.NopCloser(bytes.NewReader(s.bytes[offset:])), nil
}

// TestFetchFollowsNoLink has somebody else place the part file before: a link, or another name of a file.
func TestFetchFollowsNoLink(t *testing.T) {
	content := []byte("content")
	sum := sha256.Sum256(content)
	for name, place := range map[string]func(other, part string) error{"it is a link": os.Symlink, "it has a second name": os.Link} {
		dir := t.TempDir()
		other := filepath.Join(dir, "other")
		f := file{kind: imageKind, path: filepath.Join(dir, "image"), digest: pcrs.Digest(sum[:])}
		if err := os.WriteFile(other, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := place(other, f.path+".part"); err != nil {
			t.Fatal(err)
		}
		err := f.fetch(t.Context(), shows{bytes: content}, nil)
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
		if got, err := os.ReadFile(other); err != nil || len(got) > 0 {
			t.Errorf("%s: another's file holds %q: %v", name, got, err)
		}
	}
	f := file{kind: imageKind, path: filepath.Join(t.TempDir(), "image"), digest: pcrs.Digest(sum[:])}
	if err := os.WriteFile(f.path+".part", content[:3], 0o600); err != nil {
		t.Fatal(err)
	}
	if err := f.fetch(t.Context(), shows{bytes: content}, nil); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(f.path); err != nil || !bytes.Equal(got, content) {
		t.Errorf("goes on with its own: %q: %v", got, err)
	}
}

func TestWritesWithoutRoom(t *testing.T) {
	from := filepath.Join(t.TempDir(), "from")
	content := []byte(strings.Repeat("content", 1000))
	sum := sha256.Sum256(content)
	if err := os.WriteFile(from, content, 0o600); err != nil {
		t.Fatal(err)
	}
	before := func(dir string) error { return os.WriteFile(filepath.Join(dir, "file"), []byte("before"), 0o600) }
	fulldisk.Check(t,
		fulldisk.Writer{Name: "envelope", Before: before, Write: func(dir string) error { return folder{dir: dir}.putEnvelope("file", []byte("envelope")) }},
		fulldisk.Writer{Name: "fetched", Part: "file.part", Before: before, Write: func(dir string) error {
			return file{kind: imageKind, path: filepath.Join(dir, "file"), digest: pcrs.Digest(sum[:])}.fetch(context.Background(), shows{bytes: content}, nil)
		}},
		fulldisk.Writer{Name: "file", Before: before, Write: func(dir string) error {
			return file{kind: imageKind, path: from, digest: pcrs.Digest(sum[:])}.putIn(filepath.Join(dir, "file"))
		}},
	)
}
