package tlog

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"errors"
	"maps"
	"strings"
	"testing"
)

// TestLogContradictsItself shows a viewer, and a witness, another log than before; both see it, and a log that only grew passes.
func TestLogContradictsItself(t *testing.T) {
	short, long := newLog(t, 0, 3), newLog(t, 0, 300)
	seen := newLog(t, 0, 260).read(t).Checkpoint
	another, err := Empty("releases.example/other")
	try(t, err)
	for name, c := range map[string]struct {
		shown   memory
		earlier Checkpoint
		want    string // empty for what is right
	}{
		"it grew":                         {long, seen, ""},
		"it is the same":                  {newLog(t, 0, 260), seen, ""},
		"it had no entries":               {short, newLog(t, 0, 0).read(t).Checkpoint, ""},
		"it forgot entries":               {short, seen, "it forgot some"},
		"it forked":                       {newLog(t, 1, 300), seen, "it forked"},
		"it forked at the last entry":     {forkedAt(t, 259, 300), seen, "it forked"},
		"another tree of the same size":   {newLog(t, 1, 260), seen, "others are shown other releases"},
		"another log":                     {short, another, "seen before was"},
		"one that is empty, after others": {newLog(t, 0, 0), seen, "it forgot some"},
	} {
		r := c.shown.read(t)
		err := r.GoesOnFrom(c.earlier)
		cosigned, refused := r.Cosign(&c.earlier, keyNumber(2), noon)
		if c.want == "" {
			if err != nil || refused != nil || !bytes.HasPrefix(cosigned, r.Note) {
				t.Errorf("%s: %v, %v", name, err, refused)
			}
			continue
		}
		wantError(t, name, err, c.want)
		wantError(t, name, refused, "nothing was cosigned")
		if name != "another log" && (!errors.Is(err, ErrContradiction) || !errors.Is(refused, ErrContradiction)) {
			t.Errorf("%s: %v is no contradiction", name, err)
		}
	}
}

// forkedAt is a log in which one entry is another.
func forkedAt(t *testing.T, at, entries int) memory {
	t.Helper()
	m := newLog(t, 0, at)
	m.grow(t, 10_000, 1)
	m.grow(t, at+1, entries-at-1)
	return m
}

// TestHostileFiles serves other files than the log's writer wrote. Whatever is done with the log is refused.
func TestHostileFiles(t *testing.T) {
	whole := newLog(t, 0, 300)
	replace := func(name string, with func([]byte) []byte) func(memory) {
		return func(m memory) {
			if m[name] == nil {
				t.Fatalf("there is no %s", name)
			}
			m[name] = with(bytes.Clone(m[name]))
		}
	}
	flip := func(b []byte) []byte { b[len(b)/2+7] ^= 1; return b }
	cut := func(b []byte) []byte { return b[:len(b)-1] }
	more := func(b []byte) []byte { return append(b, b...) }
	other := newLog(t, 1, 300)
	for name, c := range map[string]struct {
		change func(memory)
		want   string
	}{
		"a hash that is another":            {replace("tile/0/000", flip), "do not hash up"},
		"a hash of the last tile":           {replace("tile/0/001.p/44", flip), "do not hash up"},
		"a hash of a higher tile":           {replace("tile/1/000.p/1", flip), "do not hash up"},
		"a tile that was cut off":           {replace("tile/0/000", cut), "tile/0/000 has 8191 bytes, want 8192"},
		"a partial tile that was cut off":   {replace("tile/0/001.p/44", cut), "bytes, want 1408"},
		"a tile that is too long":           {replace("tile/0/001.p/44", more), "too long"},
		"a huge tile":                       {func(m memory) { m["tile/0/000"] = make([]byte, 1<<20) }, "too long"},
		"a tile that is missing":            {func(m memory) { delete(m, "tile/0/000") }, "not exist"},
		"a tile of another log":             {func(m memory) { m["tile/0/000"] = other["tile/0/000"] }, "do not hash up"},
		"entries of another log":            {func(m memory) { m["tile/entries/000"] = other["tile/entries/000"] }, "entry 0 is another"},
		"an entry that is another":          {replace("tile/entries/001.p/44", flip), "is another than the one in the tree"},
		"entries that were cut off":         {replace("tile/entries/001.p/44", cut), "cut off"},
		"entries that end in a length":      {replace("tile/entries/000", func(b []byte) []byte { return append(b[:500], 0) }), "cut off"},
		"more entries than there are":       {replace("tile/entries/001.p/44", more), "has 88 entries, want 44"},
		"fewer entries than there are":      {func(m memory) { m["tile/entries/000"] = m["tile/entries/000.p/255"] }, "has 255 entries, want 256"},
		"more entries than a tile has":      {replace("tile/entries/000", func(b []byte) []byte { return append(b, 0, 1, 'x') }), "more than 256"},
		"an entry without a byte":           {replace("tile/entries/001.p/44", func(b []byte) []byte { return append(b, 0, 0) }), "an entry of 0 bytes"},
		"an entry that is longer than any":  {replace("tile/entries/001.p/44", func(b []byte) []byte { b[0] = 0xff; return b }), "bytes, want 1 to"},
		"huge entries":                      {func(m memory) { m["tile/entries/001.p/44"] = make([]byte, 1<<20) }, "too long"},
		"entries that are missing":          {func(m memory) { delete(m, "tile/entries/000") }, "not exist"},
		"a full tile in place of a partial": {func(m memory) { delete(m, "tile/0/001.p/44"); m["tile/0/001"] = other["tile/0/000"] }, "do not hash up"},
		"a checkpoint that is missing":      {func(m memory) { delete(m, CheckpointName) }, "not exist"},
		"a huge checkpoint":                 {func(m memory) { m[CheckpointName] = make([]byte, MaxCheckpoint+1) }, "too long"},
		"a torn checkpoint":                 {replace(CheckpointName, cut), "malformed note"},
		"another log's checkpoint":          {func(m memory) { m[CheckpointName] = other[CheckpointName] }, "do not hash up"},
	} {
		m := maps.Clone(whole)
		c.change(m)
		r, err := Read(t.Context(), m, trusted)
		if err == nil {
			err = r.Each(func(int64, Entry) error { return nil })
		}
		wantError(t, name, err, c.want)
	}
	try(t, whole.read(t).Each(func(int64, Entry) error { return nil }))
}

