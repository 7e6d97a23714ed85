package firstboot

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/firstboot/network"
	"github.com/hullmark/hullmark/internal/atomicfile"
)

// StatusFile is where the agent's status document lies.
const StatusFile = "/run/hullmark/status.json"

// Document is the status document.
type Document struct {
	// Version is 1.
	Version int `json:"version"`
	// Step is the state that the agent is in.
	Step string `json:"step"`
	// Doing says it for people.
	Doing string `json:"doing,omitempty"`
	// EKID is the identity of the machine's TPM, once known.
	EKID *hullmark.EKID `json:"ekid,omitempty"`
	// Ready reports that the node serves its cluster.
	Ready bool `json:"ready"`
	// Condition is what stands in the way, if anything does; of a Ready node, what somebody has to look at. Of what caused
	// others it is the cause.
	Condition *hullmark.Condition `json:"condition,omitempty"`
	// Prevents are the titles of what the condition led to, the last first.
	Prevents []string `json:"prevents,omitempty"`
	// Joining is there while the node asks join services for its ticket.
	Joining *Joining `json:"joining,omitempty"`
	// Interfaces are the machine's cards, and what else has addresses: once the network is up, and as they are when somebody asks the node.
	Interfaces []network.Link `json:"interfaces,omitempty"`
	// Update is what the node says of its slots, once it has looked at them.
	Update *hullmark.UpdateStatus `json:"update,omitempty"`
	// Epoch is the state disk's number, of a node that was Ready.
	Epoch uint64 `json:"epoch,omitempty"`
}

// Joining tells of the attempts to join or come back.
type Joining struct {
	// Doing says for people which endpoint is asked, or when the next round begins.
	Doing string `json:"doing"`
	// Endpoints are those that were asked, in the order of the node config.
	Endpoints []Endpoint `json:"endpoints"`
}

// Endpoint is a join service that the node config names.
type Endpoint struct {
	// Endpoint is its host:port.
	Endpoint string `json:"endpoint"`
	// Condition is how the last attempt ended; nil before the first.
	Condition *hullmark.Condition `json:"condition,omitempty"`
}

// show makes a chain of conditions the one that stands.
func (d *Document) show(c *hullmark.Condition) { d.Condition, d.Prevents = c.Root(), c.Prevented() }

// Status keeps the status document in a file, and tells the console of every
// new condition. Failing to do so never fails the boot: it is written to the log.
type Status struct {
	// File is the document's path; Console is where people look; Notify takes
	// one line for the service manager.
	File string
	// Screen, if set, shows the document as a page.
	Screen *Screen
	// Sentinels is the folder in which Cluster API looks for how bootstrapping ended, if anything does.
	Sentinels string
	Console   io.Writer
	Log       io.Writer
	Notify    func(line string)

	mu  sync.Mutex
	doc Document
	// printed is the condition that the console showed last.
	printed string
}

// The files in Sentinels: the first is that of Cluster API's contract for bootstrap providers ("Sentinel File"), the second is
// its counterpart here, with the condition's code, and there only while a condition stands that does not pass by itself.
const (
	sentinelSuccess = "bootstrap-success.complete"
	sentinelFailure = "bootstrap-failure.complete"
)

// sentinel leaves one of the sentinels, or none, and no other.
func (s *Status) sentinel(name, content string) {
	if s.Sentinels == "" {
		return
	}
	for _, other := range []string{sentinelSuccess, sentinelFailure} {
		if other == name {
			continue
		}
		if err := os.Remove(filepath.Join(s.Sentinels, other)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			fmt.Fprintln(s.Log, "status:", err)
		}
	}
	if name == "" {
		return
	}
	if err := atomicfile.Write(filepath.Join(s.Sentinels, name), []byte(content), 0o644); err != nil {
		fmt.Fprintln(s.Log, "status:", err)
	}
}

// Enter says that a step begins; the condition of an earlier attempt is over.
func (s *Status) Enter(step string) {
	s.change(func(d *Document) { d.Step, d.Doing, d.Condition, d.Prevents = step, "", nil, nil })
}

// Say tells what the current step does.
func (s *Status) Say(format string, args ...any) {
	s.change(func(d *Document) { d.Doing = fmt.Sprintf(format, args...) })
}

// maxInterfaces bounds how many interfaces the document has: a Ready node has one for each pod.
const maxInterfaces = 32

// Connected shows the network interfaces, which is no news for the log.
func (s *Status) Connected(links []network.Link) {
	links = slices.DeleteFunc(slices.Clone(links), func(l network.Link) bool { return !l.Card && len(l.Addresses) == 0 })
	s.mu.Lock()
	defer s.mu.Unlock()
	s.doc.Interfaces = links[:min(len(links), maxInterfaces)]
	s.storeLocked()
}

// Know records the node's identity.
func (s *Status) Know(id hullmark.EKID) { s.change(func(d *Document) { d.EKID = &id }) }

// Finish says that the node is Ready.
func (s *Status) Finish() {
	s.change(func(d *Document) {
		*d = Document{Step: StepReady, Doing: "the node is Ready", EKID: d.EKID, Ready: true, Interfaces: d.Interfaces, Update: d.Update, Epoch: d.Epoch}
	})
	s.sentinel(sentinelSuccess, "success\n")
	fmt.Fprint(s.Console, "\nHULLMARK: the node is Ready\n")
}

// Fail shows a condition. One that the console showed last is not printed again.
func (s *Status) Fail(c *hullmark.Condition) {
	s.change(func(d *Document) {
		d.show(c)
		d.Ready = false
	})
	if root := c.Root(); root.Retry {
		s.sentinel("", "")
	} else {
		s.sentinel(sentinelFailure, root.Code+"\n")
	}
	s.print(c)
}

