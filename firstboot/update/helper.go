package update

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/image/verity"
)

// Socket is where the helper waits that alone writes the disk which the node boots from. Each connection is one request, answered by a
// process of its own.
const Socket = "/run/hullmark/slots.socket"

// maxMessage bounds a request or an answer, in bytes: a node configuration, in base64, is the longest part of one.
const maxMessage = 2*hullmark.MaxNodeConfig + 32<<10

// Op is what the helper is asked for.
type Op string

// The operations of the helper.
const (
	// OpLook says what the slots hold, and changes nothing.
	OpLook Op = "look"
	// OpStage is Disk.Stage, into the slot that does not run.
	OpStage Op = "stage"
	// OpTry is Disk.Try, of that slot.
	OpTry Op = "try"
	// OpCommit makes the slot that runs the one that starts by itself.
	OpCommit Op = "commit"
	// OpExplain keeps a text for the boot after this one, in a firmware variable: a trial that never opened the state disk says there
	// why it failed.
	OpExplain Op = "explain"
	// OpConfig reads the node configuration that the disk holds.
	OpConfig Op = "config"
	// OpInstall is install.Medium.Install, from the medium that the machine has booted from. Firmware is to start the disk in the next
	// boot.
	OpInstall Op = "install"
)

// Request is one line of JSON.
type Request struct {
	Op Op `json:"op"`
	// RootHash is of the release to stage, and of the one that runs, which is what OpInstall installs: it is on the kernel's command line,
	// and the helper sees that as little as anything else in /proc.
	RootHash hullmark.RootHash `json:"rootHash,omitzero"`
	// Disk (the SHA-256 of the raw disk) and Sources are of the release to stage.
	Disk    hullmark.RootHash `json:"disk,omitzero"`
	Sources []string          `json:"sources,omitempty"`
	// Text is what OpExplain keeps, at most MaxText bytes.
	Text string `json:"text,omitempty"`
	// Config is the node configuration that OpInstall follows, and puts on the disk.
	Config []byte `json:"config,omitempty"`
}

// MaxText bounds what OpExplain keeps, in bytes.
const MaxText = 512

// Answer is one line of JSON. Of a request that takes long there are several; the last one has Done or Failed.
type Answer struct {
	Slots   *Slots   `json:"slots,omitempty"`
	Fetched *Fetched `json:"fetched,omitempty"`
	// Config is what the disk holds; empty if it holds none.
	Config     []byte              `json:"config,omitempty"`
	Installing *Installing         `json:"installing,omitempty"`
	Installed  *Installed          `json:"installed,omitempty"`
	Done       bool                `json:"done,omitempty"`
	Failed     *hullmark.Condition `json:"failed,omitempty"`
}

// Installing says how far an installation is.
type Installing struct {
	Doing   string `json:"doing"`
	Percent int    `json:"percent"`
}

// Installed says how it ended.
type Installed struct {
	// Disk is the disk, for people.
	Disk string `json:"disk"`
	// Before is set if it was installed before, with this configuration.
	Before bool `json:"before,omitempty"`
	// Next is why firmware was not told to start it in the next boot; empty if it was.
	Next string `json:"next,omitempty"`
}

// Slots is what the slots hold.
type Slots struct {
	// Running is the slot of this boot, Default the one that starts by itself: a or b.
	Running string `json:"running"`
	Default string `json:"default"`
	// Medium is set if the machine has booted from an installation medium, which has no slots: all else is empty then.
	Medium bool `json:"medium,omitempty"`
	// A and B are the root hashes of their releases; zero of a slot on which nothing could start.
	A hullmark.RootHash `json:"a,omitzero"`
	B hullmark.RootHash `json:"b,omitzero"`
	// Text is what the last trial kept by OpExplain. The host can write it as well.
	Text string `json:"text,omitempty"`
}

// Client asks the helper.
type Client struct {
	// Path is the helper's socket.
	Path string
}

// Look returns what the slots hold.
func (c Client) Look(ctx context.Context) (slots Slots, err error) {
	err = c.ask(ctx, Request{Op: OpLook}, func(a Answer) {
		if a.Slots != nil {
			slots = *a.Slots
		}
	})
	if err == nil && (slots.Running == "") != slots.Medium {
		err = errors.New("slots: the helper answered something else")
	}
	return slots, err
}

