package joinservice_test

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"slices"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest"
	"github.com/hullmark/hullmark/attest/wire"
	"github.com/hullmark/hullmark/internal/nodetest"
	"github.com/hullmark/hullmark/joinservice"
	"github.com/hullmark/hullmark/measurements"
)

// Each case is refused, and its positive control accepted, by the same service for the same TPM.
func TestServiceRefusesEvidence(t *testing.T) {
	s := newSite(t)
	config := s.node.Config
	measured := attest.Extended(hullmark.ConfigEvent(config))
	for _, c := range []struct {
		name         string
		wrong, right func(*testing.T)
		code         string
		says         []string
	}{
		{
			"a quote over another channel",
			func(*testing.T) { s.node.ForeignChannel = true },
			func(*testing.T) { s.node.ForeignChannel = false },
			"quote-not-bound",
			[]string{"the quote was not made for this channel"},
		},
		{
			"changed register values",
			func(*testing.T) { s.node.EditProof = func(p *wire.Proof) { p.PcrValues[0] ^= 1 } },
			func(*testing.T) { s.node.EditProof = nil },
			"quote-digest",
			[]string{"the shown register values are not the quoted ones"},
		},
		{
			"another version",
			func(*testing.T) { s.node.EditHello = func(h *wire.Hello) { h.Version = 9 } },
			func(*testing.T) { s.node.EditHello = nil },
			"version-unsupported",
			[]string{"another version of the exchange", "expected 1, got 9"},
		},
		{
			"a field beside those of Hello that claims a role",
			func(*testing.T) {
				s.node.EditHello = func(h *wire.Hello) {
					h.ProtoReflect().SetUnknown(protowire.AppendString(protowire.AppendTag(nil, 15, protowire.BytesType), string(hullmark.ControlPlane)))
				}
			},
			func(*testing.T) { s.node.EditHello = nil },
			"message-malformed",
			[]string{"Hello", "Hello: unknown field"},
		},
		{
			"a node config that claims a role, and was measured",
			func(t *testing.T) {
				s.node.Config = append(bytes.TrimSuffix(bytes.Clone(config), []byte("}")), `,"role":"control-plane"}`...)
				s.node.Reboot(t, "image")
			},
			func(t *testing.T) {
				s.node.Config = config
				s.node.Reboot(t, "image")
			},
			"message-malformed",
			[]string{"node config", `unknown field "role"`},
		},
		{
			"a node config that was not measured",
			func(*testing.T) { s.node.Config = append(bytes.Clone(config), '\n') },
			func(*testing.T) { s.node.Config = config },
			"config-mismatch",
			[]string{"PCR 8 does not hold the node config", hex.EncodeToString(measured[:])},
		},
		{
			"an unknown EK with perfect registers",
			func(t *testing.T) { s.accept(t, func(p *measurements.Policy) { p.Members = nil }, "image") },
			func(t *testing.T) {
				s.accept(t, func(p *measurements.Policy) { p.Members = []measurements.Member{worker(s.node.ID)} }, "image")
			},
			"not-a-member",
			[]string{"no membership rule admits this machine", s.node.ID.String()},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.wrong(t)
			s.refused(t, c.code, c.says...)
			c.right(t)
			if m := s.join(t); m.Role != hullmark.Worker {
				t.Errorf("it joined as a %s", m.Role)
			}
			s.reboot()
		})
	}
}

