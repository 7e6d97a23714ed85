// Package journal forwards a node's journal to a collector, by syslog over TLS (RFC 5424, RFC 5425).
//
// The journal on the node's encrypted disk is the only queue: its own bound is that of what waits for a collector that is away or slow, and
// nothing that waits here holds journald up. What the journal gave up meanwhile is counted, by its own numbers, and told to the collector.
// How far the collector got is kept as a cursor, which moves once the collector's machine has acknowledged what was sent; so what is sent
// twice is possible, what is skipped is not, but for what a collector took and lost itself.
package journal

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/internal/atomicfile"
)

// Timing is how patient a forwarder is.
type Timing struct {
	// Dial bounds connecting with its handshake, Write how long the collector may take for one message, and Refusal is how long it may take
	// to refuse a certificate.
	Dial, Write, Refusal time.Duration
	// Pause lies between the first two attempts; each following one doubles, up to LongestPause.
	Pause, LongestPause time.Duration
	// Keep lies between two looks at what was acknowledged.
	Keep time.Duration
}

// DefaultTiming is that of a node.
func DefaultTiming() Timing {
	return Timing{Dial: 20 * time.Second, Write: time.Minute, Refusal: time.Second, Pause: time.Second, LongestPause: time.Minute, Keep: 5 * time.Second}
}

// maxCursor and maxPosition bound what is kept, in bytes.
const (
	maxCursor   = 1 << 10
	maxPosition = 4 << 10
)

// position is how far the collector got.
type position struct {
	Cursor string `json:"cursor"`
	Source string `json:"source,omitempty"`
	Number uint64 `json:"number,omitempty"`
}

func (e entry) position() position {
	return position{Cursor: e.cursor, Source: e.source, Number: e.number}
}

// Forwarder sends a journal. All exported fields are set by its maker.
type Forwarder struct {
	// Settings is a folder with the files of the collector, State one that outlives boots, and Status the file that says how it is going.
	Settings, State, Status string
	// Node is the node's name.
	Node string
	// Read exports the journal from behind a cursor on, and waits for more; all of it without one.
	Read   func(ctx context.Context, cursor string) (io.ReadCloser, error)
	Timing Timing

	collector collector
	now       position
	forward   hullmark.Forward
	// seen is the last entry that was read, sent or not, and dropped are those missing of which the collector was not told yet.
	seen    position
	dropped uint64
}

// Run forwards until ctx ends.
func (f *Forwarder) Run(ctx context.Context) (err error) {
	if f.collector, err = readCollector(f.Settings); err != nil {
		return err
	}
	if err := f.resume(); err != nil {
		return err
	}
	pause := f.Timing.Pause
	for {
		sent := f.forward.Sent
		err := f.connect(ctx)
		if ctx.Err() != nil {
			return nil
		}
		f.tell(err)
		if pause = min(2*pause, f.Timing.LongestPause); f.forward.Sent > sent {
			pause = f.Timing.Pause
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
	}
}

// connect forwards over one connection until it ends.
func (f *Forwarder) connect(ctx context.Context) error {
	to, err := f.collector.dial(ctx, f.Timing)
	if err != nil {
		return err
	}
	defer to.counted.Close()
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	from, err := f.Read(ctx, f.now.Cursor)
	if err != nil {
		return fmt.Errorf("read the journal: %w", err)
	}
	defer from.Close()
	f.tell(nil)
	entries := make(chan entry)
	go func() { stop(read(ctx, newExported(from), entries)) }()
	s := sending{Forwarder: f, to: to, at: f.now}
	tick := time.NewTicker(f.Timing.Keep)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return errors.Join(context.Cause(ctx), s.keep())
		case err := <-to.gone:
			return asRefusal(err)
		case <-tick.C:
			err = s.keep()
		case e := <-entries:
			err = s.send(e)
		}
		if err != nil {
			return err
		}
	}
}

// read hands entries on, one after the other: while nobody takes one, journalctl waits, and journald does not.
func read(ctx context.Context, from exported, entries chan<- entry) error {
	for {
		e, err := from.next()
		if err != nil {
			return fmt.Errorf("read the journal: %w", err)
		}
		select {
		case entries <- e:
		case <-ctx.Done():
			return nil
		}
	}
}

