//go:build long

package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hullmark/hullmark/cluster/addons"
)

// charts are those of package addons: the second release has another version of its definition.
const charts = "../../cluster/addons/testdata"

// archive packs a chart, and returns its digest.
func (s *site) archive(t *testing.T, chart, name string) string {
	t.Helper()
	var out bytes.Buffer
	zip := gzip.NewWriter(&out)
	files := tar.NewWriter(zip)
	err := fs.WalkDir(os.DirFS(charts), chart, func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		text, err := os.ReadFile(filepath.Join(charts, name))
		if err != nil {
			return err
		}
		err = files.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(text))})
		_, err2 := files.Write(text)
		return errors.Join(err, err2)
	})
	if err := errors.Join(err, files.Close(), zip.Close()); err != nil {
		t.Fatal(err)
	}
	s.write(t, name, out.Bytes())
	return fmt.Sprintf("%x", sha256.Sum256(out.Bytes()))
}

// addonsDocument is a cluster document with the page's add-ons.
func (s *site) addonsDocument(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../../docs/addons.md")
	if err != nil {
		t.Fatal(err)
	}
	example := regexp.MustCompile("(?s)```yaml\n(.*?)```\n").FindSubmatch(text)
	small, err := os.ReadFile(filepath.Join(renderFolder, "small.yaml"))
	if err != nil || example == nil {
		t.Fatal("no example", err)
	}
	small = bytes.Replace(small, []byte(smallRoot), []byte(s.cluster.ID().String()), 1)
	s.write(t, "boards.yaml", []byte("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: board}\ndata: {text: hello}\n"))
	return string(small) + strings.Replace(string(example[1]), "DIGEST", s.archive(t, "demo-1", "demo-1.0.0.tgz"), 1)
}

// docs/addons.md brings an add-on and its next release, and puts things back; its commands run as they stand, against a real API.
func TestAddonsPage(t *testing.T) {
	s := newAPISite(t)
	root := site{dir: t.TempDir(), cluster: s.cluster}
	linkProgram(t, root.dir)
	if err := os.Mkdir(root.path("out"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"cluster", "passphrase"} {
		content, err := os.ReadFile(s.path(name))
		if err != nil {
			t.Fatal(err)
		}
		root.write(t, "out/"+name, content)
	}
	document := root.addonsDocument(t)
	root.write(t, "prod.yaml", []byte(document))
	lines := commandsOf(t, "addons.md")
	if len(lines) != 7 {
		t.Fatalf("the page has the commands %q", lines)
	}
	for i, line := range lines {
		switch i {
		case 2: // the next release
			next := strings.Replace(document, "demo-1.0.0.tgz       ", "demo-2.0.0.tgz       ", 1)
			next = regexp.MustCompile(`sha256: [0-9a-f]{64}`).ReplaceAllString(next, "sha256: "+root.archive(t, "demo-2", "demo-2.0.0.tgz"))
			root.write(t, "prod.yaml", []byte(next))
		case 5: // an apply is killed while it waits
			s.killApply(t, &root)
		}
		out := root.bash(t, strings.ReplaceAll(line, "192.0.2.7:6443", s.env.Address))
		for _, want := range [][]string{
			{"demo: new, demo-1.0.0", "created  definition widgets.demo.example", "created  ConfigMap demo/demo-settings", "created  ConfigMap demo/board", "final    Namespace demo stays"},
			{"demo: brought demo-1.0.0", "boards: brought its manifests"},
			{`"change": "deleted"`, `"next": "v1, v2 (stored)"`},
			{"demo-1.0.0, revision 1, deployed -> demo-2.0.0", "changed  definition widgets.demo.example: v1 (stored) -> v1, v2 (stored); 1 objects", "created  ConfigMap demo/demo-of-2", "changed  Deployment demo/demo", "deleted  ConfigMap demo/demo-of-1"},
			{"put back what was before run"},
			{"put back what was before run"},
			{"hullmark: unchanged, this release's manifests", "nothing changes"},
		}[i] {
			if !strings.Contains(out, want) {
				t.Errorf("$ %s\ndoes not say %q:\n%s", line, want, out)
			}
		}
		s.wantVersion(t, i, map[bool]string{true: "v1, v2", false: "v1"}[i == 3])
	}
	if saved, err := filepath.Glob(root.path("out/cluster.addons/*.saved")); err != nil || len(saved) != 3 {
		t.Errorf("saved are %q, %v", saved, err)
	}
	s.saysHow(t)
}

// bash runs a line in the folder and returns what it said.
func (s *site) bash(t *testing.T, line string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "bash", "-eu", "-o", "pipefail", "-c", line)
	cmd.Dir = s.dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("$ %s\n%v\n%s", line, err, out)
	}
	t.Logf("$ %s\n%s", line, out)
	return string(out)
}

