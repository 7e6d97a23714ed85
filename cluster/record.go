package cluster

import (
	"fmt"
	"time"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/joinservice"
)

// Record returns the first node's record for the authorizer, or nil before its first
// ticket. Another machine than the recorded one is refused: only one can be the
// first, and the operator has to give the recorded one up.
func (c *Cluster) Record(node hullmark.EKID) (*joinservice.Record, error) {
	for _, first := range c.Firsts() {
		if first != node {
			return nil, &hullmark.Condition{
				Code: "other-first-node", Step: "ATTEST", Title: "this cluster was begun on another machine, or lent for one",
				Expected: first.String(), Got: node.String(),
				Next: "go on with that machine, or give it up with its data (--replace-first)",
			}
		}
	}
	if c.First == nil {
		return nil, nil
	}
	return &joinservice.Record{Disk: c.First.Disk, Committed: c.First.Committed, Issued: c.First.Issued, Serial: c.First.Serial, Floor: c.First.Floor, Trust: c.First.Trust}, nil
}

// SetRecord stores the first node's record.
func (c *Cluster) SetRecord(node hullmark.EKID, record joinservice.Record) {
	next := joinservice.FirstRecord{EKID: node, Disk: record.Disk, Committed: record.Committed, Issued: record.Issued, Serial: record.Serial, Floor: record.Floor, Trust: record.Trust}
	if c.First != nil {
		next.Root = c.First.Root
	}
	c.First = &next
}

// KeepRoot stores which root the first node's configuration names, as joinservice.NamedRoot has it.
func (c *Cluster) KeepRoot(node hullmark.EKID, root hullmark.ClusterRoot) {
	if c.First != nil && c.First.EKID == node {
		next := *c.First
		next.Root = root
		c.First = &next
	}
}

// Commit notes in the first node's record that it wrote the number issued to the disk, and what the disk's member of etcd has
// stored; zero if it is to begin anew.
func (c *Cluster) Commit(node hullmark.EKID, disk hullmark.UUID, issued uint64, member hullmark.EtcdState) error {
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
	c.setEpoch(node, DiskEpoch{Disk: disk, Epoch: committed.Committed, Etcd: member})
	return nil
}

// GiveUpFirst forgets the first node and its disk, so that another machine can be the first.
func (c *Cluster) GiveUpFirst() {
	if c.First != nil {
		delete(c.Epochs, c.First.EKID)
	}
	c.First, c.Initialised, c.LentFor = nil, nil, nil
}

// CheckEpoch refuses a disk that is older than the newest state that an
// operator has seen of this machine's, or that is another one.
func (c *Cluster) CheckEpoch(node hullmark.EKID, found DiskEpoch) error {
	known, ok := c.Epochs[node]
	condition := &hullmark.Condition{
		Code: "rollback-detected", Step: "EPOCH", Title: "the state disk is an older copy than the one that the cluster file knows",
		Expected: fmt.Sprintf("disk %s at epoch %d or later", known.Disk, known.Epoch), Got: fmt.Sprintf("disk %s at epoch %d", found.Disk, found.Epoch),
		Next: "attach the newest copy of the disk; if there is none, and what was changed since may be lost, accept it (--accept-rollback)",
	}
	switch {
	case !ok || known.Disk == found.Disk && known.Epoch <= found.Epoch:
		return nil
	case known.Disk != found.Disk:
		condition.Title = "this is not the state disk that the cluster file knows, so nothing says how recent it is"
	}
	return condition
}

// CheckEtcdMember refuses a member of etcd that has less than the newest that an operator has heard that it had stored: it could be an old
// copy on a disk that is the newest in all else.
func (c *Cluster) CheckEtcdMember(node hullmark.EKID, found hullmark.EtcdState) error {
	known := c.Epochs[node].Etcd
	if known == (hullmark.EtcdState{}) {
		return nil
	}
	why := joinservice.EtcdNote{EtcdState: known}.Missing(found)
	if why == "" {
		return nil
	}
	return &hullmark.Condition{
		Code: "rollback-detected", Step: "EPOCH", Title: "the member of etcd on the state disk has less than the cluster file knows that it had stored",
		Expected: known.String() + ", or more", Got: why,
		Next: "attach the newest copy of the disk, or begin with a control plane that has all of it; if there is none, and what was changed since may be lost, accept it (hullmark recover --accept-rollback)",
	}
}

// KeepEtcdMember notes what a machine's member of etcd has stored by now, which it said once it was Ready.
func (c *Cluster) KeepEtcdMember(node hullmark.EKID, now hullmark.EtcdState) {
	state, ok := c.Epochs[node]
	if !ok {
		return
	}
	note := joinservice.EtcdNote{EtcdState: state.Etcd}
	note.Note(now)
	state.Etcd = note.EtcdState
	c.setEpoch(node, state)
}

// Hear notes when an operator saw a machine's open disk.
func (c *Cluster) Hear(node hullmark.EKID, at time.Time) {
	if state, ok := c.Epochs[node]; ok {
		state.Heard = at.UTC().Truncate(time.Second)
		c.setEpoch(node, state)
	}
}

// KeepEpoch makes an open disk's state the one that its machine is held to from now
// on. An older one than CheckEpoch accepts is given here only once the operator has accepted it.
func (c *Cluster) KeepEpoch(node hullmark.EKID, found DiskEpoch) {
	c.setEpoch(node, found)
	first := c.First
	if first == nil || first.EKID != node {
		return
	}
	next := joinservice.FirstRecord{EKID: node, Disk: found.Disk, Committed: found.Epoch, Issued: found.Epoch, Root: first.Root}
	if first.Disk == found.Disk {
		next.Trust = first.Trust
		// A number that a ticket carried is never used again.
		next.Issued = max(first.Issued, found.Epoch)
	}
	c.First = &next
}

func (c *Cluster) setEpoch(node hullmark.EKID, state DiskEpoch) {
	if c.Epochs == nil {
		c.Epochs = map[hullmark.EKID]DiskEpoch{}
	}
	c.Epochs[node] = state
}

// Rebind lets another machine take the place of one whose state disk it opens from now on.
func (c *Cluster) Rebind(from, to hullmark.EKID) {
	if state, ok := c.Epochs[from]; ok {
		delete(c.Epochs, from)
		c.setEpoch(to, state)
	}
	if c.First != nil && c.First.EKID == from {
		next := *c.First
		next.EKID = to
		c.First = &next
	}
	if c.Initialised != nil && *c.Initialised == from {
		c.Initialised = &to
	}
	if c.LentFor != nil && *c.LentFor == from {
		c.LentFor = &to
	}
}
