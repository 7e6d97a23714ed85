//go:build builds

package e2e

import (
	"cmp"
	"errors"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	// githubExpression is what GitHub puts a value for, and gitlabInput what GitLab does.
	githubExpression = regexp.MustCompile(`\$\{\{ (.*?) \}\}`)
	gitlabInput      = regexp.MustCompile(`\$\[\[ inputs\.([a-z-]+) \]\]`)
	// githubCondition is the one form of a condition that action.yml has.
	githubCondition = regexp.MustCompile(`^(inputs\.[a-z-]+) (==|!=) ''$`)
)

// given returns the inputs, and of those that are not given the defaults.
func given(t *testing.T, known map[string]ciInput, inputs map[string]string) map[string]string {
	t.Helper()
	all := map[string]string{}
	for name, input := range known {
		value, ok := inputs[name]
		if !ok && input.Default == nil {
			t.Fatalf("the input %s is missing", name)
		}
		if all[name] = value; !ok {
			all[name] = *input.Default
		}
	}
	return all
}

// githubRun runs the Action's steps as GitHub's runner does, in a machine where its user may do all that an ordinary user may.
type githubRun struct {
	ciJob
	// values are what expressions stand for, and programs the folders that a step put before PATH.
	values   map[string]string
	programs []string
}

// expand puts values for expressions; of several with || between, the first that is not empty.
func (r *githubRun) expand(t *testing.T, text string) string {
	t.Helper()
	return githubExpression.ReplaceAllStringFunc(text, func(whole string) (value string) {
		for _, name := range strings.Split(githubExpression.FindStringSubmatch(whole)[1], " || ") {
			of, known := r.values[name]
			if !known && !strings.HasPrefix(name, "steps.") { // of a step that was left out
				t.Fatalf("what is %s?", whole)
			}
			value = cmp.Or(value, of)
		}
		return value
	})
}

// left tells whether a step is left out.
func (r *githubRun) left(t *testing.T, condition string) bool {
	t.Helper()
	if condition == "" {
		return false
	}
	m := githubCondition.FindStringSubmatch(condition)
	if m == nil {
		t.Fatalf("what is the condition %s?", condition)
	}
	return (r.values[m[1]] == "") != (m[2] == "==")
}

// github runs the Action with inputs, and returns its output.
func (j ciJob) github(t *testing.T, inputs map[string]string) (signed string) {
	t.Helper()
	a := readAction(t)
	inputs["key"] = j.private
	r := githubRun{ciJob: j, values: map[string]string{
		"runner.temp": jobFolder + "/temp", "github.action_path": "/home/action",
	}}
	for name, value := range given(t, a.Inputs, inputs) {
		r.values["inputs."+name] = value
	}
	first := &a.Runs.Steps[0]
	first.Run = packages(jobFolder+"/temp/hullmark/cache") + first.Run
	for _, s := range a.Runs.Steps {
		if !r.left(t, s.If) {
			r.step(t, s)
		}
	}
	return r.expand(t, a.Outputs["signed"].Value)
}

