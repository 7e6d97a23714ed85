package hullmark_test

import (
	"os"
	"strings"
	"testing"
)

// maxComment is how wide a comment line may be, in columns with a tab as four.
const maxComment = 140

// A comment can be read without turning one's head.
func TestCommentsFit(t *testing.T) {
	_, files := parseFiles(t, func(path string) bool { return strings.HasSuffix(path, ".pb.go") })
	for path := range files {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for i, line := range strings.Split(string(text), "\n") {
			words := strings.TrimLeft(line, "\t")
			if strings.HasPrefix(words, "// +kubebuilder:") || strings.HasPrefix(words, "//go:generate ") { // They are one line, whatever they say.
				continue
			}
			if width := len([]rune(words)) + 4*(len(line)-len(words)); strings.HasPrefix(words, "//") && width > maxComment {
				t.Errorf("%s:%d: a comment of %d columns, at most %d: wrap or cut it", path, i+1, width, maxComment)
			}
		}
	}
}
