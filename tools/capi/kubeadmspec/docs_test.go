package kubeadmspec

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the tables of docs/cluster-api-kubeadm.md anew")

const (
	page       = "../../../docs/cluster-api-kubeadm.md"
	tableBegin = "<!-- The tables below are written by go test ./kubeadmspec -update in tools/capi. -->\n"
)

// TestDocs holds the tables of the page to the one that decides.
func TestDocs(t *testing.T) {
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	intro, tables, ok := strings.Cut(string(text), tableBegin)
	if !ok {
		t.Fatalf("%s: the mark of the tables is missing", page)
	}
	want := written()
	if *update {
		if err := os.WriteFile(page, []byte(intro+tableBegin+want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if tables != want {
		t.Errorf("%s: its tables are not those of the code: run go test ./kubeadmspec -run TestDocs -update in tools/capi", page)
	}
}

// sections are the page's, by the beginnings of their fields.
var sections = []struct{ title, begin string }{
	{"The control plane: `clusterConfiguration`", "clusterConfiguration"},
	{"The first node: `initConfiguration`", "initConfiguration"},
	{"Nodes that join: `joinConfiguration`", "joinConfiguration"},
	{"Files", "files"},
	{"The rest", ""},
}

func written() string {
	var out strings.Builder
	rest := Fields()
	for _, s := range sections {
		fmt.Fprintf(&out, "\n## %s\n\n| field | becomes | notes |\n|---|---|---|\n", s.title)
		for len(rest) > 0 && strings.HasPrefix(rest[0].Path, s.begin) {
			n := 1
			for n < len(rest) && strings.HasPrefix(rest[n].Path, s.begin) && becomes(rest[n]) == becomes(rest[0]) && notes(rest[n]) == notes(rest[0]) {
				n++
			}
			fmt.Fprintf(&out, "| %s | %s | %s |\n", names(rest[:n]), becomes(rest[0]), notes(rest[0]))
			rest = rest[n:]
		}
	}
	return out.String()
}

// parent is the object that a field is in.
func parent(path string) string { return path[:max(0, strings.LastIndex(path, "."))] }

// inSection is a field's path without what the section's title says.
func inSection(path string) string {
	for _, s := range sections[:3] {
		if rest, ok := strings.CutPrefix(path, s.begin+"."); ok {
			return rest
		}
	}
	return path
}

// names lists fields, those of an object together.
func names(group []Field) string {
	var out strings.Builder
	for i, f := range group {
		path := inSection(f.Path)
		above := parent(path)
		switch {
		case i > 0 && above == parent(inSection(group[i-1].Path)):
			fmt.Fprintf(&out, ", `%s`", lastName(path))
			continue
		case i > 0:
			out.WriteString("<br>")
		}
		if i+1 < len(group) && above != "" && above == parent(inSection(group[i+1].Path)) {
			fmt.Fprintf(&out, "`%s`: `%s`", above, lastName(path))
		} else {
			fmt.Fprintf(&out, "`%s`", path)
		}
	}
	return out.String()
}

// becomes is where a field is found again.
func becomes(f Field) string {
	kind, where, _ := strings.Cut(f.Where, ".")
	path := inSection(f.Path)
	switch {
	case f.Where == "" && f.open:
		return "see its fields"
	case f.Where == "":
		return "refused"
	case where == path:
		return "the same field of `" + kind + "`"
	case lastName(where) == lastName(path) && parent(where) != "" || parent(where) == parent(path) && kind != "pool":
		return "`" + kind + "." + parent(where) + "`"
	}
	return "`" + f.Where + "`"
}

func notes(f Field) string {
	notes := []string{f.Why}
	if f.Workers != "" {
		notes = append(notes, "Refused for workers. "+f.Workers)
	}
	for _, value := range f.Same {
		text, err := json.Marshal(value)
		if err != nil {
			panic(err) // They are constants.
		}
		notes = append(notes, "`"+strings.Trim(string(text), `"`)+"` is taken.")
	}
	return strings.TrimSpace(strings.Join(notes, " "))
}