// step runs a step, and takes from its files what later ones are given.
func (r *githubRun) step(t *testing.T, s actionStep) {
	t.Helper()
	environment := fetched()
	maps.Copy(environment, map[string]string{
		"HOME": jobFolder + "/home", "CI": "true", "GITHUB_ACTIONS": "true",
		"GITHUB_SERVER_URL": "https://github.com", "GITHUB_REPOSITORY": "alice/node", "GITHUB_RUN_ID": "1", "GITHUB_RUN_ATTEMPT": "1",
		"GITHUB_WORKFLOW_REF": "alice/node/.github/workflows/release.yml@refs/tags/v1", "GITHUB_REF_NAME": "v1",
		"GITHUB_WORKSPACE": jobFolder + "/" + project, "GITHUB_ACTION_PATH": "/home/action", "RUNNER_TEMP": jobFolder + "/temp",
	})
	environment["PATH"] = strings.Join(append(slices.Clone(r.programs), environment["PATH"]), ":")
	files := []string{"GITHUB_ENV", "GITHUB_OUTPUT", "GITHUB_PATH", "GITHUB_STEP_SUMMARY"}
	for _, name := range files {
		r.write(t, "steps/"+name, "", 0o644)
		environment[name] = jobFolder + "/steps/" + name
	}
	var may []string
	for name, value := range s.Env {
		if environment[name] = r.expand(t, value); environment[name] == r.private {
			may = []string{"the environment of setpriv", "the environment of bash"} // which is how the runner hands it to the step
		}
	}
	r.run(t, s.Name, "bash --noprofile --norc -eo pipefail", s.Run, environment, may...)
	if len(may) > 0 {
		if info, err := os.Stat(r.path("temp/hullmark/release.key")); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("the key's file: %v, %v", info, err)
		}
	}
	for _, name := range files {
		for line := range strings.Lines(readText(t, r.path("steps/"+name))) {
			line = strings.TrimSuffix(line, "\n")
			key, value, assigns := strings.Cut(line, "=")
			switch {
			case name == "GITHUB_PATH":
				r.programs = append([]string{line}, r.programs...)
			case name == "GITHUB_OUTPUT" && assigns:
				r.values["steps."+s.ID+".outputs."+key] = value
			default:
				t.Errorf("%s: it wrote %q to %s", s.Name, line, name)
			}
		}
	}
}

// gitlab runs the template's job as GitLab's runner does: as an ordinary user of a machine, or in a container, where that is root and a new
// file is everybody's.
func (j ciJob) gitlab(t *testing.T, inputs map[string]string) {
	t.Helper()
	of := readTemplate(t)
	commit, err := exec.CommandContext(t.Context(), "git", "rev-parse", "HEAD").Output()
	if err != nil {
		t.Fatal(err)
	}
	inputs["commit"], inputs["repository"] = strings.TrimSpace(string(commit)), "file:///home/source"
	inputs = given(t, of.inputs, inputs)
	fill := func(text string) string {
		return gitlabInput.ReplaceAllStringFunc(text, func(m string) string { return inputs[gitlabInput.FindStringSubmatch(m)[1]] })
	}
	const key = "project.tmp/RELEASE_KEY"
	j.write(t, key, j.private, 0o666)
	environment := fetched()
	maps.Copy(environment, map[string]string{
		"HOME": jobFolder + "/home", "CI": "true", "GITLAB_CI": "true",
		"CI_PROJECT_DIR": jobFolder + "/" + project, "CI_PROJECT_URL": "https://gitlab.example/alice/node", "CI_JOB_URL": "https://gitlab.example/alice/node/-/jobs/1",
		"CI_CONFIG_PATH": ".gitlab-ci.yml", "CI_COMMIT_REF_NAME": "v1", "CI_COMMIT_TAG": "v1", "RELEASE_KEY": jobFolder + "/" + key,
	})
	own := map[string]string{}
	for name, value := range of.job.Variables {
		own[name] = os.Expand(fill(value), func(name string) string { return environment[name] })
	}
	maps.Copy(environment, own)
	script := slices.Insert(slices.Clone(of.job.Script), 1, packages(".hullmark/cache")) // after what was there is removed
	umask := ""
	if j.user == "root" {
		umask, environment["HOME"] = "umask 0000\n", "/root"
	}
	j.run(t, "the template's script", "bash", umask+"set -eo pipefail\nset +o noclobber\n"+fill(strings.Join(script, "\n")), environment)
	info, err := os.Stat(j.path(key))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the key's file: %v, %v", info, err)
	}
	if err := os.Remove(j.path(key)); err != nil { // as the runner does
		t.Fatal(err)
	}
}

// Who runs the steps of a job, and what root may do there.
var (
	ordinary   = [2]string{"runner", ""}
	dockerRoot = [2]string{"root", dockerRights}
)

