//go:build long

package main

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hullmark/hullmark/image/build"
	"github.com/hullmark/hullmark/image/oci"
	"github.com/hullmark/hullmark/internal/testenv"
)

// TestImageServes runs the join service as a container runtime runs its image: with its files and variables alone, as nobody,
// and what is mounted. A machine joins through it.
func TestImageServes(t *testing.T) {
	api, err := testenv.Start(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	_, admin := administer(t, api)
	s := siteOf(t, api.Cluster)
	o := options{listen: freeAddress(t), http: freeAddress(t), api: "https://" + api.Address}
	s.contain(t, build.JoinServiceImage(compiled(t)), "-listen", o.listen, "-metrics", o.http, "-api", o.api)
	for end := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
		if connection, err := net.Dial("tcp", o.listen); err == nil {
			_ = connection.Close()
			break
		}
		if time.Now().After(end) {
			t.Fatal("the container does not listen")
		}
	}
	s.push(t, admin, o)
	if m := s.dial(t, admin, o); m.Name != "worker-1" || m.Record.Committed != 1 {
		t.Errorf("the machine is %+v", m)
	}
}

// compiled is the program as an image has it.
func compiled(t *testing.T) []byte {
	t.Helper()
	file := filepath.Join(t.TempDir(), "joinservice")
	cmd := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-o", file, ".")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	program, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return program
}

// contain starts an image's program, with the site's folders at the paths of its variables, until the test ends.
func (s *site) contain(t *testing.T, image oci.Image, args ...string) {
	t.Helper()
	root := t.TempDir()
	user, group, _ := strings.Cut(image.User, ":")
	uid, err := strconv.Atoi(user)
	if err != nil || user != group || uid == 0 {
		t.Fatalf("the image's user is %q", image.User)
	}
	mounts := map[string]string{}
	for _, variable := range image.Env {
		name, path, _ := strings.Cut(variable, "=")
		mounts[name] = path
	}
	copied := filepath.Join(root, mounts["CREDENTIALS_DIRECTORY"])
	for _, dir := range []string{copied, filepath.Join(root, mounts["STATE_DIRECTORY"])} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.CopyFS(copied, os.DirFS(s.credentials)); err != nil {
		t.Fatal(err)
	}
	for _, f := range image.Files {
		if err := os.WriteFile(filepath.Join(root, f.Name), f.Content, os.FileMode(f.Mode)); err != nil {
			t.Fatal(err)
		}
	}
	if out, err := exec.CommandContext(t.Context(), "chown", "-R", image.User, root).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	cmd := exec.CommandContext(t.Context(), image.Entrypoint[0], append(image.Entrypoint[1:], args...)...)
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = "/", image.Env, t.Output(), t.Output()
	cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: root, Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
}
