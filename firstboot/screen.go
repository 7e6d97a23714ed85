package firstboot

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/hullmark/hullmark/attest"
	"github.com/hullmark/hullmark/firstboot/network"
)

// Screen is a page on the machine's screen for somebody who stands two metres away: what the machine is called and its state in one word,
// as large as fits, then what to do next. Unlike a console, it shows what holds now, and nothing of before. Its last rows are left to
// the kernel and to systemd, which write on the terminal that is in front: to send that elsewhere, or to bring another terminal to the
// front, takes capabilities that the agent has not.
type Screen struct {
	// W is a terminal that knows the sequences of ECMA-48, and the scrolling region of a VT100.
	W io.Writer
	// Columns and Rows are its size in characters, at the time of the call.
	Size func() (columns, rows int)
	// Image is what the machine runs, for people.
	Image string
	// Links are the machine's network interfaces, and Hostname is its name, at the time of the call.
	Links    func() []network.Link
	Hostname func() (string, error)

	// columns and rows are its size when it was drawn last.
	columns, rows int
}

// Sequences: where to write, what to clear, and how the text looks.
const (
	home, clearLine, clearAll       = "\x1b[?25l\x1b[H", "\x1b[K", "\x1b[2J"
	plain, bold, red, green, yellow = "\x1b[0m", "\x1b[0;1;37m", "\x1b[0;1;31m", "\x1b[0;1;32m", "\x1b[0;1;33m"
	reverse                         = "\x1b[7m"
)

// journey are the steps in their order, as the page counts them.
var journey = []string{StepStart, StepConfig, StepAttest, StepDisk, StepEpoch, StepFuse, StepKubeadm, StepReady}

// draw shows a document. A screen that cannot be written is nothing that a node could say anywhere.
func (s *Screen) draw(d Document) {
	columns, rows := s.Size()
	below := max(2, rows/12) // A scrolling region has two rows at least.
	room := max(rows-below, 1)
	lines := cut(s.page(d, columns, rows).lines, room)
	var b bytes.Buffer
	if columns != s.columns || rows != s.rows {
		b.WriteString(clearAll)
		s.columns, s.rows = columns, rows
	}
	fmt.Fprintf(&b, "\x1b[%d;%dr", room+1, rows)
	b.WriteString(home)
	for i := range room {
		if i > 0 {
			b.WriteString("\n")
		}
		if i < len(lines) {
			b.WriteString(lines[i])
		}
		b.WriteString(clearLine)
	}
	fmt.Fprintf(&b, "\x1b[%d;1H", rows) // There others go on, and scroll the region alone.
	_, _ = s.W.Write(b.Bytes())
}

// page is what there is to show, the most important first: what is too much is cut at the end.
func (s *Screen) page(d Document, columns, rows int) *page {
	p := &page{columns: columns, rows: rows}
	own := s.addresses(d)
	p.add(plain, " ", s.title(d))
	p.large(bold, s.name(own), rows/4)
	p.gap()
	word, style := state(d)
	p.large(style, word, rows/4)
	p.gap()
	p.next(d, own)
	if d.Step == StepInstall { // Nobody is asked yet: which disks there are is more than who asks.
		p.details(d)
		p.who(d, own)
		return p
	}
	p.who(d, own)
	p.details(d)
	return p
}

// title says what runs, and how far it is.
func (s *Screen) title(d Document) string {
	title := "HULLMARK " + s.Image
	if at := slices.Index(journey, d.Step); at >= 0 {
		return fmt.Sprintf("%s, step %d of %d: %s", title, at+1, len(journey), d.Step)
	}
	return title
}

// name is what the machine is called: by its cluster, and before that by its first address.
func (s *Screen) name(own []netip.Addr) string {
	if name, err := s.Hostname(); err == nil && !slices.Contains([]string{"", "(none)", "localhost"}, name) {
		return name
	}
	if len(own) > 0 {
		return own[0].String()
	}
	return "unnamed"
}

// addresses are those at which others reach the machine: of its cards, and of what it had beside them before Kubernetes came with its own.
func (s *Screen) addresses(d Document) (out []netip.Addr) {
	for _, link := range s.Links() {
		if !link.Up || !link.Card && !slices.ContainsFunc(d.Interfaces, func(l network.Link) bool { return l.Name == link.Name }) {
			continue
		}
		for _, prefix := range link.Addresses {
			out = append(out, prefix.Addr())
		}
	}
	return out
}

// state is a document in one word. Its colour: green is well, white is under way, yellow goes on although something stands against it, red
// waits until somebody acts.
func state(d Document) (word, style string) {
	c := d.Condition
	switch {
	case d.Ready && c == nil:
		return "READY", green
	case d.Ready:
		return "READY", yellow
	case c == nil:
		return underWay(d), bold
	case c.Step == StepInstall && c.Code == "installed":
		return "INSTALLED", green
	case c.Retry:
		return "RETRYING", yellow
	case c.Step == StepAttest: // A verifier refused the machine, or the machine a verifier.
		return "REFUSED", red
	}
	return "STOPPED", red
}

// underWay is the word for a step in whose way nothing stands.
func underWay(d Document) string {
	switch d.Step {
	case "", StepStart, StepConfig:
		return "STARTING"
	case StepInstall:
		return "INSTALLING"
	case StepAttest:
		if d.Joining != nil {
			return "JOINING"
		}
		return "WAITING"
	}
	return "ADMITTED"
}

