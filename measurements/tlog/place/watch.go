package place

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/internal/atomicfile"
	"github.com/hullmark/hullmark/measurements/tlog"
	"github.com/hullmark/hullmark/pcrs"
)

// WatchSchema names the format of the file that a Watch keeps.
const WatchSchema = "hullmark.log-watch/v1"

// Watch is what somebody keeps of a log who looks at its new releases by one key, so that he looks at each until there is nothing to say
// of it.
type Watch struct {
	memory
	key  pcrs.Digest
	note []byte
	// Done is how many of the log's first entries need no look any more.
	Done int64
}

// watchFile is what the file holds.
type watchFile struct {
	// Schema is WatchSchema.
	Schema string `json:"schema"`
	// Key is the tlog.KeyDigest of who signs the releases.
	Key  pcrs.Digest `json:"key"`
	Done int64       `json:"done"`
	// Checkpoint is the signed checkpoint that was seen last. It may be of more entries than are done.
	Checkpoint string `json:"checkpoint"`
}

// OpenWatch checks that a log goes on from what the file at path holds of it, which may be missing; an empty path keeps nothing. For
// another key than the file's no entry is done.
func OpenWatch(r *tlog.Reader, t tlog.Trust, path string, key pcrs.Digest) (Watch, error) {
	w := Watch{memory: memory{path: path}, key: key, note: r.Note}
	if path == "" {
		return w, nil
	}
	content, err := atomicfile.Read(path, maxMemory)
	if errors.Is(err, fs.ErrNotExist) {
		return w, nil
	}
	if err != nil {
		return w, err
	}
	f, last, err := parseWatch(content, t)
	if err != nil {
		return w, fmt.Errorf("%s, which holds what was seen of the log: %w", path, err)
	}
	if err := r.GoesOnFrom(last); err != nil {
		return w, err
	}
	w.before = content
	if f.Key.Equal(key) {
		w.Done = f.Done
	}
	return w, nil
}

// parseWatch strictly reads what Keep wrote. The checkpoint in it was signed by the log, whoever cosigned it.
func parseWatch(content []byte, t tlog.Trust) (watchFile, tlog.Checkpoint, error) {
	var f watchFile
	err := hullmark.DecodeStrict(content, maxMemory, &f)
	if err == nil {
		err = hullmark.CheckCanonicalJSON(content, f)
	}
	if err == nil && f.Schema != WatchSchema {
		err = fmt.Errorf("schema %.80q, want %q: name another file, and all entries are looked at", f.Schema, WatchSchema)
	}
	if err != nil {
		return f, tlog.Checkpoint{}, err
	}
	t.Threshold = 0
	last, err := t.Open([]byte(f.Checkpoint))
	if err == nil && (f.Done < 0 || f.Done > last.Size) {
		err = fmt.Errorf("%d entries are done, of %d", f.Done, last.Size)
	}
	return f, last, err
}

// Keep stores the checkpoint that the log was read at, and how many of its first entries need no look any more.
func (w Watch) Keep(done int64) error {
	if w.path == "" {
		return nil
	}
	content, err := hullmark.CanonicalJSON(watchFile{WatchSchema, w.key, done, string(w.note)})
	if err != nil {
		return err
	}
	return w.store(content)
}
