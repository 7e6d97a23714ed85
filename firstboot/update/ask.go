package update

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/hullmark/hullmark/internal/remotefile"
)

// rounds is how often all sources are asked for the same, with pauses of 1, 2, 4, 8 and 16 seconds between.
const rounds = 6

// slow is how long a source may take for what it is asked at once, before others are asked first: of one that has ranges that is maxRange
// at most, or a hash tree.
const slow = 30 * time.Second

// asked is a source, and what came of asking it.
type asked struct {
	Source
	// number is its place in the order that was wanted, from 1.
	number int
	// useless says why it is asked no more.
	useless error
	// whole is set once it is known to have no ranges.
	whole bool
}

// foreign is content that is not the release's.
type foreign struct{ error }

// unread is what a source did not give.
type unread struct{ error }

func (u unread) Unwrap() error { return u.error }

// judge makes foreign what is wrong with content that a source gave.
func judge(err error) error {
	var u unread
	if err == nil || errors.As(err, &u) {
		return err
	}
	return foreign{err}
}

// try has one source after the other do something until one has: those that have ranges, or any, with whole disks. Who gave what is not
// the release's is asked no more; what may pass is asked for again a little later, but not for ever.
func (s *stager) try(whole bool, do func(f *fetcher) error) error {
	for left := rounds; ; left-- {
		var problems []error
		again := false
		for _, a := range s.sources {
			err := a.useless
			if err == nil && a.whole && !whole {
				err = ErrNoRanges
			}
			if err == nil {
				began := time.Now()
				if err = do(&fetcher{s, a}); err == nil {
					if time.Since(began) > s.slow {
						s.askLast(a)
					}
					return nil
				}
				if mine := s.blame(a, whole, err); mine != nil {
					return mine
				}
				again = again || a.useless == nil && (whole || !a.whole)
			}
			problems = append(problems, fmt.Errorf("source %d: %w", a.number, err))
		}
		if !again || left == 1 {
			return errors.Join(problems...)
		}
		if err := s.pause(s.ctx, time.Second<<(rounds-left)); err != nil {
			return err
		}
	}
}

// askLast puts a source behind the others.
func (s *stager) askLast(a *asked) {
	others := slices.DeleteFunc(slices.Clone(s.sources), func(o *asked) bool { return o == a })
	s.sources = append(others, a)
}

// blame notes what an error says of a source, or returns it where the source is not to blame.
func (s *stager) blame(a *asked, whole bool, err error) error {
	var content foreign
	var reading unread
	switch {
	case s.ctx.Err() != nil:
		return context.Cause(s.ctx)
	case errors.As(err, &content):
		a.useless = err
	case !errors.As(err, &reading):
		return err
	case errors.Is(err, ErrNoRanges) && !whole:
		a.whole = true
	case errors.Is(err, ErrNoRanges) || !remotefile.Temporary(err):
		a.useless = err
	}
	return nil
}

// pause waits.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}

// fetcher reads a published disk from one source.
type fetcher struct {
	*stager
	source *asked
}

// open reads n bytes from an offset on. What is read is counted.
func (f *fetcher) open(at, n int64) (io.ReadCloser, error) {
	in, err := f.source.Range(f.ctx, at, n)
	if err != nil {
		return nil, unread{fmt.Errorf("fetch %d bytes at %d: %w", n, at, err)}
	}
	return struct {
		io.Reader
		io.Closer
	}{bufio.NewReaderSize(&counter{f, io.LimitReader(in, n), at}, buffer), in}, nil
}

// buffer is how much is read at once from a source, in bytes.
const buffer = 64 << 10

// counter counts what comes, and says of what does not come that it is the source's fault.
type counter struct {
	*fetcher
	in io.Reader
	at int64
}

func (c *counter) Read(b []byte) (int, error) {
	n, err := c.in.Read(b)
	c.at += int64(n)
	c.fetched.Fetched += int64(n)
	if c.tell != nil {
		c.tell(c.fetched)
	}
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF // Nobody reads on behind what was asked for.
	}
	if err != nil {
		err = unread{fmt.Errorf("fetch on at %d: %w", c.at, err)}
	}
	return n, err
}

// ReadAt reads a part of the published disk.
func (f *fetcher) ReadAt(b []byte, at int64) (int, error) {
	in, err := f.open(at, int64(len(b)))
	if err != nil {
		return 0, err
	}
	n, err := io.ReadFull(in, b)
	return n, errors.Join(err, in.Close())
}

// fetch reads a part of the published disk.
func (f *fetcher) fetch(at, n int64) ([]byte, error) {
	content := make([]byte, n)
	_, err := f.ReadAt(content, at)
	return content, err
}
