package e2e

import (
	"errors"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// furtherFlags are over several lines, and name all that a job fixes by itself.
const furtherFlags = `--profile azure
  --source others --config others

--lock others	--image-id others --out others --release others --svn 9 --builder-id others
--invocation-id others --attest others --key others
`

// runPlayed runs a script in a folder, as a step or a job is run, and returns what programs of the folder's bin noted, which are found
// before the machine's.
func runPlayed(t *testing.T, dir, script string, environment ...string) []string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script)
	cmd.Dir = dir
	cmd.Env = append([]string{"PATH=" + filepath.Join(dir, "bin") + ":" + os.Getenv("PATH"), "PLAYED=" + dir, "HOME=" + dir}, environment...)
	if said, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, said)
	}
	return noted(t, dir)
}

// wantFlagsFirst wants all further flags in a call of hullmark right after its verb, and those that are fixed after them, where they count.
func wantFlagsFirst(t *testing.T, calls []string, verb string, fixed ...string) {
	t.Helper()
	i := slices.IndexFunc(calls, func(call string) bool { return strings.HasPrefix(call, "hullmark "+verb+" ") })
	if i < 0 {
		t.Fatalf("hullmark %s was not called:\n%s", verb, strings.Join(calls, "\n"))
	}
	words, further := strings.Fields(calls[i])[2:], strings.Fields(furtherFlags)
	if len(words) < len(further) || !slices.Equal(words[:len(further)], further) {
		t.Fatalf("hullmark %s begins with %q, want %q", verb, words[:min(len(words), len(further))], further)
	}
	for _, flag := range fixed {
		if rest := words[len(further):]; !slices.Contains(rest, flag) || slices.Contains(rest, "others") {
			t.Errorf("hullmark %s ends with %q, want %s there", verb, rest, flag)
		}
	}
}

var (
	// fixedFlags are those of both verbs, and the others are those of one.
	fixedFlags      = []string{"--source", "--config", "--lock", "--image-id", "--out"}
	fixedBuildFlags = append(slices.Clone(fixedFlags), "--release", "--svn", "--builder-id", "--invocation-id")
	fixedAgainFlags = append(slices.Clone(fixedFlags), "--attest", "--key")
	// playedInputs are those of a job; without from it makes a release of its own.
	playedInputs = map[string]string{
		"config": "node", "lock": "node/hullmark.lock", "image-id": "node", "public-key": "release.pub", "to": "releases", "release": "spring", "svn": "2",
		"flags": furtherFlags,
	}
)

// The flags that a user gives reach hullmark, on however many lines they are, and replace nothing of what is built, signed or attested.
func TestActionGivesFlagsFirst(t *testing.T) {
	for verb, fixed := range map[string][]string{"build": fixedBuildFlags, "reproduce": fixedAgainFlags} {
		steps := 0
		for _, s := range readAction(t).Runs.Steps {
			if !strings.Contains(s.Run, "hullmark "+verb+" ") {
				continue
			}
			steps++
			dir := t.TempDir()
			play(t, dir, "bin/hullmark", `note "$@"`)
			environment := append(settings(s.Env, playedInputs), "RUNNER_TEMP="+dir, "GITHUB_OUTPUT="+filepath.Join(dir, "output"), "GITHUB_RUN_ID=1",
				"GITHUB_RUN_ATTEMPT=1", "GITHUB_SERVER_URL=https://github.com", "GITHUB_REPOSITORY=alice/node", "GITHUB_WORKFLOW_REF=alice/node/release.yml@v1")
			wantFlagsFirst(t, runPlayed(t, dir, s.Run, environment...), verb, fixed...)
		}
		if steps != 1 {
			t.Errorf("%d steps call hullmark %s, want one", steps, verb)
		}
	}
}

// So do those of the script that runs in any container.
func TestImageScriptGivesFlagsFirst(t *testing.T) {
	dir := t.TempDir()
	play(t, dir, "bin/hullmark", `note "$@"`)
	play(t, dir, "bin/make", "")
	play(t, dir, "bin/openssl", "")
	calls := runPlayed(t, dir, readText(t, "../../docs/examples/ci/image"),
		"RELEASE_KEY=key", "BUILD_FLAGS="+furtherFlags, "BUILDER_ID=own", "INVOCATION_ID=own", "PUBLISH_TO=releases")
	wantFlagsFirst(t, calls, "reproduce", "--out")
	wantFlagsFirst(t, calls, "build", "--out", "--builder-id", "--invocation-id")
}

// builtProgram is what stands for hullmark in a job of the template. It does what a script of somebody's definitions could, as builder: it
// puts programs of its own in the place of those that root might run.
const builtProgram = `note "$@"
for file in .hullmark/source/tools/ci/* "$PLAYED"/bin/{id,setpriv,chown,chmod}; do cp "$PLAYED/taken" "$file"; done
`