// sending is what is under way on one connection.
type sending struct {
	*Forwarder
	to *connection
	// at is the last entry that was written, of sequence messages.
	at       position
	newest   int64
	sequence uint32
	unkept   uint64
	// mark is an entry that is waited on to be acknowledged: once the first end bytes are.
	mark *mark
}

type mark struct {
	at      position
	end     int64
	newest  int64
	entries uint64
}

// send writes an entry, and before it how many are missing.
func (s *sending) send(e entry) error {
	s.count(e)
	if s.dropped > 0 {
		if err := s.write(lost(s.Node, s.dropped, time.Now(), s.next())); err != nil {
			return err
		}
		s.dropped = 0
	}
	if err := s.write(e.message(s.Node, s.next())); err != nil {
		return err
	}
	s.at, s.newest = e.position(), e.time.Unix()
	s.unkept++
	return nil
}

// count finds out by the journal's numbers how many entries are missing before this one. Another source begins to count anew.
func (f *Forwarder) count(e entry) {
	if e.source == f.seen.Source && e.number <= f.seen.Number {
		return // It was read before.
	}
	if e.source == f.seen.Source && f.seen.Number > 0 {
		missing := e.number - f.seen.Number - 1
		f.dropped += missing
		f.forward.Dropped += missing
	}
	f.seen = e.position()
}

// next is a message's number on this connection, as RFC 5424, 7.3.1, has it.
func (s *sending) next() uint32 {
	if s.sequence++; s.sequence > 1<<31-1 {
		s.sequence = 1
	}
	return s.sequence
}

func (s *sending) write(message []byte) error {
	if err := s.to.SetWriteDeadline(time.Now().Add(s.Timing.Write)); err != nil {
		return err
	}
	_, err := s.to.Write(message)
	return err
}

// keep moves the position to what the collector's machine has acknowledged.
func (s *sending) keep() error {
	acknowledged, err := s.to.counted.acknowledged()
	if err != nil {
		return err
	}
	if s.mark != nil && acknowledged >= s.mark.end {
		s.now = s.mark.at
		s.forward.Sent, s.forward.Newest = s.forward.Sent+s.mark.entries, s.mark.newest
		s.mark = nil
		if err := s.store(); err != nil {
			return err
		}
		s.tell(nil)
	}
	if s.mark == nil && s.unkept > 0 {
		s.mark = &mark{at: s.at, end: s.to.counted.written.Load(), newest: s.newest, entries: s.unkept}
		s.unkept = 0
	}
	return nil
}

// positionFile is where a forwarder goes on, in its folder.
const positionFile = "position.json"

func (f *Forwarder) store() error {
	encoded, err := json.Marshal(f.now)
	if err != nil {
		return err
	}
	return atomicfile.Write(filepath.Join(f.State, positionFile), encoded, 0o600)
}

// resume goes on where the last run ended. What cannot be read is none: all that the journal has is sent then, again perhaps.
func (f *Forwarder) resume() error {
	encoded, err := os.ReadFile(filepath.Join(f.State, positionFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := hullmark.DecodeStrict(encoded, maxPosition, &f.now); err != nil || len(f.now.Cursor) > maxCursor {
		f.now = position{}
	}
	f.seen = f.now
	return nil
}

// tell says how it is going, to the node's agent and its metrics.
func (f *Forwarder) tell(err error) {
	if f.forward.Condition = nil; err != nil {
		f.forward.Condition = f.why(err)
	}
	encoded, err := json.Marshal(f.forward)
	if err == nil {
		err = atomicfile.Write(f.Status, encoded, 0o644)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "journal:", err)
	}
}

// why is the condition of an attempt that ended.
func (f *Forwarder) why(err error) *hullmark.Condition {
	got := fmt.Sprintf("%.300q", err.Error())
	if errors.As(err, new(*refusal)) {
		return &hullmark.Condition{
			Code: "journal-refused", Step: "READY", Retry: true, Expected: "a certificate for " + f.collector.Name + " of the policy's authority", Got: got,
			Title: "the collector of the journal is not whom the policy names, or does not know the node: nothing is sent to it",
			Next:  "find out who answers there; correct journal in the cluster document, and sign and push the policy",
		}
	}
	return &hullmark.Condition{
		Code: "journal-not-sent", Step: "READY", Retry: true, Expected: "a collector at " + f.collector.Endpoint, Got: got,
		Title: "the collector of the journal does not take it", Next: "see that it runs and can be reached; until then the journal keeps what it has room for",
	}
}
