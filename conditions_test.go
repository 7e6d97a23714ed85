package hullmark_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// TestConditionsPage holds docs/conditions.md to the codes that programs say, both ways, and to whether a node tries again by itself.
func TestConditionsPage(t *testing.T) {
	text, err := os.ReadFile("docs/conditions.md")
	if err != nil {
		t.Fatal(err)
	}
	told, again := map[string]bool{}, map[string]bool{}
	for line := range strings.Lines(string(text)) {
		if cells := strings.Split(line, "|"); len(cells) > 2 {
			for _, m := range codeWord.FindAllStringSubmatch(cells[1], -1) {
				if told[m[1]] {
					t.Errorf("%s is on the page twice", m[1])
				}
				told[m[1]], again[m[1]] = true, strings.TrimSpace(cells[2]) == "yes"
			}
		}
	}
	said, passing := conditionCodes(t)
	if len(said) < 80 {
		t.Errorf("only %d codes were read in the programs", len(said))
	}
	for _, code := range slices.Sorted(maps.Keys(said)) {
		if !told[code] {
			t.Errorf("%s: docs/conditions.md lacks the code %s", said[code], code)
		} else if again[code] != passing[code] {
			t.Errorf("%s: docs/conditions.md says of %s that the node tries again: %v", said[code], code, again[code])
		}
	}
	for _, code := range slices.Sorted(maps.Keys(told)) {
		if said[code] == "" {
			t.Errorf("docs/conditions.md: no program says %s", code)
		}
	}
}

var codeWord = regexp.MustCompile("`([a-z]+(?:-[a-z]+)*)`")

// conditionCodes returns the codes of conditions that our programs say, and where. A code is a literal, or a constant: in a
// Condition, or as the argument of a function that has a parameter named code. Those of which any literal has Retry: true pass by
// themselves. A code that is made in another way is an error, and so is a condition that does not say what to do next.
func conditionCodes(t *testing.T) (codes map[string]string, passing map[string]bool) {
	t.Helper()
	set, files := parseProgram(t)
	maps.DeleteFunc(files, func(path string, _ *ast.File) bool {
		// In pcrs code is firmware's; below attest/verifier codes name reasons, of which one condition names all (platform-refused). Those of
		// tools/capi are Kubernetes' own kind, and docs/cluster-api.md has them.
		return strings.HasPrefix(path, "pcrs/") || strings.HasPrefix(path, "tools/capi/") || strings.Count(path, "/") > 2 && strings.HasPrefix(path, "attest/verifier/")
	})
	s := scanner{
		set: set, codes: map[string]string{}, passing: map[string]bool{}, constants: map[name]string{},
		takes: map[name]map[string]int{},
	}
	s.wrong = func(at ast.Node, text string) { t.Errorf("%s: %s", s.set.Position(at.Pos()), text) }
	for _, look := range []func(ast.Node) bool{s.declared, s.used} {
		for _, path := range slices.Sorted(maps.Keys(files)) {
			s.folder, s.file = filepath.Dir(path), files[path]
			ast.Inspect(files[path], look)
		}
	}
	return s.codes, s.passing
}

// parseProgram returns the files of all that we ship, by their paths.
func parseProgram(t *testing.T) (*token.FileSet, map[string]*ast.File) {
	t.Helper()
	return parseFiles(t, func(path string) bool {
		return strings.HasPrefix(path, "internal/") || strings.HasPrefix(path, "tools/kubernetes/")
	})
}

