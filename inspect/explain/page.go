package explain

import (
	"bytes"
	_ "embed" // the page's template
	"fmt"
	"slices"
	"strings"

	"github.com/hullmark/hullmark/internal/webpage"
	"github.com/hullmark/hullmark/measurements"
	"github.com/hullmark/hullmark/pcrs"
)

// What the page shows of a log, which may be hostile and large.
const (
	// maxSteps is the largest number of events shown of one register.
	maxSteps = 60
	// leadSteps is how many of these come before the first departure, if there are more than maxSteps.
	leadSteps = 12
)

//go:embed page.html
var pageTemplate string

var pageLayout = webpage.MustParse(pageTemplate)

// roles says what a boot measures into each register, for its section and, shorter, for its tile (TCG PC Client PFP §3.3.4,
// systemd-stub(7)).
var roles = [...]struct{ section, tile string }{
	{"firmware code", "firmware"},
	{"machine setup", "machine"},
	{"option ROMs", "ROMs"},
	{"option ROM setup", "ROM setup"},
	{"started programs", "programs"},
	{"disk and steps of the boot", "disk"},
	{"the vendor's own", "vendor"},
	{"Secure Boot", "Secure Boot"},
	{"node configuration", "node"},
	{"what the kernel is handed", "inputs"},
	{"Linux's integrity measurements", "IMA"},
	{"sections of the kernel image", "kernel"},
	{"command lines and credentials from outside", "added"},
	{"system extensions", "system"},
	{"shim and its keys", "shim"},
	{"state disk", "state disk"},
}

// page is all that page.html shows; its texts are clean and bounded.
type page struct {
	Title, Verdict, Mark, Headline, Lead string
	Causes                               []*pageRegister
	Facts                                []pageFact
	Registers                            []*pageRegister
	Proof                                string
}

// pageFact is a name and a value; Full is a digest of which Value is the beginning.
type pageFact struct{ Name, Value, Full string }

// pageRegister is one tile and one section. State is equal, differs, not-covered or follows.
type pageRegister struct {
	Number               int
	Role, Short          string
	State, Mark          string
	Result, Tile, Count  string
	Open, Unproven       bool
	Because, Note, Story string
	Expected, Measured   string
	// Before and After are how many events are left out around Steps.
	Before, After int
	Steps         []pageStep
}

// pageStep is one place in the timeline. State is same, changed, missing, added, or told, where there is nothing to compare with.
type pageStep struct {
	Number             int
	State, Mark        string
	First, Late        bool
	Expected, Measured *pageEvent
	// NoneExpected and NoneMeasured say why one side has no event.
	NoneExpected, NoneMeasured string
}

type pageEvent struct{ What, Type, Origin, Short, Full string }

// Page renders the comparison as one page that needs nothing else. log may be nil.
func Page(document measurements.Document, e Explanation, log *pcrs.Log) ([]byte, error) {
	p, err := newPage(document, e, log)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	if err := pageLayout.Execute(&out, p); err != nil {
		return nil, fmt.Errorf("write page: %w", err)
	}
	return out.Bytes(), nil
}

func newPage(document measurements.Document, e Explanation, log *pcrs.Log) (page, error) {
	digest, err := document.Digest()
	if err != nil {
		return page{}, err
	}
	p := page{
		Facts: facts(document, digest, e), Proof: webpage.Clean(e.proof()),
	}
	if p.Registers, err = pageRegisters(document, e, log); err != nil {
		return page{}, err
	}
	for _, r := range p.Registers {
		if r.State == differs {
			p.Causes = append(p.Causes, r)
		}
	}
	p.judge(document, e)
	return p, nil
}

// judge says the whole in a sentence.
func (p *page) judge(document measurements.Document, e Explanation) {
	image := webpage.Clean(document.Image.ID + " " + document.Image.Version)
	differing, unproven := len(p.Causes), len(e.Unproven())
	switch {
	case differing > 0:
		p.Verdict, p.Mark = differs, "≠"
		p.Headline = fmt.Sprintf("%d of %d predicted registers differ", differing, len(document.Registers))
		p.Lead = "What was measured is not what the document of " + image + " describes. Each register below leads to the first event that departs."
	case unproven > 0:
		p.Verdict, p.Mark = "unproven", "?"
		p.Headline = "Every predicted register is equal, but not every one is proven"
		p.Lead = fmt.Sprintf("The quote leaves out %d registers that the document of %s predicts. What is said of these may be anything.", unproven, image)
	default:
		p.Verdict, p.Mark = equal, "="
		p.Headline = "Every predicted register is equal"
		p.Lead = "What was measured is what the document of " + image + " describes, event by event."
	}
	p.Title = image + ": " + p.Headline
}

