package firstboot

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/firstboot/etcdwal"
	"github.com/hullmark/hullmark/kubeadm/run"
)

// compareTimeout bounds the wait for the record that an unchecked epoch is compared with.
const compareTimeout = 10 * time.Minute

// compareEpoch catches up on what an unchecked ticket put off: the disk's counter is held to the cluster's record. The node
// runs, and is left running; it only says what it found.
func (f *finishing) compareEpoch(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, compareTimeout)
	defer cancel()
	for {
		record, err := f.agent.Cluster.DiskRecord(ctx, f.access(), f.node)
		if err == nil {
			if c := f.rolledBack(record); c != nil {
				f.agent.Status.Warn(c)
			}
			return
		}
		select {
		case <-ctx.Done():
			f.agent.Status.Warn(&hullmark.Condition{
				Code: "epoch-unchecked", Step: StepEpoch, Title: "nothing tells whether the state disk is an old copy: " + err.Error(),
				Next: "compare the epoch that hullmark recover printed with hullmark node list",
			})
			return
		case <-time.After(readyPause):
		}
	}
}

// rolledBack returns the condition of a disk that is older than its record, that holds a number which that never issued, or that is another
// than the recorded one.
func (f *finishing) rolledBack(record run.DiskRecord) *hullmark.Condition {
	c := &hullmark.Condition{
		Code: "rollback-detected", Step: StepEpoch, Title: "this node runs from an old copy of its state disk",
		Next: "if the copy was put back on purpose, sign an epoch override; otherwise switch the machine off and attach the newest disk",
	}
	switch disk := f.grant.UUID; {
	case record.Disk != disk:
		c.Expected, c.Got = "disk "+record.Disk.String(), "disk "+disk.String()
	case f.disk.EpochRead < record.Committed:
		c.Expected, c.Got = fmt.Sprintf("epoch ≥ %d", record.Committed), strconv.FormatUint(f.disk.EpochRead, 10)
	case f.disk.EpochRead > record.Issued: // It was given up by an override to a lower number.
		c.Expected, c.Got = fmt.Sprintf("epoch ≤ %d", record.Issued), strconv.FormatUint(f.disk.EpochRead, 10)
	default:
		return nil
	}
	return c
}

// etcdState returns what the node's member of etcd has stored for good, zero without one. A log that cannot be read now is
// noted at another time.
func (a *Agent) etcdState() hullmark.EtcdState {
	state, err := etcdwal.StoredIn(a.StateDir)
	if err != nil && !errors.Is(err, etcdwal.ErrNone) {
		a.Status.Say("%.300q", err.Error())
	}
	return state
}

// checkEtcd holds the log of a control plane's member of etcd, as its programs will see it, to what the verifier was told in
// Opened and believed: that was read when the disk helper had the disk mounted, and its host can have put other sectors under
// it since. etcd reads what is read here from memory, unless that runs short before.
func (f *finishing) checkEtcd() error {
	said := f.disk.Etcd
	if !f.comesBack || said == (hullmark.EtcdState{}) {
		return nil
	}
	found, err := etcdwal.StoredIn(f.agent.StateDir)
	why := found.Lacks(said)
	if err != nil {
		why = err.Error()
	}
	if why == "" {
		return nil
	}
	return &hullmark.Condition{
		Code: "disk-exchanged", Step: StepKubeadm, Retry: true, Title: "the log of etcd on the state disk is older than when the disk was opened in this boot",
		Expected: said.String() + ", or more", Got: fmt.Sprintf("%.300s", why), Next: "find out what the machine's host does with its disk; the node tries again by itself",
	}
}
