//go:build browser

package main

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/hullmark/hullmark/internal/browsertest"
)

// screens are how people look at the page: width in CSS pixels, and prefers-color-scheme.
var screens = []struct {
	width  int64
	scheme string
}{{390, "light"}, {390, "dark"}, {800, "light"}, {1250, "light"}, {1440, "light"}, {1440, "dark"}}

// TestExplainPageInBrowser opens the page of a machine that booted another image, as a phone, a narrow window and a wide screen would.
func TestExplainPageInBrowser(t *testing.T) {
	document, _, _ := explainFixture(t)
	file := filepath.Join(t.TempDir(), "page.html")
	code, output := hullmarkCLI(t, "explain", document, "--log", sampleLog, "--html", file)
	wantExit(t, code, exitMismatch, output)
	b := browsertest.Start(t)
	for _, s := range screens {
		t.Run(fmt.Sprintf("%d-%s", s.width, s.scheme), func(t *testing.T) {
			b.Look(t, s.width, s.scheme, "file://"+file)
			b.WantVisible(t, "h1", "predicted registers differ")
			b.WantVisible(t, ".facts", "systemd-stub 257")
			b.WantVisible(t, ".causes", ".linux of the unified kernel image differs")
			b.WantVisible(t, "#pcr-11 .cause", ".linux of the unified kernel image differs")
			b.WantVisible(t, "#pcr-11 li.first .want .what", "section .linux")
			b.WantVisible(t, "#pcr-11 li.first .got .type", "EV_IPL")
			b.WantVisible(t, "#pcr-11 li.first .flag", "first departure")
			b.WantCount(t, ".tile.equal, .tile.differs, .tile.not-covered", 16)
			b.WantCount(t, ".register", 16)
			b.WantCount(t, ".register:not(.differs) > details[open]", 0)
			b.WantReadable(t)
		})
	}
	b.WantQuiet(t)
	b.WantAsked(t, "file://"+file)
}

// A tile leads into its section, which opens although it was folded.
func TestExplainPageInBrowserOpensSection(t *testing.T) {
	document, list, _ := explainFixture(t)
	file := filepath.Join(t.TempDir(), "page.html")
	code, output := hullmarkCLI(t, "explain", document, "--pcrs", list, "--html", file)
	wantExit(t, code, 0, output)
	b := browsertest.Start(t)
	b.Look(t, 390, "light", "file://"+file)
	b.WantVisible(t, "h1", "Every predicted register is equal")
	b.WantCount(t, "details[open]", 0)
	b.Click(t, `.tile[href="#pcr-11"]`)
	b.WantVisible(t, "#pcr-11 .want .what", "section name")
	b.WantCount(t, ".register > details[open]", 1)
	b.WantQuiet(t)
}
