package registry

import (
	"context"
	"fmt"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/joinservice"
)

// Rebind hands a machine's record and its name to another machine, which opens its disk from now on. A group that counted the
// first one does so no more, and the other has a rule of its own. The other must have no record of another disk. It can be run
// again after an interruption, with the same record. Kubernetes' Node stays as it is. The caller has made sure that the first
// machine is not running: see NodeReady.
func (r *Machines) Rebind(ctx context.Context, from joinservice.Machine, to hullmark.EKID) error {
	if from.Token != "" {
		if err := r.tokens.Revoke(ctx, from.Token); err != nil {
			return err
		}
	}
	there, version, err := r.Load(ctx, to)
	if err != nil {
		return err
	}
	moved := from
	moved.EKID, moved.Token, moved.EKCertificate, moved.Voucher = to, "", nil, nil
	moved.Addresses, moved.Refused = nil, nil // Its ticket claims what it has.
	if version == "" {
		if _, err := r.Store(ctx, moved, version); err != nil {
			return err
		}
	} else if there.Record.Disk != from.Record.Disk {
		return fmt.Errorf("machine %s has a record of its own, of disk %s: remove that first (hullmark node remove %s)", to, there.Record.Disk, to)
	}
	holder, found, err := r.holder(ctx, from.Name)
	if err != nil {
		return err
	}
	if found && holder == from.EKID {
		if err := r.remove(ctx, "give up the name "+from.Name, r.configMaps.delete, NameObject(from.Name)); err != nil {
			return err
		}
	}
	if err := r.Claim(ctx, from.Name, to); err != nil {
		return err
	}
	if err := r.releaseAll(ctx, from); err != nil {
		return err
	}
	if err := r.leaveAll(ctx, from.EKID); err != nil {
		return err
	}
	return r.remove(ctx, "delete the record of machine "+from.EKID.String(), r.configMaps.delete, MachineObject(from.EKID))
}