// Each case is refused with its reason, which the machine's record keeps, and its positive control accepted.
func TestServiceRefusesMembers(t *testing.T) {
	s := newSite(t)
	s.join(t)
	s.reboot()
	own, name, document := s.node.Disk, worker(s.node.ID).Name, s.machine(t).Document
	removed := "its last ticket was for document " + document.String()[:12] + "…, which the policy does not accept any more"
	for _, c := range []struct {
		name         string
		wrong, right func(*testing.T)
		code         string
		says         []string
	}{
		{
			"another image",
			func(t *testing.T) { s.node.Reboot(t, "other") },
			func(t *testing.T) { s.node.Reboot(t, "image") },
			joinservice.CodeMismatch,
			[]string{"the machine did not boot what the measurement document describes: document ", "PCR 4: want "},
		},
		{
			"a release that was removed",
			func(t *testing.T) { s.accept(t, func(*measurements.Policy) {}, "other") },
			func(t *testing.T) { s.accept(t, func(*measurements.Policy) {}, "other", "image") },
			joinservice.CodeMismatch,
			[]string{"did not boot what the measurement document describes: document ", "PCR 4: want ", removed},
		},
		{
			"the last release that was removed",
			func(t *testing.T) { s.accept(t, func(*measurements.Policy) {}) },
			func(t *testing.T) { s.accept(t, func(*measurements.Policy) {}, "image") },
			joinservice.CodeMismatch,
			[]string{"the policy accepts no measurement document", removed},
		},
		{
			"a release below the minimum",
			func(t *testing.T) { s.accept(t, func(p *measurements.Policy) { p.MinimumSVN = 2 }, "image") },
			func(t *testing.T) { s.accept(t, func(p *measurements.Policy) { p.MinimumSVN = 1 }, "image") },
			joinservice.CodeMismatch,
			[]string{"its security version is 1, the policy wants at least 2"},
		},
		{
			"another machine's disk",
			func(*testing.T) { s.node.Disk.Owner = hullmark.EKID{1} },
			func(*testing.T) { s.node.Disk = own },
			"disk-owner",
			[]string{"the state disk was formatted for another machine", s.node.ID.String(), hullmark.EKID{1}.String()},
		},
		{
			"another machine's disk as its own",
			func(*testing.T) { s.node.Disk.UUID = hullmark.UUID{8} },
			func(*testing.T) { s.node.Disk = own },
			"record-missing",
			[]string{"holds data, but no record says how recent", own.UUID.String(), hullmark.UUID{8}.String()},
		},
		{
			"an empty disk in its place",
			func(*testing.T) {
				s.node.Disk = hullmark.DiskClaim{State: hullmark.DiskBlank, UUID: hullmark.UUID{8}}
			},
			func(*testing.T) { s.node.Disk = own },
			"disk-replaced",
			[]string{"an empty disk, but its recorded one holds data", own.UUID.String(), "blank " + hullmark.UUID{8}.String()},
		},
		{
			"a generation that the service lacks",
			func(*testing.T) { s.node.Disk.Generation = 2 },
			func(*testing.T) { s.node.Disk = own },
			"generation-missing",
			[]string{"the keyset has no generation 2"},
		},
		{
			"another name than its disk was joined with",
			func(t *testing.T) { s.accept(t, func(p *measurements.Policy) { p.Members[0].Name = "other" }, "image") },
			func(t *testing.T) { s.accept(t, func(p *measurements.Policy) { p.Members[0].Name = name }, "image") },
			"member-changed",
			[]string{"set up under another name or role", "worker other", "worker worker-1"},
		},
		{
			"another role than its disk was joined with",
			func(t *testing.T) {
				s.accept(t, func(p *measurements.Policy) { p.Members[0].Role = hullmark.ControlPlane }, "image")
			},
			func(t *testing.T) {
				s.accept(t, func(p *measurements.Policy) { p.Members[0].Role = hullmark.Worker }, "image")
			},
			"member-changed",
			[]string{"set up under another name or role", "control-plane worker-1", "worker worker-1"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := s.machine(t)
			c.wrong(t)
			s.denied(t, c.code, false, c.says...)
			after := s.machine(t)
			if after.Condition == nil || *after.Condition != *s.node.Denied() || after.State != joinservice.MachineFailed {
				t.Errorf("the node was told %v, which was recorded as %s %v", s.node.Denied(), after.State, after.Condition)
			}
			if after.Record != before.Record || after.Name != before.Name || after.Role != before.Role {
				t.Errorf("the refusal changed the record to %+v", after)
			}
			c.right(t)
			if m := s.join(t); m.Condition != nil || m.Record.Committed != before.Record.Committed+1 {
				t.Errorf("the positive control was recorded as %+v", m)
			}
		})
	}
}