// twoBuilders has a job release an image, and another builder's job build that again and sign it, too; work is the folder of either, in the
// job's. What they publish is what hullmark verify accepts, by one key, and then by both.
func twoBuilders(t *testing.T, first, second [2]string, work string, run func(j ciJob, inputs map[string]string)) {
	t.Helper()
	inputs := func(name, value string) map[string]string {
		return map[string]string{
			"config": definitions, "lock": definitions + "/hullmark.lock", "image-id": "node", "public-key": "release.pub", "svn": "2",
			"flags": "--without-kubernetes", name: value,
		}
	}
	alice, alices := newJob(t, first[0], first[1], "")
	run(alice, inputs("release", "spring"))
	alice.ended(t, work+"/out")
	bob, bobs := newJob(t, second[0], second[1], alices)
	bob.write(t, "published/node.dsse", readText(t, alice.path(project+"/releases/node.dsse")), 0o644)
	run(bob, inputs("from", jobFolder+"/published"))
	bob.ended(t, work+"/out")

	bob.write(t, "bob.pub", bobs, 0o644)
	one, two := "alice="+alice.path(project+"/release.pub"), "bob="+bob.path("bob.pub")
	dir := t.TempDir()
	file := func(name string) string { return filepath.Join(dir, name) }
	files := []string{"--image", file("node.raw"), "--sbom", file("node.spdx.json"), "--cyclonedx", file("node.cdx.json"), "--provenance", file("node.provenance.dsse")}
	for _, c := range []struct {
		code int
		says string
		args []string
	}{
		{0, "security version 2", append([]string{"fetch", "node", "--from", alice.path(project + "/releases"), "--key", alice.path(project + "/release.pub"), "--out", file("node.dsse")}, files...)},
		{0, "release spring, security version 2", append([]string{"verify", file("node.dsse"), "--key", one}, files...)},
		{4, "", []string{"verify", file("node.dsse"), "--key", one, "--key", two}},
		{0, "security version 2", []string{"fetch", "node", "--from", bob.path(project + "/releases"), "--key", alice.path(project + "/release.pub"), "--out", file("both.dsse")}},
		{0, "release spring, security version 2", []string{"verify", file("both.dsse"), "--key", one, "--key", two, "--threshold", "2"}},
	} {
		said, err := exec.CommandContext(t.Context(), alice.path(work+"/bin/hullmark"), c.args...).CombinedOutput()
		var failed *exec.ExitError
		code := 0
		if errors.As(err, &failed) {
			code = failed.ExitCode()
		} else if err != nil {
			t.Fatal(err)
		}
		if code != c.code || !strings.Contains(string(said), c.says) {
			t.Fatalf("hullmark %q: exit code %d, want %d and %q\n%s", c.args, code, c.code, c.says, said)
		}
	}
}

// The steps of action.yml, in their order and with what GitHub gives them, make a release; once more, with from, they build it again and
// sign it, too. An ordinary user runs them. Kubernetes is left out; packages, Go modules and compiled objects are the machine's.
func TestActionSteps(t *testing.T) {
	twoBuilders(t, ordinary, ordinary, "temp/hullmark", func(j ciJob, inputs map[string]string) {
		want := "node.dsse"
		if inputs["from"] != "" {
			want = "node.attestation.dsse"
		}
		if signed := j.github(t, inputs); signed != jobFolder+"/temp/hullmark/out/"+want {
			t.Errorf("the Action says that it signed %q, want %s", signed, want)
		}
	})
}

// So does the job of templates/hullmark.yml, run by an ordinary user, and then by root of a container, which makes one.
func TestTemplateSteps(t *testing.T) {
	twoBuilders(t, ordinary, dockerRoot, project+"/.hullmark", func(j ciJob, inputs map[string]string) { j.gitlab(t, inputs) })
}
