package disk

import (
	"fmt"
	"io"
	"runtime"
	"sync"
	"sync/atomic"
)

const (
	// maxBlock is the longest block, in bytes.
	maxBlock = 4 << 20
	// round is how much of the disk is in memory at once, unless two blocks for each processor are more.
	round = 16 << 20
)

// pack makes of a block what the file holds of it.
type pack func(block []byte) ([]byte, error)

// inBlocks reads a disk of size bytes in blocks of the given length (the last may be shorter), has all processors pack them,
// and hands each block and what became of it to use, in order. Each processor has a pack of its own, made by newPack; it must
// depend on nothing but its block.
func inBlocks(r io.Reader, size int64, length int, newPack func() (pack, error), use func(block, packed []byte) error) error {
	workers, err := newWorkers(newPack)
	if err != nil {
		return err
	}
	buffer := make([]byte, max(round, 2*len(workers)*length))
	for size > 0 {
		buffer = buffer[:min(size, int64(len(buffer)))]
		if _, err := io.ReadFull(r, buffer); err != nil {
			return fmt.Errorf("read the disk: %w", err)
		}
		size -= int64(len(buffer))
		blocks := split(buffer, length)
		packed, err := workers.pack(blocks)
		if err != nil {
			return err
		}
		for i, block := range blocks {
			if err := use(block, packed[i]); err != nil {
				return err
			}
		}
	}
	return nil
}

func split(b []byte, length int) [][]byte {
	var blocks [][]byte
	for len(b) > 0 {
		n := min(length, len(b))
		blocks, b = append(blocks, b[:n]), b[n:]
	}
	return blocks
}

// workers are as many as there are processors.
type workers []pack

func newWorkers(newPack func() (pack, error)) (workers, error) {
	w := make(workers, runtime.GOMAXPROCS(0))
	for i := range w {
		var err error
		if w[i], err = newPack(); err != nil {
			return nil, err
		}
	}
	return w, nil
}

func (w workers) pack(blocks [][]byte) ([][]byte, error) {
	packed, errs := make([][]byte, len(blocks)), make([]error, len(w))
	var next atomic.Int64
	var all sync.WaitGroup
	for n, do := range w {
		all.Go(func() {
			for i := next.Add(1) - 1; i < int64(len(blocks)) && errs[n] == nil; i = next.Add(1) - 1 {
				packed[i], errs[n] = do(blocks[i])
			}
		})
	}
	all.Wait()
	for _, err := range errs {
		if err != nil {
			return nil, err
		}
	}
	return packed, nil
}
