package hullmark_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"os/exec"
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

// conditionCodes returns the codes of conditions that our programs say, and where. A code is a literal, or a constant: in a Condition, or as the argument of a
// function that has a parameter named code. Those of which any has Retry pass by themselves.
func conditionCodes(t *testing.T) (codes map[string]string, passing map[string]bool) {
	t.Helper()
	list, err := exec.Command("git", "ls-files", "*.go").Output()
	if err != nil {
		t.Fatal(err)
	}
	s := scanner{set: token.NewFileSet(), codes: map[string]string{}, passing: map[string]bool{}, constants: map[name]string{}, takes: map[name]int{}}
	var files []*ast.File
	for _, path := range strings.Fields(string(list)) {
		if strings.HasSuffix(path, "_test.go") || strings.HasPrefix(path, "internal/") || strings.HasPrefix(path, "tools/kubernetes/") {
			continue
		}
		file, err := parser.ParseFile(s.set, path, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, file)
	}
	for _, look := range []func(ast.Node) bool{s.declared, s.used} {
		for _, file := range files {
			s.pkg = file.Name.Name
			ast.Inspect(file, look)
		}
	}
	return s.codes, s.passing
}

// name is one of a package's.
type name struct{ pkg, name string }

type scanner struct {
	set       *token.FileSet
	pkg       string // of the file at hand
	codes     map[string]string
	passing   map[string]bool
	constants map[name]string // values of string constants
	takes     map[name]int    // which parameter of a function is a code
}

// declared notes constants, and functions that take a code.
func (s *scanner) declared(n ast.Node) bool {
	switch d := n.(type) {
	case *ast.ValueSpec:
		for i, constant := range d.Names {
			if i < len(d.Values) {
				if text, ok := literal(d.Values[i]); ok {
					s.constants[name{s.pkg, constant.Name}] = text
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
			if last(field.Type) == "string" && parameter.Name == "code" {
				s.takes[name{s.pkg, function}] = i
			}
			i++
		}
	}
}

// used notes the codes of conditions.
func (s *scanner) used(n ast.Node) bool {
	switch e := n.(type) {
	case *ast.CompositeLit:
		if last(e.Type) != "Condition" {
			break
		}
		fields := map[string]ast.Expr{}
		for _, element := range e.Elts {
			if kv, ok := element.(*ast.KeyValueExpr); ok {
				fields[last(kv.Key)] = kv.Value
			}
		}
		if code := s.note(fields["Code"]); last(fields["Retry"]) == "true" {
			s.passing[code] = true
		}
	case *ast.CallExpr:
		i, ok := s.takes[s.named(e.Fun)]
		if !ok { // a method
			i, ok = s.takes[name{s.pkg, last(e.Fun)}]
		}
		if ok && i < len(e.Args) {
			s.note(e.Args[i])
		}
	}
	return true
}

func (s *scanner) note(e ast.Expr) string {
	text, ok := literal(e)
	if !ok {
		text = s.constants[s.named(e)]
	}
	if text != "" {
		s.codes[text] = s.set.Position(e.Pos()).String()
	}
	return text
}

// named returns what an expression such as CodeMismatch or joinservice.CodeMismatch names.
func (s *scanner) named(e ast.Expr) name {
	if selector, ok := e.(*ast.SelectorExpr); ok {
		return name{last(selector.X), selector.Sel.Name}
	}
	return name{s.pkg, last(e)}
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
