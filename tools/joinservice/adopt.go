package main

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/firstboot/servicefiles"
	"github.com/hullmark/hullmark/joinservice"
	"github.com/hullmark/hullmark/measurements"
	"github.com/hullmark/hullmark/pcrs"
)

// adoptPause lies between two tries to hand the first node's record over, and two looks at whether it is Ready.
const adoptPause = 5 * time.Second

// adopt hands the operator's record of the first node over to the API as soon
// as it answers, and again once that node is Ready.
func (a *app) adopt(ctx context.Context) error {
	first, ok := a.firstNode()
	if !ok {
		return nil
	}
	said := ""
	for recorded := false; ; {
		ready, err := a.registry.NodeReady(ctx, first.Name)
		if ready {
			first.State = joinservice.MachineReady
		}
		if err == nil && (ready || !recorded) {
			err = a.service.Adopt(ctx, first)
			recorded = err == nil
		}
		if recorded && ready {
			return nil
		}
		if text := errorText(err); text != said && ctx.Err() == nil {
			a.log.Warn("the first node's record is not handed over yet", "error", text)
			said = text
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(adoptPause):
		}
	}
}

// noteBoot records by which keys this control plane runs, which Kubernetes it is, and by which document it booted, once there is a record
// of it: its own API server answers then, which starts after its certificates were made anew, or could not be. While they are of an
// authority that was exchanged, or that is not known, it goes on to look. A service that is on no control plane has none to speak for.
func (a *app) noteBoot(ctx context.Context) error {
	own, err := os.Hostname()
	if err != nil {
		return nil
	}
	boot := joinservice.Boot{Kubernetes: a.versions.Kubernetes}
	if boot.Document, err = a.bootedBy(); err != nil {
		a.log.Warn("by which document this control plane booted is not recorded", "error", err.Error())
	}
	said, recorded := "", false
	for {
		done, err := a.noteBootOnce(ctx, own, boot, &recorded)
		if done {
			return nil
		}
		if text := errorText(err); text != said && ctx.Err() == nil {
			a.log.Warn("which keys this control plane holds, and what it runs, is not recorded yet", "error", text)
			said = text
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(adoptPause):
		}
	}
}

// noteBootOnce tries once, for the control plane of a name, and reports whether nothing is left to record. An earlier rotation is recorded
// once, and recorded says so.
func (a *app) noteBootOnce(ctx context.Context, own string, boot joinservice.Boot, recorded *bool) (done bool, err error) {
	rotation, superseded := a.runsBy()
	members := a.policy.Policy().Members
	i := slices.IndexFunc(members, func(m measurements.Member) bool { return m.Name == own && m.Role == hullmark.ControlPlane })
	if i < 0 || superseded != nil && *recorded {
		return false, superseded
	}
	boot.Rotation = rotation
	noted, err := a.service.NoteBoot(ctx, members[i].EKID, boot)
	if noted && !*recorded {
		a.tellRecovered(ctx, members[i])
	}
	*recorded = *recorded || noted
	return noted && superseded == nil, errors.Join(superseded, err)
}

// runsBy is the rotation of the keys by which this control plane's programs run. It is an earlier one than that of the keys on its disk,
// and the error says why, while they have certificates of an authority that was exchanged, or nobody says that they have not: the trust
// in that authority ends once no record says an earlier one (operate.API.Rotate). Keys that were never exchanged have no other authority.
func (a *app) runsBy() (uint64, error) {
	held := a.credentials.rotation
	if held == 0 {
		return 0, nil
	}
	why, err := a.files.File(servicefiles.Superseded).Read()
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return held, nil
	case err == nil:
		err = fmt.Errorf("certificates of this control plane: %s", why)
	}
	return held - 1, err
}

// tellRecovered says in the cluster which operator opened this control plane's disk in this boot, if the policy names him.
func (a *app) tellRecovered(ctx context.Context, own measurements.Member) {
	if !hullmark.ValidOperatorName(a.outage.by) {
		return
	}
	a.log.Info("this control plane was recovered", "operator", a.outage.by)
	if err := a.registry.Recovered(ctx, own.EKID, own.Name, a.outage.by, a.outage.boot); err != nil {
		a.log.Warn("event not written", "error", err.Error())
	}
}

// bootedBy returns the accepted document whose registers this machine shows.
func (a *app) bootedBy() (hullmark.DocumentID, error) {
	measured, err := readRegisters(a.registers)
	if err != nil {
		return hullmark.DocumentID{}, err
	}
	id, ok := a.policy.BootedBy(measured)
	if !ok {
		return id, errors.New("no accepted document has its registers")
	}
	return id, nil
}

// registersDir is where the kernel shows the TPM's registers.
const registersDir = "/sys/class/tpm/tpm0/pcr-sha256"

// readRegisters reads the registers of this boot, as the kernel shows them.
func readRegisters(dir string) (pcrs.Values, error) {
	values := pcrs.Values{}
	for i := range pcrs.Register(16) {
		text, err := os.ReadFile(filepath.Join(dir, strconv.Itoa(int(i))))
		if err != nil {
			return nil, err
		}
		if values[i], err = hex.DecodeString(strings.TrimSpace(string(text))); err != nil {
			return nil, fmt.Errorf("register %d: %w", i, err)
		}
	}
	return values, nil
}

// errorText leaves out what changes from one try to the next.
func errorText(err error) string {
	var condition *hullmark.Condition
	switch {
	case err == nil:
		return ""
	case errors.As(err, &condition):
		return condition.Code
	}
	return err.Error()
}

// firstNode is what the operator recorded, under the name that the policy gives.
func (a *app) firstNode() (joinservice.Machine, bool) {
	record := a.credentials.first
	if record == nil {
		return joinservice.Machine{}, false
	}
	member, ok := a.policy.Policy().Member(record.EKID)
	if !ok {
		a.log.Warn("the first node's record is of no member of the policy", "node", record.EKID.String())
		return joinservice.Machine{}, false
	}
	first := joinservice.Machine{
		EKID: record.EKID, Name: member.Name, Role: member.Role, Platform: hullmark.PlatformClaims{Trust: cmp.Or(record.Trust, hullmark.TrustTPM), Platform: hullmark.PlatformTPM}, Root: record.Root, State: joinservice.MachineJoining,
		Record:    joinservice.Record{Disk: record.Disk, Committed: record.Committed, Issued: record.Issued, Serial: record.Serial, Floor: record.Floor, Trust: record.Trust},
		Addresses: ownAddresses(member.Name),
	}
	if own, err := os.Hostname(); err == nil && own == member.Name {
		first.Kubernetes = a.versions.Kubernetes
	}
	return first, true
}

// ownAddresses returns this machine's addresses if it is the node of that name:
// no ticket of a join service bound them, and its kubelet's certificate needs them.
func ownAddresses(name string) []netip.Addr {
	if own, err := os.Hostname(); err != nil || own != name {
		return nil
	}
	networks, err := net.InterfaceAddrs()
	if err != nil {
		return nil
	}
	var addresses []netip.Addr
	for _, network := range networks {
		prefix, err := netip.ParsePrefix(network.String())
		if err == nil && prefix.Addr().IsGlobalUnicast() {
			addresses = append(addresses, prefix.Addr())
		}
	}
	return addresses
}
