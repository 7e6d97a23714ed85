package main

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/firstboot/servicefiles"
	"github.com/hullmark/hullmark/internal/memrecords"
	"github.com/hullmark/hullmark/joinservice"
)

// nobody says that this node's member of etcd lacks more than one.
func nobody(context.Context, string) (bool, error) { return false, nil }

// An outage begins with `hullmark recover`, and ends once, for the whole boot, with the first record that was read.
func TestOutage(t *testing.T) {
	credentials, state := t.TempDir(), t.TempDir()
	start := func(boot string) *outage {
		if boot != "" {
			if err := os.WriteFile(filepath.Join(credentials, recoveredCredential), []byte(boot), 0o400); err != nil {
				t.Fatal(err)
			}
		}
		o, err := newOutage(folder(credentials), servicefiles.Files{Folder: state}, nobody, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		return o
	}
	for _, boot := range []string{"", neverRecovered} {
		if start(boot).LetsBack(t.Context(), hullmark.EKID{1}) {
			t.Errorf("recovered %q: an outage lasts", boot)
		}
	}
	o := start("one")
	records := &memrecords.Store{}
	records.SetDown(true)
	watched := attentive{records, o}
	if _, _, err := watched.Load(t.Context(), hullmark.EKID{1}); err == nil || !o.LetsBack(t.Context(), hullmark.EKID{1}) {
		t.Fatalf("records that do not answer ended the outage: %v", err)
	}
	if !start("one").LetsBack(t.Context(), hullmark.EKID{1}) {
		t.Error("a restart ended the outage")
	}
	records.SetDown(false)
	if _, _, err := watched.Load(t.Context(), hullmark.EKID{1}); err != nil || o.LetsBack(t.Context(), hullmark.EKID{1}) {
		t.Fatalf("the outage lasts although a record was read: %v", err)
	}
	if start("one").LetsBack(t.Context(), hullmark.EKID{1}) {
		t.Error("a restart began the outage anew")
	}
	if !start("two").LetsBack(t.Context(), hullmark.EKID{1}) {
		t.Error("an outage of another boot is over")
	}
	if by := start("three").by; by != "" {
		t.Errorf("operator %q recovered it, and nobody said so", by)
	}
	if o := start("four alice"); o.by != "alice" || !o.LetsBack(t.Context(), hullmark.EKID{1}) {
		t.Errorf("by operator %q, and the outage is over", o.by)
	}
	if _, err := newOutage(folder(credentials), servicefiles.Files{Folder: filepath.Join(state, "outage-over", "x")}, nobody, nil); err == nil || errors.Is(err, os.ErrNotExist) {
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
		o, err := newOutage(folder(credentials), servicefiles.Files{Folder: state}, nobody, slog.New(slog.DiscardHandler))
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
		{EKID: plane, Name: "plane", Role: hullmark.ControlPlane, Record: record, Etcd: note}, {EKID: worker, Role: hullmark.Worker, Record: record},
	})
	if o.LetsBack(t.Context(), hullmark.EKID{1}) {
		t.Error("the outage lasts although records were read")
	}
	for o, want := range map[*outage]joinservice.Seen{o: {Name: "plane", Current: true, Disk: record, Etcd: note}, start(): {Disk: record, Etcd: note}} {
		if got, ok := o.LastSeen(plane); !ok || got != want {
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
	if !start().LetsBack(t.Context(), hullmark.EKID{1}) {
		t.Fatal("the next boot's outage is over")
	}
	if err := os.WriteFile(filepath.Join(state, "control-planes.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if start().LetsBack(t.Context(), hullmark.EKID{1}) {
		t.Error("control planes may come back although what was seen of them is lost")
	}
}

// Of two control planes one lets the other back, which it knows by records that it has read itself, while etcd lacks that one alone.
func TestOneOfTwoLetsTheOtherBack(t *testing.T) {
	other, stranger := hullmark.EKID{1}, hullmark.EKID{2}
	var asked []string
	awaits, failed := true, error(nil)
	state := t.TempDir()
	start := func() *outage {
		asked = nil
		o, err := newOutage(folder(t.TempDir()), servicefiles.Files{Folder: state}, func(_ context.Context, name string) (bool, error) {
			asked = append(asked, name)
			return awaits, failed
		}, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		return o
	}
	may := func(o *outage, node hullmark.EKID, want bool, asks ...string) {
		t.Helper()
		asked = nil
		if got := o.LetsBack(t.Context(), node); got != want || !slices.Equal(asked, asks) {
			t.Errorf("it may come back: %t, want %t; etcd was asked for %q, want %q", got, want, asked, asks)
		}
	}
	store := &memrecords.Store{}
	machine := joinservice.Machine{EKID: other, Name: "two", Role: hullmark.ControlPlane, Record: joinservice.Record{Disk: hullmark.UUID{7}, Issued: 1}}
	o := start()
	may(o, other, false)
	// What an exchange recorded just now is known, but not what else there is.
	version, err := attentive{store, o}.Store(t.Context(), machine, "")
	if err != nil {
		t.Fatal(err)
	}
	may(o, other, false)
	o.note([]joinservice.Machine{machine})
	may(o, other, true, "two")
	may(o, stranger, false)
	machine.Record.Committed = 1
	if _, err := (attentive{store, o}).Store(t.Context(), machine, version); err != nil {
		t.Fatal(err)
	}
	if seen, _ := o.LastSeen(other); seen.Disk != machine.Record {
		t.Errorf("a record that was stored just now is kept as %+v", seen.Disk)
	}
	awaits = false
	may(o, other, false, "two")
	awaits, failed = false, errors.New("etcd is away")
	may(o, other, false, "two")
	awaits, failed = true, nil
	// Another process knows what this one kept, but not whether that is the newest.
	may(start(), other, false)
	// One that was removed, or made a worker, is no control plane that may come back.
	o.note(nil)
	may(o, other, false)
	o.note([]joinservice.Machine{machine})
	machine.Role = hullmark.Worker
	o.noteOne(machine)
	may(o, other, false)
}

// oneOfTwo is an outage of a service that has read the record of the other control plane.
func oneOfTwo(t *testing.T) (o *outage, awaits *bool) {
	awaits = new(bool)
	*awaits = true
	o, err := newOutage(folder(t.TempDir()), servicefiles.Files{Folder: t.TempDir()}, func(context.Context, string) (bool, error) { return *awaits, nil }, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	o.note([]joinservice.Machine{planeAt(otherPlane, "two", 1)})
	return o, awaits
}

var otherPlane = hullmark.EKID{1}

func planeAt(node hullmark.EKID, name string, number uint64) joinservice.Machine {
	return joinservice.Machine{EKID: node, Name: name, Role: hullmark.ControlPlane, Record: joinservice.Record{Disk: hullmark.UUID{7}, Issued: number, Committed: number}}
}

// unwritable is a file that nothing can be written to.
type unwritable struct{ servicefiles.File }

func (unwritable) Write([]byte) error { return errors.New("the agent does not answer") }

// What cannot be kept for another boot is known in this one.
func TestOutageKnowsWhatItCannotKeep(t *testing.T) {
	o, _ := oneOfTwo(t)
	o.kept = unwritable{o.kept}
	o.note([]joinservice.Machine{planeAt(otherPlane, "two", 9)})
	if seen, _ := o.LastSeen(otherPlane); seen.Disk.Committed != 9 {
		t.Errorf("committed is %d after all records said 9", seen.Disk.Committed)
	}
}

// A list that began before a record was stored does not undo what is known of it; an override does.
func TestOutageGoesNotBack(t *testing.T) {
	o, _ := oneOfTwo(t)
	if _, err := (attentive{&memrecords.Store{}, o}).Store(t.Context(), planeAt(otherPlane, "two", 2), ""); err != nil {
		t.Fatal(err)
	}
	o.note([]joinservice.Machine{planeAt(otherPlane, "two", 1)})
	if seen, _ := o.LastSeen(otherPlane); seen.Disk.Committed != 2 {
		t.Errorf("committed went back to %d", seen.Disk.Committed)
	}
	overridden := planeAt(otherPlane, "two", 1)
	overridden.Record.Serial = 1
	o.noteOne(overridden)
	if seen, _ := o.LastSeen(otherPlane); seen.Disk.Committed != 1 {
		t.Errorf("committed is %d after an override", seen.Disk.Committed)
	}
}

// Three control planes by their records are not two, whatever the local member of etcd says.
func TestOneOfThreeLetsNobodyBack(t *testing.T) {
	o, _ := oneOfTwo(t)
	own, third := planeAt(hullmark.EKID{2}, "one", 5), planeAt(hullmark.EKID{3}, "three", 5)
	o.note([]joinservice.Machine{own, planeAt(otherPlane, "two", 1)})
	if !o.LetsBack(t.Context(), otherPlane) {
		t.Error("the other one of two cannot come back")
	}
	third.Record.Committed = 0 // It has yet to join.
	o.note([]joinservice.Machine{own, planeAt(otherPlane, "two", 1), third})
	if !o.LetsBack(t.Context(), otherPlane) {
		t.Error("the other one of two cannot come back while a third waits to join")
	}
	third.Record.Committed = 5
	o.note([]joinservice.Machine{own, planeAt(otherPlane, "two", 1), third})
	if o.LetsBack(t.Context(), otherPlane) {
		t.Error("one of three comes back unchecked")
	}
}

// While records cannot be read although etcd decides, others may write what this service does not hear of.
func TestOutageDoubtsOldRecords(t *testing.T) {
	o, awaits := oneOfTwo(t)
	try := func(what string, want bool) {
		t.Helper()
		o.doubt(t.Context())
		now := *awaits
		*awaits = true
		if got := o.LetsBack(t.Context(), otherPlane); got != want {
			t.Errorf("%s: it may come back: %t", what, got)
		}
		*awaits = now
	}
	*awaits = false
	try("a list that failed once", true)
	o.read = o.read.Add(-2 * longestUnread)
	*awaits = true
	try("one of two is away", true)
	*awaits = false
	try("etcd decides", false)
	*awaits = true
	try("etcd has decided meanwhile", false)
	o.note([]joinservice.Machine{planeAt(otherPlane, "two", 2)})
	try("all records were read again", true)
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
