package erofs

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"runtime"

	"golang.org/x/sync/errgroup"
)

// content is what one or more files hold, by its SHA-256.
type content struct {
	sum [sha256.Size]byte
	packed
	size  int64
	block int64 // the first in the image
	// digest is the SHA-256 of blocks and tail.
	digest [sha256.Size]byte
	// tailAt is where the image has the tail.
	tailAt int64
}

// pack sets the content of all regular files that have any, and returns each once, in the order of the inodes.
func pack(ctx context.Context, inodes []*inode, earlier []*Earlier) ([]*content, error) {
	var files []*inode
	for _, i := range inodes {
		if i.Mode.IsRegular() && i.Size > 0 {
			files = append(files, i)
		}
	}
	sums, err := sumAll(ctx, files)
	if err != nil {
		return nil, err
	}
	known := map[[sha256.Size]byte]*content{}
	var contents []*content
	var first []*inode
	for n, f := range files {
		c := known[sums[n]]
		if c == nil {
			c = &content{sum: sums[n], size: f.Size}
			known[c.sum] = c
			contents = append(contents, c)
			first = append(first, f)
		}
		f.content = c
	}
	taken := make([]bool, len(first))
	err = onAllCores(ctx, len(first), func(n int) error {
		taken[n] = first[n].content.takeFrom(earlier)
		return nil
	})
	if err != nil {
		return nil, err
	}
	var anew []*inode
	for n, f := range first {
		if !taken[n] {
			anew = append(anew, f)
		}
	}
	return contents, compress(ctx, anew)
}

// onAllCores does what there is to do for each number from 0 to n.
func onAllCores(ctx context.Context, n int, do func(int) error) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(runtime.GOMAXPROCS(0))
	for i := range n {
		g.Go(func() error {
			if err := ctx.Err(); err != nil {
				return err
			}
			return do(i)
		})
	}
	return g.Wait()
}

// sumAll returns the SHA-256 of each file.
func sumAll(ctx context.Context, files []*inode) ([][sha256.Size]byte, error) {
	sums := make([][sha256.Size]byte, len(files))
	return sums, onAllCores(ctx, len(files), func(n int) error {
		h := sha256.New()
		err := files[n].read(func(r io.Reader) error {
			_, err := io.Copy(h, r)
			return err
		})
		sums[n] = [sha256.Size]byte(h.Sum(nil))
		return err
	})
}

// read opens the file and hands all of its content to do, which reads to the end. It is an error if there is more or less than
// the file's size.
func (f *File) read(do func(io.Reader) error) error {
	r, err := f.Open()
	if err != nil {
		return fmt.Errorf("%q: %w", f.Name, err)
	}
	limited := &io.LimitedReader{R: r, N: f.Size}
	err = do(limited)
	if err == nil && limited.N > 0 {
		err = fmt.Errorf("ended %d bytes before its size of %d: did it change?", limited.N, f.Size)
	}
	if err == nil {
		if n, _ := io.ReadFull(r, make([]byte, 1)); n > 0 {
			err = fmt.Errorf("goes on after its size of %d bytes: did it change?", f.Size)
		}
	}
	if err := errors.Join(err, r.Close()); err != nil {
		return fmt.Errorf("%q: %w", f.Name, err)
	}
	return nil
}

// segment is a part of a file that is to be compressed, and where the result goes.
type segment struct {
	bytes []byte
	last  bool
	to    *packed
}

// compress packs the content of files. One goroutine reads, the others compress.
func compress(ctx context.Context, files []*inode) error {
	if len(files) == 0 {
		return nil
	}
	segments := make(chan segment)
	results := make([][]packed, len(files))
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		defer close(segments)
		for n, f := range files {
			results[n] = make([]packed, (f.Size+segmentSize-1)/segmentSize)
			if err := f.split(ctx, segments, results[n]); err != nil {
				return err
			}
		}
		return nil
	})
	for range runtime.GOMAXPROCS(0) {
		g.Go(func() error {
			e := new(encoder)
			for s := range segments {
				*s.to = e.pack(s.bytes, s.last)
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	return onAllCores(context.WithoutCancel(ctx), len(files), func(n int) error {
		c := files[n].content
		c.packed = join(results[n])
		c.digest = c.packed.hash()
		return nil
	})
}

// split reads a file once more and sends its segments. It is an error if it has not the content that it had before.
func (i *inode) split(ctx context.Context, segments chan<- segment, to []packed) error {
	h := sha256.New()
	return i.read(func(r io.Reader) error {
		for n := range to {
			s := segment{bytes: make([]byte, min(segmentSize, i.Size-int64(n)*segmentSize)), last: n == len(to)-1, to: &to[n]}
			if _, err := io.ReadFull(r, s.bytes); err != nil {
				return err
			}
			h.Write(s.bytes)
			select {
			case segments <- s:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		if [sha256.Size]byte(h.Sum(nil)) != i.content.sum {
			return errors.New("changed while it was read")
		}
		return nil
	})
}
