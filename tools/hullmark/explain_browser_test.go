//go:build browser

package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
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
	ctx, said := newBrowser(t)
	for _, s := range screens {
		t.Run(fmt.Sprintf("%d-%s", s.width, s.scheme), func(t *testing.T) {
			look(t, ctx, s.width, s.scheme, file)
			wantVisible(t, ctx, "h1", "predicted registers differ")
			wantVisible(t, ctx, ".facts", "systemd-stub 257")
			wantVisible(t, ctx, ".causes", ".linux of the unified kernel image differs")
			wantVisible(t, ctx, "#pcr-11 .cause", ".linux of the unified kernel image differs")
			wantVisible(t, ctx, "#pcr-11 li.first .want .what", "section .linux")
			wantVisible(t, ctx, "#pcr-11 li.first .got .type", "EV_IPL")
			wantVisible(t, ctx, "#pcr-11 li.first .flag", "first departure")
			wantCount(t, ctx, ".tile.equal, .tile.differs, .tile.not-covered", 16)
			wantCount(t, ctx, ".register", 16)
			wantCount(t, ctx, ".register:not(.differs) > details[open]", 0)
			wantReadable(t, ctx)
		})
	}
	if messages := said(); len(messages) > 0 {
		t.Errorf("the browser complains:\n%s", strings.Join(messages, "\n"))
	}
}

// A tile leads into its section, which opens although it was folded.
func TestExplainPageInBrowserOpensSection(t *testing.T) {
	document, list, _ := explainFixture(t)
	file := filepath.Join(t.TempDir(), "page.html")
	code, output := hullmarkCLI(t, "explain", document, "--pcrs", list, "--html", file)
	wantExit(t, code, 0, output)
	ctx, said := newBrowser(t)
	look(t, ctx, 390, "light", file)
	wantVisible(t, ctx, "h1", "Every predicted register is equal")
	wantCount(t, ctx, "details[open]", 0)
	if err := chromedp.Do(ctx, chromedp.Click(chromedp.CSS(`.tile[href="#pcr-11"]`))); err != nil {
		t.Fatal(err)
	}
	wantVisible(t, ctx, "#pcr-11 .want .what", "section name")
	wantCount(t, ctx, ".register > details[open]", 1)
	if messages := said(); len(messages) > 0 {
		t.Errorf("the browser complains:\n%s", strings.Join(messages, "\n"))
	}
}

// cutOff lists what holds more text than it has room for.
const cutOff = `[...document.querySelectorAll("h1, h2, p, dt, dd, code, a, .badge, .tile span")]
	.filter(e => e.checkVisibility() && !e.closest(".sr, h3") && !e.matches(".sr") && getComputedStyle(e).display !== "inline" && e.scrollWidth > e.clientWidth + 1)
	.map(e => e.className + " " + e.textContent.slice(0, 40))`

// faint lists visible text whose contrast with what is behind it is below 4.5 to 1 (WCAG 2.2 §1.4.3).
const faint = `(() => {
	const paint = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
	const rgb = color => { paint.clearRect(0, 0, 1, 1); paint.fillStyle = color; paint.fillRect(0, 0, 1, 1); return [...paint.getImageData(0, 0, 1, 1).data]; };
	const light = c => { const [r, g, b] = c.map(v => (v /= 255) <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4); return .2126 * r + .7152 * g + .0722 * b; };
	const behind = e => { for (; e; e = e.parentElement) { const c = rgb(getComputedStyle(e).backgroundColor); if (c[3] === 255) return c; } return [255, 255, 255, 255]; };
	return [...document.querySelectorAll("body *")].filter(e => e.checkVisibility() && [...e.childNodes].some(n => n.nodeType === 3 && n.data.trim())).flatMap(e => {
		const a = light(rgb(getComputedStyle(e).color)), b = light(behind(e)), ratio = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
		return ratio < 4.5 ? [ratio.toFixed(2) + " " + e.className + " " + e.textContent.slice(0, 30)] : [];
	});
})()`

// newBrowser starts Chromium, and returns what it has complained about so far.
func newBrowser(t *testing.T) (context.Context, func() []string) {
	t.Helper()
	program, err := exec.LookPath("chromium")
	if err != nil {
		t.Fatal("chromium is missing: apt-get install chromium fonts-liberation")
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(program))
	if os.Geteuid() == 0 {
		options = append(options, chromedp.NoSandbox) // its sandbox refuses root
	}
	ctx, cancel := chromedp.NewExecAllocator(t.Context(), options...)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx)
	t.Cleanup(cancel)
	var lock sync.Mutex
	var said []string
	err = chromedp.Listen(ctx, func(event any) {
		lock.Lock()
		defer lock.Unlock()
		switch e := event.(type) {
		case *log.EventEntryAdded:
			said = append(said, e.Entry.Text)
		case *runtime.EventExceptionThrown:
			said = append(said, e.ExceptionDetails.Text)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := chromedp.Call(ctx, log.Enable, cdp.Empty{}); err != nil {
		t.Fatal(err)
	}
	return ctx, func() []string {
		lock.Lock()
		defer lock.Unlock()
		return said
	}
}

// look opens the page on a screen and leaves a picture among the test's artifacts, which go test -artifacts keeps.
func look(t *testing.T, ctx context.Context, width int64, scheme, file string) {
	t.Helper()
	_, err := chromedp.Call(ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
		Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}},
	})
	if err != nil {
		t.Fatal(err)
	}
	opening, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if err := chromedp.Do(opening, chromedp.EmulateViewport(width, 900), chromedp.Navigate("file://"+file)); err != nil {
		t.Fatal(err)
	}
	picture, err := chromedp.Run(opening, chromedp.FullScreenshot(100))
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(t.ArtifactDir(), fmt.Sprintf("page-%d-%s.png", width, scheme)), picture)
}

// wantVisible wants the first element of a selector to show text.
func wantVisible(t *testing.T, ctx context.Context, selector, text string) {
	t.Helper()
	got, err := chromedp.Run(ctx, chromedp.Evaluate[string](fmt.Sprintf(
		`(e => e && e.checkVisibility({opacityProperty: true, visibilityProperty: true}) && e.getBoundingClientRect().height > 8 ? e.innerText : "")(document.querySelector(%q))`, selector)))
	if err != nil || !strings.Contains(got, text) {
		t.Errorf("%s shows %q, want %q (%v)", selector, got, text, err)
	}
}

func wantCount(t *testing.T, ctx context.Context, selector string, want int) {
	t.Helper()
	got, err := chromedp.Run(ctx, chromedp.Evaluate[int](fmt.Sprintf(`document.querySelectorAll(%q).length`, selector)))
	if err != nil || got != want {
		t.Errorf("%d elements %s, want %d (%v)", got, selector, want, err)
	}
}

// wantReadable wants a page that fits on its screen, with nothing cut off, and nothing too faint.
func wantReadable(t *testing.T, ctx context.Context) {
	t.Helper()
	wantNone(t, ctx, "it is wider than the screen", `document.documentElement.scrollWidth > innerWidth ? [document.documentElement.scrollWidth] : []`)
	wantNone(t, ctx, "text is cut off", cutOff)
	wantNone(t, ctx, "contrast is below 4.5", faint)
}

// wantNone wants an expression that lists faults to list none.
func wantNone(t *testing.T, ctx context.Context, fault, expression string) {
	t.Helper()
	got, err := chromedp.Run(ctx, chromedp.Evaluate[[]any](expression))
	if err != nil || len(got) > 0 {
		t.Errorf("%s: %v %v", fault, got, err)
	}
}
