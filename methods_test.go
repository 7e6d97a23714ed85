package hullmark_test

import (
	"go/ast"
	"go/token"
	"path/filepath"
	"strings"
	"testing"
)

// maxMethods is how many methods a type has that need no reason.
const maxMethods = 25

// A type with many methods says in its comment why they are its own.
func TestTypesWithManyMethodsSayWhy(t *testing.T) {
	_, files := parseFiles(t, func(path string) bool { return strings.HasSuffix(path, ".pb.go") })
	methods, comments := map[name]int{}, map[name]string{}
	for path, file := range files {
		folder := filepath.Dir(path)
		for _, d := range file.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				if kind, ok := strings.CutSuffix(receiver(d), "."); ok {
					methods[name{folder, kind}]++
				}
			case *ast.GenDecl:
				if d.Tok == token.TYPE && len(d.Specs) == 1 {
					comments[name{folder, d.Specs[0].(*ast.TypeSpec).Name.Name}] = d.Doc.Text()
				}
			}
		}
	}
	if methods[name{"cluster", "Cluster"}] <= maxMethods {
		t.Error("no type with many methods was found: this test counts nothing")
	}
	for kind, n := range methods {
		if n > maxMethods && !strings.Contains(comments[kind], "methods") {
			t.Errorf("%s.%s has %d methods, more than %d: part it, or say in its comment why they are its own", kind.folder, kind.name, n, maxMethods)
		}
	}
}