// killApply kills an apply, as the power would, when it has brought its definition and waits for a Deployment that never gets ready.
func (s *apiSite) killApply(t *testing.T, root *site) {
	t.Helper()
	text, err := os.ReadFile(root.path("prod.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	root.write(t, "never.yaml", bytes.Replace(text, []byte("{text: hello}"), []byte("{text: hello, replicas: 1}"), 1))
	cmd := exec.Command("bin/hullmark", "addons", "apply", "never.yaml", "--cluster", "out/cluster", "--passphrase-file", "out/passphrase", "--server", s.env.Address)
	cmd.Dir = root.dir
	said, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { _, _ = io.Copy(io.Discard, said) }()
	for end := time.Now().Add(time.Minute); ; time.Sleep(200 * time.Millisecond) {
		if replicas := s.kubectl(t, "get", "deployment", "demo", "--namespace", "demo", "--output", "jsonpath={.spec.replicas}"); replicas == "1" {
			break
		}
		if time.Now().After(end) {
			t.Fatal("the apply did not come as far as the Deployment")
		}
	}
	if err := cmd.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	s.wantVersion(t, -1, "v1, v2")
}

// kubectl runs a command as an administrator.
func (s *apiSite) kubectl(t *testing.T, args ...string) string {
	t.Helper()
	cmd, err := s.env.Kubectl(t.Context(), args...)
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("kubectl %q: %v", args, err)
	}
	return string(out)
}

// wantVersion wants the definition to have these versions, after a step of the page that has one.
func (s *apiSite) wantVersion(t *testing.T, step int, want string) {
	t.Helper()
	if step == 0 {
		return
	}
	got := strings.Join(strings.Fields(s.kubectl(t, "get", "crd", "widgets.demo.example", "--output", "jsonpath={.spec.versions[*].name}")), ", ")
	if got != want {
		t.Errorf("after step %d the definition has %q, want %q", step, got, want)
	}
}

// saysHow runs the verbs for their exit codes.
func (s *apiSite) saysHow(t *testing.T) {
	t.Helper()
	s.write(t, "prod.yaml", []byte(s.addonsDocument(t)))
	s.write(t, "boards.yaml", []byte("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: board, namespace: nowhere}\ncolour: red\n"))
	output := s.run(t, exitDenied, "addons plan "+s.path("prod.yaml"), "problem  ConfigMap nowhere/board", "refused: boards")
	if strings.Contains(output, "nothing changes") {
		t.Error("it says that nothing changes")
	}
	s.run(t, exitDenied, "addons apply "+s.path("prod.yaml"), "refused: boards")
	s.run(t, 0, "addons rollback", "nothing is unfinished")
	var plan addons.Plan
	output = s.run(t, 0, "addons plan -o json")
	if err := json.Unmarshal([]byte(output), &plan); err != nil || len(plan.Addons) == 0 || plan.Addons[0].Kind != "own" {
		t.Errorf("%+v, %v", plan, err)
	}
	s.write(t, "other", []byte("no saved state"))
	s.run(t, exitFailed, "addons rollback "+s.path("other"), "it holds nothing under the cluster file's passphrase")
}
