package joinservice

import (
	"fmt"
	"time"

	"github.com/hullmark/hullmark"
)

// Record is what is kept of one machine's state disk (docs/protocol.md, Epoch).
// It is a value: whoever keeps it stores the changed copy by compare-and-swap
// before anything that depends on it leaves the process.
type Record struct {
	// Disk is the disk that the machine showed last.
	Disk hullmark.UUID `json:"uuid"`
	// Committed is the highest number that a node confirmed to have written.
	Committed uint64 `json:"committed"`
	// Issued is the highest number that a ticket carried.
	Issued uint64 `json:"issued"`
	// Serial is that of the last signed override that was used on it; 0 if none was.
	Serial uint64 `json:"serial,omitempty"`
	// Floor is higher than any counter of the disks that the machine gave up; 0 if there were none. A host chooses the UUID of a
	// disk that is not formatted, so an old disk could come back under the same UUID.
	Floor uint64 `json:"floor,omitempty"`
	// Trust is the class of the machine that was given the disk's key first; empty is hullmark.TrustTPM. A machine of a lesser
	// class is not given it again.
	Trust hullmark.TrustClass `json:"trust,omitempty"`
}

// Least is the least number that the disk can hold.
func (r Record) Least() uint64 { return max(r.Committed, r.Floor) }

// Waiver is what an operator allows although the record speaks against it.
// The zero value allows nothing.
type Waiver struct {
	// NewDisk allows formatting a disk other than the recorded one, whose data is given up.
	NewDisk bool
}

// Issue admits a claimed disk against the record, which is nil for a machine
// that has none, and returns the record to store and the epoch to send.
// formatAllowed is true only where no committed data is given up unasked.
func (r *Record) Issue(claim hullmark.DiskClaim, waiver Waiver) (next Record, formatAllowed bool, err error) {
	next, known := Record{Disk: claim.UUID}, r != nil && r.Disk == claim.UUID
	if known {
		next = *r
	} else if r != nil {
		next.Serial = r.Serial // An override that was used stays used, whatever disk comes back.
	}
	if claim.State == hullmark.DiskReady {
		if !known {
			return Record{}, false, r.missing(claim)
		}
		next.Issued++
		return next, false, nil
	}
	if r != nil && r.Committed > 0 && !waiver.NewDisk {
		return Record{}, false, r.givenUp(claim)
	}
	next.Committed = 0
	if r != nil && r.Issued > 0 && (!known || r.Committed > 0) { // No copy of what was before comes back.
		next.Floor = r.Issued + 1
		next.Issued = next.Floor
	}
	next.Issued++
	return next, true, nil
}

// missing is the condition of a disk that holds data which nothing vouches for:
// it could be an old copy.
func (r *Record) missing(claim hullmark.DiskClaim) *hullmark.Condition {
	c := &hullmark.Condition{
		Code: "record-missing", Step: "ATTEST", Title: "the state disk holds data, but no record says how recent it must be",
		Got:  claim.UUID.String(),
		Next: "attach the recorded disk, or one that is empty",
	}
	if r != nil {
		c.Expected = r.Disk.String()
	}
	return c
}

// givenUp is the condition of an empty disk in the place of one that holds data.
func (r *Record) givenUp(claim hullmark.DiskClaim) *hullmark.Condition {
	return &hullmark.Condition{
		Code: "disk-replaced", Step: "ATTEST", Title: "the machine shows an empty disk, but its recorded one holds data",
		Expected: r.Disk.String(), Got: claim.State.String() + " " + claim.UUID.String(),
		Next: "attach the recorded disk, or give its data up (--new-disk)",
	}
}

// Commit notes that the machine wrote the number issued to the disk. It changes
// nothing if a later ticket named another disk.
func (r Record) Commit(disk hullmark.UUID, issued uint64) (Record, error) {
	if r.Disk != disk || issued > r.Issued {
		return Record{}, fmt.Errorf("commit epoch %d of disk %s: the record is of disk %s and epoch %d", issued, disk, r.Disk, r.Issued)
	}
	r.Committed = max(r.Committed, issued)
	return r, nil
}

// maxUnseenEpochs is how many numbers a node can have been issued by its own join service since its operator's last init: one each
// EpochPause for nine years.
const maxUnseenEpochs = 1 << 20

// withUnseenEpochs returns the record as an operator's init counts from it: of the numbers that the node was issued while it was Ready the
// operator knows nothing. The window of a ready disk has room for them, so it runs since the last init or recover. nil stays nil.
func (r *Record) withUnseenEpochs() *Record {
	if r == nil {
		return nil
	}
	next := *r
	next.Issued += maxUnseenEpochs
	return &next
}

// Restored returns the record as a cluster begins with it that is restored from a backup.
// The disk has gone on since: its counter may be above every number in the backup, so the
// window is widened up to now, in seconds since 1970. The disk is accepted once, and writes a
// number that is above all of its copies'. Boots are rarer than seconds: that holds for
// any backups, restored in any order.
func (r Record) Restored(now time.Time) Record {
	r.Issued = max(r.Issued, uint64(max(now.Unix(), 0)))
	return r
}
