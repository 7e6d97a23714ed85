package run

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/hullmark/hullmark"
)

// WaitReady asks the API server, each time pause has passed, until the kubelet that was started in the boot bootID (random(4),
// boot_id) reports that node is Ready: what an earlier boot reported stands in the API until it is outdated. A control plane
// (access.Local) is ready when its API server says the same of itself: one that was just started answers before it has all that
// it serves, and ends if it does not get it. What it waits for is reported when it changes, and is in the error when ctx ends
// first.
func WaitReady(ctx context.Context, access Access, node, bootID string, pause time.Duration, report func(why error)) error {
	server := api{access: access}
	defer server.close()
	tick := time.NewTicker(pause)
	defer tick.Stop()
	var waitsFor error
	for {
		why := server.notReady(ctx, node, bootID)
		if why == nil {
			return nil
		}
		// A request that ctx cut off says nothing about the node.
		if waitsFor == nil || ctx.Err() == nil {
			if waitsFor == nil || why.Error() != waitsFor.Error() {
				report(why)
			}
			waitsFor = why
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("node %s did not get Ready: %w; last: %w", node, ctx.Err(), waitsFor)
		case <-tick.C:
		}
	}
}

// notReady returns nil when node is Ready in this boot, or why it is not known to be.
func (a *api) notReady(ctx context.Context, node, bootID string) error {
	var found struct {
		Status struct {
			NodeInfo struct {
				BootID string `json:"bootID"`
			} `json:"nodeInfo"`
			Conditions []struct{ Type, Status, Message string }
		}
	}
	if err := a.get(ctx, "/api/v1/nodes/"+node, &found); err != nil {
		return err
	}
	if found.Status.NodeInfo.BootID != bootID {
		return errors.New("its kubelet has not reported in this boot yet")
	}
	for _, c := range found.Status.Conditions {
		if c.Type == "Ready" && c.Status != "True" {
			return errors.New(c.Message)
		}
		if c.Type == "Ready" {
			return a.serverNotReady(ctx)
		}
	}
	return errors.New("its kubelet has not reported yet")
}

// serverNotReady returns nil when the machine's own API server says that it is ready, or what it still lacks. Another machine's
// is not the node's matter.
func (a *api) serverNotReady(ctx context.Context) error {
	if !a.access.Local {
		return nil
	}
	return a.get(ctx, "/readyz", nil)
}

// DiskRecord is what the cluster keeps of a machine's state disk (docs/protocol.md).
type DiskRecord struct {
	// Disk is the recorded disk.
	Disk hullmark.UUID `json:"uuid"`
	// Committed is the least number that its counter can hold, Issued the highest.
	Committed uint64 `json:"committed"`
	Issued    uint64 `json:"issued"`
}

// ReadDiskRecord returns the record of a machine's disk from the cluster's objects: the join service keeps a machine as JSON in
// the ConfigMap node.<identity> of the namespace hullmark, under the key machine. A machine without a record is an error.
func ReadDiskRecord(ctx context.Context, access Access, node hullmark.EKID) (DiskRecord, error) {
	server := api{access: access}
	defer server.close()
	var object struct{ Data map[string]string }
	if err := server.get(ctx, "/api/v1/namespaces/hullmark/configmaps/node."+node.String(), &object); err != nil {
		return DiskRecord{}, fmt.Errorf("read the disk's record: %w", err)
	}
	var machine struct {
		EKID hullmark.EKID `json:"ekid"`
		Disk DiskRecord    `json:"disk"`
	}
	if err := json.Unmarshal([]byte(object.Data["machine"]), &machine); err != nil {
		return DiskRecord{}, fmt.Errorf("read the disk's record: %w", err)
	}
	if machine.EKID != node || machine.Disk.Disk == (hullmark.UUID{}) {
		return DiskRecord{}, fmt.Errorf("read the disk's record: it names machine %s and disk %s", machine.EKID, machine.Disk.Disk)
	}
	return machine.Disk, nil
}
