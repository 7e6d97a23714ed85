package hullmark_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/internal/site"
)

// TestDocsLinksLead makes the site of all pages, which refuses links, anchors and pictures that lead nowhere, and a page that its
// navigation does not name.
func TestDocsLinksLead(t *testing.T) {
	if _, err := site.Build(os.DirFS("."), site.Groups()); err != nil {
		t.Error(err)
	}
}

func docsPages(t *testing.T) []string {
	t.Helper()
	pages, err := filepath.Glob("docs/*.md")
	if err != nil || len(pages) == 0 {
		t.Fatalf("no docs: %v", err)
	}
	return append(pages, "README.md")
}

var networkFence = regexp.MustCompile("(?ms)^```json network\n(.*?)^```$")

// Each example of the page on a node's network is a part of a configuration that nodes accept.
func TestNetworkPage(t *testing.T) {
	text, err := os.ReadFile("docs/node-network.md")
	if err != nil {
		t.Fatal(err)
	}
	examples := networkFence.FindAllStringSubmatch(string(text), -1)
	if len(examples) < 7 {
		t.Fatalf("%d examples were found", len(examples))
	}
	for _, example := range examples {
		whole := strings.Replace(example[1], "{", `{"version":1,"clusterRoot":"`+strings.Repeat("5f2b9c1d", 8)+`","stateDisk":{"serial":"state"},`, 1)
		if _, err := hullmark.ParseNodeConfig([]byte(whole)); err != nil {
			t.Errorf("%v:\n%s", err, example[1])
		}
	}
}

var (
	// fence is a block of any language; it may be a part of a list.
	fence    = regexp.MustCompile("(?ms)^ *```([^\n]*)\n(.*?)^ *```$")
	makeWord = regexp.MustCompile(`(?m)^ *(?:\$ )?make ([a-z-]+)$`)
	// A verb is all lower-case words that follow: "policy add member". One that is an argument does no harm to --help.
	verbWord = regexp.MustCompile(`(?m)(?:bin/|^ *(?:\$ )?)hullmark ([a-z][a-z-]*(?: [a-z][a-z-]*)*)\b([^\n]*)`)
	flagWord = regexp.MustCompile(` (--[a-z-]+)`)
	// commandFirst is the beginning of a block without a language that has commands; others are files, or what is printed.
	commandFirst = regexp.MustCompile(`^ *(?:\$ )?(?:bin/)?hullmark `)
)

// hasCommands tells whether a block of a page has commands.
func hasCommands(language, text string) bool {
	kind, _, _ := strings.Cut(language, " ")
	return kind == "sh" || kind == "console" || kind == "" && commandFirst.MatchString(text)
}

// TestDocsNameWhatExists checks that each command of README, CONTRIBUTING and docs names a verb with such flags, or a make target.
// `make test-docs` runs those of the journeys.
func TestDocsNameWhatExists(t *testing.T) {
	makefile, err := os.ReadFile("Makefile")
	if err != nil {
		t.Fatal(err)
	}
	hullmark := filepath.Join(t.TempDir(), "hullmark")
	if out, err := exec.Command("go", "build", "-o", hullmark, "./tools/hullmark").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	help, commands := verbHelp(hullmark), 0
	for _, page := range append(docsPages(t), "CONTRIBUTING.md") {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, block := range fence.FindAllStringSubmatch(string(text), -1) {
			if !hasCommands(block[1], block[2]) {
				continue
			}
			for _, m := range makeWord.FindAllStringSubmatch(block[2], -1) {
				if !strings.Contains(string(makefile), "\n"+m[1]+":") {
					t.Errorf("%s: the Makefile has no target %s", page, m[1])
				}
			}
			for _, m := range verbWord.FindAllStringSubmatch(block[2], -1) {
				commands++
				checkVerb(t, page, help, m[1], m[2])
			}
		}
	}
	if commands < 200 {
		t.Errorf("only %d commands were found", commands)
	}
}

// GitLab asks of whoever reports or changes something what GitHub asks, and both name the pages that say more.
func TestTemplatesAsk(t *testing.T) {
	for github, gitlab := range map[string]string{
		".github/ISSUE_TEMPLATE/report.md": ".gitlab/issue_templates/Default.md",
		".github/pull_request_template.md": ".gitlab/merge_request_templates/Default.md",
	} {
		one, err := os.ReadFile(github)
		if err != nil {
			t.Fatal(err)
		}
		other, err := os.ReadFile(gitlab)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.HasSuffix(string(one), string(other)) {
			t.Errorf("%s does not end as %s does", github, gitlab)
		}
		for _, page := range []string{"CONTRIBUTING.md", "SECURITY.md"} {
			if !strings.Contains(string(other), page) {
				t.Errorf("%s does not name %s", gitlab, page)
			}
		}
	}
}

