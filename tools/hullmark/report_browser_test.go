//go:build browser

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/cluster"
	"github.com/hullmark/hullmark/cluster/operate"
	"github.com/hullmark/hullmark/cluster/report"
	"github.com/hullmark/hullmark/internal/browsertest"
	"github.com/hullmark/hullmark/joinservice"
	"github.com/hullmark/hullmark/measurements"
)

// TestReportPageInBrowser opens a cluster's page, as a phone, narrow windows and a wide screen would, by day and by night.
func TestReportPageInBrowser(t *testing.T) {
	r := reported(t)
	earlier := r
	earlier.Policy.Version, earlier.Nodes = 2, r.Nodes[:2]
	page, err := report.Page(r, &earlier)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "page.html")
	write(t, file, page)
	b := browsertest.Start(t)
	for _, width := range browsertest.Widths {
		for _, scheme := range browsertest.Schemes {
			t.Run(fmt.Sprintf("%d-%s", width, scheme), func(t *testing.T) {
				b.Look(t, width, scheme, "file://"+file)
				b.WantVisible(t, "h1", "1 of 3 nodes are not what they should be")
				b.WantVisible(t, ".facts", "version 3")
				b.WantVisible(t, ".operators", "may look,recover")
				b.WantVisible(t, "#denied", "Denied by all groups")
				b.WantVisible(t, ".changes", "policy version: 3, before 2")
				b.WantVisible(t, ".register.differs .cause", "measurement-mismatch")
				b.WantVisible(t, ".register.not-covered .cause", "certificate ends in")
				b.WantCount(t, ".tile", 3)
				b.WantCount(t, ".register.equal > details[open]", 0)
				b.WantReadable(t)
			})
		}
	}
	b.WantQuiet(t)
	b.WantAsked(t, "file://"+file)
}

// A node's release leads to the registers that it has to show, in a section that opens although it was folded.
func TestReportPageInBrowserOpensRelease(t *testing.T) {
	page, err := report.Page(reported(t), nil)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "page.html")
	write(t, file, page)
	b := browsertest.Start(t)
	b.Look(t, 390, "light", "file://"+file)
	b.WantCount(t, "details[open] > #release-0", 0)
	b.Click(t, `.register.differs a[href="#release-0"]`)
	b.WaitFor(t, "details[open] > #release-0")
	b.WantVisible(t, "#release-0 .note", "Registers that a boot of it has to show")
	b.WantQuiet(t)
}

// ran is a script that leaves a mark.
const ran = `document.body.append(Object.assign(document.createElement('p'),{className:'ran',textContent:'ran'}))`

// running are texts by which whoever writes them into a page runs the script, each in its own way.
var running = []string{`<script>` + ran + `</script>`, `"><img src=x onerror="` + ran + `">`, `'><svg onload="` + ran + `">`}

// fetching are texts by which a page asks for something at an address, leads there, or looks otherwise than it should.
func fetching(address string) []string {
	return []string{
		`"><img src=` + address + `/a.png>`, `<script src=` + address + `/a.js></script>`, `<link rel=stylesheet href=` + address + `/a.css>`,
		`</style><style>@import url(` + address + `/a.css); h1 { display: none }</style>`, `" style="background:url(` + address + `/a.png)`,
		`<iframe src=` + address + `></iframe>`, `<base href=` + address + `/>`, `<meta http-equiv=refresh content="0;url=` + address + `">`,
		`<form action=` + address + `><input autofocus onfocus="` + ran + `"></form>`, `javascript:` + ran, `--><!-- {{template "head" .}} <plaintext>`, strings.Repeat("long", 60),
	}
}

