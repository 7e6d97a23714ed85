// Package waltest writes etcd's write-ahead logs, as etcd does, for tests of what reads them.
package waltest

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"strings"
	"testing/fstest"

	"google.golang.org/protobuf/encoding/protowire"
)

// The types of a log's records (server/storage/wal, wal.go).
const (
	Metadata = iota + 1
	Entry
	State
	crc
	Snapshot
)

// Log is a log that is being written.
type Log struct {
	// Files are its segments, Name the one that is written.
	Files fstest.MapFS
	Name  string
	sum   uint32
}

// New returns a log of one segment of member 2 of cluster 1 with ten entries of term 3, of which eight are committed.
func New() *Log {
	l := (&Log{Files: fstest.MapFS{"0.tmp": &fstest.MapFile{}}}).Cut(0, 0)
	l.Record(Snapshot, Message(nil, 0, 0))
	return l.State(3, 2, 0).Entries(3, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10).State(3, 2, 8)
}

// Message encodes numbers by field, from 1 on, and content as the last field.
func Message(content []byte, numbers ...uint64) (b []byte) {
	for i, n := range numbers {
		b = protowire.AppendVarint(protowire.AppendTag(b, protowire.Number(i+1), protowire.VarintType), n)
	}
	if content != nil {
		b = protowire.AppendBytes(protowire.AppendTag(b, protowire.Number(len(numbers)+1), protowire.BytesType), content)
	}
	return b
}

func (l *Log) frame(record []byte) {
	head := make([]byte, 8)
	padding := (8 - len(record)%8) % 8
	binary.LittleEndian.PutUint64(head, uint64(len(record)))
	if padding > 0 {
		head[7] = 0x80 | byte(padding)
	}
	f := l.Files[l.Name]
	f.Data = append(append(append(f.Data, head...), record...), make([]byte, padding)...)
}

// Record writes a record.
func (l *Log) Record(kind uint64, data []byte) {
	l.sum = crc32.Update(l.sum, crc32.MakeTable(crc32.Castagnoli), data)
	l.frame(Message(data, kind, uint64(l.sum)))
}

// Cut begins a segment.
func (l *Log) Cut(sequence, index int) *Log {
	l.Name = fmt.Sprintf("%016x-%016x.wal", sequence, index)
	l.Files[l.Name] = &fstest.MapFile{}
	l.frame(Message(nil, crc, uint64(l.sum)))
	l.Record(Metadata, Message(nil, 2, 1))
	return l
}

// State writes Raft's state.
func (l *Log) State(term, vote, commit uint64) *Log {
	l.Record(State, Message(nil, term, vote, commit))
	return l
}

// Entries writes entries of a term.
func (l *Log) Entries(term uint64, indexes ...uint64) *Log {
	for _, index := range indexes {
		l.Record(Entry, Message([]byte(strings.Repeat("x", int(index)*100)), 0, term, index))
	}
	return l
}
