package update

import (
	"bytes"
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hullmark/hullmark/image/slot"
	"github.com/hullmark/hullmark/image/verity"
	"github.com/hullmark/hullmark/internal/remotefile"
)

// part is one that a source was asked for.
type part struct{ at, n int64 }

// server is a source that may misbehave.
type server struct {
	memory
	asked []part
	// body may make another body of one.
	body func(at int64, r io.Reader) io.Reader
}

func (s *server) Range(ctx context.Context, at, n int64) (io.ReadCloser, error) {
	s.asked = append(s.asked, part{at, n})
	in, err := s.memory.Range(ctx, at, n)
	if err == nil && s.body != nil {
		in = io.NopCloser(s.body(at, in))
	}
	return in, err
}

// total is how many bytes it was asked for.
func (s *server) total() (n int64) {
	for _, p := range s.asked {
		n += p.n
	}
	return n
}

// TestSourcesInOrder has sources that fail, each in a way of its own, before one that does not.
func TestSourcesInOrder(t *testing.T) {
	r := releases(t)
	d, _ := open(t, installed(t, r[0]), slot.A)
	p := d.slots[slot.A]
	tree := p.Tree.Offset() + verity.Size(1<<20) // of the ESP
	flip := func(at int64) func(int64, []byte) ([]byte, error) {
		return func(from int64, b []byte) ([]byte, error) {
			if at >= from && at < from+int64(len(b)) {
				b[at-from] ^= 1
			}
			return b, nil
		}
	}
	fails := func(err error) func(int64, []byte) ([]byte, error) {
		return func(int64, []byte) ([]byte, error) { return nil, err }
	}
	short := func(_ int64, b []byte) ([]byte, error) { return b[:len(b)-1], nil }
	for name, c := range map[string]struct {
		change func(int64, []byte) ([]byte, error)
		// asked is how often at most the first source is asked; more only where nobody can know better.
		asked int
	}{
		"garbage for one block of the root": {flip(p.Root.Offset() + 120*verity.BlockSize), 4},
		"garbage for the table":             {flip(700), 1},
		"garbage for the tree":              {flip(p.Tree.Offset() + 5000), 3},
		"garbage for the superblock":        {flip(p.Tree.Offset()), 2},
		"garbage for the ESP's tree":        {flip(tree + 5000), 6},
		"garbage for the ESP":               {flip(int64(bytes.Index(r[1].raw, []byte("release=1")))), 8},
		"nothing for good":                  {fails(remotefile.Permanent(errors.New("gone"))), 1},
		"nothing for now":                   {fails(errors.New("busy")), 9},
		"no ranges":                         {fails(ErrNoRanges), 1},
		"less than was asked for":           {short, 9},
	} {
		first, second := &server{memory: memory{r[1].raw, c.change}}, &server{memory: memory{raw: r[1].raw}}
		d, _ := open(t, installed(t, r[0]), slot.A)
		d.pause = func(context.Context, time.Duration) error {
			t.Errorf("%s: a pause, although there is another source", name)
			return nil
		}
		if _, err := d.Stage(t.Context(), r[1].Release, from(first, second), nil); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		holds(t, d, slot.B, r[1], slot.A)
		if len(first.asked) > c.asked {
			t.Errorf("%s: it was asked %d times", name, len(first.asked))
		}
	}
}

// TestSlowSource has a source that gives all that it is asked for, at a pace that is just not refused: the other is asked instead.
func TestSlowSource(t *testing.T) {
	r := releases(t)
	d, _ := open(t, installed(t, r[0]), slot.A)
	d.slow = 20 * time.Millisecond
	first, second := &server{memory: memory{raw: r[1].raw}}, &server{memory: memory{raw: r[1].raw}}
	first.change = func(_ int64, b []byte) ([]byte, error) {
		time.Sleep(2 * d.slow)
		return b, nil
	}
	if _, err := d.Stage(t.Context(), r[1].Release, from(first, second), nil); err != nil {
		t.Fatal(err)
	}
	holds(t, d, slot.B, r[1], slot.A)
	if len(first.asked) > 3 || len(second.asked) == 0 { // of the tree, for which one is asked at once
		t.Errorf("the slow source was asked %d times, the other %d times", len(first.asked), len(second.asked))
	}
}

// TestCutRange has a source that breaks off again and again: what came of a range is not asked for again.
func TestCutRange(t *testing.T) {
	r := releases(t)
	d, _ := open(t, installed(t, r[2]), slot.A)
	cut := errors.New("cut")
	s := &server{memory: memory{raw: r[1].raw}}
	root := d.slots[slot.A].Root.Offset()
	s.body = func(at int64, in io.Reader) io.Reader {
		if at < root || at >= root+1<<20 {
			return in
		}
		return io.MultiReader(io.LimitReader(in, 20*verity.BlockSize+100), failing{cut})
	}
	var pauses []time.Duration
	d.pause = func(_ context.Context, d time.Duration) error {
		pauses = append(pauses, d)
		return nil
	}
	fetched, err := d.Stage(t.Context(), r[1].Release, from(s), nil)
	if err != nil {
		t.Fatal(err)
	}
	holds(t, d, slot.B, r[1], slot.A)
	var ranges []part
	for _, p := range s.asked {
		if p.at >= root && p.at < root+1<<20 {
			ranges = append(ranges, part{(p.at - root) / verity.BlockSize, p.n / verity.BlockSize})
		}
	}
	if want := []part{{100, 50}, {120, 30}, {140, 10}}; !slices.Equal(ranges, want) {
		t.Errorf("blocks were asked for as %v, want %v", ranges, want)
	}
	if want := []time.Duration{time.Second, 2 * time.Second}; !slices.Equal(pauses, want) {
		t.Errorf("paused for %v, want %v", pauses, want)
	}
	if fetched.Fetched >= s.total() {
		t.Errorf("%d bytes came, %d were asked for", fetched.Fetched, s.total())
	}
}