// schemaName is the name of a form of ours, with its version.
var schemaName = regexp.MustCompile(`"(hullmark\.[a-z-]+/v[0-9]+)"`)

// Each form of ours that has a name and a version is on the page of what outlives a run.
func TestCompatibilityNamesTheSchemas(t *testing.T) {
	page, err := os.ReadFile("docs/compatibility.md")
	if err != nil {
		t.Fatal(err)
	}
	_, files := parseFiles(t, func(string) bool { return false })
	found := map[string]bool{}
	for path := range files {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range schemaName.FindAllSubmatch(text, -1) {
			if found[string(m[1])] = true; !strings.Contains(string(page), "`"+string(m[1])+"`") {
				t.Errorf("docs/compatibility.md does not name %s of %s", m[1], path)
			}
		}
	}
	if len(found) < 15 {
		t.Errorf("only %d names were found", len(found))
	}
}

// verbHelp returns what the program says of a verb, empty where it fails; it asks once for each.
func verbHelp(hullmark string) func(verb string) string {
	said := map[string]string{}
	return func(verb string) string {
		help, asked := said[verb]
		if !asked {
			out, err := exec.Command(hullmark, append(strings.Fields(verb), "--help")...).Output()
			if err == nil {
				help = string(out)
			}
			said[verb] = help
		}
		return help
	}
}

func checkVerb(t *testing.T, page string, helpOf func(verb string) string, verb, rest string) {
	t.Helper()
	help := helpOf(verb)
	if !strings.Contains(help, "hullmark "+strings.Fields(verb)[0]) {
		t.Errorf("%s: hullmark %s: no such verb", page, verb)
	}
	// Only a command with verbs of its own can have an unknown one; of others the word is an argument.
	if strings.Contains(help, "Available Commands:") && !strings.Contains(help, "hullmark "+verb) {
		t.Errorf("%s: hullmark %s: no such verb", page, verb)
	}
	for _, flag := range flagWord.FindAllStringSubmatch(rest, -1) {
		if !strings.Contains(help, flag[1]+" ") {
			t.Errorf("%s: hullmark %s has no flag %s", page, verb, flag[1])
		}
	}
}

// walkWord is a file of ours, and what it declares.
var walkWord = regexp.MustCompile("`([a-z0-9_/]+\\.go)`((?:,? ?`[A-Za-z.]+`)+)")

// The page on the architecture walks through files and functions that there are.
func TestArchitectureNamesWhatExists(t *testing.T) {
	text, err := os.ReadFile("docs/architecture.md")
	if err != nil {
		t.Fatal(err)
	}
	found := walkWord.FindAllStringSubmatch(string(text), -1)
	if len(found) < 20 {
		t.Fatalf("only %d steps were found: the page is written otherwise than this test reads it", len(found))
	}
	for _, m := range found {
		declared := declaredIn(t, m[1])
		for _, name := range strings.FieldsFunc(m[2], func(r rune) bool { return strings.ContainsRune("`, ", r) }) {
			if !declared[name] {
				t.Errorf("%s declares no %s", m[1], name)
			}
		}
	}
}

// declaredIn returns the functions, methods (as Type.Method) and types of a file.
func declaredIn(t *testing.T, name string) map[string]bool {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	declared := map[string]bool{}
	for _, d := range file.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			declared[receiver(d)+d.Name.Name] = true
		case *ast.GenDecl:
			for _, s := range d.Specs {
				if s, ok := s.(*ast.TypeSpec); ok {
					declared[s.Name.Name] = true
				}
			}
		}
	}
	return declared
}

// receiver returns the type that a method is of, with a dot, or nothing.
func receiver(d *ast.FuncDecl) string {
	if d.Recv == nil {
		return ""
	}
	kind := d.Recv.List[0].Type
	if pointer, ok := kind.(*ast.StarExpr); ok {
		kind = pointer.X
	}
	if name, ok := kind.(*ast.Ident); ok {
		return name.Name + "."
	}
	return ""
}