// TestHostileReportInBrowser has whoever writes records, and an earlier report, fill them with what would run and fetch.
func TestHostileReportInBrowser(t *testing.T) {
	var asked atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked.Add(1) }))
	defer server.Close()
	t.Run("control", func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "page.html")
		write(t, file, []byte("<!DOCTYPE html><body>"+strings.Join(running, "\n")+fetching(server.URL)[0]))
		b := browsertest.Start(t)
		b.Look(t, 390, "light", "file://"+file)
		b.WaitFor(t, fmt.Sprintf("p.ran:nth-of-type(%d)", len(running)))
		if asked.Swap(0) == 0 {
			t.Error("a page that is text as it stands asks for nothing: this looks at nothing")
		}
	})
	file, nodes := hostilePage(t, append(fetching(server.URL), running...))
	b := browsertest.Start(t)
	for _, width := range []int64{320, 1250} {
		b.Look(t, width, "light", "file://"+file)
		b.WantVisible(t, "h1", "Not every record can be read")
		b.WantVisible(t, ".lead", "<script>"+ran)
		b.WantVisible(t, ".changes", server.URL)
		b.WantCount(t, ".tile", nodes)
		b.WantCount(t, ".ran, script, img, iframe, base, link, form, input, plaintext, meta[http-equiv=refresh], style ~ style, [style]", 0)
		b.WantFits(t)
	}
	b.WantQuiet(t)
	b.WantAsked(t, "file://"+file)
	if n := asked.Load(); n > 0 {
		t.Errorf("the page asked for something %d times", n)
	}
}

// hostilePage writes the page of machines whose records say such texts, and of an earlier report that does, and returns how many they are.
func hostilePage(t *testing.T, texts []string) (file string, nodes int) {
	t.Helper()
	c, err := cluster.New()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.SetPolicy(measurements.Policy{Version: 1}); err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	earlier := report.Report{Schema: report.Schema, Made: now, Root: c.ID(), Policy: report.Policy{Builders: &measurements.Builders{Threshold: 1}}}
	var machines []operate.Machine
	for i, text := range texts {
		failed := operate.Machine{Machine: joinservice.Machine{
			EKID: hullmark.EKID{1, byte(i)}, Name: text, Role: hullmark.Role(text), State: joinservice.MachineFailed, Seen: now,
			Platform:  hullmark.PlatformClaims{Trust: hullmark.TrustClass(text), Platform: text, Product: text, TCB: text},
			Update:    &hullmark.UpdateStatus{Running: text, Default: "a", Phase: hullmark.UpdatePhase(text)},
			Condition: &hullmark.Condition{Code: text, Title: text},
		}, Image: text}
		unknown := failed
		unknown.EKID, unknown.State = hullmark.EKID{2, byte(i)}, joinservice.MachineState(text)
		machines = append(machines, failed, unknown)
		earlier.Nodes = append(earlier.Nodes,
			report.Node{EKID: failed.EKID, Name: "a" + text, State: joinservice.MachineState(text), Slot: "a" + text, Attention: []string{text}},
			report.Node{EKID: hullmark.EKID{3, byte(i)}, Name: text})
		p := &earlier.Policy
		p.Releases = append(p.Releases, report.Release{Document: measurements.DocumentID{byte(i)}, Name: text, Against: text})
		p.Builders.Of = append(p.Builders.Of, measurements.Builder{Name: text})
		p.Operators = append(p.Operators, hullmark.Operator{Name: text, May: []hullmark.Permission{hullmark.Permission(text)}})
		p.MemberRules = append(p.MemberRules, measurements.Member{EKID: hullmark.EKID{4, byte(i)}, Name: text, Role: hullmark.Role(text)})
		p.GroupRules = append(p.GroupRules, report.GroupRule{Name: text})
	}
	r, err := report.New(c, machines, errors.New(texts[len(texts)-len(running)]), now)
	if err != nil {
		t.Fatal(err)
	}
	encoded, err := json.Marshal(earlier)
	if err != nil {
		t.Fatal(err)
	}
	read, err := readReport(put(t, "earlier.json", encoded))
	if err != nil {
		t.Fatal(err)
	}
	o := reportOptions{html: filepath.Join(t.TempDir(), "page.html"), output: "text"}
	if err := o.write(io.Discard, r, read); exitCode(err) != exitMismatch {
		t.Fatal(err)
	}
	return o.html, len(r.Nodes)
}
