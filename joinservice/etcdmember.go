package joinservice

import (
	"errors"
	"fmt"

	"github.com/hullmark/hullmark"
)

// EtcdNote is what a machine's record says of its member of etcd: the newest state of
// which it is known that the member had stored it for good. The zero value says nothing.
type EtcdNote struct {
	hullmark.EtcdState
	// Removed says that the member was taken out of etcd: its data is nobody's any more.
	Removed bool `json:"removed,omitempty"`
}

// Note takes over what a member has stored by now. What is older than the note, or a removed member's, or nothing, changes nothing.
func (n *EtcdNote) Note(now hullmark.EtcdState) {
	switch {
	case now == (hullmark.EtcdState{}):
	case n.Member != now.Member || n.Cluster != now.Cluster, !n.Removed && now.Lacks(n.EtcdState) == "":
		*n = EtcdNote{EtcdState: now}
	}
}

// Missing says what a member lacks that a control plane comes back with, or nothing. One that has no data is never believed:
// etcd would take it for the one that it was, with all forgotten. Nor is one that was removed. Of a member of which nothing was
// noted, nothing is known to be missing.
func (n EtcdNote) Missing(found hullmark.EtcdState) string {
	switch {
	case found == (hullmark.EtcdState{}):
		return "it has no log that could be read"
	case n.EtcdState == (hullmark.EtcdState{}), n.Removed && n.Member != found.Member:
		return ""
	case n.Removed:
		return "it was removed from etcd"
	}
	return found.Lacks(n.EtcdState)
}

// forgot is the condition of a member that runs, and says that it has less than was noted of it: the host has put older sectors
// under it since it was believed. It is nil of one that is another, that was removed, or that says nothing now.
func (n EtcdNote) forgot(now hullmark.EtcdState) *hullmark.Condition {
	if now == (hullmark.EtcdState{}) || n.EtcdState == (hullmark.EtcdState{}) || n.Removed || n.Member != now.Member || n.Cluster != now.Cluster {
		return nil
	}
	why := now.Lacks(n.EtcdState)
	if why == "" {
		return nil
	}
	return &hullmark.Condition{
		Code: CodeEtcdRolledBack, Step: "EPOCH", Title: "the machine's member of etcd runs, and has less than it had acknowledged", Retry: true, Expected: n.String() + ", or more", Got: why,
		Next: "reboot this control plane: its member is replaced then; and find out what the machine's host does with its disk",
	}
}

// comesBack reports that the node that the disk holds is believed, and is to be started.
func (o *opened) comesBack() bool { return o.disk.Joined && !o.anew }

// judgeEtcdMember decides whether a control plane that comes back by its record is believed. Raft's promises hold only for members that
// forget nothing: one that does is removed, and its machine joins anew, before it has a vote again.
func (o *opened) judgeEtcdMember() {
	if o.unchecked() || !o.disk.Joined || o.admission.Member.Role != hullmark.ControlPlane {
		return
	}
	if why := o.noted.Missing(o.disk.Etcd); why != "" {
		o.anew = true
		o.warn("the machine's member of etcd is replaced", errors.New(why+"; noted was "+o.noted.String()))
	}
}

// noteMember notes, with the commit of the epoch, what the disk's member has stored, or that it is none any more.
func (o *opened) noteMember(m *Machine) {
	switch {
	case o.comesBack():
		m.Etcd.Note(o.hosted(o.disk.Etcd))
	case m.Etcd != EtcdNote{}:
		m.Etcd.Removed = true
	}
}

// hosted is what a control plane says of its member; others have none.
func (t *ticketed) hosted(state hullmark.EtcdState) hullmark.EtcdState {
	if t.admission.Member.Role != hullmark.ControlPlane {
		return hullmark.EtcdState{}
	}
	return state
}

// kept returns the condition of a member that could not be removed. Of one that is not believed, it says what the operator can
// do: without it, the others have no majority.
func (o *opened) kept(cause error) error {
	var c *hullmark.Condition
	if !o.anew || !errors.As(cause, &c) || c.Code != codeNoQuorum {
		return cause
	}
	return forgetful(o.noted.EtcdState, o.noted.Missing(o.disk.Etcd)+"; "+c.Title)
}

// codeNoQuorum is the code of the condition that members could not be removed without risking etcd's quorum (package etcd).
const codeNoQuorum = "etcd-no-quorum"

// CodeEtcdRolledBack is the code of the condition of a member of etcd that came back with less than it had acknowledged, and cannot
// be replaced now.
const CodeEtcdRolledBack = "etcd-rolled-back"

// forgetful is that condition. It passes once the others have a majority without the member.
func forgetful(noted hullmark.EtcdState, why string) *hullmark.Condition {
	return &hullmark.Condition{
		Code: CodeEtcdRolledBack, Step: "EPOCH", Title: "the member of etcd on the state disk has less than it had acknowledged, and the others have no majority without it", Retry: true,
		Expected: fmt.Sprint(noted), Got: why,
		Next: "start the other control planes: with a majority of them this one is replaced by itself. Of two control planes, attach the newest disk, or believe this one (hullmark recover --accept-rollback)",
	}
}
