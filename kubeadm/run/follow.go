package run

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"regexp"
	"strings"
	"time"

	"github.com/hullmark/hullmark/kubeadm"
)

// maxOutput bounds how much of the unit's output is kept, in bytes.
const maxOutput = 1 << 20

var (
	phaseLine = regexp.MustCompile(`^\[([a-z][a-z-]*)\] (.+)$`)
	// addonLine is what kubectl apply says of an object, or the API server of its failure.
	addonLine = regexp.MustCompile(`^\S+/\S+ serverside-applied$|^Error from server \(`)
	token     = regexp.MustCompile(`\b[a-z0-9]{6}\.[a-z0-9]{16}\b`)
	hexKey    = regexp.MustCompile(`\b[0-9a-f]{64}\b`)
)

// redact hides what kubeadm prints though it is secret: bootstrap tokens and the key of uploaded certificates.
func redact(line string) string {
	return hexKey.ReplaceAllString(token.ReplaceAllString(line, "<token>"), "<key>")
}

// verificationLine comes before what the system verification has to say, which our documents have kubeadm ignore.
const verificationLine = "The system verification failed"

// phaseOf reads one line of output.
func phaseOf(line string) (p kubeadm.Phase, ok bool) {
	line = redact(line)
	if m := phaseLine.FindStringSubmatch(line); m != nil && !strings.HasPrefix(m[2], verificationLine) {
		return kubeadm.Phase{Name: m[1], Text: m[2]}, true
	}
	if addonLine.MatchString(line) {
		return kubeadm.Phase{Name: "addons", Text: line}, true
	}
	return kubeadm.Phase{}, false
}

// follower reads a file while another process writes it.
type follower struct {
	path   string
	report func(kubeadm.Phase)
	quit   chan struct{}
	ended  chan error
	read   int64
	said   bytes.Buffer
	line   string
}

// follow reads path, which need not exist yet, until stop.
func follow(path string, report func(kubeadm.Phase)) *follower {
	if report == nil {
		report = func(kubeadm.Phase) {}
	}
	f := &follower{path: path, report: report, quit: make(chan struct{}), ended: make(chan error, 1)}
	go f.run()
	return f
}

// stop reads the rest of the file and returns all of it.
func (f *follower) stop() (string, error) {
	close(f.quit)
	err := <-f.ended
	return f.said.String(), err
}

func (f *follower) run() {
	tick := time.NewTicker(500 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-f.quit:
			f.ended <- f.more()
			return
		case <-tick.C:
			// What cannot be read now is read, and reported, at the end.
			_ = f.more()
		}
	}
}

// more reads what the file has grown by.
func (f *follower) more() error {
	file, err := os.Open(f.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	part, err := io.ReadAll(io.NewSectionReader(file, f.read, maxOutput-f.read))
	f.take(part)
	return err
}

// take reports the whole lines in part and keeps the beginning of the next.
func (f *follower) take(part []byte) {
	f.read += int64(len(part))
	f.said.Write(part)
	lines := strings.Split(f.line+string(part), "\n")
	f.line = lines[len(lines)-1]
	for _, line := range lines[:len(lines)-1] {
		if p, ok := phaseOf(line); ok {
			f.report(p)
		}
	}
}