// Who has looked at a log's first entries reads no more of them, and who looks for a new one finds it without them.
func TestEachFrom(t *testing.T) {
	m := newLog(t, 0, 600)
	delete(m, "tile/entries/000")
	r := m.read(t)
	for _, first := range []int64{256, 257, 511, 512, 599, 600, 601, 1 << 40} {
		next := first
		try(t, r.EachFrom(first, func(index int64, e Entry) error {
			if index != next || e.Release != entryNumber(int(next)).Release {
				t.Errorf("from %d: entry %d is %d, %v", first, next, index, e)
			}
			next++
			return nil
		}))
		if next != max(first, r.Size) {
			t.Errorf("from %d: it ended with %d", first, next)
		}
	}
	nothing := func(int64, Entry) error { return nil }
	wantError(t, "the last of the first tile", r.EachFrom(255, nothing), "not exist")
	wantError(t, "all", r.EachFrom(-1, nothing), "not exist")
	wantProof(t, r, 599)
	wantProof(t, r, 256)
	_, err := r.Find(entryNumber(255))
	wantError(t, "one of the first tile", err, "not exist")
}

// What is in a log and is no release is told by its number.
func TestEntriesThatAreNone(t *testing.T) {
	m := newLog(t, 0, 2)
	files, next, err := m.read(t).next([]byte("something"))
	try(t, err)
	for _, f := range files {
		m[f.Name] = f.Content
	}
	m[CheckpointName], err = next.Sign(logKey)
	try(t, err)
	wantError(t, "no release", m.read(t).Each(func(int64, Entry) error { return nil }), "entry 2: log entry")
}

func TestCosignRefuses(t *testing.T) {
	r := newLog(t, 0, 3).read(t)
	p256, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	try(t, err)
	for name, c := range map[string]struct {
		key  crypto.Signer
		want string
	}{
		"the log's own key": {logKey, "no witness of itself"},
		"an ECDSA key":      {p256, "want Ed25519"},
	} {
		_, err := r.Cosign(nil, c.key, noon)
		wantError(t, name, err, c.want)
	}
	if _, err := r.Checkpoint.Sign(p256); err == nil {
		t.Error("a log has an ECDSA key")
	}
	// A witness that cosigns the same tree once more has one cosignature, the later one.
	first, err := r.Cosign(nil, keyNumber(2), noon)
	try(t, err)
	trust := trusted
	trust.Witnesses, trust.Threshold = []ed25519.PublicKey{public(keyNumber(2))}, 1
	again, err := ReadAt(t.Context(), memory{}, trust, first)
	try(t, err)
	second, err := again.Cosign(&again.Checkpoint, keyNumber(2), noon.AddDate(0, 0, 1))
	try(t, err)
	c, err := trust.Open(second)
	if err != nil || strings.Count(string(second), "/witness/") != 1 || !c.Cosignatures[0].Time.Equal(noon.AddDate(0, 0, 1)) {
		t.Errorf("%v\n%s", err, second)
	}
}

// A writer that was cut off goes on with what it had stored, and with nothing that does not follow from the log.
func TestBegun(t *testing.T) {
	m := newLog(t, 0, 255)
	if _, begun, err := m.read(t).Begun(); begun || err != nil {
		t.Errorf("%t, %v", begun, err)
	}
	files, _, err := m.read(t).Next(entryNumber(255))
	try(t, err)
	m[files[0].Name] = files[0].Content
	e, begun, err := m.read(t).Begun()
	if !begun || err != nil || e.Release != entryNumber(255).Release || files[0].Name != "tile/entries/000" {
		t.Errorf("%v, %t, %v", e, begun, err)
	}
	for name, c := range map[string]struct {
		content []byte
		want    string
	}{
		"torn":           {files[0].Content[:700], "no checkpoint covers"},
		"of another log": {newLog(t, 1, 256)["tile/entries/000"], "does not begin with"},
		"too few":        {m["tile/entries/000.p/255"], "255 entries, want 256"},
		"no release":     {append(bytes.Clone(m["tile/entries/000.p/255"]), 0, 1, 'x'), "log entry"},
	} {
		m[files[0].Name] = c.content
		_, _, err := m.read(t).Begun()
		wantError(t, name, err, c.want)
	}
}
