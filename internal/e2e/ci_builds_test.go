//go:build builds

package e2e

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
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

// The pipeline of docs/ci.md, from a clean clone, by an ordinary user of a container. Packages, Go modules, the tools tree and
// compiled objects are those that the machine has; root tree and image are made anew. Two things are shortened: the Kubernetes
// bundle is left out, and so is reproduce, which takes half an hour and has tests of its own.
func TestCIRecipe(t *testing.T) {
	command, variables := recipe(t)
	_, private, _ := releaseKey(t)
	settings := map[string]string{
		"RELEASE_KEY": private, "BUILD_FLAGS": "--without-kubernetes", "REPRODUCE": "no", "RIGHTS": dockerRights, "HULLMARK_CACHE": "/home/cache",
	}
	for name, value := range variables {
		if _, set := settings[name]; !set {
			settings[name] = regexp.MustCompile(`\$\{\{.*?\}\}`).ReplaceAllString(value, "test")
		}
	}
	out := contained(t, command, settings)
	t.Logf("%s", out)
	for _, want := range []string{"signature   by the key in out/release.pub", "is the signed disk, byte for byte", "by " + settings["BUILDER_ID"], "published in " + variables["PUBLISH_TO"]} {
		if !strings.Contains(out, want) {
			t.Errorf("it did not say %q", want)
		}
	}
}
