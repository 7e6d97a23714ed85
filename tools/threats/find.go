package main

import (
	"fmt"
	"go/ast"
	"go/build/constraint"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// function is a test of a package.
type function struct{ folder, name string }

func (r reference) function() function { return function{r.folder, r.name} }

// declared is what a test's file says of it.
type declared struct {
	// tag is the build tag that it is behind, empty for none.
	tag string
	// texts are the string literals in it, the names of its subtests among them.
	texts map[string]bool
}

// find looks for the rows' tests in the checkout at root. It reads the files, since asking each package's tests means compiling
// all of them.
func find(root string, rows []row) (map[function]declared, error) {
	found, seen := map[function]declared{}, map[string]bool{}
	for _, r := range rows {
		for _, test := range r.tests() {
			if seen[test.folder] {
				continue
			}
			seen[test.folder] = true
			files, err := filepath.Glob(filepath.Join(root, dir(test.folder), "*_test.go"))
			if err != nil {
				return nil, err
			}
			for _, file := range files {
				if err := read(file, test.folder, found); err != nil {
					return nil, err
				}
			}
		}
	}
	return found, nil
}

// read notes a file's functions.
func read(path, folder string, found map[function]declared) error {
	tag, err := tagOf(path)
	if err != nil {
		return err
	}
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	for _, d := range file.Decls {
		if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil {
			found[function{folder, f.Name.Name}] = declared{tag, texts(f)}
		}
	}
	return nil
}

// constraintLine is a file's build constraint.
var constraintLine = regexp.MustCompile(`(?m)^//go:build .*$`)

// tagOf returns the fewest tags, after commas, with which a file is built: none, the first that is enough alone, or all that its
// constraint names.
func tagOf(path string) (string, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	line := constraintLine.Find(text)
	if line == nil {
		return "", nil
	}
	expr, err := constraint.Parse(string(line))
	if err != nil {
		return "", fmt.Errorf("%s: %w", path, err)
	}
	var named []string
	expr.Eval(func(tag string) bool {
		named = append(named, tag)
		return false
	})
	for _, tag := range slices.Concat([]string{""}, named, []string{strings.Join(named, ",")}) {
		given := strings.Split(tag, ",")
		if expr.Eval(func(tag string) bool { return slices.Contains(given, tag) }) {
			return tag, nil
		}
	}
	return "", fmt.Errorf("%s: no tags were found that %s allows", path, line)
}

func texts(n ast.Node) map[string]bool {
	found := map[string]bool{}
	ast.Inspect(n, func(n ast.Node) bool {
		if l, ok := n.(*ast.BasicLit); ok && l.Kind == token.STRING {
			if text, err := strconv.Unquote(l.Value); err == nil {
				found[text] = true
			}
		}
		return true
	})
	return found
}
