package main

import (
	"errors"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"testing"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/firstboot/servicefiles"
	"github.com/hullmark/hullmark/internal/memrecords"
	"github.com/hullmark/hullmark/joinservice"
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
		o, err := newOutage(folder(credentials), servicefiles.Files{Folder: state}, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		return o
	}
	for _, boot := range []string{"", neverRecovered} {
		if start(boot).Lasts() {
			t.Errorf("recovered %q: an outage lasts", boot)
		}
	}
	o := start("one")
	records := &memrecords.Store{}
	records.SetDown(true)
	watched := attentive{records, o}
	if _, _, err := watched.Load(t.Context(), hullmark.EKID{1}); err == nil || !o.Lasts() {
		t.Fatalf("records that do not answer ended the outage: %v", err)
	}
	if !start("one").Lasts() {
		t.Error("a restart ended the outage")
	}
	records.SetDown(false)
	if _, _, err := watched.Load(t.Context(), hullmark.EKID{1}); err != nil || o.Lasts() {
		t.Fatalf("the outage lasts although a record was read: %v", err)
	}
	if start("one").Lasts() {
		t.Error("a restart began the outage anew")
	}
	if !start("two").Lasts() {
		t.Error("an outage of another boot is over")
	}
	if _, err := newOutage(folder(credentials), servicefiles.Files{Folder: filepath.Join(state, "outage-over", "x")}, nil); err == nil || errors.Is(err, os.ErrNotExist) {
		t.Errorf("a state that cannot be read: %v", err)
	}
}

// What the records of control planes said is kept over boots; what cannot be read lets nobody in.
func TestOutageRemembersControlPlanes(t *testing.T) {
	credentials, state := t.TempDir(), t.TempDir()
	if err := os.WriteFile(filepath.Join(credentials, recoveredCredential), []byte("one"), 0o400); err != nil {
		t.Fatal(err)
	}
	start := func() *outage {
		o, err := newOutage(folder(credentials), servicefiles.Files{Folder: state}, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		return o
	}
	plane, worker := hullmark.EKID{1}, hullmark.EKID{2}
	record := joinservice.Record{Disk: hullmark.UUID{7}, Committed: 3, Issued: 4}
	note := joinservice.EtcdNote{EtcdState: hullmark.EtcdState{Member: 9, Term: 2, Last: 3}, Removed: true}
	o := start()
	o.note([]joinservice.Machine{
		{EKID: plane, Role: hullmark.ControlPlane, Record: record, Etcd: note}, {EKID: worker, Role: hullmark.Worker, Record: record},
	})
	if o.Lasts() {
		t.Error("the outage lasts although records were read")
	}
	for _, o := range []*outage{o, start()} {
		if got, ok := o.LastSeen(plane); !ok || got != (joinservice.Seen{Disk: record, Etcd: note}) {
			t.Errorf("the control plane's record is %+v, %v", got, ok)
		}
		if _, ok := o.LastSeen(worker); ok {
			t.Error("a worker's record is kept")
		}
	}
	if err := os.WriteFile(filepath.Join(credentials, "new"), []byte("two"), 0o400); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(filepath.Join(credentials, "new"), filepath.Join(credentials, recoveredCredential)); err != nil {
		t.Fatal(err)
	}
	if !start().Lasts() {
		t.Fatal("the next boot's outage is over")
	}
	if err := os.WriteFile(filepath.Join(state, "control-planes.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if start().Lasts() {
		t.Error("control planes may come back although what was seen of them is lost")
	}
}

// FuzzReadSeen holds the reader of what was seen of control planes to what is written.
func FuzzReadSeen(f *testing.F) {
	file := servicefiles.Plain(filepath.Join(f.TempDir(), "seen"))
	if err := writeSeen(file, map[hullmark.EKID]joinservice.Seen{{7}: {Disk: joinservice.Record{Disk: hullmark.UUID{8}, Committed: 1, Issued: 2}, Etcd: joinservice.EtcdNote{Removed: true}}}); err != nil {
		f.Fatal(err)
	}
	seed, err := file.Read()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(seed)
	f.Add([]byte(`{"07":{}}`))
	f.Fuzz(func(t *testing.T, content []byte) {
		seen, err := readSeen(content)
		if err != nil {
			return
		}
		file := servicefiles.Plain(filepath.Join(t.TempDir(), "seen"))
		if err := writeSeen(file, seen); err != nil {
			t.Fatal(err)
		}
		written, err := file.Read()
		if err != nil {
			t.Fatal(err)
		}
		if again, err := readSeen(written); err != nil || !maps.Equal(again, seen) {
			t.Errorf("%v came back as %v, %v", seen, again, err)
		}
	})
}