type failing struct{ error }

func (f failing) Read([]byte) (int, error) { return 0, f.error }

// TestManyCuts has a source that breaks off after each MiB and a bit: that is no reason to give up, or to pause.
func TestManyCuts(t *testing.T) {
	large := make([]byte, 16<<20)
	for at := 0; at < len(large); at += verity.BlockSize {
		copy(large[at:], "block "+time.Duration(at).String())
	}
	super := verity.Superblock{DataSize: int64(len(large))}
	var area bytes.Buffer
	root, err := verity.Write(bytes.NewReader(large), super.DataSize, &area, super.Params)
	if err != nil {
		t.Fatal(err)
	}
	b := &blocks{place: make(room, len(large)), what: "root"}
	if b.super, b.leaves, err = verity.Leaves(area.Bytes(), root); err != nil {
		t.Fatal(err)
	}
	s := &server{memory: memory{raw: large}, body: func(_ int64, in io.Reader) io.Reader {
		return io.MultiReader(io.LimitReader(in, piece+100), failing{errors.New("cut")})
	}}
	g := &stager{Disk: &Disk{pause: func(context.Context, time.Duration) error { return errors.New("it paused") }}, ctx: t.Context(), sources: []*asked{{Source: s}}}
	err = g.fill(b, func(do func(*fetcher) error) error { return g.try(false, do) }, new(int64))
	if err != nil || !bytes.Equal(b.place.(room), large) || len(s.asked) < 16 || len(s.asked) > 17 {
		t.Errorf("asked %d times, %v", len(s.asked), err)
	}
}

// TestPatienceEnds has sources that never give anything.
func TestPatienceEnds(t *testing.T) {
	r := releases(t)
	busy := func(int64, []byte) ([]byte, error) { return nil, errors.New("busy") }
	first, second := &server{memory: memory{r[1].raw, busy}}, &server{memory: memory{r[1].raw, busy}}
	d, _ := open(t, installed(t, r[0]), slot.A)
	total := time.Duration(0)
	d.pause = func(_ context.Context, d time.Duration) error {
		total += d
		return nil
	}
	_, err := d.Stage(t.Context(), r[1].Release, from(first, second), nil)
	if err == nil || !strings.Contains(err.Error(), "source 1: fetch 17408 bytes at 0: busy") || !strings.Contains(err.Error(), "source 2: ") {
		t.Errorf("%v", err)
	}
	if len(first.asked) != rounds || len(second.asked) != rounds || total != 31*time.Second {
		t.Errorf("asked %d and %d times, with %v of pauses", len(first.asked), len(second.asked), total)
	}
	ended := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	d.pause = func(ctx context.Context, d time.Duration) error {
		cancel(ended)
		return pause(ctx, d)
	}
	if _, err := d.Stage(ctx, r[1].Release, from(first), nil); !errors.Is(err, ended) {
		t.Errorf("cancelled in a pause: %v", err)
	}
	if _, err := d.Stage(t.Context(), r[1].Release, nil, nil); err == nil || !strings.Contains(err.Error(), "no source") {
		t.Errorf("without sources: %v", err)
	}
}

// TestRangesEnd has a source that has ranges no more after a while, and others that never had.
func TestRangesEnd(t *testing.T) {
	r := releases(t)
	size := int64(len(r[1].raw))
	only := func(upTo int64, change func([]byte)) *server {
		left := upTo
		return &server{memory: memory{r[1].raw, func(_ int64, b []byte) ([]byte, error) {
			if left--; left < 0 && int64(len(b)) != size {
				return nil, ErrNoRanges
			}
			if int64(len(b)) == size && change != nil {
				change(b)
			}
			return b, nil
		}}}
	}
	for name, sources := range map[string][]Source{
		"it ends":                 from(only(4, nil)),
		"the first gives garbage": from(only(0, func(b []byte) { clear(b) }), only(0, func(b []byte) { b[len(b)/3] ^= 1 }), only(0, nil)),
		"the first is not there":  from(&server{memory: memory{r[1].raw, func(int64, []byte) ([]byte, error) { return nil, remotefile.Permanent(errors.New("gone")) }}}, only(0, nil)),
	} {
		d, _ := open(t, installed(t, r[0]), slot.A)
		if _, err := d.Stage(t.Context(), r[1].Release, sources, nil); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		holds(t, d, slot.B, r[1], slot.A)
	}
	// A damaged disk of ours is nobody else's fault.
	d, dev := open(t, installed(t, r[0]), slot.A)
	broken := errors.New("broken")
	d.dev = brokenAt{dev, d.slots[slot.B].Root.Offset() + 110*verity.BlockSize, broken}
	s := &server{memory: memory{raw: r[1].raw}}
	if _, err := d.Stage(t.Context(), r[1].Release, from(s, s), nil); !errors.Is(err, broken) || strings.Contains(err.Error(), "source") {
		t.Errorf("a broken disk: %v", err)
	}
}

// brokenAt cannot be written at one place.
type brokenAt struct {
	Device
	at  int64
	err error
}

func (b brokenAt) WriteAt(p []byte, at int64) (int, error) {
	if b.at >= at && b.at < at+int64(len(p)) {
		return 0, b.err
	}
	return b.Device.WriteAt(p, at)
}
