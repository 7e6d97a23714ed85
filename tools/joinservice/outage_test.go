package main

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/internal/memrecords"
)

// An outage begins with `hullmark recover`, and ends once, for the whole boot, with the first record that was read.
func TestOutage(t *testing.T) {
	credentials, state := t.TempDir(), t.TempDir()
	start := func(boot string) *outage {
		if boot != "" {
			if err := os.WriteFile(filepath.Join(credentials, recoveredCredential), []byte(boot), 0o400); err != nil {
				t.Fatal(err)
			}
		}
		o, err := newOutage(folder(credentials), state, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		return o
	}
	for _, boot := range []string{"", neverRecovered} {
		if start(boot).lasts() {
			t.Errorf("recovered %q: an outage lasts", boot)
		}
	}
	o := start("one")
	records := &memrecords.Store{}
	records.SetDown(true)
	watched := attentive{records, o}
	if _, _, err := watched.Load(t.Context(), hullmark.NodeID{1}); err == nil || !o.lasts() {
		t.Fatalf("records that do not answer ended the outage: %v", err)
	}
	if !start("one").lasts() {
		t.Error("a restart ended the outage")
	}
	records.SetDown(false)
	if _, _, err := watched.Load(t.Context(), hullmark.NodeID{1}); err != nil || o.lasts() {
		t.Fatalf("the outage lasts although a record was read: %v", err)
	}
	if start("one").lasts() {
		t.Error("a restart began the outage anew")
	}
	if !start("two").lasts() {
		t.Error("an outage of another boot is over")
	}
	if err := os.Mkdir(filepath.Join(state, "x"), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := newOutage(folder(credentials), filepath.Join(state, "outage-over", "x"), nil); err == nil || errors.Is(err, os.ErrNotExist) {
		t.Errorf("a state that cannot be read: %v", err)
	}
}
