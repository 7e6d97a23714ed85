package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// machinePrograms stand for those that change a machine: they note that they were called. The machine lacks two packages until they are
// installed.
var machinePrograms = map[string]string{
	"id":      `[ $# -eq 1 ] || exit 1; echo "$PLAYED_USER"`, // nobody is called builder
	"sudo":    `note "$@"; exec "$@"`,
	"apt-get": `note "$@"; [ "$1" != install ] || touch "$PLAYED/installed"`,
	"useradd": `note "$@"`,
	"chown":   `note "${@%%/*}"`, // folders differ from run to run
	"chmod":   `note "$@"`,
	"setcap":  `note "$@"`,
	"unshare": `exit "$PLAYED_UNSHARE"`,
	"install": `note "$@"`,
	"setpriv": `while [ "$1" != env ]; do shift; done; note "${@:4:2}"; exec "$@"`,
	"go":      `while [ "$1" != -o ]; do shift; done; cp "$PLAYED/hullmark" "$2"`,
}

// playedHullmark is what setup compiles here. Builder could not read a login that is root's.
const playedHullmark = `
[ "$1 $2" = "doctor build" ] && [ -z "${DOCKER_CONFIG:-}" ] || exit 2
[ ! -e "$PLAYED/installed" ] || exit 0
printf 'build  bwrap  missing  apt-get install bubblewrap\n\nas root: apt-get install bubblewrap uidmap\n'
exit 3
`

// play puts a program into a folder, which may note in the file calls how it was called.
func play(t *testing.T, dir, name, does string) {
	t.Helper()
	file := filepath.Join(dir, filepath.FromSlash(name))
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	text := "#!/bin/bash\nset -eu\nnote() { echo \"" + filepath.Base(name) + " $*\" >> \"$PLAYED/calls\"; }\n" + does + "\n"
	if err := os.WriteFile(file, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
}

// noted returns what the programs in a folder noted.
func noted(t *testing.T, dir string) []string {
	t.Helper()
	return strings.Split(strings.TrimSpace(readText(t, filepath.Join(dir, "calls"))), "\n")
}

// setUp runs tools/ci/setup where no other program can be found than those above and a few that change nothing, and returns which of
// them it called. Login is the folder that has a login at a registry, below the one where setup runs; empty: there is none.
func setUp(t *testing.T, login string, settings ...string) []string {
	t.Helper()
	dir := t.TempDir()
	bin := filepath.Join(dir, "bin")
	play(t, dir, "hullmark", playedHullmark)
	for name, does := range machinePrograms {
		play(t, bin, name, does)
	}
	if login != "" {
		if err := os.MkdirAll(filepath.Join(dir, login), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, login, "config.json"), []byte("{}"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"bash", "cp", "dirname", "env", "mkdir", "realpath", "sed", "touch"} {
		path, err := exec.LookPath(name)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(path, filepath.Join(bin, name)); err != nil {
			t.Fatal(err)
		}
	}
	script, err := filepath.Abs("../../tools/ci/setup")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), script, filepath.Join(dir, "work"), "build")
	cmd.Dir = dir
	cmd.Env = append([]string{"PATH=" + bin, "PLAYED=" + dir, "HOME=home"}, settings...)
	if said, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, said)
	}
	return noted(t, dir)
}

// setup installs by sudo what an ordinary user's machine lacks; as root of a container it makes a user, who does the rest, gives that user
// root's login at a registry, and lets it have a range of user IDs where the container's root cannot.
func TestCISetup(t *testing.T) {
	const install = "apt-get install -q -y --no-install-recommends bubblewrap uidmap"
	const folder = "install -d -m 0700 -o builder -g builder /home/builder/.docker"
	for name, c := range map[string]struct {
		login          string
		settings, want []string
	}{
		"an ordinary user": {"home/.docker", []string{"PLAYED_USER=1000"}, []string{
			"sudo apt-get update -q", "apt-get update -q", "sudo env DEBIAN_FRONTEND=noninteractive " + install, install,
		}},
		"root of a container": {"", []string{"PLAYED_USER=0", "PLAYED_UNSHARE=1"}, []string{
			"useradd --create-home builder", "apt-get update -q", install,
			"chmod u-s /usr/bin/newuidmap /usr/bin/newgidmap", "setcap cap_setuid=ep /usr/bin/newuidmap", "setcap cap_setgid=ep /usr/bin/newgidmap",
		}},
		"root with all rights": {"", []string{"PLAYED_USER=0", "PLAYED_UNSHARE=0"}, []string{
			"useradd --create-home builder", "apt-get update -q", install,
		}},
		"root that logged in": {"home/.docker", []string{"PLAYED_USER=0", "PLAYED_UNSHARE=0"}, []string{
			"useradd --create-home builder", folder,
			"install -m 0600 -o builder -g builder home/.docker/config.json /home/builder/.docker/config.json", "apt-get update -q", install,
		}},
		"root that logged in elsewhere": {"login", []string{"PLAYED_USER=0", "PLAYED_UNSHARE=0", "DOCKER_CONFIG=login"}, []string{
			"useradd --create-home builder", folder,
			"install -m 0600 -o builder -g builder login/config.json /home/builder/.docker/config.json", "apt-get update -q", install,
		}},
	} {
		t.Run(name, func(t *testing.T) {
			var changes, asBuilder []string
			for _, call := range setUp(t, c.login, c.settings...) {
				switch {
				case strings.HasPrefix(call, "setpriv "):
					asBuilder = append(asBuilder, call)
				case !strings.HasPrefix(call, "chown -R builder:"):
					changes = append(changes, call)
				}
			}
			if !slices.Equal(changes, c.want) {
				t.Errorf("it called\n%s\nwant\n%s", strings.Join(changes, "\n"), strings.Join(c.want, "\n"))
			}
			if root := c.settings[0] == "PLAYED_USER=0"; root != (len(asBuilder) >= 3) {
				t.Errorf("builder does %q", asBuilder)
			}
		})
	}
}
