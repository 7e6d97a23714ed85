package journal

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
)

// Limits of what is read of the journal, whose entries any process of the node writes, in bytes.
const (
	// maxField bounds what is kept of a field, and maxSkipped what is passed over of one that is longer.
	maxField   = 16 << 10
	maxSkipped = 1 << 30
	maxName    = 256
	// maxFields is more than journald takes in one entry (1024), with what it adds itself: an entry of which this program were to say that
	// it has too many would be the last that is sent.
	maxFields = 4 << 10
)

// fields are those that are asked for and kept; __CURSOR, __REALTIME_TIMESTAMP, __SEQNUM and __SEQNUM_ID come in any case.
const fields = "MESSAGE,PRIORITY,SYSLOG_FACILITY,SYSLOG_IDENTIFIER,SYSLOG_PID,_COMM,_PID"

// entry is one of the journal.
type entry struct {
	cursor string
	time   time.Time
	// source and number are of the journal's own count (systemd.journal-fields(7), __SEQNUM); number is 0 where there is none.
	source string
	number uint64
	fields map[string]string
}

// exported reads entries in the journal's export format (https://systemd.io/JOURNAL_EXPORT_FORMATS).
type exported struct{ r *bufio.Reader }

func newExported(r io.Reader) exported { return exported{bufio.NewReaderSize(r, 32<<10)} }

// next returns the next entry; io.EOF says that there is none.
func (e exported) next() (entry, error) {
	found := entry{fields: map[string]string{}}
	for range maxFields {
		name, value, err := e.field()
		switch {
		case errors.Is(err, io.EOF) && len(found.fields) > 0:
			return found, io.ErrUnexpectedEOF
		case err != nil:
			return found, err
		case name == "" && len(found.fields) == 0: // Before the first.
		case name == "":
			return found, found.complete()
		default:
			found.fields[name] = value
		}
	}
	return found, fmt.Errorf("journal: an entry of more than %d fields", maxFields)
}

// field reads NAME=VALUE and a line's end, or NAME, a line's end, the value's length and the value; an empty name ends an entry.
func (e exported) field() (name, value string, err error) {
	line, whole, err := e.line()
	if err != nil || whole && len(line) == 0 {
		return "", "", err
	}
	name, value, ok := strings.Cut(string(line), "=")
	if len(name) == 0 || len(name) > maxName {
		return "", "", errors.New("journal: a field without a name, or with one that is too long")
	}
	if !ok {
		value, err = e.binary()
	}
	return name, value, err
}

// line returns a line without its end, and of one that is too long its beginning.
func (e exported) line() (line []byte, whole bool, err error) {
	for whole = true; ; {
		part, err := e.r.ReadSlice('\n')
		if room := maxField - len(line); len(part) > room {
			part, whole = part[:room], false
		}
		line = append(line, part...)
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case errors.Is(err, io.EOF) && len(line) > 0:
			return nil, false, io.ErrUnexpectedEOF
		case err != nil:
			return nil, false, err
		}
		return bytes.TrimSuffix(line, []byte("\n")), whole, nil
	}
}

// binary reads a length of 8 bytes, little-endian, as many bytes, of which it keeps the beginning, and a line's end.
func (e exported) binary() (string, error) {
	var length uint64
	if err := binary.Read(e.r, binary.LittleEndian, &length); err != nil {
		return "", err
	}
	if length > maxSkipped {
		return "", fmt.Errorf("journal: a field of %d bytes", length)
	}
	kept := make([]byte, min(length, maxField))
	if _, err := io.ReadFull(e.r, kept); err != nil {
		return "", err
	}
	if _, err := io.CopyN(io.Discard, e.r, int64(length)-int64(len(kept))); err != nil {
		return "", err
	}
	if end, err := e.r.ReadByte(); err != nil || end != '\n' {
		return "", errors.New("journal: a field that does not end where it says")
	}
	return string(kept), nil
}

// complete takes out what journalctl itself says of an entry.
func (e *entry) complete() error {
	microseconds, err := strconv.ParseInt(e.fields["__REALTIME_TIMESTAMP"], 10, 64)
	if e.cursor = e.fields["__CURSOR"]; err != nil || e.cursor == "" || len(e.cursor) > maxCursor {
		return errors.New("journal: an entry without a cursor or a time")
	}
	e.time, e.source = time.UnixMicro(microseconds).UTC(), e.fields["__SEQNUM_ID"]
	e.number, _ = strconv.ParseUint(e.fields["__SEQNUM"], 10, 64) // None is 0.
	return nil
}
