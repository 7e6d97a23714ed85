package erofs

// Sizes, in bytes.
const (
	blockSize = 4096
	// clusterSize is what a compressed cluster has at most, and clusterReads what it stands for at most: the kernel unpacks a
	// cluster as one.
	clusterSize  = 64 << 10
	clusterReads = 1 << 20
	// segmentSize is what is compressed as one: the segments of a file on all cores, and each from its own beginning.
	segmentSize = 4 << 20
	// maxTail is how much of a file's end can be kept beside its inode. With the largest inode and maxXattrs it fills a block.
	maxTail = blockSize - 64 - maxXattrs
	// worthwhile is which part of a segment has to be saved at least, or it is stored as it is.
	worthwhile = 64
)

// cluster is a physical cluster (pcluster): so many blocks, of which read bytes of the file can be unpacked. Raw ones have one
// block, in which the bytes lie as they are. The cluster of the tail has no blocks.
type cluster struct {
	read, blocks int
	raw          bool
}

// packed is the content of a file as it is stored, and a function of it alone.
type packed struct {
	// clusters are in order; there are none if the file is stored as it is.
	clusters []cluster
	// blocks are whole blocks, of all clusters but the tail's; tail is the rest, up to maxTail bytes.
	blocks, tail []byte
}

// pack compresses a segment. Only the last one of a file can have a tail and a length that is no multiple of a block's.
func (e *encoder) pack(content []byte, last bool) packed {
	e.reset()
	var p packed
	out := make([]byte, clusterSize)
	for at := 0; at < len(content); {
		read, written := e.encode(content[:min(at+clusterReads, len(content))], at, out)
		end := last && at+read == len(content)
		switch blocks := (written + blockSize - 1) / blockSize; {
		case end && written > 0 && written <= maxTail && written < read:
			p.clusters = append(p.clusters, cluster{read: read})
			p.tail = append(p.tail, out[:written]...)
		case written > 0 && blocks*blockSize < read:
			p.clusters = append(p.clusters, cluster{read: read, blocks: blocks})
			p.blocks = append(p.blocks, make([]byte, blocks*blockSize-written)...) // the padding is in front
			p.blocks = append(p.blocks, out[:written]...)
		default:
			read = min(max(read/blockSize, 1)*blockSize, len(content)-at)
			p.addRaw(content[at:at+read], last && at+read == len(content))
		}
		at += read
	}
	if stored := len(p.blocks) + len(p.tail); stored > len(content)-len(content)/worthwhile {
		p = packed{}
		p.addRaw(content, last)
	}
	return p
}

// addRaw adds bytes as they are.
func (p *packed) addRaw(content []byte, last bool) {
	for ; len(content) >= blockSize; content = content[blockSize:] {
		p.clusters = append(p.clusters, cluster{read: blockSize, blocks: 1, raw: true})
		p.blocks = append(p.blocks, content[:blockSize]...)
	}
	switch {
	case len(content) == 0:
	case last && len(content) <= maxTail:
		p.clusters = append(p.clusters, cluster{read: len(content), raw: true})
		p.tail = append(p.tail, content...)
	default:
		p.clusters = append(p.clusters, cluster{read: len(content), blocks: 1, raw: true})
		p.blocks = append(append(p.blocks, content...), make([]byte, blockSize-len(content))...)
	}
}

// join makes one of the segments of a file.
func join(segments []packed) packed {
	var p packed
	raw := true
	if len(segments) == 1 {
		p, segments = segments[0], nil
	}
	for _, s := range segments {
		p.clusters = append(p.clusters, s.clusters...)
		p.blocks = append(p.blocks, s.blocks...)
		p.tail = append(p.tail, s.tail...)
	}
	for _, c := range p.clusters {
		raw = raw && c.raw
	}
	if raw {
		p.clusters = nil
	}
	return p
}
