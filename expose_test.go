package hullmark_test

import (
	"go/ast"
	"slices"
	"testing"
)

// TestExposedSecretsAreNotCompared holds all programs to Secret.Equal, which takes as long whatever is compared, and to
// printing none: a secret's bytes are given to no function that compares or formats what it is given, and to no operator.
func TestExposedSecretsAreNotCompared(t *testing.T) {
	set, files := parseProgram(t)
	uses := 0
	for _, file := range files {
		ast.Inspect(file, func(n ast.Node) bool {
			var operands []ast.Expr
			switch e := n.(type) {
			case *ast.BinaryExpr:
				operands = []ast.Expr{e.X, e.Y}
			case *ast.CallExpr:
				if last(e.Fun) == "Expose" {
					uses++
				}
				if tells(e.Fun) {
					operands = e.Args
				}
			}
			for _, operand := range operands {
				if exposed(operand) {
					t.Errorf("%s: a secret is compared or printed", set.Position(n.Pos()))
				}
			}
			return true
		})
	}
	if uses < 15 {
		t.Errorf("secrets are exposed in %d places only: the test has not seen them", uses)
	}
}

// tells reports whether a function's result or duration tells what bytes it was given.
func tells(function ast.Expr) bool {
	selector, ok := function.(*ast.SelectorExpr)
	if !ok {
		return false
	}
	switch of := last(selector.X); of {
	case "fmt", "log", "slog", "errors", "reflect":
		return true
	case "bytes", "strings", "slices":
		return slices.Contains([]string{"Equal", "EqualFold", "Compare", "Contains", "HasPrefix", "HasSuffix", "Index"}, selector.Sel.Name)
	}
	return slices.Contains([]string{"Info", "Warn", "Error", "Debug", "Printf", "Say"}, selector.Sel.Name)
}

// exposed reports whether an expression is a secret's bytes, a part of them, or a conversion.
func exposed(e ast.Expr) bool {
	switch e := e.(type) {
	case *ast.ParenExpr:
		return exposed(e.X)
	case *ast.SliceExpr:
		return exposed(e.X)
	case *ast.IndexExpr:
		return exposed(e.X)
	case *ast.CallExpr:
		conversion := len(e.Args) == 1 && last(e.Fun) == "string"
		return last(e.Fun) == "Expose" || conversion && exposed(e.Args[0])
	}
	return false
}
