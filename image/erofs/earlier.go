package erofs

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// encoding names how content is packed. Every change that packs the same bytes otherwise has to change it, so that no image is
// made of two kinds.
const encoding = "lz4 2"

// Earlier is an image that was written before, with its index.
type Earlier struct {
	image io.ReaderAt
	files map[[sha256.Size]byte]indexed
}

// index is the JSON form of what an image holds.
type index struct {
	Encoding string
	Files    []indexed
}

// indexed is where an image has one content.
type indexed struct {
	// Sum is the SHA-256 of the content, Packed that of blocks and tail, both in hex.
	Sum, Packed string
	// Blocks and Tail are offset and length in bytes.
	Blocks, Tail [2]int64
	// Clusters are bytes read, blocks, and whether they are raw, of each.
	Clusters [][3]int `json:",omitempty"`
}

// Index returns what has to be kept beside the image for NewEarlier.
func (i *Image) Index() ([]byte, error) {
	x := index{Encoding: encoding}
	for _, c := range i.contents {
		f := indexed{
			Sum: hex.EncodeToString(c.sum[:]), Packed: hex.EncodeToString(c.digest[:]),
			Blocks: [2]int64{c.block * blockSize, int64(len(c.blocks))}, Tail: [2]int64{c.tailAt, int64(len(c.tail))},
		}
		for _, p := range c.clusters {
			raw := 0
			if p.raw {
				raw = 1
			}
			f.Clusters = append(f.Clusters, [3]int{p.read, p.blocks, raw})
		}
		x.Files = append(x.Files, f)
	}
	return x.encode()
}

// encode returns the index in JSON, after a line with the SHA-256 of that.
func (x index) encode() ([]byte, error) {
	text, err := json.Marshal(x)
	if err != nil {
		return nil, err
	}
	return fmt.Appendf(nil, "%x\n%s", sha256.Sum256(text), text), nil
}

// NewEarlier makes the files of an earlier image known to Pack; text is what its Index returned. It fails if the text was
// damaged, or made by a version that packs otherwise. The image is only looked at when something is taken from it: what does
// not have the digest of the index is packed anew.
func NewEarlier(text []byte, image io.ReaderAt) (*Earlier, error) {
	sum, text, _ := bytes.Cut(text, []byte("\n"))
	if string(sum) != fmt.Sprintf("%x", sha256.Sum256(text)) {
		return nil, errors.New("the index of the erofs image is damaged")
	}
	var x index
	if err := json.Unmarshal(text, &x); err != nil {
		return nil, fmt.Errorf("the index of the erofs image: %w", err)
	}
	if x.Encoding != encoding {
		return nil, fmt.Errorf("the erofs image is packed as %q, want %q", x.Encoding, encoding)
	}
	e := &Earlier{image: image, files: make(map[[sha256.Size]byte]indexed, len(x.Files))}
	for _, f := range x.Files {
		sum, err := hex.DecodeString(f.Sum)
		if err != nil || len(sum) != sha256.Size {
			return nil, fmt.Errorf("the index of the erofs image: %q is no SHA-256", f.Sum)
		}
		e.files[[sha256.Size]byte(sum)] = f
	}
	return e, nil
}

// takeFrom takes the packed form from one of the images, and tells whether it could.
func (c *content) takeFrom(earlier []*Earlier) bool {
	for _, e := range earlier {
		f, ok := e.files[c.sum]
		if !ok {
			continue
		}
		if f.Blocks[1] < 0 || f.Blocks[1] > c.size+blockSize || f.Tail[1] < 0 || f.Tail[1] > maxTail {
			continue
		}
		p := packed{blocks: make([]byte, f.Blocks[1]), tail: make([]byte, f.Tail[1])}
		for _, l := range f.Clusters {
			p.clusters = append(p.clusters, cluster{read: l[0], blocks: l[1], raw: l[2] != 0})
		}
		_, err1 := e.image.ReadAt(p.blocks, f.Blocks[0])
		_, err2 := e.image.ReadAt(p.tail, f.Tail[0])
		digest := p.hash()
		if err1 == nil && err2 == nil && hex.EncodeToString(digest[:]) == f.Packed && p.fits(c.size) {
			c.packed, c.digest = p, digest
			return true
		}
	}
	return false
}

// fits tells whether clusters, blocks and tail can be those of a file of that size: the index that an image is written with is
// made of them.
func (p packed) fits(size int64) bool {
	stored := int64(len(p.blocks) + len(p.tail))
	if len(p.clusters) == 0 {
		return len(p.blocks)%blockSize == 0 && stored >= size && stored < size+blockSize
	}
	blocks := 0
	for _, c := range p.clusters {
		if c.read <= 0 || c.read > clusterReads || c.blocks < 0 || c.blocks > clusterSize/blockSize {
			return false
		}
		size -= int64(c.read)
		blocks += c.blocks
	}
	return size == 0 && blocks*blockSize == len(p.blocks)
}

// hash returns the SHA-256 of blocks and tail.
func (p packed) hash() [sha256.Size]byte {
	h := sha256.New()
	h.Write(p.blocks)
	h.Write(p.tail)
	return [sha256.Size]byte(h.Sum(nil))
}
