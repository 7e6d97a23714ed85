//go:build browser

package browsertest

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
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

// Widths are those of a small and of a common phone, of a narrow and of a common window, and of a wide screen, in CSS pixels; Schemes are
// the values of prefers-color-scheme.
var (
	Widths  = []int64{320, 390, 800, 1250, 1800}
	Schemes = []string{"light", "dark"}
)

// patience is how long a page may take to show what is waited for.
const patience = time.Minute

// Browser is a Chromium with one page open.
type Browser struct {
	ctx  context.Context
	lock sync.Mutex
	// said is what it complained about, asked are the addresses that it asked for something.
	said, asked []string
}

// Start starts Chromium, until the test ends.
func Start(t *testing.T) *Browser {
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
	b := &Browser{ctx: ctx}
	if err := chromedp.Listen(ctx, b.listen); err != nil {
		t.Fatal(err)
	}
	if _, err := chromedp.Call(ctx, log.Enable, cdp.Empty{}); err != nil {
		t.Fatal(err)
	}
	if _, err := chromedp.Call(ctx, network.Enable, network.EnableParams{}); err != nil {
		t.Fatal(err)
	}
	return b
}

// listen notes complaints and requests.
func (b *Browser) listen(event any) {
	b.lock.Lock()
	defer b.lock.Unlock()
	switch e := event.(type) {
	case *log.EventEntryAdded:
		b.said = append(b.said, e.Entry.Text)
	case *runtime.EventExceptionThrown:
		b.said = append(b.said, e.ExceptionDetails.Text)
	case *network.EventRequestWillBeSent:
		b.asked = append(b.asked, e.Request.URL)
	}
}

// Open opens the page at an address on a screen.
func (b *Browser) Open(t *testing.T, width int64, scheme, address string) {
	t.Helper()
	_, err := chromedp.Call(b.ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
		Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	if err := chromedp.Do(ctx, chromedp.EmulateViewport(width, 900), chromedp.Navigate(address)); err != nil {
		t.Fatal(err)
	}
}

// Look opens the page and leaves a picture among the test's artifacts, which go test -artifacts keeps.
func (b *Browser) Look(t *testing.T, width int64, scheme, address string) {
	t.Helper()
	b.Open(t, width, scheme, address)
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	picture, err := chromedp.Run(ctx, chromedp.FullScreenshot(100))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(t.ArtifactDir(), fmt.Sprintf("page-%d-%s.png", width, scheme)), picture, 0o600); err != nil {
		t.Fatal(err)
	}
}

// Resize gives the page that is open another width.
func (b *Browser) Resize(t *testing.T, width int64) {
	t.Helper()
	if err := chromedp.Do(b.ctx, chromedp.EmulateViewport(width, 900)); err != nil {
		t.Fatal(err)
	}
}

// Click clicks on the first element of a selector, once it is visible.
func (b *Browser) Click(t *testing.T, selector string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	if err := chromedp.Do(ctx, chromedp.Click(chromedp.CSS(selector))); err != nil {
		t.Fatalf("click on %s: %v", selector, err)
	}
}

// Type types into the first element of a selector, once it is visible.
func (b *Browser) Type(t *testing.T, selector, text string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	if err := chromedp.Do(ctx, chromedp.SendKeys(chromedp.CSS(selector), text)); err != nil {
		t.Fatalf("type into %s: %v", selector, err)
	}
}

// WaitFor waits until the first element of a selector is visible.
func (b *Browser) WaitFor(t *testing.T, selector string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	if err := chromedp.Do(ctx, chromedp.WaitVisible(chromedp.CSS(selector))); err != nil {
		t.Fatalf("wait for %s: %v", selector, err)
	}
}

// WaitAt waits until the page that is open is the one at an address.
func (b *Browser) WaitAt(t *testing.T, address string) {
	t.Helper()
	var at string
	var err error
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if at, err = chromedp.Run(b.ctx, chromedp.Location()); err == nil && at == address {
			return
		}
	}
	t.Fatalf("the page is %s, want %s (%v)", at, address, err)
}

// WantVisible wants the first element of a selector to show text.
func (b *Browser) WantVisible(t *testing.T, selector, text string) {
	t.Helper()
	got, err := chromedp.Run(b.ctx, chromedp.Evaluate[string](fmt.Sprintf(
		`(e => e && e.checkVisibility({opacityProperty: true, visibilityProperty: true}) && e.getBoundingClientRect().height > 8 ? e.innerText : "")(document.querySelector(%q))`, selector)))
	if err != nil || !strings.Contains(got, text) {
		t.Errorf("%s shows %q, want %q (%v)", selector, got, text, err)
	}
}

// WantCount wants so many elements of a selector.
func (b *Browser) WantCount(t *testing.T, selector string, want int) {
	t.Helper()
	got, err := chromedp.Run(b.ctx, chromedp.Evaluate[int](fmt.Sprintf(`document.querySelectorAll(%q).length`, selector)))
	if err != nil || got != want {
		t.Errorf("%d elements %s, want %d (%v)", got, selector, want, err)
	}
}

// WantFits wants a page that is not wider than its screen.
func (b *Browser) WantFits(t *testing.T) {
	t.Helper()
	b.wantNone(t, "it is wider than the screen", `document.documentElement.scrollWidth > innerWidth ? [document.documentElement.scrollWidth] : []`)
}

// WantReadable wants a page that fits on its screen, with nothing cut off, and nothing too faint.
func (b *Browser) WantReadable(t *testing.T) {
	t.Helper()
	b.WantFits(t)
	b.wantNone(t, "text is cut off", cutOff)
	b.wantNone(t, "contrast is below 4.5", faint)
}

// wantNone wants an expression that lists faults to list none.
func (b *Browser) wantNone(t *testing.T, fault, expression string) {
	t.Helper()
	got, err := chromedp.Run(b.ctx, chromedp.Evaluate[[]any](expression))
	if err != nil || len(got) > 0 {
		t.Errorf("%s: %v %v", fault, got, err)
	}
}

// WantQuiet wants a browser that complained about nothing.
func (b *Browser) WantQuiet(t *testing.T) {
	t.Helper()
	b.lock.Lock()
	defer b.lock.Unlock()
	if len(b.said) > 0 {
		t.Errorf("the browser complains:\n%s", strings.Join(b.said, "\n"))
	}
}

// WantAsked wants that something was asked for, and nothing but what is below an address.
func (b *Browser) WantAsked(t *testing.T, below string) {
	t.Helper()
	b.lock.Lock()
	defer b.lock.Unlock()
	if len(b.asked) == 0 {
		t.Error("no request was seen: this looks at nothing")
	}
	for _, address := range b.asked {
		if !strings.HasPrefix(address, below) {
			t.Errorf("the page asks for %s, which is not below %s", address, below)
		}
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