// page collects lines for a screen of that size.
type page struct {
	columns, rows int
	lines         []string
}

// add breaks a text into lines, behind an indentation.
func (p *page) add(style, indent, text string) {
	for _, line := range wrap(inFont(text), max(p.columns-len(indent)-1, 16)) {
		p.lines = append(p.lines, indent+style+line+plain)
	}
}

// short adds a text, but no more lines of it than leave room for others: much of it comes from elsewhere.
func (p *page) short(style, indent, text string) {
	before := len(p.lines)
	p.add(style, indent, text)
	p.lines = append(p.lines[:before], cut(p.lines[before:], max(p.rows/8, 1))...)
}

// large adds a text as large as fits into so many rows, and in letters of the console's own size if no larger ones do. It reports which.
func (p *page) large(style, text string, rows int) bool {
	text = inFont(text)
	for high := rows / dots; high > 0; high-- {
		for _, wide := range []int{2 * high, high} { // A character's place is about twice as high as it is wide.
			if len(text)*(dots+1)*wide-wide > p.columns-2 {
				continue
			}
			if drawing := enlarged(text, wide, high); drawing != nil {
				for _, line := range drawing {
					p.lines = append(p.lines, " "+inBlocks(style, line))
				}
				return true
			}
		}
	}
	p.short(style, " ", text)
	return false
}

func (p *page) gap() { p.lines = append(p.lines, "") }

// next says what stands in the way, and what is to be done.
func (p *page) next(d Document, own []netip.Addr) {
	switch {
	case d.Condition != nil:
		p.condition(d)
	case d.Ready:
		p.add(plain, " ", "It serves its cluster. Nothing is to be done.")
	case d.Step == StepAttest && len(own) > 0:
		p.letIn(d, own[0])
	default:
		p.doing(d.Doing)
		p.add(bold, " ", "Next: wait, it goes on by itself.")
	}
}

func (p *page) doing(text string) {
	if text != "" {
		p.short(plain, " ", text)
	}
}

// condition names what stands in the way, and says what to do about it.
func (p *page) condition(d Document) {
	_, style := state(d)
	if p.large(style, d.Condition.Code, p.rows/8) {
		p.gap()
	}
	p.short(plain, " ", d.Condition.Title)
	p.short(bold, " ", "Next: "+d.Condition.Next)
}

// letIn says how the machine is let in: it begins a cluster, or joins the one whose join services it asks.
func (p *page) letIn(d Document, own netip.Addr) {
	doing, command := d.Doing, "init --node "+net.JoinHostPort(own.String(), attest.OperatorPort)
	if d.Joining != nil {
		doing, command = d.Joining.Doing, "policy add member"
	}
	p.doing(doing)
	p.add(bold, " ", "Next, on the operator's computer:")
	p.add(bold, "   ", "hullmark "+command+` --ekid "EKID" ...`)
}

// who names the machine.
func (p *page) who(d Document, own []netip.Addr) {
	p.gap()
	if d.EKID != nil {
		p.add(plain, " ", "EKID "+spaced(d.EKID.String()))
	}
	for _, a := range own {
		p.add(plain, " ", "address "+a.String())
	}
}

// details are the two sides of a comparison that failed, or what the join services said last.
func (p *page) details(d Document) {
	if c := d.Condition; c != nil {
		for _, line := range [][2]string{{"expected", c.Expected}, {"got", c.Got}} {
			if line[1] != "" {
				p.add(plain, "   ", line[0]+": "+line[1])
			}
		}
		return
	}
	if d.Joining == nil || d.Step != StepAttest { // What was said of the evidence is over once it was accepted.
		return
	}
	for _, e := range d.Joining.Endpoints {
		if e.Condition != nil {
			p.short(plain, "   ", e.Endpoint+": "+e.Condition.Title)
		}
	}
}

// inFont is a text in what the kernel's font surely has, which is ASCII, one byte a character.
func inFont(text string) string {
	return strings.Map(func(r rune) rune {
		if r > '~' {
			return '?'
		}
		return r
	}, strings.ReplaceAll(oneLine(text), "…", "..."))
}

// spaced parts a long word into groups that can be compared by eye.
func spaced(word string) string {
	var groups []string
	for group := range slices.Chunk([]byte(word), 8) {
		groups = append(groups, string(group))
	}
	return strings.Join(groups, " ")
}

// cut keeps so many lines, the last of which then shows that there were more.
func cut(lines []string, most int) []string {
	if len(lines) <= most {
		return lines
	}
	return append(slices.Clone(lines[:most-1]), " ...")
}

// wrap breaks a text into lines of at most width characters, between words where it can.
func wrap(text string, width int) (lines []string) {
	line := ""
	for word := range strings.FieldsSeq(text) {
		for len(word) > width {
			if line != "" {
				lines, line = append(lines, line), ""
			}
			lines, word = append(lines, word[:width]), word[width:]
		}
		switch {
		case line == "":
			line = word
		case len(line)+1+len(word) <= width:
			line += " " + word
		default:
			lines, line = append(lines, line), word
		}
	}
	return append(lines, line)
}
