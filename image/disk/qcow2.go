package disk

import (
	"encoding/binary"
	"fmt"
	"io"
)

// Sizes of the format (QEMU, "Qcow2 Image File Format"), in bytes unless said
// otherwise.
const (
	clusterBits = 16
	cluster     = 1 << clusterBits
	// entries is how many eight-byte entries a table of one cluster has.
	entries = cluster / 8
	// counts is how many reference counts of 16 bits a block of one cluster has.
	counts = cluster / 2
	// maxQCOW2 is how large a disk may be whose table of reference counts is one cluster.
	maxQCOW2 = 8 << 40

	copied      = 1 << 63 // an entry's table has one reference
	compressed  = 1 << 62
	sectorsBit  = 62 - (clusterBits - 8) // where a compressed entry's number of further sectors begins
	zstdFeature = 1 << 3                 // an incompatible feature: the compression is named
)

// qcow2 is a file that is being written.
type qcow2 struct {
	w    io.WriterAt
	at   int64    // where the next byte goes
	refs []uint16 // how often each cluster of the file is used
	l2   []uint64 // an entry for each cluster of the disk
}

// writeQCOW2 writes the disk's clusters, compressed, one after the other; those
// that are zero are left out. The tables follow, and the header, which says
// where they are, is written last, to the first cluster.
func writeQCOW2(w io.WriterAt, r io.Reader, size int64) error {
	if size > maxQCOW2 {
		return fmt.Errorf("a disk of %d bytes: want at most %d", size, int64(maxQCOW2))
	}
	q := &qcow2{w: w, at: cluster}
	q.count(0, cluster)
	if err := inBlocks(r, size, cluster, newCluster, q.add); err != nil {
		return err
	}
	q.at = roundUp(q.at, cluster)
	l1, err := q.writeL2()
	if err != nil {
		return err
	}
	l1At := q.at
	if err := q.writeTable(l1); err != nil {
		return err
	}
	refsAt, err := q.writeRefs()
	if err != nil {
		return err
	}
	_, err = w.WriteAt(qcow2Header(size, len(l1), l1At, refsAt), 0)
	return err
}

// newCluster makes packs for clusters: nothing for one that is zero. The disk's
// last cluster may be cut short; in the file it is whole.
func newCluster() (pack, error) {
	compress, err := newZstd(false)()
	return func(block []byte) ([]byte, error) {
		if isZero(block) {
			return nil, nil
		}
		if short := cluster - len(block); short > 0 {
			block = append(block[:len(block):len(block)], zeros[:short]...)
		}
		return compress(block)
	}, err
}

// add writes the next cluster of the disk. An incompressible one is a frame
// that is longer than it, by a few bytes, which the entry has room for.
func (q *qcow2) add(_, packed []byte) error {
	if packed == nil {
		q.l2 = append(q.l2, 0)
		return nil
	}
	first, last := q.at/sectorSize, (q.at+int64(len(packed))-1)/sectorSize
	q.l2 = append(q.l2, compressed|uint64(last-first)<<sectorsBit|uint64(q.at))
	return q.write(packed)
}

// write appends bytes and counts a reference to each cluster that they touch.
func (q *qcow2) write(b []byte) error {
	q.count(q.at, int64(len(b)))
	_, err := q.w.WriteAt(b, q.at)
	q.at += int64(len(b))
	return err
}

func (q *qcow2) count(at, length int64) {
	for c := at / cluster; c <= (at+length-1)/cluster; c++ {
		if c == int64(len(q.refs)) {
			q.refs = append(q.refs, 0)
		}
		q.refs[c]++
	}
}

// writeL2 writes a table for each 512 MiB of the disk that are not all zero,
// and returns the table of these tables.
func (q *qcow2) writeL2() (l1 []uint64, err error) {
	for len(q.l2) > 0 {
		n := min(entries, len(q.l2))
		table := q.l2[:n]
		q.l2 = q.l2[n:]
		if allZero(table) {
			l1 = append(l1, 0)
			continue
		}
		l1 = append(l1, copied|uint64(q.at))
		if err := q.writeTable(table); err != nil {
			return nil, err
		}
	}
	return l1, nil
}

func allZero(table []uint64) bool {
	for _, e := range table {
		if e != 0 {
			return false
		}
	}
	return true
}

// writeTable appends a table, in whole clusters.
func (q *qcow2) writeTable(table []uint64) error {
	b := make([]byte, roundUp(int64(8*len(table)), cluster))
	for i, e := range table {
		binary.BigEndian.PutUint64(b[8*i:], e)
	}
	return q.write(b)
}

// writeRefs appends the table of the blocks of reference counts and these
// blocks, which count themselves, too, and returns where the table is.
func (q *qcow2) writeRefs() (at int64, err error) {
	at = q.at
	clusters := len(q.refs) + 1
	blocks := 0
	for blocks*counts < clusters+blocks {
		blocks++
	}
	var table []uint64
	for i := range blocks {
		table = append(table, uint64(at)+uint64(i+1)*cluster)
	}
	if err := q.writeTable(table); err != nil {
		return 0, err
	}
	q.count(q.at, int64(blocks)*cluster)
	b := make([]byte, blocks*cluster)
	for i, n := range q.refs {
		binary.BigEndian.PutUint16(b[2*i:], n)
	}
	_, err = q.w.WriteAt(b, q.at)
	return at, err
}

// qcow2Header returns the header of version 3.
func qcow2Header(size int64, l1Size int, l1, refs int64) []byte {
	be := binary.BigEndian
	h := be.AppendUint32([]byte("QFI\xfb"), 3)
	h = append(h, make([]byte, 12)...) // no backing file
	h = be.AppendUint32(h, clusterBits)
	h = be.AppendUint64(h, uint64(size))
	h = be.AppendUint32(h, 0) // not encrypted
	h = be.AppendUint32(h, uint32(l1Size))
	h = be.AppendUint64(h, uint64(l1))
	h = be.AppendUint64(h, uint64(refs))
	h = be.AppendUint32(h, 1)             // the table of reference counts, in clusters
	h = append(h, make([]byte, 12)...)    // no snapshots
	h = be.AppendUint64(h, zstdFeature)   // incompatible features
	h = append(h, make([]byte, 16)...)    // no other features
	h = be.AppendUint32(h, 4)             // reference counts have 2^4 bits
	h = be.AppendUint32(h, 112)           // the header's length
	h = append(h, 1, 0, 0, 0, 0, 0, 0, 0) // zstd
	return append(h, make([]byte, 8)...)  // no extensions
}
