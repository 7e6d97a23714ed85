package report_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/cluster"
	"github.com/hullmark/hullmark/cluster/operate"
	"github.com/hullmark/hullmark/cluster/report"
	"github.com/hullmark/hullmark/internal/nodetest"
	"github.com/hullmark/hullmark/joinservice"
	"github.com/hullmark/hullmark/measurements"
)

var now = time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)

// fixture is a cluster whose policy accepts two releases, and a worker of the first that is as it should be.
func fixture(t *testing.T, change func(*measurements.Policy)) (*cluster.Cluster, operate.Machine) {
	t.Helper()
	c, err := cluster.New()
	if err != nil {
		t.Fatal(err)
	}
	policy := measurements.Policy{Version: 7, Members: []measurements.Member{{EKID: hullmark.EKID{1}, Name: "worker-1", Role: hullmark.Worker}}}
	var ids []measurements.DocumentID
	var documents []measurements.Document
	for _, tag := range []string{"image", "next"} {
		document := nodetest.Document(t, tag)
		id, err := document.Digest()
		if err != nil {
			t.Fatal(err)
		}
		ids, documents = append(ids, id), append(documents, document)
		policy.Documents = append(policy.Documents, measurements.Accepted{Document: id})
	}
	change(&policy)
	if err := c.SetPolicy(policy, documents...); err != nil {
		t.Fatal(err)
	}
	return c, operate.Machine{Machine: joinservice.Machine{
		EKID: hullmark.EKID{1}, Name: "worker-1", Role: hullmark.Worker, Document: ids[0], State: joinservice.MachineReady, Seen: now.Add(-time.Minute),
		Platform: hullmark.PlatformClaims{Trust: hullmark.TrustTPM, Platform: hullmark.PlatformTPM}, CertificateEnds: now.Add(48 * time.Hour),
		Record: joinservice.Record{Disk: hullmark.UUID{2}, Committed: 4, Issued: 5},
	}, Image: "node 1"}
}

