// Package servicefiles is how the join service of a control plane keeps what it has to know at its next start: its node's agent
// puts it into the manifest of the state disk (docs/state-disk.md, The manifest), whose host so cannot exchange one file of it. By the
// same way the service learns of its node's certificates, which it cannot read.
package servicefiles

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"

	"github.com/hullmark/hullmark"
)

// The files, of which there are no others.
const (
	// Policy is the newest policy that the service was given, with its documents.
	Policy = "policy.json"
	// ControlPlanes is what the service saw last of control planes' records.
	ControlPlanes = "control-planes.json"
	// OutageOver names the boot whose outage is over.
	OutageOver = "outage-over"
	// Superseded is there as long as not all certificates that kubeadm made on this control plane are of the authorities that sign by now,
	// and says why not. The agent looks at the state disk for each reading of it, and lets nobody write it.
	Superseded = "superseded"
)

// limits are the largest contents, in bytes.
var limits = map[string]int{Policy: 4 << 20, ControlPlanes: 1 << 20, OutageOver: 64, Superseded: MaxSuperseded}

// MaxSuperseded is how long the content of Superseded may be, in bytes.
const MaxSuperseded = 4 << 10

// maxLine bounds the line before a content, in bytes.
const maxLine = 16 << 10

// File is one of the files.
type File interface {
	// Read returns the content; fs.ErrNotExist says that there is none yet, every other error that it could not be read.
	Read() ([]byte, error)
	// Write replaces the content, and returns once it is stored: after a cut there is the old one or the new one.
	Write(content []byte) error
}

// The operations.
const (
	opRead  = "read"
	opWrite = "write"
)

// request is one line of JSON, which the content follows that opWrite writes.
type request struct {
	Op   string `json:"op"`
	Name string `json:"name"`
	Size int    `json:"size,omitempty"`
}

// answer is one line of JSON, which the content follows that was read.
type answer struct {
	// Absent reports that there is no such file.
	Absent bool                `json:"absent,omitempty"`
	Size   int                 `json:"size,omitempty"`
	Failed *hullmark.Condition `json:"failed,omitempty"`
}

func (q request) check() error {
	limit, ok := limits[q.Name]
	switch {
	case !ok:
		return fmt.Errorf("%.80q is no file that a join service keeps", q.Name)
	case q.Op != opRead && q.Op != opWrite || q.Op == opRead && q.Size != 0 || q.Op == opWrite && q.Name == Superseded:
		return fmt.Errorf("operation %.20q of %s with %d bytes", q.Op, q.Name, q.Size)
	case q.Size < 0 || q.Size > limit:
		return fmt.Errorf("%s: %d bytes, at most %d are allowed", q.Name, q.Size, limit)
	}
	return nil
}

// readRequest reads one request, and what is to be written.
func readRequest(r io.Reader) (q request, content []byte, err error) {
	in := bufio.NewReader(r)
	if err := readLine(in, &q); err != nil {
		return q, nil, fmt.Errorf("request: %w", err)
	}
	if err := q.check(); err != nil {
		return q, nil, fmt.Errorf("request: %w", err)
	}
	content = make([]byte, q.Size)
	if _, err := io.ReadFull(in, content); err != nil {
		return q, nil, fmt.Errorf("request: %s: %w", q.Name, err)
	}
	return q, content, nil
}

// readAnswer reads the answer to a request for the file name, and its content.
func readAnswer(r io.Reader, name string) ([]byte, error) {
	in := bufio.NewReader(r)
	var a answer
	if err := readLine(in, &a); err != nil {
		return nil, fmt.Errorf("answer: %w", err)
	}
	switch {
	case a.Failed != nil:
		return nil, a.Failed
	case a.Absent:
		return nil, fs.ErrNotExist
	case a.Size < 0 || a.Size > limits[name]:
		return nil, fmt.Errorf("answer: %d bytes, at most %d are allowed", a.Size, limits[name])
	}
	content := make([]byte, a.Size)
	if _, err := io.ReadFull(in, content); err != nil {
		return nil, fmt.Errorf("answer: %w", err)
	}
	return content, nil
}

// write writes a request or an answer, and what follows it.
func write(w io.Writer, line any, content []byte) error {
	encoded, err := json.Marshal(line)
	if err != nil {
		return err
	}
	if _, err := w.Write(append(encoded, '\n')); err != nil || len(content) == 0 {
		return err
	}
	_, err = w.Write(content)
	return err
}

// readLine decodes one line, which holds one value and no unknown field.
func readLine(r *bufio.Reader, into any) error {
	var line []byte
	for {
		b, err := r.ReadByte()
		if err != nil {
			return err
		}
		if b == '\n' {
			break
		}
		if line = append(line, b); len(line) > maxLine {
			return fmt.Errorf("a line of more than %d bytes", maxLine)
		}
	}
	return hullmark.DecodeStrict(line, maxLine, into)
}
