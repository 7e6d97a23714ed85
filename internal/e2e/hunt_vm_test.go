//go:build vm

package e2e

import (
	"crypto/rand"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hullmark/hullmark/internal/canary"
)

// hunt looks for the demo's keys wherever its machine, the commands and the cluster leave something. They are random, so that
// each find is one.
type hunt struct {
	bench   bench
	search  *canary.Search
	watch   *canary.Watch
	planted string
}

// beginHunt begins to look at the host's processes, and at what each command says from now on.
func (b bench) beginHunt(t *testing.T) *hunt {
	t.Helper()
	h := &hunt{bench: b, planted: rand.Text()}
	keys, _ := b.keys(t)
	keys["what was planted"] = []byte(h.planted)
	var err error
	if h.search, err = canary.New(keys); err != nil {
		t.Fatal(err)
	}
	h.watch = h.search.Watch()
	overhear = func(t *testing.T, what, said string) { h.report(t, h.search.Text(what, []byte(said))) }
	t.Cleanup(func() { overhear = nil })
	return h
}

func (h *hunt) report(t *testing.T, found []canary.Finding) {
	t.Helper()
	for _, f := range found {
		t.Errorf("%s", f)
	}
}

// objects looks in all objects that the API lists. What was planted in one is the only find.
func (h *hunt) objects(t *testing.T) {
	t.Helper()
	manifest := filepath.Join(t.TempDir(), "planted.yaml")
	text := "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: planted, namespace: default}\ndata: {key: " + h.planted + "}\n"
	if err := os.WriteFile(manifest, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	h.bench.kubectl(t, "apply", "-f", manifest)
	kinds := strings.Fields(h.bench.kubectl(t, "api-resources", "--verbs", "list", "-o", "name"))
	if len(kinds) < 40 || !slices.Contains(kinds, "secrets") {
		t.Errorf("the API has the kinds %v", kinds)
	}
	all, err := exec.CommandContext(t.Context(), filepath.Join(h.bench.out, "kubectl"), "--kubeconfig", h.bench.path("kubeconfig"),
		"get", strings.Join(kinds, ","), "--all-namespaces", "-o", "json", "--show-managed-fields").Output()
	if err != nil {
		t.Fatal(err)
	}
	found := h.search.Text("the API's objects", all)
	planted := func(f canary.Finding) bool { return f.Secret == "what was planted" }
	if !slices.ContainsFunc(found, planted) {
		t.Errorf("what was planted is not among %d bytes of objects", len(all))
	}
	h.report(t, slices.DeleteFunc(found, planted))
	t.Logf("%d kinds of objects, %d bytes", len(kinds), len(all))
}

// end looks at the host's processes and files: the machine's disks, TPM and console, the cluster file, the kubeconfig, the backup, logs.
func (h *hunt) end(t *testing.T) {
	found, seen := h.watch.End()
	h.report(t, found)
	for _, program := range []string{"hullmark", "kubectl", "swtpm", "qemu-system-x86_64"} {
		if !slices.ContainsFunc(slices.Collect(maps.Keys(seen)), func(called string) bool { return filepath.Base(called) == program }) {
			t.Errorf("%s was not seen among the processes %v", program, seen)
		}
	}
	keys, _ := h.bench.keys(t) // The disk is another one than at the beginning.
	search, err := canary.New(keys)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []*canary.Search{h.search, search} {
		h.files(t, s)
	}
}

func (h *hunt) files(t *testing.T, search *canary.Search) {
	t.Helper()
	found, err := search.Tree(h.bench.dir)
	if err != nil {
		t.Fatal(err)
	}
	mine := canary.Finding{Where: h.bench.path("passphrase"), Secret: "the passphrase", As: "as it is"}
	if !slices.Contains(found, mine) {
		t.Error("the passphrase is not where the demo put it")
	}
	h.report(t, slices.DeleteFunc(found, func(f canary.Finding) bool { return f == mine }))
}
