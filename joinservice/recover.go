package joinservice

import (
	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest"
)

// Recover decides over a control plane that comes back while no record of it can
// be read, by its operator's hand (kind Recover) or another's join service (Rejoin): its disk's
// epoch is not bounded but only reported, for the operator to judge, and for the node to compare
// later. It never allows formatting, and Admission.Record is left zero. Every refusal is a *hullmark.Condition.
func (d *Authorizer) Recover(kind hullmark.TicketKind, claims attest.Claims) (Admission, error) {
	admission, err := d.identify(claims)
	if err != nil {
		return Admission{}, err
	}
	if admission.Member.Role != hullmark.ControlPlane {
		return Admission{}, &hullmark.Condition{
			Code: "not-a-control-plane", Step: "ATTEST", Title: "only a control plane is recovered by its operator",
			Expected: string(hullmark.ControlPlane), Got: string(admission.Member.Role),
			Next: "recover a control plane; workers come back by themselves once it is there",
		}
	}
	if claims.Disk.State != hullmark.DiskReady {
		return Admission{}, &hullmark.Condition{
			Code: "disk-not-ready", Step: "ATTEST", Title: "the state disk holds no data to recover",
			Expected: hullmark.DiskReady.String(), Got: claims.Disk.State.String(),
			Next: "attach the node's own disk; if its data is lost, begin the cluster anew (hullmark init --new-disk)",
		}
	}
	admission.Ticket.Kind = kind
	admission.Ticket.Disk, err = d.grant(claims, Record{}, false)
	admission.Ticket.Disk.Epoch = hullmark.EpochWindow{Unchecked: true}
	return admission, err
}
