//go:build builds

package e2e

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/hullmark/hullmark/internal/cache"
)

// What CI systems run, as docs/ci.md shows it.
type (
	githubWorkflow struct {
		Jobs map[string]struct {
			Env   map[string]string
			Steps []struct{ Run string }
		}
	}
	gitlabPipeline map[string]struct {
		Image     string
		Variables map[string]string
		Script    []string
	}
)

// recipe returns the one command that both systems run in a container, and the variables that the first sets.
func recipe(t *testing.T) (command string, variables map[string]string) {
	t.Helper()
	page, err := os.ReadFile("../../docs/ci.md")
	if err != nil {
		t.Fatal(err)
	}
	var github githubWorkflow
	var gitlab gitlabPipeline
	for name, into := range map[string]any{"github": &github, "gitlab": &gitlab} {
		block := regexp.MustCompile("(?ms)^```yaml " + name + "\n(.*?)^```$").FindSubmatch(page)
		if block == nil {
			t.Fatalf("docs/ci.md has no pipeline for %s", name)
		}
		if err := yaml.Unmarshal(block[1], into); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	job := github.Jobs["image"]
	run := strings.Fields(job.Steps[len(job.Steps)-2].Run)
	command = run[len(run)-1]
	if other := gitlab["image"]; len(other.Script) != 1 || other.Script[0] != command || other.Image != run[len(run)-2] {
		t.Errorf("GitHub runs %s in %s, GitLab %v in %s", command, run[len(run)-2], other.Script, other.Image)
	}
	for name := range job.Env {
		if !strings.Contains(strings.Join(run, " "), "--env "+name) {
			t.Errorf("the variable %s does not reach the container", name)
		}
	}
	return command, job.Env
}

// container runs a command as a container's root: a file system of its own over this machine's, without what the machine's
// users have; its own processes and names; no rights but those that Docker leaves to root.
const container = `
set -euo pipefail
mount -t tmpfs -o mode=0755 tmpfs "$ROOM"
# over NAME FOLDER PLACE shows a folder, whose changes stay in here.
over() {
    mkdir "$ROOM/$1" "$ROOM/$1-work"
    mkdir -p "$3"
    mount -t overlay -o lowerdir="$2",upperdir="$ROOM/$1",workdir="$ROOM/$1-work" overlay "$3"
}
over changed / "$ROOM/root"
cd "$ROOM/root"
for hidden in home root tmp var/tmp run mnt; do mkdir -p "$hidden"; mount -t tmpfs -o mode=1777 tmpfs "$hidden"; done
mount -t proc proc proc
mount -t sysfs -o ro sysfs sys
mount --rbind /dev dev
# What was fetched and compiled before is taken as it is; trees and what follows from them are made anew, and those of the
# machine, which another test may be making now, are not even seen.
for kept in sha256 tools go-build; do
    [ ! -d "$CACHE/$kept" ] || over "cache-$kept" "$CACHE/$kept" "home/cache/$kept"
done
over objects "$OBJECTS" home/objects
find home/cache home/objects -maxdepth 3 -type d -exec chmod 777 {} +
find home/cache/tools -type d ! -perm -o=rx -exec chmod o+rx {} +
find home/cache -maxdepth 2 -name '.*.lock' -exec chmod 666 {} +
mkdir mnt/modules
mount --bind -o ro "$MODULES" mnt/modules
git clone -q "$CHECKOUT" home/source
mkdir .old
pivot_root . .old # under a mere chroot the kernel lets nobody make a user namespace
umount -l .old
exec setpriv --inh-caps -all --bounding-set -all,+chown,+dac_override,+fowner,+fsetid,+kill,+setgid,+setuid,+setpcap,+net_bind_service,+sys_chroot,+mknod,+audit_write,+setfcap \
    env --chdir /home/source "$COMMAND"
`

// The pipeline of docs/ci.md, from a clean clone, by an ordinary user of a container. Packages, Go modules, the tools tree and
// compiled objects are those that the machine has; root tree and image are made anew. Two things are shortened: the Kubernetes
// bundle is left out, and so is reproduce, which takes half an hour and has tests of its own.
func TestCIRecipe(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("it takes root to make a container here: sudo go test -tags builds -run TestCIRecipe ./internal/e2e")
	}
	command, variables := recipe(t)
	key, err := x509.MarshalPKCS8PrivateKey(ed25519.NewKeyFromSeed(random(t, ed25519.SeedSize)))
	if err != nil {
		t.Fatal(err)
	}
	store, err := cache.Open()
	if err != nil {
		t.Fatal(err)
	}
	folders, err := exec.CommandContext(t.Context(), "go", "env", "GOMODCACHE", "GOCACHE").Output()
	if err != nil {
		t.Fatal(err)
	}
	modules, objects, _ := strings.Cut(strings.TrimSpace(string(folders)), "\n")
	checkout, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	settings := map[string]string{
		"RELEASE_KEY": string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key})),
		"BUILD_FLAGS": "--without-kubernetes", "REPRODUCE": "no",
		"PATH": os.Getenv("PATH"), "HULLMARK_CACHE": "/home/cache", "GOPROXY": "file:///mnt/modules/cache/download", "GOFLAGS": "-modcacherw", "GONOSUMDB": "*",
		"ROOM": t.TempDir(), "COMMAND": command, "CHECKOUT": checkout,
		"CACHE": store.Root, "MODULES": modules, "OBJECTS": objects, "GOCACHE": "/home/objects",
	}
	for name, value := range variables {
		if _, set := settings[name]; !set {
			settings[name] = regexp.MustCompile(`\$\{\{.*?\}\}`).ReplaceAllString(value, "test")
		}
	}
	cmd := exec.CommandContext(t.Context(), "unshare", "--mount", "--pid", "--fork", "--kill-child", "--ipc", "--uts", "bash", "-c", container)
	for name, value := range settings {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	out, err := cmd.CombinedOutput()
	t.Logf("%s", out)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"signature   by the key in out/release.pub", "is the signed disk, byte for byte", "by " + settings["BUILDER_ID"], "published in " + variables["PUBLISH_TO"]} {
		if !strings.Contains(string(out), want) {
			t.Errorf("it did not say %q", want)
		}
	}
}

func random(t *testing.T, n int) []byte {
	t.Helper()
	b := make([]byte, n)
	if _, err := rand.Read(b); err != nil {
		t.Fatal(err)
	}
	return b
}
