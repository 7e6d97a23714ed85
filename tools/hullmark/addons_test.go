package main

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/hullmark/hullmark/cluster/addons"
)

// What cannot be right is told before the API server is asked, and one that is not there has its own exit code.
func TestAddonsRefuse(t *testing.T) {
	s := newSite(t)
	s.write(t, "prod.yaml", []byte("schema: hullmark.cluster/v1\naddons: [{name: flannel}]\n"))
	flags := []string{"--cluster", s.path("cluster"), "--passphrase-file", s.path("passphrase")}
	for _, test := range []struct {
		args string
		code int
		says string
	}{
		{"plan -o yaml", exitUsage, "want text or json"},
		{"apply --timeout -1s", exitUsage, "not negative"},
		{"rollback --server nowhere", exitUsage, "want HOST:PORT"},
		{"plan", exitUsage, "--server"},
		{"plan " + s.path("none.yaml"), exitFailed, "no such file"},
		{"plan " + s.path("prod.yaml"), exitFailed, "prod.yaml: cluster document: "},
		{"plan --server 127.0.0.1:1 --wait 0s " + filepath.Join(renderFolder, "small.yaml"), exitDenied, "of another cluster: its clusterRoot is " + smallRoot},
		{"plan --server 127.0.0.1:1 --wait 0s", exitUnreachable, "the API server is not reached at https://127.0.0.1:1"},
		{"apply --server 127.0.0.1:1 --wait 0s", exitUnreachable, "the API server is not reached"},
		{"rollback --server 127.0.0.1:1 --wait 0s", exitUnreachable, "the API server is not reached"},
	} {
		code, output := hullmarkCLI(t, append(append([]string{"addons"}, strings.Fields(test.args)...), flags...)...)
		wantExit(t, code, test.code, output, test.says)
		if strings.Contains(output, "nothing is unfinished") {
			t.Errorf("%s: it speaks of a cluster that it did not reach:\n%s", test.args, output)
		}
	}
}

// Whatever somebody put into the cluster's objects, nothing of it moves the cursor.
func TestPlanIsPrintable(t *testing.T) {
	var o addonsOptions
	var out strings.Builder
	plan := &addons.Plan{Addons: []addons.AddonPlan{{
		Name: "demo", Next: "demo-1", Changes: true, Problems: []string{"bad \x1b[2J"},
		Definitions: []addons.DefinitionPlan{{Name: "widgets", Change: "changed", Now: "v1 (stored)", Next: "v2 (stored)", Objects: 3}},
		Objects:     []addons.ObjectPlan{{Name: addons.Name{Kind: "ConfigMap", Namespace: "n", Name: "a"}, Change: "created", Note: "why"}},
		Hooks:       []addons.HookPlan{{Name: addons.Name{Kind: "Job", Name: "h"}, At: "pre-upgrade"}},
	}}, Saved: addons.SavedPlan{Definitions: 2, CustomResources: map[string]int64{"widgets": 3}, Unread: map[string]string{"gadgets": "down"}}}
	if err := o.writePlan(&out, plan); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"demo: new, demo-1", "changed  definition widgets: v1 (stored) -> v2 (stored); 3 objects", "created  ConfigMap n/a (why)", "hook     Job h (pre-upgrade)", "problem  bad [2J",
		"saved before: 2 definitions", "3 objects of widgets", "not those of gadgets, which cannot be read: down",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the plan does not say %q:\n%s", want, out.String())
		}
	}
	if strings.Contains(out.String(), "\x1b") {
		t.Error("an escape character reaches the terminal")
	}
}
