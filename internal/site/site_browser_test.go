//go:build browser

package site

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hullmark/hullmark/internal/browsertest"
)

// written is a folder with the site of this repository, and the names of its pages.
func written(t *testing.T) (dir string, pages []string) {
	t.Helper()
	files, err := Build(os.DirFS("../.."), Groups())
	if err != nil {
		t.Fatal(err)
	}
	dir = t.TempDir()
	for _, f := range files {
		if err := os.WriteFile(filepath.Join(dir, f.Name), f.Content, 0o600); err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(f.Name, ".html") {
			pages = append(pages, f.Name)
		}
	}
	return dir, pages
}

// TestSiteInBrowser opens pages with tables, pictures and terminals, as phones, narrow windows and a wide screen would, by day and by
// night.
func TestSiteInBrowser(t *testing.T) {
	dir, _ := written(t)
	b := browsertest.Start(t)
	for name, title := range map[string]string{
		"index.html": "Hullmark", "tour.html": "A tour in five minutes", "tests.html": "Tests", "export.html": "Export", "docs-examples-own-cni.yaml.html": "docs/examples/own-cni.yaml",
	} {
		for _, width := range browsertest.Widths {
			for _, scheme := range browsertest.Schemes {
				t.Run(fmt.Sprintf("%s-%d-%s", strings.TrimSuffix(name, ".html"), width, scheme), func(t *testing.T) {
					b.Look(t, width, scheme, "file://"+filepath.Join(dir, name))
					b.WantVisible(t, "h1", title)
					b.WantVisible(t, "#Pages", "Threat model")
					b.WantVisible(t, ".home", "Hullmark")
					b.WantCount(t, "form.search:not([hidden])", 1)
					b.WantCount(t, "#Found:not([hidden])", 0)
					b.WantReadable(t)
				})
			}
		}
	}
	b.WantQuiet(t)
	b.WantAsked(t, "file://"+dir+"/")
}

// TestEveryPageFitsInBrowser opens all pages, those of files among them, and makes the window wider: none is wider than that, and what is
// shown by them is there.
func TestEveryPageFitsInBrowser(t *testing.T) {
	dir, pages := written(t)
	b := browsertest.Start(t)
	for _, name := range pages {
		t.Run(name, func(t *testing.T) {
			b.Open(t, browsertest.Widths[0], "light", "file://"+filepath.Join(dir, name))
			for _, width := range browsertest.Widths {
				b.Resize(t, width)
				b.WantFits(t)
			}
			b.WantCount(t, "article h1", 1)
		})
	}
	b.WantQuiet(t)
	b.WantAsked(t, "file://"+dir+"/")
}

// TestSearchInBrowser finds a part of a page by its words, from a file and from a server, and follows what was found.
func TestSearchInBrowser(t *testing.T) {
	dir, _ := written(t)
	server := httptest.NewServer(http.FileServer(http.Dir(dir)))
	defer server.Close()
	for name, root := range map[string]string{"file": "file://" + dir, "server": server.URL} {
		for _, width := range []int64{320, 1250} {
			t.Run(fmt.Sprintf("%s-%d", name, width), func(t *testing.T) {
				b := browsertest.Start(t)
				b.Open(t, width, "dark", root+"/tests.html")
				b.Type(t, "#Search", "nothing-has-this-word")
				b.WaitFor(t, "#Found")
				b.WantVisible(t, "#Found [role=status]", "No section has all of these words.")
				b.WantCount(t, "#Found a", 0)
				b.Open(t, width, "dark", root+"/tests.html")
				b.Type(t, "#Search", "Companions STUB versions")
				b.WaitFor(t, "#Found a")
				b.WantVisible(t, "#Found a", "Measure › Stub versions and companions")
				b.WantVisible(t, "#Found [role=status]", "ections")
				b.WantReadable(t)
				b.Click(t, "#Found a")
				b.WaitAt(t, root+"/measuring.html#stub-versions-and-companions")
				b.WaitFor(t, "#stub-versions-and-companions")
				b.WantVisible(t, "h1", "Measure")
				b.WantQuiet(t)
				b.WantAsked(t, root+"/")
			})
		}
	}
}
