//go:build long

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest/wire"
	"github.com/hullmark/hullmark/cluster"
	"github.com/hullmark/hullmark/internal/testenv"
	"github.com/hullmark/hullmark/internal/vaulttest"
	kubeadmrun "github.com/hullmark/hullmark/kubeadm/run"
)

// linkProgram puts the program that `make bin/hullmark` left where a page's commands look for it, in a folder in which they run
// as they stand.
func linkProgram(t *testing.T, dir string) {
	t.Helper()
	program, err := filepath.Abs("../../bin")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(program, "hullmark")); err != nil {
		t.Fatal(err, "; run make bin/hullmark")
	}
	if err := os.Symlink(program, filepath.Join(dir, "bin")); err != nil {
		t.Fatal(err)
	}
}

var shellBlock = regexp.MustCompile("(?ms)^```sh\n(.*?)^```$")

// commandsOf returns the commands of a page, a line each.
func commandsOf(t *testing.T, page string) (lines []string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../../docs", page))
	if err != nil {
		t.Fatal(err)
	}
	for _, block := range shellBlock.FindAllStringSubmatch(string(text), -1) {
		lines = append(lines, strings.Split(strings.TrimSpace(block[1]), "\n")...)
	}
	return lines
}

// runs runs a command in the folder; what it asks on its terminal is answered.
func (s *site) runs(t *testing.T, line, answer string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "script", "--quiet", "--return", "--command", line, "/dev/null")
	cmd.Dir, cmd.Stdin = s.dir, strings.NewReader(answer)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("$ %s\n%v\n%s", line, err, out)
	}
}

// docs/cluster-document.md renders its example by the image's own kubeadm, and compares it with itself and with what runs.
func TestClusterDocumentPage(t *testing.T) {
	s := site{dir: t.TempDir()}
	linkProgram(t, s.dir)
	programs, err := testenv.Programs(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(s.path("out"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(programs, "kubectl"), s.path("out/kubectl")); err != nil {
		t.Fatal(err)
	}
	document, err := os.ReadFile(filepath.Join(renderFolder, "rich.yaml")) // the page's example, as package render tests
	if err != nil {
		t.Fatal(err)
	}
	s.write(t, "prod.yaml", document)
	lines := commandsOf(t, "cluster-document.md")
	if len(lines) != 3 {
		t.Fatalf("the page has the commands %q", lines)
	}
	for _, line := range lines {
		if strings.Contains(line, "--kubeconfig") { // The cluster was made of what was rendered.
			documents, err := os.ReadFile(s.path("rendered/init.yaml"))
			if err != nil {
				t.Fatal(err)
			}
			stored, err := kubeadmrun.WouldStore(t.Context(), filepath.Join(programs, "kubeadm"), documents)
			if err != nil {
				t.Fatal(err)
			}
			config, err := os.ReadFile(runningCluster(t, string(stored.ClusterConfiguration), string(stored.KubeletConfiguration)))
			if err != nil {
				t.Fatal(err)
			}
			s.write(t, "admin.conf", config)
		}
		s.runs(t, line, "")
	}
}

// docs/keepers.md has a Vault wrap the keyset of a cluster file.
func TestKeepersPage(t *testing.T) {
	s := site{dir: t.TempDir()}
	linkProgram(t, s.dir)
	c, err := cluster.New()
	if err != nil {
		t.Fatal(err)
	}
	const cheap = 4 // This passphrase guards nothing.
	passphrase := hullmark.NewSecret([]byte("correct horse"))
	if _, err := cluster.Create(s.path("prod.cluster"), passphrase, c, cheap); err != nil {
		t.Fatal(err)
	}
	vault := vaulttest.New(t)
	s.write(t, "token", []byte(vaulttest.Token+"\n"))
	s.write(t, "vault-ca.pem", vault.CA())
	lines := commandsOf(t, "keepers.md")
	if len(lines) != 1 {
		t.Fatalf("the page has the commands %q", lines)
	}
	for _, line := range lines {
		s.runs(t, strings.ReplaceAll(line, "https://vault.example:8200", vault.URL), "correct horse\n")
	}
	file, err := cluster.Open(s.path("prod.cluster"), passphrase)
	if err != nil {
		t.Fatal(err)
	}
	files, err := file.Cluster.Files()
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(files, func(f *wire.File) bool { return strings.HasSuffix(f.GetPath(), "/keyset.json") })
	if i < 0 || !strings.HasPrefix(string(files[i].GetContent()), `{"version":2,"keeper":"`+vault.Keeper()+`"`) {
		t.Error("control planes do not get the keyset as the keeper wrapped it")
	}
}