// playTemplate runs the template's job, as root of a container or as an ordinary user, with others in the place of the programs that root
// calls by their whole names, and returns which it called. A cache brought the job's folder, with a hook and a program in it.
func playTemplate(t *testing.T, root bool, from string) []string {
	t.Helper()
	dir, of := t.TempDir(), readTemplate(t)
	user := "1000"
	if root {
		user = "0"
	}
	play(t, dir, "bin/id", "echo "+user)
	play(t, dir, "bin/git", `[ "$1" != init ] || { mkdir -p "$3/tools/ci"; cp "$PLAYED/setup" "$3/tools/ci/setup"; }`)
	play(t, dir, "setup", `mkdir -p "$1/bin"; cp "$PLAYED/hullmark" "$1/bin/hullmark"`)
	play(t, dir, "hullmark", builtProgram)
	play(t, dir, "taken", `note "$0"`)
	play(t, dir, "root/setpriv", `while [ "$1" != env ]; do shift; done; note "${@:4:2}"; shift 3; exec "$@"`)
	play(t, dir, "root/chown", `note "$@"`)
	play(t, dir, ".hullmark/source/.git/hooks/post-checkout", "")
	play(t, dir, ".hullmark/bin/brought", "")
	if err := os.WriteFile(filepath.Join(dir, "key"), nil, 0o666); err != nil {
		t.Fatal(err)
	}
	inputs := maps.Clone(playedInputs)
	inputs["from"] = from
	environment := append(settings(of.job.Variables, inputs), "RELEASE_KEY=key",
		"CI_PROJECT_URL=https://gitlab.example/alice/node", "CI_JOB_URL=https://gitlab.example/alice/node/-/jobs/1", "CI_CONFIG_PATH=.gitlab-ci.yml", "CI_COMMIT_REF_NAME=v1")
	script := strings.ReplaceAll(strings.Join(of.job.Script, "\n"), "/usr/bin/", filepath.Join(dir, "root")+"/")
	calls := runPlayed(t, dir, script, environment...)
	for _, brought := range []string{".hullmark/source/.git/hooks/post-checkout", ".hullmark/bin/brought"} {
		if _, err := os.Stat(filepath.Join(dir, brought)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s was there before the job, and still is: %v", brought, err)
		}
	}
	return calls
}

// The template gives the flags first, too.
func TestTemplateGivesFlagsFirst(t *testing.T) {
	wantFlagsFirst(t, playTemplate(t, false, ""), "build", fixedBuildFlags...)
	wantFlagsFirst(t, playTemplate(t, false, "published"), "reproduce", fixedAgainFlags...)
}

// In a container root runs no file that builder could have changed, once builds have begun, and gives builder the key when it is wanted.
// An ordinary user does all by itself.
func TestTemplateRunsNothingOfBuilders(t *testing.T) {
	for from, verbs := range map[string][]string{
		"":          {"build", "chown", "sign", "sign", "verify", "publish"},
		"published": {"fetch", "verify", "chown", "reproduce", "publish"},
	} {
		for _, root := range []bool{true, false} {
			var order []string
			for _, call := range playTemplate(t, root, from) {
				words := strings.Fields(call)
				switch {
				case words[0] == "taken":
					t.Errorf("root %t, from %q: it ran %q, which builder wrote", root, from, words[1:])
				case root && words[0] == "setpriv":
					if order = append(order, words[2]); words[1] != ".hullmark/bin/hullmark" {
						t.Errorf("from %q: builder is to run %s", from, words[1])
					}
				case root && words[0] == "chown":
					if order = append(order, "chown"); call != "chown -h builder: key" {
						t.Errorf("from %q: it called %s", from, call)
					}
				case !root && words[0] == "hullmark":
					order = append(order, words[1])
				case words[0] == "setpriv" || words[0] == "chown":
					t.Errorf("from %q: an ordinary user called %s", from, call)
				}
			}
			want := slices.DeleteFunc(slices.Clone(verbs), func(verb string) bool { return verb == "chown" && !root })
			if !slices.Equal(order, want) {
				t.Errorf("root %t, from %q: it did %q, want %q", root, from, order, want)
			}
		}
	}
}

// Root becomes builder in one way, in setup and in the template's job.
func TestRootBecomesBuilderInOneWay(t *testing.T) {
	of := func(text string) string {
		_, after, found := strings.Cut(text, "setpriv ")
		if !found {
			t.Fatalf("no setpriv in\n%s", text)
		}
		line, _, _ := strings.Cut(after, "\n")
		return line
	}
	if one, two := of(readText(t, "../../tools/ci/setup")), of(readText(t, templateFile)); one != two {
		t.Errorf("setup becomes builder by setpriv %s, the template by setpriv %s", one, two)
	}
}