// standing is the condition that is shown now; nil if there is none.
func (s *Status) standing() *hullmark.Condition {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.doc.Condition
}

// update shows what the node says of its slots, which is no news for the log.
func (s *Status) update(u hullmark.UpdateStatus) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.doc.Update = &u
	s.storeLocked()
}

// epoch shows the state disk's number, which is no news for the log.
func (s *Status) epoch(n uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.doc.Epoch = n
	s.storeLocked()
}

// FailUnlessFailed shows a condition unless another one stands, but for what it said itself.
func (s *Status) FailUnlessFailed(c *hullmark.Condition) {
	standing := s.standing()
	if standing == nil || slices.Contains([]string{"no-network", "service-unreachable", "service-untrusted", "root-mismatch"}, standing.Code) {
		s.Fail(c)
	}
}

// Warn shows a condition of a node that is Ready all the same.
func (s *Status) Warn(c *hullmark.Condition) {
	s.change(func(d *Document) { d.show(c) })
	s.print(c)
}

// WarnUnlessWarned does the same unless another condition stands.
func (s *Status) WarnUnlessWarned(c *hullmark.Condition) {
	standing := s.standing()
	if standing == nil || standing.Code == c.Code {
		s.Warn(c)
	}
}

// Unwarn takes a warning of that code back.
func (s *Status) Unwarn(code string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.doc.Condition != nil && s.doc.Condition.Code == code {
		s.doc.Condition, s.doc.Prevents = nil, nil
		s.storeLocked()
	}
}

func (s *Status) print(c *hullmark.Condition) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if block := Block(c); block != s.printed {
		s.printed = block
		fmt.Fprint(s.Console, block)
	}
}

// Ask says which join service is asked, of the endpoints that there are.
func (s *Status) Ask(endpoint string, endpoints []string) {
	s.joining(func(j *Joining) {
		if j.Endpoints == nil {
			for _, e := range endpoints {
				j.Endpoints = append(j.Endpoints, Endpoint{Endpoint: e})
			}
		}
		j.Doing = "asking the join service at " + endpoint
	})
}

// Answered notes how an attempt with a join service ended.
func (s *Status) Answered(endpoint string, c *hullmark.Condition) {
	s.joining(func(j *Joining) {
		for i := range j.Endpoints {
			if j.Endpoints[i].Endpoint == endpoint {
				j.Endpoints[i].Condition = c.Root()
			}
		}
	})
	fmt.Fprintf(s.Log, "join service at %s: %s\n", endpoint, oneLine(c.Error()))
}

// AskAgainIn says when the join services are asked again.
func (s *Status) AskAgainIn(pause time.Duration) {
	seconds := int(math.Ceil(pause.Seconds()))
	s.joining(func(j *Joining) { j.Doing = fmt.Sprintf("trying again in %d s", seconds) })
}

// AskNoMore says that another exchange has its ticket.
func (s *Status) AskNoMore() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.doc.Joining = nil
	s.storeLocked()
}

// joining changes what the status tells of joining, which is no news for the log.
func (s *Status) joining(edit func(*Joining)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.doc.Joining == nil {
		s.doc.Joining = &Joining{}
	}
	edit(s.doc.Joining)
	s.storeLocked()
}

// Document returns the document as JSON.
func (s *Status) Document() []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.encode()
}

func (s *Status) encode() []byte {
	s.doc.Version = 1
	text, err := json.MarshalIndent(s.doc, "", "  ")
	if err != nil {
		fmt.Fprintln(s.Log, "status:", err)
	}
	return append(text, '\n')
}

func (s *Status) change(edit func(*Document)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	edit(&s.doc)
	s.storeLocked()
	line := s.doc.Step
	switch {
	case s.doc.Condition != nil:
		line += ": " + s.doc.Condition.Error()
	case s.doc.Doing != "":
		line += ": " + s.doc.Doing
	}
	line = oneLine(line)
	fmt.Fprintln(s.Log, line)
	s.Notify("STATUS=" + line)
}

func (s *Status) storeLocked() {
	if s.Screen != nil {
		s.Screen.draw(s.doc)
	}
	if err := atomicfile.Write(s.File, s.encode(), 0o644); err != nil {
		fmt.Fprintln(s.Log, "status:", err)
	}
}

// KeepDrawn draws the screen anew now and then: addresses come and go, and others may write on it.
func (s *Status) KeepDrawn(ctx context.Context, every time.Duration) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(every):
		}
		s.mu.Lock()
		s.Screen.draw(s.doc)
		s.mu.Unlock()
	}
}

// Block returns a condition as the block of lines that the console shows: the
// root cause first, then what it prevented.
func Block(c *hullmark.Condition) string {
	root := c.Root()
	var b strings.Builder
	fmt.Fprintf(&b, "\nHULLMARK: %s\n", oneLine(root.Title))
	for _, line := range [][2]string{
		{"code", root.Code},
		{"step", root.Step},
		{"expected", root.Expected},
		{"got", root.Got},
		{"next", root.Next},
	} {
		if line[1] != "" {
			fmt.Fprintf(&b, "  %-9s %s\n", line[0]+":", oneLine(line[1]))
		}
	}
	for _, title := range c.Prevented() {
		fmt.Fprintf(&b, "  %-9s %s\n", "prevents:", oneLine(title))
	}
	return b.String()
}

// oneLine keeps foreign text from drawing lines of its own on the console. A terminal obeys U+009B, too, as it does ESC and [.
func oneLine(s string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, s)
}
