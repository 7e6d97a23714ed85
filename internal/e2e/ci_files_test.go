package e2e

import (
	"maps"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

type (
	// action is what GitHub reads of action.yml.
	action struct {
		Name, Description string
		Inputs            map[string]ciInput
		Outputs           map[string]struct{ Description, Value string }
		Runs              struct {
			Using string
			Steps []actionStep
		}
	}
	actionStep struct {
		ID, Name, If, Uses, Shell, Run string
		Env                            map[string]string
	}

	// template is what GitLab reads of templates/hullmark.yml: a head, and one job.
	template struct {
		inputs map[string]ciInput
		job    templateJob
	}
	// ciInput is one that has to be given if it has no default. GitHub wants that said once more, by required.
	ciInput struct {
		Description, Regex string
		Default            *string
		Required           bool
	}
	templateJob struct {
		Stage, Image, Timeout string
		Rules                 []map[string]string
		Variables             map[string]string
		Cache                 any
		Script                []string
		Artifacts             struct{ Paths []string }
	}
)

const (
	actionFile   = "../../action.yml"
	templateFile = "../../templates/hullmark.yml"
	ciPage       = "../../docs/ci.md"
)

func readAction(t *testing.T) action {
	t.Helper()
	var a action
	if err := yaml.UnmarshalStrict([]byte(readText(t, actionFile)), &a); err != nil {
		t.Fatalf("%s: %v", actionFile, err)
	}
	if a.Runs.Using != "composite" || len(a.Runs.Steps) == 0 {
		t.Fatalf("%s: using %q, %d steps", actionFile, a.Runs.Using, len(a.Runs.Steps))
	}
	return a
}

func readTemplate(t *testing.T) template {
	t.Helper()
	var head struct {
		Spec struct{ Inputs map[string]ciInput }
	}
	var jobs map[string]templateJob
	first, second, _ := strings.Cut(readText(t, templateFile), "\n---\n")
	for part, into := range map[string]any{first: &head, second: &jobs} {
		if err := yaml.UnmarshalStrict([]byte(part), into); err != nil {
			t.Fatalf("%s: %v", templateFile, err)
		}
	}
	job, ok := jobs["$[[ inputs.job ]]"]
	if !ok || len(jobs) != 1 {
		t.Fatalf("%s: it has the jobs %q", templateFile, slices.Sorted(maps.Keys(jobs)))
	}
	return template{head.Spec.Inputs, job}
}

func readText(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

var (
	inputWord = regexp.MustCompile(`\binputs\.([a-z-]+)`)
	// pinned is an action at a commit: a tag or a branch is whatever its owner has it be tomorrow.
	pinned = regexp.MustCompile(`^[\w.-]+/[\w.-]+@[0-9a-f]{40}$`)
)

// wantInputs holds the inputs that a file has to those that it uses, and to the page.
func wantInputs(t *testing.T, file string, inputs map[string]ciInput) {
	t.Helper()
	used, page := map[string]bool{}, readText(t, ciPage)
	for _, m := range inputWord.FindAllStringSubmatch(readText(t, file), -1) {
		if used[m[1]] = true; inputs[m[1]].Description == "" {
			t.Errorf("%s uses the input %s, which it has not, or does not describe", file, m[1])
		}
	}
	for name := range inputs {
		if !used[name] {
			t.Errorf("%s does not use its input %s", file, name)
		}
		if !regexp.MustCompile("(?m)^\\| (`[a-z-]+`, )*`" + name + "`[ ,]").MatchString(page) {
			t.Errorf("docs/ci.md has no row for the input %s", name)
		}
	}
}

// wantScript holds a script to what all of them keep: it ends at the first failure, is bash's, and no text of others becomes a part of it.
func wantScript(t *testing.T, name, script string) {
	t.Helper()
	if !strings.HasPrefix(script, "set -euo pipefail\n") {
		t.Errorf("%s: it does not begin with set -euo pipefail", name)
	}
	if strings.Contains(script, "${{") || strings.Contains(script, "$[[") {
		t.Errorf("%s: an input stands in the script, where it can be anything: hand it on in the environment", name)
	}
	cmd := exec.CommandContext(t.Context(), "bash", "-n")
	cmd.Stdin = strings.NewReader(script)
	if said, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%s: %v\n%s", name, err, said)
	}
}

// The Action is what its page says, uses no other, which might bring something of another job, and hands nothing of others to a shell.
func TestActionKeepsTheRules(t *testing.T) {
	a := readAction(t)
	wantInputs(t, actionFile, a.Inputs)
	for name, input := range a.Inputs {
		if input.Required == (input.Default != nil) {
			t.Errorf("the input %s has to be given: %t; it has a default: %t", name, input.Required, input.Default != nil)
		}
	}
	for _, s := range a.Runs.Steps {
		if s.Uses != "" {
			t.Errorf("%s uses %s: want no other action", s.Name, s.Uses)
		}
		if s.Shell != "bash" || s.Name == "" {
			t.Errorf("step %q: its shell is %q", s.Name, s.Shell)
		}
		wantScript(t, s.Name, s.Run)
	}
}

// One step of the Action is given the key, and starts no program, which would have it in its environment.
func TestActionGivesTheKeyToOneStep(t *testing.T) {
	var given []actionStep
	for _, s := range readAction(t).Runs.Steps {
		if slices.ContainsFunc(slices.Collect(maps.Values(s.Env)), func(v string) bool { return strings.Contains(v, "inputs.key") }) {
			given = append(given, s)
		}
	}
	if len(given) != 1 {
		t.Fatalf("%d steps are given the key, want one", len(given))
	}
	for line := range strings.Lines(given[0].Run) {
		word, _, _ := strings.Cut(strings.TrimSpace(line), " ")
		if !slices.Contains([]string{"set", "umask", "printf"}, word) || strings.ContainsAny(line, "|&;`") || strings.Contains(line, "$(") {
			t.Errorf("%s: it may start a program: %s", given[0].Name, line)
		}
	}
}

// The template is what its page says, has no cache, which other jobs could write, and hands nothing of others to a shell.
func TestTemplateKeepsTheRules(t *testing.T) {
	of := readTemplate(t)
	wantInputs(t, templateFile, of.inputs)
	wantScript(t, templateFile, strings.Join(of.job.Script, "\n"))
	if of.job.Cache != nil {
		t.Errorf("it has the cache %v: want none", of.job.Cache)
	}
	for name := range of.job.Variables {
		if !strings.HasPrefix(name, "HULLMARK_") { // The project's variables come before the job's.
			t.Errorf("the variable %s may be one of the project's", name)
		}
	}
}

// Action and template are told the same of a release, by the same names.
func TestActionAndTemplateAgree(t *testing.T) {
	ofAction, ofTemplate := readAction(t).Inputs, readTemplate(t).inputs
	for _, name := range []string{"commit", "repository", "image", "job", "stage"} {
		if _, ok := ofTemplate[name]; !ok {
			t.Errorf("the template has no input %s, and docs/ci.md says that it has", name)
		}
		delete(ofTemplate, name)
	}
	delete(ofAction, "key") // on GitLab a variable
	if names := slices.Sorted(maps.Keys(ofAction)); !slices.Equal(names, slices.Sorted(maps.Keys(ofTemplate))) {
		t.Fatalf("the Action has the inputs %q, the template %q", names, slices.Sorted(maps.Keys(ofTemplate)))
	}
	for name, a := range ofAction {
		b := ofTemplate[name]
		if a.Description != b.Description || (a.Default == nil) != (b.Default == nil) || a.Default != nil && *a.Default != *b.Default {
			t.Errorf("of the input %s Action and template say something else", name)
		}
	}
}

// settings are what the values of inputs make of an environment of action.yml or of the template; all else in it is "own".
func settings(environment, inputs map[string]string) (all []string) {
	for name, value := range environment {
		is := "own"
		if m := inputWord.FindStringSubmatch(value); m != nil {
			is = inputs[m[1]]
		}
		all = append(all, name+"="+is)
	}
	return all
}

// Both stop before they do anything where an input is empty, or names a place where nothing can be published, and say which; else they
// go on.
func TestInputsAreRefusedFirst(t *testing.T) {
	first, of := readAction(t).Runs.Steps[0], readTemplate(t)
	if first.If != "" {
		t.Errorf("the first step is left out unless %s", first.If)
	}
	for _, c := range []struct{ input, value, from, says string }{
		{"config", "", "", "config is empty"},
		{"lock", "", "", "lock is empty"},
		{"image-id", "", "", "image-id is empty"},
		{"public-key", "", "", "public-key is empty"},
		{"to", "", "", "to is empty"},
		{"to", "", "published", "to is empty"},
		{"to", "https://releases.example", "", "to is neither a folder nor oci://"},
		{"to", "http://releases.example", "", "to is neither a folder nor oci://"},
		{"to", "oci://registry.example/node:spring", "published", "to is no folder"},
		{"to", "https://releases.example", "published", "to is no folder"},
		{"to", "releases", "", ""},
		{"to", "/srv/releases", "", ""},
		{"to", "oci://registry.example/node:spring", "", ""},
		{"to", "releases", "https://releases.example", ""},
	} {
		inputs := map[string]string{"config": "node", "lock": "node/hullmark.lock", "image-id": "node", "public-key": "release.pub", "from": c.from, "to": "releases"}
		inputs[c.input] = c.value
		for file, script := range map[string]struct {
			text, goesOn string
			environment  map[string]string
		}{
			actionFile:   {first.Run, "", first.Env},
			templateFile: {of.job.Script[0], "RELEASE_KEY is no file", of.job.Variables},
		} {
			cmd := exec.CommandContext(t.Context(), "bash", "-c", script.text)
			cmd.Dir = t.TempDir()
			cmd.Env = append([]string{"PATH=" + os.Getenv("PATH")}, settings(script.environment, inputs)...)
			said, err := cmd.CombinedOutput()
			stops, want := c.says != "" || script.goesOn != "", script.goesOn
			if c.says != "" {
				want = "the input " + c.says
			}
			if (err != nil) != stops || !strings.Contains(string(said), want) || want == "" && len(said) > 0 {
				t.Errorf("%s, %s %q, from %q: %v, want %q\n%s", file, c.input, c.value, c.from, err, want, said)
			}
			if left, err := os.ReadDir(cmd.Dir); err != nil || len(left) > 0 {
				t.Errorf("%s, %s %q, from %q: it left %v, %v", file, c.input, c.value, c.from, left, err)
			}
		}
	}
}

// ciBlock is where docs/ci.md shows the Action or the template in use.
var ciBlock = regexp.MustCompile("(?ms)^```yaml (action|attest|template)\n(.*?)^```$")

// What the page shows of both gives inputs that there are, all that have to be given, and uses no action that may change.
func TestCIPageUsesWhatExists(t *testing.T) {
	page := readText(t, ciPage)
	for _, m := range regexp.MustCompile(`uses: (\S+)`).FindAllStringSubmatch(page, -1) {
		if m[1] != "hullmark/hullmark@COMMIT" && !pinned.MatchString(m[1]) {
			t.Errorf("docs/ci.md uses %s: want a commit of 40 digits", m[1])
		}
	}
	blocks := ciBlock.FindAllStringSubmatch(page, -1)
	if len(blocks) != 3 {
		t.Fatalf("docs/ci.md shows Action and template %d times, want 3", len(blocks))
	}
	for _, block := range blocks {
		if block[1] == "template" {
			wantGiven(t, block[2], "inputs:", readTemplate(t).inputs)
			continue
		}
		wantGiven(t, block[2], "uses: hullmark/hullmark@COMMIT", readAction(t).Inputs)
	}
}

// wantGiven holds the inputs that a block of the page gives after a word to those that there are.
func wantGiven(t *testing.T, block, after string, inputs map[string]ciInput) {
	t.Helper()
	_, given, found := strings.Cut(block, after)
	if !found {
		t.Fatalf("docs/ci.md: no %q in\n%s", after, block)
	}
	given, _, _ = strings.Cut(given, "- uses:")
	names := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^ +([a-z-]+): \S`).FindAllStringSubmatch(given, -1) {
		if names[m[1]] = true; inputs[m[1]].Description == "" {
			t.Errorf("docs/ci.md gives %s, and there is no such input", m[1])
		}
	}
	for name, input := range inputs {
		if input.Default == nil && !names[name] {
			t.Errorf("docs/ci.md does not give %s, which has to be given, in\n%s", name, block)
		}
	}
}
