package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/hullmark/hullmark/image/oci"
)

// A layout that is written again holds nothing of the one before.
func TestLayoutIsReplaced(t *testing.T) {
	out := t.TempDir()
	for _, content := range []string{"one", "another"} {
		layout, _, err := oci.NewLayout([]oci.Image{{Files: []oci.File{{Name: "f", Mode: 0o644, Content: []byte(content)}}}}, []string{"r/a:1"})
		if err != nil {
			t.Fatal(err)
		}
		if err := writeLayout(out, layout); err != nil {
			t.Fatal(err)
		}
	}
	blobs, err := os.ReadDir(filepath.Join(out, "blobs", "sha256"))
	if err != nil || len(blobs) != 4 {
		t.Errorf("%d blobs, %v; want layer, config, manifest and index", len(blobs), err)
	}
}
