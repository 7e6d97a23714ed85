//go:build builds

package e2e

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/hullmark/hullmark/internal/canary"
)

// ciJob is a job of a CI system, in a repository that has definitions, their lock, and the public key of releases. Each of its steps runs
// in a container; its folders are this machine's, and outlast that.
type ciJob struct {
	// dir is a folder of this machine, which is jobFolder in the containers.
	dir string
	// user is whose the job's steps are, and rights are what root has of its rights there; empty: all.
	user, rights string
	private      string
	search       *canary.Search
}

const (
	jobFolder = "/home/work"
	// project is the repository, below the folder of a job.
	project = "project"
	// definitions is the folder of definitions in it.
	definitions = "node"
)

// newJob makes the job's repository, with another's public key, or the job's own.
func newJob(t *testing.T, user, rights, public string) (j ciJob, own string) {
	t.Helper()
	seed, private, own := releaseKey(t)
	search, err := canary.New(canary.Secrets{"the private key": seed})
	if err != nil {
		t.Fatal(err)
	}
	j = ciJob{dir: t.TempDir(), user: user, rights: rights, private: private, search: search}
	if public == "" {
		public = own
	}
	j.write(t, project+"/release.pub", public, 0o644)
	j.write(t, project+"/"+definitions+"/mkosi.conf", "[Content]\n", 0o644)
	j.write(t, project+"/"+definitions+"/mkosi.extra/usr/lib/sysctl.d/60-node.conf", "vm.max_map_count = 262144\n", 0o644)
	j.write(t, project+"/"+definitions+"/hullmark.lock", readText(t, "../../hullmark.lock"), 0o644) // they name no package beyond it
	for _, folder := range []string{"home", "steps", "temp"} {
		if err := os.Mkdir(j.path(folder), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return j, own
}

// path is where this machine has a file of the job.
func (j ciJob) path(name string) string { return filepath.Join(j.dir, filepath.FromSlash(name)) }

func (j ciJob) write(t *testing.T, name, text string, mode os.FileMode) {
	t.Helper()
	file := j.path(name)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(file, mode); err != nil { // whatever the umask
		t.Fatal(err)
	}
}

// packages is a line of a script: it gives a cache, a folder in the containers, the packages that this machine has, as if each had been
// fetched before.
func packages(folder string) string {
	return "[ ! -d /home/cache/sha256 ] || { mkdir -p " + folder + "; ln -s /home/cache/sha256 " + folder + "/sha256; }\n"
}

// enterStep becomes the job's user, who has no environment but the step's. That is in a file, since arguments can be seen.
const enterStep = `
user=$STEP_USER
shell=($STEP_SHELL)
git config --system --add safe.directory '*'
mkdir /home/action
git archive HEAD | tar -x -C /home/action # as GitHub unpacks an action: without the repository
become=()
if [ "$user" != root ]; then
    id -u "$user" > /dev/null 2>&1 || useradd --no-create-home --home-dir /home/work/home "$user" # the machine may have one of the name
    become=(setpriv --reuid "$user" --regid "$user" --init-groups)
fi
chown -R "$user:" /home/work /home/action
mapfile -d '' -t settings < /home/work/steps/environment
rm /home/work/steps/environment
cd /home/work/project
for name in $(compgen -e); do unset -v "$name"; done
export "${settings[@]}"
exec "${become[@]}" "${shell[@]}" /home/work/steps/script
`

// run runs a step's script in the repository, and returns what it said. No program shows the key in its arguments or its environment, but
// those that may, and no output does.
func (j ciJob) run(t *testing.T, name, shell, script string, environment map[string]string, may ...string) string {
	t.Helper()
	var settings strings.Builder
	for name, value := range environment {
		settings.WriteString(name + "=" + value + "\x00")
	}
	j.write(t, "steps/environment", settings.String(), 0o600)
	j.write(t, "steps/script", script, 0o644)
	watch := j.search.Watch()
	defer watch.End() // if the step fails
	said := contained(t, enterStep, map[string]string{"STEP_USER": j.user, "STEP_SHELL": shell, "WORK": j.dir, "RIGHTS": j.rights})
	found, seen := watch.End()
	t.Logf("%s\n%s", name, said)
	for _, f := range append(found, j.search.Text("what it says", []byte(said))...) {
		if !slices.Contains(may, f.Where) {
			t.Errorf("%s: %v", name, f)
		}
	}
	if len(seen) == 0 {
		t.Errorf("%s: no process was looked at", name)
	}
	return said
}

// ended looks for the key in everything that the job left, whose files in a folder of the containers are an ordinary user's.
func (j ciJob) ended(t *testing.T, made string) {
	t.Helper()
	found, err := j.search.Tree(j.dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range found {
		t.Error(f)
	}
	files, err := filepath.Glob(j.path(made + "/*"))
	if err != nil || len(files) == 0 {
		t.Fatalf("it made nothing in %s: %v", made, err)
	}
	for _, file := range files {
		info, err := os.Lstat(file)
		if err != nil {
			t.Fatal(err)
		}
		if owner, ok := info.Sys().(*syscall.Stat_t); !ok || owner.Uid == 0 {
			t.Errorf("%s was made by root", file)
		}
	}
}