func facts(d measurements.Document, digest measurements.DocumentID, e Explanation) []pageFact {
	secureBoot := "off, or not built in"
	if d.Machine.SecureBoot {
		secureBoot = "on"
	}
	proof := "taken as given"
	if e.Quote != nil {
		proof = "quoted and signed"
	}
	known := []pageFact{digestFact("Firmware", d.Machine.Firmware), digestFact("Firmware's variables", d.Machine.Variables)}
	if log := d.Machine.Log; log != nil {
		claim := "the machine's own claim"
		if log.Quote != nil {
			claim = "a quote confirmed it"
		}
		known = []pageFact{digestFact("Firmware known by the log", log.SHA256), {Name: "That log is", Value: claim}}
	}
	var signed []pageFact
	if e.Builders != nil {
		signed = []pageFact{{Name: "Builders", Value: webpage.Clean(e.Builders.String())}}
	}
	return slices.Concat([]pageFact{
		{Name: "Image", Value: webpage.Clean(d.Image.ID)},
		{Name: "Version", Value: webpage.Clean(d.Image.Version)},
		{Name: "Security version", Value: fmt.Sprint(d.SVN)},
		{Name: "Boot stub", Value: webpage.Clean("systemd-stub " + d.Image.Stub)},
		{Name: "Kubernetes", Value: fmt.Sprintf("%v, etcd %v", d.Image.Kubernetes, d.Image.Etcd)},
		digestFact("Root hash", d.Image.RootHash),
		digestFact("Kernel image", d.Image.UKI),
	}, known, []pageFact{
		{Name: "Secure Boot", Value: secureBoot},
		{Name: "Bank", Value: e.Bank.String()},
		digestFact("Document", digest[:]),
		{Name: "Registers", Value: proof},
	}, signed)
}

func digestFact(name string, d pcrs.Digest) pageFact {
	return pageFact{Name: name, Value: shortValue(d), Full: d.String()}
}

// pageRegisters makes the sections of PCR 0 to 15.
func pageRegisters(document measurements.Document, e Explanation, log *pcrs.Log) ([]*pageRegister, error) {
	var replayed pcrs.Values
	if log != nil {
		var err error
		if replayed, err = log.Replay(e.Bank); err != nil {
			return nil, err
		}
	}
	predicted := document.Prediction()
	var out []*pageRegister
	for n := range roles {
		register := pcrs.Register(n)
		row := e.row(register)
		r := newPageRegister(row, e.Quote != nil)
		if row.Result == notCovered || row.Result == follows {
			r.Note = unpredictedReason(document, register)
		}
		t := timeline{bank: e.Bank, row: row, predicted: predicted.Log.Of(register)}
		if log != nil {
			t.logged, t.believed = log.Of(register), replayed[register].Equal(row.Measured)
		}
		t.tell(r, log != nil)
		out = append(out, r)
	}
	return out, nil
}

func newPageRegister(row Register, quoted bool) *pageRegister {
	r := &pageRegister{
		Number: int(row.Register), Role: roles[row.Register].section, Short: roles[row.Register].tile, State: row.Result, Mark: "=", Result: row.Result, Tile: row.Result,
		Expected: row.Expected.String(), Measured: row.Measured.String(),
		Because: webpage.Clean(row.Cause), Note: webpage.Clean(row.Note), Unproven: quoted && !row.Proven,
	}
	switch row.Result {
	case differs:
		r.Open, r.Mark = true, "≠"
		if r.Because == "" {
			r.Because, r.Note = r.Note, ""
		}
		if r.Because == "" {
			r.Because = "the events below depart"
		}
	case notCovered:
		r.State, r.Mark = "not-covered", "–"
	case follows:
		r.State, r.Mark, r.Tile = "not-covered", "–", "follows"
	}
	return r
}