// What comes from beside the image is measured into registers that the document knows without it, of which each is enough. The
// same machine comes in once it boots the image alone.
func TestServiceRefusesWhatTheHostAdds(t *testing.T) {
	s := newSite(t)
	for name, register := range map[string]int{
		"code in the host's ACPI tables, where the shape is known":  1,
		"an addon that firmware loads":                              4,
		"a command line or initrd that the kernel gets":             9,
		"a command line by firmware, the SMBIOS or an addon":        12,
		"a credential or a configuration extension on the ESP":      12,
		"a system extension on the ESP":                             13,
		"a section of the kernel image that the release has not":    11,
		"a key that Secure Boot accepts, which no policy can allow": 7,
	} {
		t.Run(name, func(t *testing.T) {
			s.node.Reboot(t, "image")
			s.node.TPM.Extend(t, register, []byte(name))
			s.denied(t, joinservice.CodeMismatch, false, "did not boot what the measurement document describes", fmt.Sprintf("PCR %d: want ", register))
			s.node.Reboot(t, "image")
			s.join(t)
			s.reboot()
		})
	}
}

func TestNameOfAnotherMachine(t *testing.T) {
	s := newSite(t)
	if err := s.records.Claim(t.Context(), "worker-1", hullmark.EKID{1}); err != nil {
		t.Fatal(err)
	}
	s.denied(t, "name-taken", false, "another machine holds the name worker-1", hullmark.EKID{1}.String(), s.node.ID.String())
	if m := s.machine(t); m.Condition == nil || *m.Condition != *s.node.Denied() {
		t.Errorf("the refusal was recorded as %+v", m)
	}
	s.accept(t, func(p *measurements.Policy) { p.Members[0].Name = "worker-2" }, "image")
	if m := s.join(t); m.Name != "worker-2" {
		t.Errorf("it joined as %s", m.Name)
	}
}

// A boot earns one ticket, and the next boot another.
func TestSecondTicketAfterTheFuse(t *testing.T) {
	s := newSite(t)
	s.join(t)
	s.reboot()
	s.node.TPM.Extend(t, attest.FuseRegister, hullmark.ClusterEvent(s.cluster.ID()))
	blown := attest.Extended(hullmark.ClusterEvent(s.cluster.ID()))
	s.refused(t, "fuse-blown", "already used a ticket in this boot: PCR 15 is not zero", hex.EncodeToString(blown[:]))
	if s.machine(t).Record.Issued != 1 {
		t.Errorf("the record is %+v", s.machine(t).Record)
	}
	s.node.Reboot(t, "image")
	if m := s.join(t); m.EKID != s.node.ID || m.Record.Committed != 2 {
		t.Errorf("after the reset it is %+v", m)
	}
}

// Another node's disk is no way to that node's data, whatever the machine says of it.
func TestDiskOfAnotherNode(t *testing.T) {
	s := newSite(t)
	s.join(t)
	s.reboot()
	first, own := s.node, s.node.Disk
	s.node = nodetest.New(t, s.cluster.ID())
	s.node.Disk.UUID = hullmark.UUID{8}
	s.node.Boot(t, "image")
	second := s.node
	s.accept(t, func(p *measurements.Policy) {
		other := worker(second.ID)
		other.Name = "worker-2"
		p.Members = append(slices.Clone(p.Members), other)
	}, "image")
	s.join(t)
	s.reboot()
	key, theirs := second.Ticket().Disk.Key, second.Disk

	s.node, first.Disk = first, theirs
	s.denied(t, "disk-owner", false, "the state disk was formatted for another machine", first.ID.String(), second.ID.String())
	first.Disk.Owner = first.ID
	s.denied(t, "record-missing", false, "no record says how recent", own.UUID.String(), theirs.UUID.String())
	first.Disk = hullmark.DiskClaim{State: hullmark.DiskBlank, UUID: theirs.UUID}
	s.denied(t, "disk-replaced", false, "its recorded one holds data", own.UUID.String(), "blank "+theirs.UUID.String())
	first.Disk = own
	s.join(t)

	// The operator gives the first one's disk up: it may format one that has the second one's UUID, under a key of its own.
	s.accept(t, func(p *measurements.Policy) { p.Resets = []measurements.Reset{{EKID: first.ID, OldUUID: own.UUID}} }, "image")
	first.Disk, first.Epoch = hullmark.DiskClaim{State: hullmark.DiskBlank, UUID: theirs.UUID}, 0
	s.join(t)
	if grant := first.Ticket().Disk; grant.UUID != theirs.UUID || grant.Owner != first.ID || grant.Key.Equal(key) {
		t.Errorf("the first node's grant is %+v", grant)
	}
	s.node = second
	if m := s.join(t); m.Record.Committed != 2 || !second.Ticket().Disk.Key.Equal(key) {
		t.Errorf("the second node came back as %+v, or with another key", m)
	}
}
