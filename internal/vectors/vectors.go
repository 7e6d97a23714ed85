// Package vectors finds recorded evidence of real machines, which is not kept in this repository: tests with the build tag vectors
// read it from the folder that make test-vectors names.
package vectors

import (
	"flag"
	"os"
	"path/filepath"
	"testing"
)

var folder = flag.String("vectors", "", "the folder with recorded evidence")

// File returns the content of a file of the folder; name has slashes. Without a folder, or the file, the test fails.
func File(t testing.TB, name string) []byte {
	t.Helper()
	if *folder == "" {
		t.Fatal("no folder with recorded evidence was named: run make test-vectors VECTORS=FOLDER")
	}
	content, err := os.ReadFile(filepath.Join(*folder, filepath.FromSlash(name)))
	if err != nil {
		t.Fatal(err)
	}
	return content
}
