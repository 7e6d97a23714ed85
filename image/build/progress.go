package build

import (
	"fmt"
	"io"
	"sync"
	"time"
)

// Progress tells a person what long work is doing, how far it is and how long each step took. A nil Progress is silent.
type Progress struct {
	out   io.Writer
	now   func() time.Time
	mu    sync.Mutex
	start time.Time
	last  time.Time
	steps []stepTime
}

type stepTime struct {
	name, note string
	took       time.Duration
}

// NewProgress writes lines to out; now gives the time (time.Now, but for tests).
func NewProgress(out io.Writer, now func() time.Time) *Progress {
	return &Progress{out: out, now: now, start: now()}
}

// Step runs do under a name, says when it begins and ends, and remembers how long it took. The note that do returns ("cached",
// a size) is shown.
func (p *Progress) Step(name string, do func() (note string, err error)) error {
	if p == nil {
		_, err := do()
		return err
	}
	began := p.now()
	p.say("%s …", name)
	note, err := do()
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	took := p.now().Sub(began)
	p.mu.Lock()
	p.steps = append(p.steps, stepTime{name, note, took})
	p.mu.Unlock()
	if note == "" {
		note = "done"
	}
	p.say("%s: %s in %.1f s", name, note, took.Seconds())
	return nil
}

// Say writes one line with the time since the start.
func (p *Progress) Say(format string, args ...any) {
	if p != nil {
		p.say(format, args...)
	}
}

func (p *Progress) say(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last = p.now()
	_, _ = fmt.Fprintf(p.out, "%7.1fs  %s\n", p.last.Sub(p.start).Seconds(), fmt.Sprintf(format, args...))
}

// Part says that done of total things are finished, at most once in two seconds.
func (p *Progress) Part(what string, done, total int64) {
	if p == nil {
		return
	}
	p.mu.Lock()
	quiet := p.now().Sub(p.last) < 2*time.Second
	p.mu.Unlock()
	if !quiet || done == total {
		p.say("%s: %d of %d", what, done, total)
	}
}

// Summary writes how long each step took.
func (p *Progress) Summary() {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.steps {
		_, _ = fmt.Fprintf(p.out, "  %-22s %7.1f s  %s\n", s.name, s.took.Seconds(), s.note)
	}
	_, _ = fmt.Fprintf(p.out, "  %-22s %7.1f s\n", "together", p.now().Sub(p.start).Seconds())
}
