package cluster

import (
	"fmt"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/joinservice"
)

// Record returns the first node's record for the desk, or nil before its first
// ticket. Another machine than the recorded one is refused: only one can be the
// first, and the operator has to give the recorded one up.
func (c *Cluster) Record(node hullmark.NodeID) (*joinservice.Record, error) {
	if c.Initialising == nil {
		return nil, nil
	}
	if c.Initialising.Node != node {
		return nil, &hullmark.Condition{
			Code: "other-first-node", Step: "ATTEST", Title: "this cluster was begun on another machine",
			Expected: c.Initialising.Node.String(), Got: node.String(),
			Next: "go on with that machine, or give it up with its data (--replace-first)",
		}
	}
	return &joinservice.Record{Disk: c.Initialising.Disk, Committed: c.Initialising.Committed, Issued: c.Initialising.Issued}, nil
}

// SetRecord stores the first node's record.
func (c *Cluster) SetRecord(node hullmark.NodeID, record joinservice.Record) {
	c.Initialising = &Initialising{Node: node, Disk: record.Disk, Committed: record.Committed, Issued: record.Issued}
}

// Commit notes in the first node's record that it wrote the number issued to the disk.
func (c *Cluster) Commit(node hullmark.NodeID, disk hullmark.UUID, issued uint64) error {
	record, err := c.Record(node)
	if err != nil {
		return err
	}
	if record == nil {
		return fmt.Errorf("commit epoch %d: no ticket was recorded", issued)
	}
	committed, err := record.Commit(disk, issued)
	if err != nil {
		return err
	}
	c.SetRecord(node, committed)
	return nil
}

// GiveUpFirst forgets the first node and its disk, so that another machine can be the first.
func (c *Cluster) GiveUpFirst() { c.Initialising, c.Initialised = nil, nil }
