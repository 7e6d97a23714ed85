package explain

import (
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/hullmark/hullmark/internal/webpage"
	"github.com/hullmark/hullmark/pcrs"
)

// maxText is the length of a text that is written, in characters.
const maxText = 4096

// WriteText writes a table of the registers, what it rests on, and a paragraph for each register that differs. It is safe for a terminal.
func (e Explanation) WriteText(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "register\texpected\tmeasured\t\n")
	for _, r := range e.Registers {
		fmt.Fprintf(t, "%v\t%s\t%s\t%s\n", r.Register, shortValue(r.Expected), shortValue(r.Measured), e.resultText(r))
	}
	fmt.Fprintf(t, "\n%s\n", webpage.Line(e.proof(), maxText))
	if e.Builders != nil {
		fmt.Fprintf(t, "the document: %s\n", e.Builders)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, r := range e.Registers {
		if r.Result != differs {
			continue
		}
		if err := r.writeText(w); err != nil {
			return err
		}
	}
	return nil
}

// writeText writes all that is known of a register that differs.
func (r Register) writeText(w io.Writer) error {
	fmt.Fprintf(w, "\n%v differs\n", r.Register)
	for _, line := range [][2]string{
		{"expected", r.Expected.String()},
		{"measured", r.Measured.String()},
		{"event expected", r.ExpectedEvent.String()},
		{"event in the log", r.MeasuredEvent.String()},
		{"because", r.Cause},
		{"note", r.Note},
	} {
		if line[1] == "" {
			continue
		}
		if _, err := fmt.Fprintf(w, "  %-16s  %s\n", line[0], webpage.Line(line[1], maxText)); err != nil {
			return err
		}
	}
	return nil
}

func (e Explanation) resultText(r Register) string {
	if e.Quote != nil && !r.Proven {
		return r.Result + " (not proven: the quote leaves it out)"
	}
	return r.Result
}

func shortValue(d pcrs.Digest) string {
	if len(d) == 0 {
		return "-"
	}
	return fmt.Sprintf("%.16s…", d.String())
}
