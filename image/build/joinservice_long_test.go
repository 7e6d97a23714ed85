//go:build long

package build

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/hullmark/hullmark/image/lock"
)

// untar reads an archive into memory, which all of these fit.
func untar(t *testing.T, archive []byte) map[string][]byte {
	t.Helper()
	files := map[string][]byte{}
	for r := tar.NewReader(bytes.NewReader(archive)); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		if files[h.Name], err = io.ReadAll(r); err != nil {
			t.Fatal(err)
		}
	}
}

// TestJoinServiceImage compiles the join service twice, looks into its image as a container runtime does, and runs it as one
// would: as nobody, with no other file around it.
func TestJoinServiceImage(t *testing.T) {
	o, l, _ := settled(t)
	var images [][]byte
	for range 2 {
		j := &job{Options: o, work: t.TempDir(), programs: t.TempDir(), lock: l, epoch: l.Time}
		j.Out = t.TempDir()
		p := programs{source: o.Source, store: o.Store, out: j.programs}
		if err := p.static(t.Context(), l.Go, "joinservice", filepath.Join(p.out, "node", "joinservice")); err != nil {
			t.Fatal(err)
		}
		if err := j.writeJoinService(); err != nil {
			t.Fatal(err)
		}
		image, err := os.ReadFile(filepath.Join(j.Out, o.ID+lock.JoinServiceEnding))
		if err != nil {
			t.Fatal(err)
		}
		images = append(images, image)
	}
	if !bytes.Equal(images[0], images[1]) {
		t.Fatal("two images of the same sources differ")
	}
	files := untar(t, images[0])
	blob := func(digest string) []byte { return files["blobs/sha256/"+strings.TrimPrefix(digest, "sha256:")] }
	var index struct{ Manifests []struct{ Digest string } }
	var manifest struct {
		Config struct{ Digest string }
		Layers []struct{ Digest string }
	}
	var config struct {
		Config struct {
			User            string
			Entrypoint, Env []string
		}
	}
	if err := json.Unmarshal(files["index.json"], &index); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(blob(index.Manifests[0].Digest), &manifest); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(blob(manifest.Config.Digest), &config); err != nil {
		t.Fatal(err)
	}
	if config.Config.User != "65532:65532" || config.Config.Entrypoint[0] != "/joinservice" {
		t.Errorf("the container is %+v", config.Config)
	}
	layer := untar(t, blob(manifest.Layers[0].Digest))
	root := t.TempDir()
	if err := os.Chmod(root, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, "joinservice"), layer["joinservice"], 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), config.Config.Entrypoint[0])
	cmd.Dir, cmd.Env = "/", config.Config.Env
	cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: root, Credential: &syscall.Credential{Uid: 65532, Gid: 65532}}
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || !strings.Contains(string(out), "/run/credentials/") {
		t.Errorf("without credentials it says %q, %v; want an error that names their folder", out, err)
	}
}
