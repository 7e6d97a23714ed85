package joinservice_test

import (
	"crypto/rand"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest"
	"github.com/hullmark/hullmark/internal/nodetest"
	"github.com/hullmark/hullmark/joinservice"
	"github.com/hullmark/hullmark/joinservice/keys"
	"github.com/hullmark/hullmark/measurements"
	"github.com/hullmark/hullmark/pcrs"
)

var (
	machine = hullmark.EKID{1}
	disk    = hullmark.UUID{2}
	root    = hullmark.ClusterRoot{3}
)

// newAuthorizer accepts the document of "image" and one machine.
func newAuthorizer(t *testing.T) *joinservice.Authorizer {
	t.Helper()
	document := nodetest.Document(t, "image")
	policy, err := joinservice.FirstPolicy(measurements.Policy{}, document, member("first"))
	if err != nil {
		t.Fatal(err)
	}
	keyset, err := keys.New(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return &joinservice.Authorizer{Root: root, Policy: policy, Documents: []measurements.Document{document}, Keys: keyset}
}

func member(name string) measurements.Member {
	return measurements.Member{EKID: machine, Role: hullmark.ControlPlane, Name: name}
}

// claims are those of a machine that booted what the document of image says.
func claims(t *testing.T, image string, d hullmark.DiskClaim) attest.Claims {
	t.Helper()
	c := attest.Claims{EKID: machine, Disk: d}
	for register, value := range nodetest.Document(t, image).Values(pcrs.SHA256) {
		copy(c.Registers[register][:], value)
	}
	return c
}

func blank() hullmark.DiskClaim { return hullmark.DiskClaim{State: hullmark.DiskBlank, UUID: disk} }

func ready() hullmark.DiskClaim {
	return hullmark.DiskClaim{State: hullmark.DiskReady, UUID: disk, Generation: 1, Owner: machine}
}

func TestAdmit(t *testing.T) {
	authorizer := newAuthorizer(t)
	first, err := authorizer.Admit(hullmark.Init, claims(t, "image", blank()), nil)
	if err != nil {
		t.Fatal(err)
	}
	grant := first.Ticket.Disk
	if !grant.FormatAllowed || grant.Generation != 1 || grant.Owner != machine || grant.UUID != disk || first.Member.Name != "first" {
		t.Errorf("the first ticket is %+v", grant)
	}
	again, err := authorizer.Admit(hullmark.Init, claims(t, "image", ready()), &first.Record)
	if err != nil {
		t.Fatal(err)
	}
	if !again.Ticket.Disk.Key.Equal(grant.Key) || again.Ticket.Disk.FormatAllowed {
		t.Error("the same disk gets another key, or may be formatted")
	}
}

func TestAdmitRefuses(t *testing.T) {
	record := &joinservice.Record{Disk: disk, Committed: 1, Issued: 1}
	foreign, unknownGeneration := ready(), ready()
	foreign.Owner = hullmark.EKID{9}
	unknownGeneration.Generation = 9
	stranger := claims(t, "image", blank())
	stranger.EKID = hullmark.EKID{9}
	for name, c := range map[string]struct {
		claims attest.Claims
		record *joinservice.Record
		code   string
	}{
		"a stranger":               {stranger, nil, "not-a-member"},
		"another image":            {claims(t, "other", blank()), nil, joinservice.CodeMismatch},
		"no registers":             {attest.Claims{EKID: machine, Disk: blank()}, nil, joinservice.CodeMismatch},
		"another machine's disk":   {claims(t, "image", foreign), record, "disk-owner"},
		"an unknown generation":    {claims(t, "image", unknownGeneration), record, "generation-missing"},
		"a disk without a record":  {claims(t, "image", ready()), nil, "record-missing"},
		"another disk with data":   {claims(t, "image", ready()), &joinservice.Record{Disk: hullmark.UUID{8}, Committed: 1, Issued: 1}, "record-missing"},
		"an empty disk in between": {claims(t, "image", blank()), record, "disk-replaced"},
	} {
		t.Run(name, func(t *testing.T) {
			admission, err := newAuthorizer(t).Admit(hullmark.Init, c.claims, c.record)
			var condition *hullmark.Condition
			if !errors.As(err, &condition) || condition.Code != c.code || condition.Next == "" {
				t.Errorf("got %v, want %s", err, c.code)
			}
			if admission.Ticket.Disk.Key.Len() != 0 {
				t.Error("a refused machine got a key")
			}
		})
	}
}

func TestRebindOpensTheOldDisk(t *testing.T) {
	authorizer := newAuthorizer(t)
	old := hullmark.EKID{9}
	authorizer.Policy.Rebinds = []measurements.Rebind{{Old: old, New: machine}}
	claim := ready()
	claim.Owner = old
	admission, err := authorizer.Admit(hullmark.Init, claims(t, "image", claim), &joinservice.Record{Disk: disk, Issued: 1})
	if err != nil {
		t.Fatal(err)
	}
	want, err := authorizer.Keys.DiskKey(1, root, old, disk)
	if err != nil || !admission.Ticket.Disk.Key.Equal(want) {
		t.Error("the rebound disk's key is not the old owner's")
	}
}

// TestRecordSurvivesCrashes walks through the points at which either side can
// stop, and holds the window to what the disk can then contain.
func TestRecordSurvivesCrashes(t *testing.T) {
	var record *joinservice.Record
	epoch := uint64(0) // the disk's counter
	for round, stop := range []string{"before the disk", "before the commit", "never", "before the commit", "never"} {
		claim := ready()
		if record == nil || epoch == 0 {
			claim = blank()
		}
		next, _, err := record.Issue(claim, joinservice.Waiver{})
		if err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		record = &next
		if epoch < next.Committed || epoch >= next.Issued {
			t.Fatalf("round %d: the honest disk's epoch %d is outside [%d, %d)", round, epoch, next.Committed, next.Issued)
		}
		if stop == "before the disk" {
			continue
		}
		epoch = next.Issued
		if stop == "never" {
			committed, err := record.Commit(disk, epoch)
			if err != nil {
				t.Fatal(err)
			}
			record = &committed
		}
	}
	if stale := uint64(1); stale >= record.Committed {
		t.Errorf("a rolled back disk of epoch %d would pass: %+v", stale, record)
	}
}

// TestRestoredRecord restores a cluster from three backups of different age, in each order, with boots
// in between: each time the newest disk is let in, once, and its copies are not.
func TestRestoredRecord(t *testing.T) {
	authorizer, member := newAuthorizer(t), claims(t, "image", ready())
	backups := []joinservice.Record{
		{Disk: disk, Committed: 1, Issued: 1}, {Disk: disk, Committed: 7, Issued: 9}, {Disk: disk, Committed: 20, Issued: 20, Serial: 3},
	}
	for _, order := range [][]int{{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}, {0, 0, 0}, {2, 2, 2}} {
		now, epoch := time.Unix(1_800_000_000, 0), uint64(23) // the disk's counter: it has gone on since all backups
		for _, i := range order {
			record := backups[i].Restored(now)
			if record.Committed != backups[i].Committed || record.Serial != backups[i].Serial || record.Disk != disk {
				t.Fatalf("restored %+v as %+v", backups[i], record)
			}
			for boot := range 5 {
				copied := epoch
				admission, err := authorizer.Admit(hullmark.Rejoin, member, &record)
				if err != nil {
					t.Fatal(err)
				}
				window := admission.Ticket.Disk.Epoch
				if epoch < window.Committed || epoch >= window.Issued {
					t.Fatalf("%v, boot %d: the newest disk's epoch %d is outside %+v", order, boot, epoch, window)
				}
				epoch = window.Issued
				if record, err = admission.Record.Commit(disk, epoch); err != nil {
					t.Fatal(err)
				}
				if copied >= record.Committed {
					t.Fatalf("%v, boot %d: an older copy of epoch %d would pass: %+v", order, boot, copied, record)
				}
				now = now.Add(time.Minute)
			}
		}
	}
	if ahead := (joinservice.Record{Disk: disk, Issued: 5}); ahead.Restored(time.Unix(4, 0)) != ahead || ahead.Restored(time.Unix(-1, 0)) != ahead {
		t.Error("a clock that is behind lowered the number")
	}
}

func TestCommitRefuses(t *testing.T) {
	record := joinservice.Record{Disk: disk, Issued: 2}
	if _, err := record.Commit(hullmark.UUID{8}, 1); err == nil {
		t.Error("the commit of another disk was accepted")
	}
	if _, err := record.Commit(disk, 3); err == nil {
		t.Error("an epoch that was never issued was committed")
	}
}

func TestNewDiskGivesUpTheOldOnlyWhenAsked(t *testing.T) {
	record := &joinservice.Record{Disk: hullmark.UUID{8}, Committed: 5, Issued: 6}
	next, formatAllowed, err := record.Issue(blank(), joinservice.Waiver{NewDisk: true})
	if err != nil || !formatAllowed || next != (joinservice.Record{Disk: disk, Issued: 8, Floor: 7}) {
		t.Errorf("got %+v, %v, %v", next, formatAllowed, err)
	}
	uncommitted := &joinservice.Record{Disk: hullmark.UUID{8}, Issued: 6}
	if _, formatAllowed, err := uncommitted.Issue(blank(), joinservice.Waiver{}); err != nil || !formatAllowed {
		t.Errorf("a disk that never held data could not be replaced: %v", err)
	}
}

func TestFirstPolicyKeepsItsVersion(t *testing.T) {
	document := nodetest.Document(t, "image")
	first, err := joinservice.FirstPolicy(measurements.Policy{}, document, member("first"))
	if err != nil || first.Version != 1 || !slices.Equal(first.Documents[0].Enforce, []pcrs.Register{1}) {
		t.Fatalf("got %+v, %v", first, err)
	}
	same, err := joinservice.FirstPolicy(first, document, member("first"))
	if err != nil || same.Version != 1 {
		t.Errorf("repeating it made version %d, %v", same.Version, err)
	}
	renamed, err := joinservice.FirstPolicy(first, document, member("second"))
	if err != nil || renamed.Version != 2 || len(renamed.Members) != 1 {
		t.Errorf("another name: got %+v, %v", renamed, err)
	}
	more, err := joinservice.FirstPolicy(first, nodetest.Document(t, "newer"), member("first"))
	if err != nil || more.Version != 2 || len(more.Documents) != 2 {
		t.Errorf("another document: got %+v, %v", more, err)
	}
	first.MinimumSVN = document.SVN + 1
	if _, err := joinservice.FirstPolicy(first, document, member("first")); err == nil || !strings.Contains(err.Error(), "security version") {
		t.Errorf("a release that the policy has given up: %v", err)
	}
	first.MinimumSVN = document.SVN
	other := member("first")
	other.EKID[0]++
	if _, err := joinservice.FirstPolicy(first, document, other); err == nil || !strings.Contains(err.Error(), "by the policy first is machine "+member("first").EKID.String()) {
		t.Errorf("the name of another machine: %v", err)
	}
	if _, err := joinservice.FirstPolicy(first, document, member("Not A Label")); err == nil {
		t.Error("a name that is no label was accepted")
	}
}

func TestRecover(t *testing.T) {
	authorizer := newAuthorizer(t)
	admission, err := authorizer.Recover(hullmark.Recover, claims(t, "image", ready()))
	if err != nil {
		t.Fatal(err)
	}
	want, err := authorizer.Keys.DiskKey(1, root, machine, disk)
	if err != nil {
		t.Fatal(err)
	}
	grant := admission.Ticket.Disk
	if admission.Ticket.Kind != hullmark.Recover || grant.FormatAllowed || grant.Epoch != (hullmark.EpochWindow{Unchecked: true}) || !grant.Key.Equal(want) {
		t.Errorf("the ticket is %+v", admission.Ticket)
	}
}

func TestRecoverRefuses(t *testing.T) {
	foreign := ready()
	foreign.Owner = hullmark.EKID{9}
	stranger := claims(t, "image", ready())
	stranger.EKID = hullmark.EKID{9}
	for name, c := range map[string]struct {
		claims attest.Claims
		role   hullmark.Role
		code   string
	}{
		"a stranger":             {stranger, hullmark.ControlPlane, "not-a-member"},
		"another image":          {claims(t, "other", ready()), hullmark.ControlPlane, joinservice.CodeMismatch},
		"another machine's disk": {claims(t, "image", foreign), hullmark.ControlPlane, "disk-owner"},
		"a blank disk":           {claims(t, "image", blank()), hullmark.ControlPlane, "disk-not-ready"},
		"a worker":               {claims(t, "image", ready()), hullmark.Worker, "not-a-control-plane"},
	} {
		t.Run(name, func(t *testing.T) {
			authorizer := newAuthorizer(t)
			authorizer.Policy.Members[0].Role = c.role
			admission, err := authorizer.Recover(hullmark.Recover, c.claims)
			var condition *hullmark.Condition
			if !errors.As(err, &condition) || condition.Code != c.code || condition.Next == "" {
				t.Errorf("got %v, want %s", err, c.code)
			}
			if admission.Ticket.Disk.Key.Len() != 0 {
				t.Error("a refused machine got a key")
			}
		})
	}
}

// Of a machine whose disk was given up, no copy comes back: not under another UUID's record in between, and not by tickets for
// empty disks that raise the number.
func TestNoCopyOfADiskThatWasGivenUp(t *testing.T) {
	const u, v = 1, 2
	formatting := func(uuid byte) hullmark.DiskClaim {
		return hullmark.DiskClaim{State: hullmark.DiskFormatting, UUID: hullmark.UUID{uuid}}
	}
	for name, shown := range map[string][]byte{"the same UUID": {u}, "another one": {v}, "another one, and then the same": {v, u, u, u, u, u, u, u}} {
		record, waiver := joinservice.Record{Disk: hullmark.UUID{u}, Committed: 3, Issued: 5}, joinservice.Waiver{NewDisk: true}
		newest := record.Issued // A copy holds this at most.
		for _, uuid := range shown {
			next, formatAllowed, err := record.Issue(formatting(uuid), waiver)
			if err != nil || !formatAllowed {
				t.Fatalf("%s: %v", name, err)
			}
			if next.Least() <= newest || next.Issued <= next.Least() {
				t.Errorf("%s: a copy at %d is in the window from %d to %d", name, newest, next.Least(), next.Issued)
			}
			record, waiver = next, joinservice.Waiver{}
		}
		// The positive control: the disk that was formatted comes back.
		made := record.Issued
		record, err := record.Commit(record.Disk, made)
		if err != nil {
			t.Fatal(err)
		}
		next, _, err := record.Issue(hullmark.DiskClaim{State: hullmark.DiskReady, UUID: record.Disk}, joinservice.Waiver{})
		if err != nil || made < next.Least() || made >= next.Issued {
			t.Errorf("%s: the disk that was formatted, at %d, is not in the window from %d to %d: %v", name, made, next.Least(), next.Issued, err)
		}
	}
}
