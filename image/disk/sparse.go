package disk

import "io"

// Sparse writes what it is given into an empty file, one write after the other, but for those that are all zeros: there the file
// keeps a hole. Whoever wrote gives the file its length. At most maxBlock bytes are looked at in one piece.
func Sparse(w io.WriterAt) io.Writer { return &sparse{w: w} }

type sparse struct {
	w  io.WriterAt
	at int64
}

func (s *sparse) Write(b []byte) (n int, err error) {
	for n < len(b) && err == nil {
		block := b[n:min(len(b), n+maxBlock)]
		wrote := len(block)
		if !isZero(block) {
			wrote, err = s.w.WriteAt(block, s.at)
		}
		s.at += int64(wrote)
		n += wrote
	}
	return n, err
}
