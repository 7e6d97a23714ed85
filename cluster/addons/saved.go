package addons

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/hullmark/hullmark"
)

// SavedFormat names the format of what is saved: lines of JSON, compressed (RFC 1952), in the age format. docs/addons.md describes it.
const SavedFormat = "hullmark.addons/v1"

// Limits of a saved state.
const (
	// maxLine bounds a line, in bytes: an object and its name. An API server takes objects of 3 MiB.
	maxLine = 8 << 20
	// maxSaved bounds the lines, and maxSavedBytes all of them together.
	maxSaved      = 1 << 20
	maxSavedBytes = 16 << 30
)

// The parts that a saved object plays.
const (
	// partDefinition is a CustomResourceDefinition, partCustom one of the objects of such.
	partDefinition = "definition"
	partCustom     = "custom"
	// partObject is an object that the add-ons have, had, or get; partRecord is what Helm keeps of a release.
	partObject = "object"
	partRecord = "record"
)

// header is the first line of a saved state.
type header struct {
	Format string `json:"format"`
	// Run names the run that saved it, and Previous the one before that was not brought back, or nothing.
	Run      string    `json:"run"`
	Previous string    `json:"previous,omitempty"`
	Time     time.Time `json:"time"`
	// Cluster is the SHA-256 of the certificate of the cluster's Kubernetes CA that signs, in hexadecimal digits.
	Cluster string `json:"cluster"`
	// Addons are the names of those that were to change.
	Addons []string `json:"addons"`
	// Definitions are the names of those whose objects come back; others are saved for you alone.
	Definitions []string `json:"definitions"`
	// Releases are those of charts.
	Releases []savedRelease `json:"releases,omitempty"`
}

// savedRelease is a chart's release, and its newest revision, 0 if there was none.
type savedRelease struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Revision  int    `json:"revision"`
}

// line is one line of a saved state: the header, an object, the name of one that was not there, or the end.
type line struct {
	Header *header `json:"header,omitempty"`
	Part   string  `json:"part,omitempty"`
	// Object is as the API server gave it.
	Object json.RawMessage `json:"object,omitempty"`
	Absent *Name           `json:"absent,omitempty"`
	// End is the number of lines before it.
	End *int `json:"end,omitempty"`
}

// check wants a line to be exactly one of those.
func (l line) check() error {
	kinds := 0
	for _, is := range []bool{l.Header != nil, l.Object != nil, l.Absent != nil, l.End != nil} {
		if is {
			kinds++
		}
	}
	known := l.Part == partDefinition || l.Part == partCustom || l.Part == partObject || l.Part == partRecord
	if kinds != 1 || known != (l.Object != nil || l.Absent != nil) {
		return errors.New("it is neither a header, an object, an absence nor the end")
	}
	return nil
}

// savedWriter writes a saved state.
type savedWriter struct {
	zip   *gzip.Writer
	to    *json.Encoder
	lines int
	bytes int64
}

func newSavedWriter(w io.Writer, h header) (*savedWriter, error) {
	s := &savedWriter{zip: gzip.NewWriter(w)}
	s.to = json.NewEncoder(io.MultiWriter(s.zip, counter{&s.bytes}))
	h.Format = SavedFormat
	return s, s.put(line{Header: &h})
}

// counter counts what is written.
type counter struct{ n *int64 }

func (c counter) Write(p []byte) (int, error) {
	*c.n += int64(len(p))
	return len(p), nil
}

func (s *savedWriter) put(l line) error {
	if s.lines++; s.lines > maxSaved || s.bytes > maxSavedBytes {
		return fmt.Errorf("there is more to save than %d objects, or %d GiB; next: take a backup of etcd, and do it by hand", maxSaved, maxSavedBytes>>30)
	}
	return s.to.Encode(l)
}

// object saves an object.
func (s *savedWriter) object(part string, o *object) error {
	text, err := o.MarshalJSON()
	if err != nil {
		return err
	}
	if text = bytes.TrimSpace(text); len(text) > maxLine-1024 {
		return fmt.Errorf("%s has %d bytes, at most %d can be saved", nameOf(o), len(text), maxLine-1024)
	}
	return s.put(line{Part: part, Object: text})
}

// absent saves that an object is not there.
func (s *savedWriter) absent(n Name) error { return s.put(line{Part: partObject, Absent: &n}) }

// close writes the end. Without it a saved state is none.
func (s *savedWriter) close() error {
	n := s.lines
	return errors.Join(s.put(line{End: &n}), s.zip.Close())
}

// saved is one object of a saved state, or the absence of one.
type saved struct {
	part   string
	name   Name
	object *object // nil if there was none
}

// readSaved reads a saved state, and calls begin with its header, and each with every object in its order. Whatever is not whole is an
// error, after each was called with what came before.
func readSaved(r io.Reader, begin func(header) error, each func(saved) error) (h header, err error) {
	zip, err := gzip.NewReader(r)
	if err != nil {
		return h, fmt.Errorf("it holds no saved state: %w", err)
	}
	lines := bufio.NewScanner(io.LimitReader(zip, maxSavedBytes+maxLine))
	lines.Buffer(make([]byte, 0, 64<<10), maxLine)
	n, ended := 0, false
	for lines.Scan() {
		if ended || n > maxSaved {
			return h, errors.New("it goes on after its end")
		}
		l, err := parseLine(lines.Bytes())
		if err == nil && (n == 0) != (l.Header != nil) {
			err = errors.New("the header is not the first line, and that alone")
		}
		if err != nil {
			return h, fmt.Errorf("line %d: %w", n+1, err)
		}
		switch {
		case l.Header != nil:
			h = *l.Header
			if err := begin(h); err != nil {
				return h, err
			}
		case l.End != nil:
			if ended = *l.End == n; !ended {
				return h, fmt.Errorf("line %d: it ends after %d lines, and says %d", n+1, n, *l.End)
			}
		default:
			if err := l.give(each); err != nil {
				return h, err
			}
		}
		n++
	}
	if err := lines.Err(); err != nil {
		return h, err
	}
	if !ended {
		return h, errors.New("it was cut off: its end is missing")
	}
	return h, zip.Close()
}

func parseLine(text []byte) (l line, err error) {
	if err := hullmark.DecodeStrict(text, maxLine, &l); err != nil {
		return l, err
	}
	if err := l.check(); err != nil {
		return l, err
	}
	if l.Header != nil && l.Header.Format != SavedFormat {
		return l, fmt.Errorf("format %.80q, want %q; use the hullmark that wrote it", l.Header.Format, SavedFormat)
	}
	return l, nil
}

// give hands the line's object on.
func (l line) give(each func(saved) error) error {
	if l.Absent != nil {
		return each(saved{part: l.Part, name: *l.Absent})
	}
	o := &object{}
	if err := o.UnmarshalJSON(l.Object); err != nil {
		return fmt.Errorf("a saved object: %w", err)
	}
	if err := checkNamed(o); err != nil {
		return fmt.Errorf("a saved object: %w", err)
	}
	return each(saved{l.Part, nameOf(o), o})
}