// unpredictedReason is the document's own word on why it leaves a register out.
func unpredictedReason(document measurements.Document, register pcrs.Register) string {
	for _, u := range document.NotPredicted {
		if u.Register == register {
			return webpage.Clean("not predicted: " + u.Reason)
		}
	}
	return "the document does not mention it"
}

// timeline is what is known of the events of one register.
type timeline struct {
	bank              pcrs.Bank
	row               Register
	predicted, logged []pcrs.Event
	// believed says that the log's events lead to the measured value.
	believed bool
}

// tell writes the timeline into r. An equal register needs no log: no other events lead to its value.
func (t timeline) tell(r *pageRegister, haveLog bool) {
	switch {
	case t.believed:
		t.compare(r, pcrs.Align(t.bank, t.predicted, t.logged))
	case t.row.Result == equal:
		t.list(r, "same", "=", "as expected: no other events lead to this value")
	default:
		t.list(r, "told", "?", "unknown")
	}
	r.Story = t.story(len(r.Steps), haveLog)
	r.Count = count(len(r.Steps)+r.Before+r.After, "event")
}

// story says in words what the timeline cannot show.
func (t timeline) story(steps int, haveLog bool) string {
	switch {
	case steps == 0 && t.row.Result == equal:
		return "It is as it was at power-on: nothing was to be measured into it, and nothing was."
	case steps == 0 && t.believed:
		return "Nothing was measured into it."
	case haveLog && !t.believed && len(t.row.Measured) > 0 && t.row.Note == "":
		return "The event log does not lead to the measured value, so its events are not shown."
	case steps == 0:
		return "Its events are not known."
	}
	return ""
}

func count(n int, what string) string {
	switch n {
	case 0:
		return "no " + what + "s"
	case 1:
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// compare fills in predicted and logged events side by side. Where nothing is predicted there is nothing to depart from.
func (t timeline) compare(r *pageRegister, aligned []pcrs.Step) {
	departed := false
	var steps []pageStep
	first := 0
	for i, s := range aligned {
		step := pageStep{
			Number: i + 1, Expected: t.event(s.Expected), Measured: t.event(s.Measured),
			NoneExpected: "nothing: this event was not expected", NoneMeasured: "nothing: this event did not happen",
		}
		switch {
		case t.row.Expected == nil:
			step.State, step.Mark, step.NoneExpected = "told", "·", "not predicted"
		case s.Same(t.bank):
			step.State, step.Mark, step.Late = "same", "=", departed
		default:
			step.State, step.Mark = departure(s)
			step.First, step.Late = !departed, departed
		}
		if step.First {
			departed, first = true, i
		}
		steps = append(steps, step)
	}
	r.keep(steps, first)
}

func departure(s pcrs.Step) (state, mark string) {
	switch {
	case s.Measured == nil:
		return "missing", "−"
	case s.Expected == nil:
		return "added", "+"
	}
	return "changed", "≠"
}

// list fills in the predicted events alone.
func (t timeline) list(r *pageRegister, state, mark, measured string) {
	var steps []pageStep
	for i := range t.predicted {
		steps = append(steps, pageStep{Number: i + 1, State: state, Mark: mark, Expected: t.event(&t.predicted[i]), NoneMeasured: measured})
	}
	r.keep(steps, 0)
}

// keep holds the page to maxSteps of a register, and shows those around the first departure.
func (r *pageRegister) keep(steps []pageStep, first int) {
	if len(steps) > maxSteps {
		r.Before = min(max(0, first-leadSteps), len(steps)-maxSteps)
		r.After = len(steps) - maxSteps - r.Before
	}
	r.Steps = slices.Clone(steps[r.Before : len(steps)-r.After])
}

// event is what the page says of an event, or nil.
func (t timeline) event(e *pcrs.Event) *pageEvent {
	if e == nil {
		return nil
	}
	digest := e.Digests[t.bank]
	// What a log says of an event without words of its own begins with the type, which the page shows anyway.
	what := strings.TrimPrefix(e.What(), e.Type.String()+" with ")
	return &pageEvent{What: webpage.Clean(what), Type: e.Type.String(), Origin: string(e.Origin), Short: shortValue(digest), Full: digest.String()}
}
