package canary

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// windowSize is how much of a file is in memory at a time, in bytes.
const windowSize = 8 << 20

// File looks in a file, and in its name. Holes of a sparse file are left out.
func (s *Search) File(path string) ([]Finding, error) {
	found := s.Text(path, []byte(path))
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	for end := int64(0); ; {
		begin, err := file.Seek(end, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) { // There is no more.
			return found, nil
		}
		if err != nil {
			return nil, err
		}
		if end, err = file.Seek(begin, unix.SEEK_HOLE); err != nil {
			return nil, err
		}
		more, err := s.read(path, io.NewSectionReader(file, begin, end-begin))
		if err != nil {
			return nil, err
		}
		found = with(found, more)
	}
}

func (s *Search) read(where string, r io.Reader) (found []Finding, err error) {
	window := make([]byte, 0, windowSize+s.longest)
	for {
		n, err := io.ReadFull(r, window[len(window):len(window)+windowSize])
		window = window[:len(window)+n]
		found = with(found, s.Text(where, window))
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return found, nil
		}
		if err != nil {
			return nil, err
		}
		window = window[:copy(window, window[len(window)-s.longest:])]
	}
}

// with adds those findings that are new.
func with(found, more []Finding) []Finding {
	for _, f := range more {
		if !slices.Contains(found, f) {
			found = append(found, f)
		}
	}
	return found
}

// Tree looks in all files below a folder. A file that goes meanwhile is no error.
func (s *Search) Tree(dir string) (found []Finding, err error) {
	err = filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.Type().IsRegular() {
			var more []Finding
			more, err = s.File(path)
			found = append(found, more...)
		}
		if errors.Is(err, fs.ErrNotExist) && path != dir {
			return nil
		}
		return err
	})
	return found, err
}

// Watch looks again and again in the arguments and the environment of every process of this machine.
type Watch struct {
	stop func()
	mu   sync.Mutex
	// seen counts the looks by the program as it was called.
	seen  map[string]int
	found []Finding
}

// Watch begins to look.
func (s *Search) Watch() *Watch {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	w := &Watch{seen: map[string]int{}, stop: func() {
		cancel()
		<-ended
	}}
	go func() {
		defer close(ended)
		looks := map[string]int{}
		for ctx.Err() == nil {
			looks = w.look(s, looks)
			time.Sleep(5 * time.Millisecond)
		}
	}()
	return w
}

// A process is looked at so often while it is new, since it may execute another program, and from then on once in so many turns.
const newFor, seldom = 50, 200

// look looks at all processes once; looks counts the turns in which each was there.
func (w *Watch) look(s *Search, before map[string]int) (looks map[string]int) {
	looks = map[string]int{}
	folders, _ := filepath.Glob("/proc/[0-9]*")
	for _, folder := range folders {
		n := before[folder]
		if looks[folder] = n + 1; n > newFor && n%seldom != 0 {
			continue
		}
		arguments, err := os.ReadFile(folder + "/cmdline")
		if err != nil || len(arguments) == 0 { // It has ended, or is the kernel's.
			continue
		}
		program, _, _ := strings.Cut(string(arguments), "\x00")
		name := filepath.Base(program)
		environment, _ := os.ReadFile(folder + "/environ")
		found := append(s.Text("the arguments of "+name, arguments), s.Text("the environment of "+name, environment)...)
		w.mu.Lock()
		w.seen[program]++
		w.found = with(w.found, found)
		w.mu.Unlock()
	}
	return looks
}

// End ends the looking, and returns what was found and how often each program was looked at, as it was called.
func (w *Watch) End() (found []Finding, seen map[string]int) {
	w.stop()
	return w.found, w.seen
}
