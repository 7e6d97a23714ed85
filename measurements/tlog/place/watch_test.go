package place

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hullmark/hullmark/measurements/tlog"
	"github.com/hullmark/hullmark/pcrs"
)

// keeper and another are the digests of two keys.
var keeper, another = pcrs.Digest(strings.Repeat("k", 32)), pcrs.Digest(strings.Repeat("a", 32))

// What was done is done while the log grows; what was seen is held to, done or not.
func TestWatch(t *testing.T) {
	dir, state := newFolder(t, 0, 3), filepath.Join(t.TempDir(), "state")
	for _, step := range []struct {
		key        pcrs.Digest
		done, keep int64
	}{{keeper, 0, 2}, {keeper, 2, 2}, {another, 0, 1}, {another, 1, 4}, {keeper, 0, 4}, {keeper, 4, 5}} {
		w, err := OpenWatch(read(t, dir), trusted, state, step.key)
		try(t, err)
		if w.Done != step.done {
			t.Errorf("%d entries are done, want %d", w.Done, step.done)
		}
		try(t, w.Keep(min(step.keep, read(t, dir).Size)))
		_, err = Append(t.Context(), dir, logKey, entryNumber(int(read(t, dir).Size)))
		try(t, err)
	}
	// Without a file nothing is kept.
	w, err := OpenWatch(read(t, dir), trusted, "", keeper)
	try(t, err)
	if err := w.Keep(3); err != nil || w.Done != 0 {
		t.Errorf("%d, %v", w.Done, err)
	}
}

// TestWatchRefuses shows somebody another log than the one that he saw, of which he had looked at a part. His file stays as it is.
func TestWatchRefuses(t *testing.T) {
	long, elsewhere := newFolder(t, 0, 5), filepath.Join(t.TempDir(), "log")
	try(t, Create(elsewhere, "releases.example/other", logKey))
	for name, c := range map[string]struct {
		dir           string
		want          string
		contradiction bool
	}{
		"a log that forgot":                      {newFolder(t, 0, 3), "it forgot some", true},
		"a log that forgot what was not done":    {newFolder(t, 0, 4), "it forgot some", true},
		"a log that forked":                      {newFolder(t, 1, 6), "it forked", true},
		"another tree of the same size":          {newFolder(t, 1, 5), "others are shown other releases", true},
		"a log that forked in what was not done": {forked(t, 4, 6), "it forked", true},
		"another log":                            {elsewhere, "seen before was", false},
	} {
		state := filepath.Join(t.TempDir(), "state")
		w, err := OpenWatch(read(t, long), trusted, state, keeper)
		try(t, err)
		try(t, w.Keep(3))
		before, err := os.ReadFile(state)
		try(t, err)
		_, err = OpenWatch(read(t, c.dir), trusted, state, keeper)
		wantError(t, name, err, c.want)
		if errors.Is(err, tlog.ErrContradiction) != c.contradiction {
			t.Errorf("%s: %v", name, err)
		}
		if after, err := os.ReadFile(state); err != nil || string(after) != string(before) {
			t.Errorf("%s: the file is another: %v", name, err)
		}
	}
}

// forked is a log in which the entry of that number is another.
func forked(t *testing.T, at, entries int) string {
	t.Helper()
	dir := newFolder(t, 0, at)
	for _, n := range append([]int{1000}, numbers(entries)[at+1:]...) {
		_, err := Append(t.Context(), dir, logKey, entryNumber(n))
		try(t, err)
	}
	return dir
}

// TestWatchFile gives somebody another file than the one that he kept.
func TestWatchFile(t *testing.T) {
	dir, state := newFolder(t, 0, 3), filepath.Join(t.TempDir(), "state")
	w, err := OpenWatch(read(t, dir), trusted, state, keeper)
	try(t, err)
	try(t, w.Keep(2))
	kept, err := os.ReadFile(state)
	try(t, err)
	good := string(kept)
	for name, c := range map[string]struct{ text, want string }{
		"nothing":            {"", "empty"},
		"torn":               {good[:len(good)/2], "cut off"},
		"trailing":           {good + "1", "after the end"},
		"reformatted":        {strings.ReplaceAll(good, "  ", "\t"), "canonical"},
		"an unknown field":   {strings.Replace(good, `"done"`, `"more": 1, "done"`, 1), "unknown field"},
		"a doubled field":    {strings.Replace(good, `"done"`, `"done": 1, "done"`, 1), "canonical"},
		"another schema":     {strings.Replace(good, "watch/v1", "watch/v2", 1), "name another file"},
		"less than nothing":  {strings.Replace(good, `"done": 2`, `"done": -1`, 1), "-1 entries are done"},
		"more than were":     {strings.Replace(good, `"done": 2`, `"done": 4`, 1), "4 entries are done, of 3"},
		"a huge number":      {strings.Replace(good, `"done": 2`, `"done": 99999999999999999999`, 1), "done"},
		"no checkpoint":      {strings.Replace(good, "— ", "", 1), "malformed note"},
		"another log's":      {strings.Replace(good, "releases.example", "elsewhere.example", 1), "by the log's key"},
		"a checkpoint alone": {string(w.note), "invalid character"},
		"huge":               {good + strings.Repeat(" ", maxMemory), "too long"},
	} {
		try(t, os.WriteFile(state, []byte(c.text), 0o600))
		_, err := OpenWatch(read(t, dir), trusted, state, keeper)
		wantError(t, name, err, c.want)
	}
	// Of two that go on from one file at once, one does it again.
	try(t, os.WriteFile(state, kept, 0o600))
	one, err := OpenWatch(read(t, dir), trusted, state, keeper)
	try(t, err)
	other := one
	try(t, one.Keep(3))
	wantError(t, "changed meanwhile", other.Keep(2), "by another process meanwhile")
}
