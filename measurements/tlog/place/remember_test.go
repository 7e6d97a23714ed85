package place

import (
	"crypto/ed25519"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hullmark/hullmark/measurements/tlog"
)

// A witness follows a log that grows, over a folder and over the web, and its cosignature gets into the folder's checkpoint.
func TestWitness(t *testing.T) {
	dir := newFolder(t, 0, 3)
	w := Witness{Key: keyNumber(2), State: filepath.Join(t.TempDir(), "state"), First: true}
	trust := trusted
	trust.Witnesses, trust.Threshold = []ed25519.PublicKey{public(keyNumber(2))}, 1
	for _, from := range []tlog.Files{Folder(dir), Folder(dir), serve(t, dir, nil)} {
		cosigned, err := w.Cosign(t.Context(), from, trusted, noon)
		try(t, err)
		if kept, err := os.ReadFile(w.State); err != nil || string(kept) != string(cosigned) {
			t.Errorf("kept is %s, %v", kept, err)
		}
		if _, err := trust.Open(cosigned); err != nil {
			t.Error(err)
		}
		if _, err := tlog.Read(t.Context(), from, trust); (err == nil) != (from == Folder(dir)) {
			t.Errorf("the log's own checkpoint: %v", err)
		}
		w.First = false
		_, err = Append(t.Context(), dir, logKey, entryNumber(3+int(read(t, dir).Size)))
		try(t, err)
	}
	// Another witness's stays beside it.
	second := Witness{Key: keyNumber(3), State: filepath.Join(t.TempDir(), "state"), First: true}
	_, err := w.Cosign(t.Context(), Folder(dir), trusted, noon)
	try(t, err)
	_, err = second.Cosign(t.Context(), Folder(dir), trusted, noon)
	try(t, err)
	trust.Witnesses, trust.Threshold = append(trust.Witnesses, public(keyNumber(3))), 2
	_, err = tlog.Read(t.Context(), Folder(dir), trust)
	try(t, err)
}

// TestWitnessRefuses shows a witness another log than the one that it cosigned. It cosigns nothing, and remembers what it had.
func TestWitnessRefuses(t *testing.T) {
	long, short, forked := newFolder(t, 0, 5), newFolder(t, 0, 3), newFolder(t, 1, 6)
	sameSize := newFolder(t, 1, 5)
	elsewhere := filepath.Join(t.TempDir(), "log")
	try(t, Create(elsewhere, "releases.example/other", logKey))
	for name, c := range map[string]struct {
		dir           string
		change        func(w *Witness)
		want          string
		contradiction bool
	}{
		"a log that forgot":             {short, nil, "it forgot some", true},
		"a log that forked":             {forked, nil, "it forked", true},
		"another tree of the same size": {sameSize, nil, "others are shown other releases", true},
		"another log":                   {elsewhere, nil, "seen before was", false},
		"a state that is lost":          {long, func(w *Witness) { try(t, os.Remove(w.State)) }, "cosigns nothing", false},
		"a state that is torn":          {long, func(w *Witness) { try(t, os.Truncate(w.State, 40)) }, "malformed note", false},
		"a state that is huge":          {long, func(w *Witness) { try(t, os.Truncate(w.State, 1<<20)) }, "too long", false},
		"a beginning after others":      {long, func(w *Witness) { w.First = true }, "cosigned before", false},
		"the log's own key":             {long, func(w *Witness) { w.Key = logKey }, "no witness of itself", false},
	} {
		w := Witness{Key: keyNumber(2), State: filepath.Join(t.TempDir(), "state"), First: true}
		_, err := w.Cosign(t.Context(), serve(t, long, nil), trusted, noon)
		try(t, err)
		w.First = false
		if c.change != nil {
			c.change(&w)
		}
		before, _ := os.ReadFile(w.State)
		cosigned, err := w.Cosign(t.Context(), Folder(c.dir), trusted, noon)
		wantError(t, name, err, c.want)
		if errors.Is(err, tlog.ErrContradiction) != c.contradiction || cosigned != nil {
			t.Errorf("%s: %v, %s", name, err, cosigned)
		}
		if after, _ := os.ReadFile(w.State); string(after) != string(before) {
			t.Errorf("%s: the state is another", name)
		}
		if shown := string(read(t, c.dir).Note); strings.Contains(shown, "/witness/") {
			t.Errorf("%s: it was cosigned: %s", name, shown)
		}
	}
}

// Two that go on from one state at once do not both store theirs.
func TestStateOfTwo(t *testing.T) {
	dir, state := newFolder(t, 0, 3), filepath.Join(t.TempDir(), "state")
	fresh, err := remember(state, trusted)
	try(t, err)
	try(t, fresh.store(read(t, dir).Note))
	wantError(t, "a state that was new", fresh.store(read(t, dir).Note), "exists")
	one, err := remember(state, trusted)
	try(t, err)
	other := one
	_, err = Append(t.Context(), dir, logKey, entryNumber(3))
	try(t, err)
	try(t, one.store(read(t, dir).Note))
	wantError(t, "a state that was changed", other.store(read(t, dir).Note), "by another process meanwhile")
}

// A log that grew while a witness looked at it gets no cosignature of what it was.
func TestCosignatureComesTooLate(t *testing.T) {
	dir := newFolder(t, 0, 3)
	cosigned, err := read(t, dir).Cosign(nil, keyNumber(2), noon)
	try(t, err)
	_, err = Append(t.Context(), dir, logKey, entryNumber(3))
	try(t, err)
	wantError(t, "too late", addSignatures(dir, trusted, cosigned), "do it again")
	if strings.Contains(string(read(t, dir).Note), "/witness/") {
		t.Error("it was added")
	}
}

func TestFollow(t *testing.T) {
	dir, state := newFolder(t, 0, 3), filepath.Join(t.TempDir(), "state")
	if last, err := Follow(read(t, dir), trusted, state); last != nil || err != nil {
		t.Errorf("%v, %v", last, err)
	}
	_, err := Append(t.Context(), dir, logKey, entryNumber(3))
	try(t, err)
	if last, err := Follow(read(t, dir), trusted, state); err != nil || last.Size != 3 {
		t.Errorf("%v, %v", last, err)
	}
	_, err = Follow(read(t, newFolder(t, 0, 3)), trusted, state)
	wantError(t, "it forgot", err, "it forgot some")
	if last, err := Follow(read(t, dir), trusted, state); err != nil || last.Size != 4 {
		t.Errorf("%v, %v", last, err)
	}
}