// parseFiles parses all files that are no tests, but those that are skipped.
func parseFiles(t *testing.T, skip func(path string) bool) (*token.FileSet, map[string]*ast.File) {
	t.Helper()
	list, err := exec.Command("git", "ls-files", "*.go").Output()
	if err != nil {
		t.Fatal(err)
	}
	set, files := token.NewFileSet(), map[string]*ast.File{}
	for _, path := range strings.Fields(string(list)) {
		if strings.HasSuffix(path, "_test.go") || skip(path) {
			continue
		}
		file, err := parser.ParseFile(set, path, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		files[path] = file
	}
	return set, files
}

// name is one of a folder's package.
type name struct{ folder, name string }

type scanner struct {
	set       *token.FileSet
	folder    string // of the file at hand
	file      *ast.File
	codes     map[string]string
	passing   map[string]bool
	constants map[name]string         // values of string constants
	takes     map[name]map[string]int // which parameters of a function are a code and what to do next
	wrong     func(at ast.Node, text string)
}

// declared notes constants, and functions that take a code.
func (s *scanner) declared(n ast.Node) bool {
	switch d := n.(type) {
	case *ast.ValueSpec:
		for i, constant := range d.Names {
			if i < len(d.Values) {
				if text, ok := literal(d.Values[i]); ok {
					s.constants[name{s.folder, constant.Name}] = text
				}
			}
		}
	case *ast.FuncDecl:
		s.takesCode(d.Name.Name, d.Type)
	case *ast.AssignStmt: // refuse := func(code string, ...)
		for i, value := range d.Rhs {
			if function, ok := value.(*ast.FuncLit); ok {
				if variable, ok := d.Lhs[i].(*ast.Ident); ok {
					s.takesCode(variable.Name, function.Type)
				}
			}
		}
	}
	return true
}

func (s *scanner) takesCode(function string, kind *ast.FuncType) {
	i := 0
	for _, field := range kind.Params.List {
		for _, parameter := range field.Names {
			if last(field.Type) == "string" && (parameter.Name == "code" || parameter.Name == "next") {
				of := name{s.folder, function}
				if s.takes[of] == nil {
					s.takes[of] = map[string]int{}
				}
				s.takes[of][parameter.Name] = i
			}
			i++
		}
	}
}

// used notes the codes of conditions.
func (s *scanner) used(n ast.Node) bool {
	switch e := n.(type) {
	case *ast.CompositeLit:
		if last(e.Type) == "Condition" {
			s.condition(e)
		}
		for _, element := range elided(e) { // of a list or a map of conditions
			s.condition(element)
		}
	case *ast.AssignStmt:
		for i, to := range e.Lhs {
			if field, ok := to.(*ast.SelectorExpr); ok && field.Sel.Name == "Code" && i < len(e.Rhs) {
				s.note(e, e.Rhs[i])
			}
		}
	case *ast.CallExpr:
		takes, ok := s.takes[s.named(e.Fun)]
		if !ok { // a method
			takes = s.takes[name{s.folder, last(e.Fun)}]
		}
		if i, ok := takes["code"]; ok && i < len(e.Args) {
			s.note(e, e.Args[i])
			if i, ok := takes["next"]; ok && i < len(e.Args) {
				s.checkNext(e, e.Args[i])
			}
		}
	}
	return true
}

// condition notes what a literal says.
func (s *scanner) condition(e *ast.CompositeLit) {
	fields := map[string]ast.Expr{}
	for _, element := range e.Elts {
		if kv, ok := element.(*ast.KeyValueExpr); ok {
			fields[last(kv.Key)] = kv.Value
		}
	}
	if len(fields) < len(e.Elts) {
		s.wrong(e, "the fields of a condition are not named")
	}
	if len(fields) == 0 {
		return
	}
	if code := s.note(e, fields["Code"]); last(fields["Retry"]) == "true" {
		s.passing[code] = true
	}
	s.checkNext(e, fields["Next"])
}

// elided returns the conditions of a list or a map that do not repeat its type.
func elided(e *ast.CompositeLit) (conditions []*ast.CompositeLit) {
	var of ast.Expr
	switch t := e.Type.(type) {
	case *ast.ArrayType:
		of = t.Elt
	case *ast.MapType:
		of = t.Value
	}
	if pointer, ok := of.(*ast.StarExpr); ok {
		of = pointer.X
	}
	if last(of) != "Condition" {
		return nil
	}
	for _, element := range e.Elts {
		if kv, ok := element.(*ast.KeyValueExpr); ok {
			element = kv.Value
		}
		if c, ok := element.(*ast.CompositeLit); ok && c.Type == nil {
			conditions = append(conditions, c)
		}
	}
	return conditions
}

// note notes a code, which is known here, is passed on, or is another condition's.
func (s *scanner) note(at ast.Node, e ast.Expr) string {
	text, ok := literal(e)
	if !ok {
		text = s.constants[s.named(e)]
	}
	switch {
	case text != "":
		s.codes[text] = s.set.Position(e.Pos()).String()
	case last(e) != "code" && last(e) != "Code" && !isCopy(e):
		s.wrong(at, "a condition's code is neither a literal, a constant nor a parameter of this name")
	}
	return text
}

// isCopy reports whether an expression is another condition's, as the exchange writes and reads it.
func isCopy(e ast.Expr) bool {
	call, ok := e.(*ast.CallExpr)
	return ok && (last(call.Fun) == "GetCode" || last(call.Fun) == "cut" && len(call.Args) == 1 && last(call.Args[0]) == "Code")
}

// checkNext wants a reader told what to do: in some words, where they are known here.
func (s *scanner) checkNext(at ast.Node, e ast.Expr) {
	if e == nil {
		s.wrong(at, "a condition does not say what to do next")
		return
	}
	text, ok := literal(e)
	if !ok {
		text, ok = s.constants[s.named(e)]
	}
	if ok && len(strings.Fields(text)) < 2 {
		s.wrong(at, "what to do next is "+strconv.Quote(text))
	}
}

// named returns what an expression such as CodeMismatch or joinservice.CodeMismatch names.
func (s *scanner) named(e ast.Expr) name {
	if selector, ok := e.(*ast.SelectorExpr); ok {
		for _, spec := range s.file.Imports {
			if folder, ours := strings.CutPrefix(strings.Trim(spec.Path.Value, `"`), module+"/"); ours && filepath.Base(folder) == last(selector.X) {
				return name{folder, selector.Sel.Name}
			}
		}
		if last(selector.X) == "hullmark" {
			return name{".", selector.Sel.Name}
		}
	}
	return name{s.folder, last(e)}
}

// last returns the last name of an expression such as hullmark.Condition.
func last(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.SelectorExpr:
		return e.Sel.Name
	}
	return ""
}

func literal(e ast.Expr) (string, bool) {
	basic, ok := e.(*ast.BasicLit)
	if !ok || basic.Kind != token.STRING {
		return "", false
	}
	text, err := strconv.Unquote(basic.Value)
	return text, err == nil
}
