package hullmark_test

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	// documentedTarget is a target that `make` lists.
	documentedTarget = regexp.MustCompile(`(?m)^([a-z-]+):.*## `)
	// testRow is a row of docs/tests.md: the target, what it shows, how long it takes, and whether CI runs it.
	testRow = regexp.MustCompile("(?m)^\\| `make ([a-z-]+)` \\|[^|]+\\|[^|]+\\|([^|]*)\\|$")
	// testRecipe are the targets that `make test` is made of.
	testRecipe = regexp.MustCompile(`(?m)^test: ([a-z -]+) ##`)
)

// The page on tests names every target of the Makefile and no other, and those that CI runs are those that `make test` is made of.
func TestPageOfTestsNamesTheTargets(t *testing.T) {
	page, err := os.ReadFile("docs/tests.md")
	if err != nil {
		t.Fatal(err)
	}
	makefile, err := os.ReadFile("Makefile")
	if err != nil {
		t.Fatal(err)
	}
	var targets []string
	for _, m := range documentedTarget.FindAllStringSubmatch(string(makefile), -1) {
		targets = append(targets, m[1])
	}
	named := map[string]int{}
	for _, m := range regexp.MustCompile("`make ([a-z-]+)").FindAllStringSubmatch(string(page), -1) {
		if named[m[1]]++; !slices.Contains(targets, m[1]) {
			t.Errorf("docs/tests.md names make %s, which the Makefile does not have", m[1])
		}
	}
	for _, target := range targets {
		if named[target] == 0 {
			t.Errorf("docs/tests.md does not name make %s", target)
		}
	}
	inCI := []string{"test"}
	recipe := testRecipe.FindStringSubmatch(string(makefile))
	if recipe == nil {
		t.Fatal("the Makefile does not say what make test is made of as this test reads it")
	}
	for _, target := range strings.Fields(recipe[1]) {
		if target != "setup-test" {
			inCI = append(inCI, target)
		}
	}
	var marked []string
	rows := testRow.FindAllStringSubmatch(string(page), -1)
	for _, m := range rows {
		if strings.TrimSpace(m[2]) == "yes" {
			marked = append(marked, m[1])
		}
	}
	if slices.Sort(inCI); len(rows) < 20 || !slices.Equal(slices.Sorted(slices.Values(marked)), inCI) {
		t.Errorf("docs/tests.md, of %d rows, marks %q as what CI runs, and make test is %q", len(rows), marked, inCI)
	}
}
