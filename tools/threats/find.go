package main

import (
	"fmt"
	"go/ast"
	"go/build"
	"go/parser"
	"go/token"
	"path/filepath"
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

// tags are the build tags of the module's tests, in the order in which they are tried.
var tags = []string{"", "long", "vm", "cluster", "browser", "docs", "powercut", "bench", "vectors", "skew", "explore", "network", "install", "operations", "builds", "quorum", "long,quorum", "vm,powercut", "vm,firmware"}

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

// tagOf returns the first tags, after commas, with which a file is built.
func tagOf(path string) (string, error) {
	for _, tag := range tags {
		c := build.Default
		c.BuildTags = strings.Split(tag, ",")
		if match, err := c.MatchFile(filepath.Split(path)); err != nil || match {
			return tag, err
		}
	}
	return "", fmt.Errorf("%s is behind no tag that is known", path)
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
