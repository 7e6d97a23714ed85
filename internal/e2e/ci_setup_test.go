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
	"setpriv": `while [ "$1" != env ]; do shift; done; note "${@:3:2}"; exec "$@"`,
	"go":      `while [ "$1" != -o ]; do shift; done; cp "$PLAYED/hullmark" "$2"`,
}

// playedHullmark is what setup compiles here.
const playedHullmark = `#!/bin/bash
[ "$1 $2" = "doctor build" ] || exit 2
[ ! -e "$PLAYED/installed" ] || exit 0
printf 'build  bwrap  missing  apt-get install bubblewrap\n\nas root: apt-get install bubblewrap uidmap\n'
exit 3
`

// setUp runs tools/ci/setup where no other program can be found than those above and a few that change nothing, and returns which of
// them it called.
func setUp(t *testing.T, settings ...string) []string {
	t.Helper()
	dir := t.TempDir()
	bin := filepath.Join(dir, "bin")
	if err := os.Mkdir(bin, 0o755); err != nil {
		t.Fatal(err)
	}
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	write("hullmark", playedHullmark)
	for name, does := range machinePrograms {
		write(filepath.Join("bin", name), "#!/bin/bash\nset -eu\nnote() { echo \""+name+" $*\" >> \"$PLAYED/calls\"; }\n"+does+"\n")
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
	cmd.Env = append([]string{"PATH=" + bin, "PLAYED=" + dir}, settings...)
	if said, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, said)
	}
	calls, err := os.ReadFile(filepath.Join(dir, "calls"))
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(strings.TrimSpace(string(calls)), "\n")
}

// setup installs by sudo what an ordinary user's machine lacks; as root of a container it makes a user, who does the rest, and lets that
// user have a range of user IDs where the container's root cannot.
func TestCISetup(t *testing.T) {
	const install = "apt-get install -q -y --no-install-recommends bubblewrap uidmap"
	for name, c := range map[string]struct {
		settings, want []string
	}{
		"an ordinary user": {[]string{"PLAYED_USER=1000"}, []string{
			"sudo apt-get update -q", "apt-get update -q", "sudo env DEBIAN_FRONTEND=noninteractive " + install, install,
		}},
		"root of a container": {[]string{"PLAYED_USER=0", "PLAYED_UNSHARE=1"}, []string{
			"useradd --create-home builder", "apt-get update -q", install,
			"chmod u-s /usr/bin/newuidmap /usr/bin/newgidmap", "setcap cap_setuid=ep /usr/bin/newuidmap", "setcap cap_setgid=ep /usr/bin/newgidmap",
		}},
		"root with all rights": {[]string{"PLAYED_USER=0", "PLAYED_UNSHARE=0"}, []string{
			"useradd --create-home builder", "apt-get update -q", install,
		}},
	} {
		t.Run(name, func(t *testing.T) {
			var changes, asBuilder []string
			for _, call := range setUp(t, c.settings...) {
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