// Stage writes a release into the slot that does not run; tell hears how far it is. See Disk.Stage.
func (c Client) Stage(ctx context.Context, r Release, sources []string, tell func(Fetched)) error {
	return c.ask(ctx, Request{Op: OpStage, RootHash: hullmark.RootHash(r.RootHash), Disk: r.Disk, Sources: sources}, func(a Answer) {
		if a.Fetched != nil {
			tell(*a.Fetched)
		}
	})
}

// Try has firmware start the slot that does not run, for the next boot alone. See Disk.Try.
func (c Client) Try(ctx context.Context) error { return c.ask(ctx, Request{Op: OpTry}, ignore) }

// Commit makes the slot that runs the one that starts by itself.
func (c Client) Commit(ctx context.Context) error { return c.ask(ctx, Request{Op: OpCommit}, ignore) }

// Explain keeps a text for the next boot's Look, of a long one its beginning; an empty one takes it back.
func (c Client) Explain(ctx context.Context, text string) error {
	text = strings.ToValidUTF8(text[:min(len(text), MaxText)], "")
	return c.ask(ctx, Request{Op: OpExplain, Text: text}, ignore)
}

// Config returns the node configuration that the disk holds; it is empty if the disk holds none.
func (c Client) Config(ctx context.Context) (config []byte, err error) {
	err = c.ask(ctx, Request{Op: OpConfig}, func(a Answer) { config = append(config, a.Config...) })
	return config, err
}

// OnMedium reports whether the machine has booted from an installation medium.
func (c Client) OnMedium(ctx context.Context) (bool, error) {
	slots, err := c.Look(ctx)
	return slots.Medium, err
}

// Install installs the disk that a node configuration names, from the medium that the machine has booted from, which holds the release
// that runs; tell hears how far it is.
func (c Client) Install(ctx context.Context, release hullmark.RootHash, config []byte, tell func(Installing)) (done Installed, err error) {
	err = c.ask(ctx, Request{Op: OpInstall, RootHash: release, Config: config}, func(a Answer) {
		if a.Installing != nil {
			tell(*a.Installing)
		}
		if a.Installed != nil {
			done = *a.Installed
		}
	})
	if err == nil && done.Disk == "" {
		err = errors.New("slots: the helper answered something else")
	}
	return done, err
}

func ignore(Answer) {}

// ask sends a request and hears its answers.
func (c Client) ask(ctx context.Context, r Request, hear func(Answer)) error {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "unix", c.Path)
	if err != nil {
		return fmt.Errorf("slots: %w", err)
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if err := writeLine(conn, r); err != nil {
		return fmt.Errorf("slots: %w", err)
	}
	in := bufio.NewReader(conn)
	for {
		var a Answer
		if err := readLine(in, &a); err != nil {
			return fmt.Errorf("slots: the helper's answer: %w (its reason is in the journal of hullmark-slots@)", errors.Join(context.Cause(ctx), err))
		}
		hear(a)
		if a.Failed != nil {
			return a.Failed
		}
		if a.Done {
			return nil
		}
	}
}

// ReadRequest reads one request.
func ReadRequest(r io.Reader) (Request, error) {
	var q Request
	if err := readLine(bufio.NewReader(r), &q); err != nil {
		return Request{}, fmt.Errorf("request: %w", err)
	}
	if (q.Op == OpStage) != (len(q.Sources) > 0) || (q.Op == OpInstall) != (len(q.Config) > 0) || len(q.Text) > MaxText {
		return Request{}, fmt.Errorf("request: operation %.20q with %d sources, %d bytes of configuration and %d of text", q.Op, len(q.Sources), len(q.Config), len(q.Text))
	}
	return q, nil
}

// release is what OpStage names.
func (q Request) release() Release { return Release{RootHash: verity.Root(q.RootHash), Disk: q.Disk} }

// Send writes one answer.
func (a Answer) Send(w io.Writer) error { return writeLine(w, a) }

func writeLine(w io.Writer, v any) error {
	line, err := json.Marshal(v)
	if err == nil {
		_, err = w.Write(append(line, '\n'))
	}
	return err
}

// readLine strictly decodes one line of JSON.
func readLine(r *bufio.Reader, v any) error {
	var line []byte
	for len(line) < maxMessage {
		part, err := r.ReadSlice('\n')
		line = append(line, part...)
		if err == nil {
			return hullmark.DecodeStrict(line, maxMessage, v)
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return err
		}
	}
	return fmt.Errorf("longer than %d bytes", maxMessage)
}
