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

// Screen is a page on the machine's screen: where it is on its way, who it is, what stands in the way, and what to do next. Unlike a
// console, it shows what holds now, and nothing of before.
type Screen struct {
	// W is a terminal that knows the sequences of ECMA-48.
	W io.Writer
	// Columns and Rows are its size in characters, at the time of the call.
	Size func() (columns, rows int)
	// Image is what the machine runs, for people.
	Image string
	// Links are the machine's network interfaces, and Hostname is its name, at the time of the call.
	Links    func() []network.Link
	Hostname func() (string, error)
}

// Sequences of ECMA-48: where to write, what to clear, and how the text looks.
const (
	home, clearLine, clearBelow = "\x1b[?25l\x1b[H", "\x1b[K\n", "\x1b[J"
	plain, bold, red, green     = "\x1b[0m", "\x1b[0;1;37m", "\x1b[0;1;31m", "\x1b[0;1;32m"
)

// journey are the steps in their order, as the page shows them.
var journey = []string{StepStart, StepConfig, StepAttest, StepDisk, StepEpoch, StepFuse, StepKubeadm, StepReady}

// page collects lines.
type page struct {
	columns int
	lines   []string
}

// add breaks a text into lines, behind an indentation.
func (p *page) add(style, indent, text string) {
	for _, line := range wrap(inFont(text), max(p.columns-len(indent)-1, 16)) {
		p.lines = append(p.lines, indent+style+line+plain)
	}
}

func (p *page) gap() { p.lines = append(p.lines, "") }

// draw shows a document. A screen that cannot be written is nothing that a node could say anywhere.
func (s *Screen) draw(d Document) {
	columns, rows := s.Size()
	p := &page{columns: columns}
	p.add(bold, " ", "HULLMARK  "+s.Image)
	p.gap()
	s.where(p, d)
	p.gap()
	s.who(p, d)
	p.gap()
	s.next(p, d)
	if len(p.lines) > rows {
		p.lines = p.lines[:rows]
	}
	var b bytes.Buffer
	b.WriteString(home)
	for i, line := range p.lines {
		b.WriteString(line)
		if i < len(p.lines)-1 {
			b.WriteString(clearLine)
		}
	}
	b.WriteString("\x1b[K" + clearBelow)
	_, _ = s.W.Write(b.Bytes())
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

// where says how far the machine is.
func (s *Screen) where(p *page, d Document) {
	at := slices.Index(journey, d.Step)
	switch {
	case d.Ready:
		name, err := s.Hostname()
		if err != nil {
			name = "the node"
		}
		p.add(green, " ", "READY: "+name+" serves its cluster")
	case at >= 0:
		p.add(bold, " ", fmt.Sprintf("%s, step %d of %d", d.Step, at+1, len(journey)))
	default:
		p.add(bold, " ", d.Step)
	}
	if d.Doing != "" && !d.Ready && d.Condition == nil {
		p.add(plain, " ", d.Doing)
	}
}

// who names the machine.
func (s *Screen) who(p *page, d Document) {
	for _, a := range s.addresses(d) {
		p.add(plain, " ", "address  "+a.String())
	}
	if d.EKID != nil {
		p.add(plain, " ", "EKID     "+spaced(d.EKID.String()))
	}
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

// spaced parts a long word into groups that can be compared by eye.
func spaced(word string) string {
	var groups []string
	for group := range slices.Chunk([]byte(word), 8) {
		groups = append(groups, string(group))
	}
	return strings.Join(groups, " ")
}

// next says what stands in the way, or what is to be done.
func (s *Screen) next(p *page, d Document) {
	if c := d.Condition; c != nil {
		style := red
		if c.Retry {
			style = bold
		}
		p.add(style, " ", c.Title)
		for _, line := range [][2]string{{"code", c.Code}, {"expected", c.Expected}, {"got", c.Got}} {
			if line[1] != "" {
				p.add(plain, "   ", line[0]+": "+line[1])
			}
		}
		p.gap()
		p.add(bold, " ", "Next: "+c.Next)
		return
	}
	if d.Joining != nil && d.Step == StepAttest { // What was said of the evidence is over once it was accepted.
		p.add(plain, " ", d.Joining.Doing)
		for _, e := range d.Joining.Endpoints {
			if e.Condition != nil {
				p.add(plain, "   ", e.Endpoint+": "+e.Condition.Title)
			}
		}
	}
	if addresses := s.addresses(d); d.Step == StepAttest && len(addresses) > 0 {
		p.add(bold, " ", "Next, on the operator's computer:")
		p.add(plain, "   ", "hullmark "+command(d, addresses[0])+" --ekid THE-ABOVE ...")
	}
}

// command is what lets the machine in: it begins a cluster, or joins the one whose join services it asks.
func command(d Document, own netip.Addr) string {
	if d.Joining != nil {
		return "policy add member"
	}
	return "init --node " + net.JoinHostPort(own.String(), attest.OperatorPort)
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