func make1(t *testing.T, c *cluster.Cluster, unread error, machines ...operate.Machine) report.Report {
	t.Helper()
	r, err := report.New(c, machines, unread, now)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestWhatWantsToBeLookedAt changes one thing of a node that is as it should be.
func TestWhatWantsToBeLookedAt(t *testing.T) {
	counted := func(m *operate.Machine) { // as API.Machines returns it
		m.Machine = joinservice.Machine{EKID: m.EKID, Name: m.Name, Role: m.Role, Phase: "counted to its group, without a record"}
	}
	refusal := &hullmark.Condition{Code: "address-taken", Title: "taken"}
	for name, c := range map[string]struct {
		policy func(*measurements.Policy)
		change func(*operate.Machine)
		failed bool
		says   string
	}{
		"nothing": {nil, nil, false, ""},
		"it stopped": {nil, func(m *operate.Machine) {
			m.State, m.Condition = joinservice.MachineFailed, &hullmark.Condition{Code: "disk-owner", Title: "whose"}
		}, true, "disk-owner: whose"},
		"it stopped in silence": {nil, func(m *operate.Machine) { m.State = joinservice.MachineFailed }, true, "did not say why"},
		"it waits in silence":   {nil, func(m *operate.Machine) { m.State = joinservice.MachineWaiting }, true, "did not say why"},
		"it waits": {nil, func(m *operate.Machine) {
			m.State, m.Condition = joinservice.MachineWaiting, &hullmark.Condition{Code: "busy", Title: "busy"}
		}, true, "busy"},
		"an old condition": {nil, func(m *operate.Machine) { m.Condition = &hullmark.Condition{Code: "busy", Title: "busy"} }, false, ""},
		"silence":          {nil, func(m *operate.Machine) { m.Seen = now.Add(-2 * time.Hour) }, true, "it is ready by its last word, and has said nothing for 2h0m0s"},
		"silence since its ticket": {nil, func(m *operate.Machine) {
			m.State, m.Seen = joinservice.MachineAdmitted, now.Add(-2*time.Hour)
		}, true, "it is admitted by its last word"},
		"silence while it joins": {nil, func(m *operate.Machine) {
			m.State, m.Seen = joinservice.MachineJoining, now.Add(-2*time.Hour)
		}, true, "it is joining by its last word"},
		"it joins":                   {nil, func(m *operate.Machine) { m.State = joinservice.MachineJoining }, false, ""},
		"no word":                    {nil, func(m *operate.Machine) { m.Seen = time.Time{} }, true, "does not say since when"},
		"a word that is to come":     {nil, func(m *operate.Machine) { m.Seen = now.Add(2 * time.Hour) }, true, "its last word is of 2h0m0s from now"},
		"a state that is none":       {nil, func(m *operate.Machine) { m.State = "whatever" }, true, `its state, "whatever", is none`},
		"no state":                   {nil, func(m *operate.Machine) { m.State = "" }, true, `its state, "", is none`},
		"no document":                {nil, func(m *operate.Machine) { m.Document = measurements.DocumentID{} }, true, "names no document"},
		"no rule":                    {func(p *measurements.Policy) { p.Members = nil }, nil, true, "no rule and no group of the policy admits it"},
		"a rule for another":         {func(p *measurements.Policy) { p.Members[0].EKID = hullmark.EKID{9} }, nil, true, "no rule and no group of the policy admits it"},
		"another name by its rule":   {func(p *measurements.Policy) { p.Members[0].Name = "worker-9" }, nil, true, "is worker worker-9 by now, and was admitted as worker worker-1"},
		"another role by its record": {nil, func(m *operate.Machine) { m.Role = hullmark.ControlPlane }, true, "was admitted as control-plane worker-1"},
		"denied":                     {func(p *measurements.Policy) { p.Members, p.Denied = nil, []hullmark.EKID{{1}} }, nil, true, "the policy denies it: "},
		"denied to groups":           {func(p *measurements.Policy) { p.Denied = []hullmark.EKID{{1}} }, nil, false, "a rule of its own admits it"},
		"another is denied":          {func(p *measurements.Policy) { p.Denied = []hullmark.EKID{{9}} }, nil, false, ""},
		"counted alone":              {func(p *measurements.Policy) { p.Members = nil }, counted, false, "nothing is recorded of it"},
		"counted, and denied":        {func(p *measurements.Policy) { p.Members, p.Denied = nil, []hullmark.EKID{{1}} }, counted, true, "the policy denies it, and a group counts it"},
		"its release is gone":        {func(p *measurements.Policy) { p.Documents = p.Documents[1:] }, nil, true, "does not accept what it booted any more"},
		"its release is too old":     {func(p *measurements.Policy) { p.MinimumSVN = 2 }, nil, true, "its security version is 1, the policy wants at least 2"},
		"its class is too low": {func(p *measurements.Policy) {
			p.Trust.ControlPlane, p.Trust.Worker = hullmark.TrustProvider, hullmark.TrustProvider
		}, nil, true, "the policy demands tpm-provider"},
		"its certificate ended": {nil, func(m *operate.Machine) { m.CertificateEnds = now.Add(-time.Hour) }, true, "certificate ended 1h0m0s ago"},
		"its certificate ends":  {nil, func(m *operate.Machine) { m.CertificateEnds = now.Add(time.Hour) }, false, "certificate ends in 1h0m0s"},
		"an earlier root":       {nil, func(m *operate.Machine) { m.OldRoot = true }, false, "names an earlier root"},
		"keys of before": {func(p *measurements.Policy) {
			p.Rotation, p.Members[0].Role = 1, hullmark.ControlPlane
		}, func(m *operate.Machine) { m.Role = hullmark.ControlPlane }, false, "keys of rotation 0, and the policy says 1"},
		"a slot on trial": {nil, func(m *operate.Machine) { m.Update = &hullmark.UpdateStatus{Running: "b", Default: "a"} }, false, "slot b is on trial"},
		"an address of another": {nil, func(m *operate.Machine) {
			m.Refused = []joinservice.Refusal{{Address: netip.MustParseAddr("192.0.2.1"), Condition: refusal}}
		}, false, "address-taken: 192.0.2.1"},
		"an address, for no reason": {nil, func(m *operate.Machine) {
			m.Refused = []joinservice.Refusal{{Address: netip.MustParseAddr("192.0.2.1")}}
		}, false, "refused: 192.0.2.1"},
	} {
		t.Run(name, func(t *testing.T) {
			if c.policy == nil {
				c.policy = func(*measurements.Policy) {}
			}
			site, m := fixture(t, c.policy)
			if c.change != nil {
				c.change(&m)
			}
			n := make1(t, site, nil, m).Nodes[0]
			if n.Failed != c.failed || (c.says == "") != (len(n.Attention) == 0) || !strings.Contains(strings.Join(n.Attention, "\n"), c.says) {
				t.Errorf("failed %t, %q; want %t, %q", n.Failed, n.Attention, c.failed, c.says)
			}
		})
	}
}

func TestReportReadsBack(t *testing.T) {
	c, m := fixture(t, func(*measurements.Policy) {})
	r := make1(t, c, errors.New("record x: torn"), m)
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	got, err := report.Parse(text)
	if err != nil || len(got.Since(r)) > 0 || got.Unread != r.Unread || len(got.Policy.Releases[0].Registers) < 5 {
		t.Errorf("%v, %+v", err, got)
	}
	for name, bad := range map[string][]byte{
		"another schema": bytes.Replace(text, []byte("report/v1"), []byte("report/v9"), 1),
		"more":           bytes.Replace(text, []byte(`"made"`), []byte(`"more": 1, "made"`), 1),
		"nothing":        nil,
	} {
		if _, err := report.Parse(bad); err == nil {
			t.Errorf("%s is read", name)
		}
	}
}

func TestSince(t *testing.T) {
	c, m := fixture(t, func(*measurements.Policy) {})
	gone := m
	gone.Name, gone.EKID = "worker-2", hullmark.EKID{2}
	before := make1(t, c, nil, m, gone)
	p, err := c.OpenPolicy()
	if err != nil {
		t.Fatal(err)
	}
	p.Version, p.MinimumSVN, p.Documents = 8, 1, p.Documents[:1]
	if err := c.SetPolicy(p); err != nil {
		t.Fatal(err)
	}
	m.State, m.Record.Committed, m.Record.Disk = joinservice.MachineFailed, 2, hullmark.UUID{9}
	added := m
	added.Name, added.EKID = "worker-3", hullmark.EKID{3}
	lines := make1(t, c, nil, m, added).Since(before)
	for _, want := range []string{
		"policy version: 8, before 7", "minimum security version: 1, before 0", "accepted no more", "node worker-1: state: failed, before ready", "node worker-1: disk: ",
		"node worker-1: its epoch fell from 4 to 2", "node worker-1: to look at: it is failed, and did not say why", "node worker-3: new", "node worker-2: gone",
	} {
		if !slices.ContainsFunc(lines, func(line string) bool { return strings.Contains(line, want) }) {
			t.Errorf("%q does not say %q", lines, want)
		}
	}
	if len(lines) != 9 {
		t.Errorf("%d lines: %q", len(lines), lines)
	}
}

// TestPageShowsThePolicy has the page say who signs and who operates, and lead from a node to the registers of its release.
func TestPageShowsThePolicy(t *testing.T) {
	c, m := fixture(t, func(p *measurements.Policy) {
		p.Operators, p.Denied = alice(hullmark.MayLook, hullmark.MayRecover), []hullmark.EKID{{9}, {8}}
		p.Builders = measurements.Builders{Threshold: 1, Of: []measurements.Builder{builder(t, "us"), builder(t, "them")}}
	})
	other := m
	other.EKID, other.Name, other.Document = hullmark.EKID{9}, "of-another", measurements.DocumentID{7}
	r := make1(t, c, nil, m, other)
	page, err := report.Page(r, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"<dt>alice</dt><dd>may look,recover</dd>", "<dt>Builders who have to sign a release</dt><dd>1 of us, them</dd>", "<dt>of-another</dt>", "<dt>without a record</dt>",
		hullmark.EKID{9}.String(), hullmark.EKID{8}.String(), `<div class="body" id="release-0">`, `<div class="body" id="release-1">`, `<a href="#release-0">`,
	} {
		if !bytes.Contains(page, []byte(want)) {
			t.Errorf("the page does not have %s", want)
		}
	}
	if n := bytes.Count(page, []byte(`href="#release-`)); n != 1 {
		t.Errorf("%d links to releases, want that of the node whose release the policy names", n)
	}
	if plain, err := report.Page(make1(t, c, nil), nil); err != nil || bytes.Contains(plain, []byte(`href="#release-`)) {
		t.Errorf("a cluster without nodes links to a release: %v", err)
	}
	r.Policy.Operators, r.Policy.Denied, r.Policy.Builders = nil, nil, nil
	plain, err := report.Page(r, nil)
	if err != nil || bytes.Contains(plain, []byte("Operators</h2>")) || bytes.Contains(plain, []byte("Denied")) || !bytes.Contains(plain, []byte("<dd>none</dd>")) {
		t.Errorf("a policy that names none: %v", err)
	}
}

// tags are a page's, with their attributes, and fetched is what in them would have a browser run or fetch something.
var (
	tags    = regexp.MustCompile(`<[A-Za-z][^>]*>`)
	fetched = regexp.MustCompile(`(?i)^<(script|img|iframe|link|object|embed|form|base)|\son[a-z]+=|=["']?javascript:|href="[^#]|src=|url\(|@import`)
)

// fetches returns the tags that do.
func fetches(page []byte) (found [][]byte) {
	for _, tag := range tags.FindAll(page, -1) {
		if fetched.Match(tag) {
			found = append(found, tag)
		}
	}
	return found
}

// TestHostileRecords has whoever writes records fill them with markup, control characters and length: the page shows it as text.
func TestHostileRecords(t *testing.T) {
	hostile := `"><script src=//x.example/a.js></script><img src=x onerror=alert(1)> ` + "\u202e javascript:alert(1) \x1b]0;x\x07" + strings.Repeat("long ", 10000)
	c, m := fixture(t, func(*measurements.Policy) {})
	m.Name, m.Image, m.State, m.Role = hostile, hostile, joinservice.MachineState(hostile), hullmark.Role(hostile)
	m.Platform = hullmark.PlatformClaims{Trust: hullmark.TrustClass(hostile), Platform: hostile, Product: hostile, TCB: hostile}
	m.Update = &hullmark.UpdateStatus{Running: hostile, Default: "a", Phase: hullmark.UpdatePhase(hostile)}
	m.Condition = &hullmark.Condition{Code: hostile, Title: hostile}
	failed := m
	failed.State, failed.EKID = joinservice.MachineFailed, hullmark.EKID{7}
	r := make1(t, c, errors.New(hostile), m, failed)
	page, err := report.Page(r, &report.Report{
		Nodes: []report.Node{{Name: hostile}, {EKID: m.EKID, Name: hostile, Slot: hostile, Attention: []string{hostile}}},
		Policy: report.Policy{
			Releases: []report.Release{{Name: hostile, Against: hostile}}, Builders: &measurements.Builders{Threshold: 1, Of: []measurements.Builder{{Name: hostile}}},
			Operators:   []hullmark.Operator{{Name: hostile, May: []hullmark.Permission{hullmark.Permission(hostile)}}},
			MemberRules: []measurements.Member{{Name: hostile, Role: hullmark.Role(hostile)}}, GroupRules: []report.GroupRule{{Name: hostile}}, Denied: []hullmark.EKID{{9}},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	if found := fetches(page); len(found) > 0 || len(tags.FindAll(page, -1)) < 100 {
		t.Errorf("the page has %q", found)
	}
	if bytes.ContainsAny(page, "\x1b\x07\u202e") || len(page) > 200<<10 {
		t.Errorf("the page shows control characters, or has %d bytes", len(page))
	}
	if !bytes.Contains(page, []byte("&lt;script")) {
		t.Error("the page does not show what the record says")
	}
	plain, err := report.Page(make1(t, c, nil), nil)
	if err != nil || len(fetches(plain)) > 0 || !bytes.Contains(plain, []byte("keeps no record of any machine")) {
		t.Errorf("an empty cluster's page: %v", err)
	}
}
