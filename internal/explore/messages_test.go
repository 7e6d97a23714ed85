//go:build explore

package explore

import (
	"fmt"
	"regexp"

	"google.golang.org/protobuf/proto"

	"github.com/hullmark/hullmark/attest/wire"
)

// messageText says of a message what decides.
func messageText(m proto.Message) string {
	switch m := m.(type) {
	case *wire.FromNode:
		return nodeText(m)
	case *wire.FromVerifier:
		return verifierText(m)
	case *wire.EpochFromNode:
		return askText(m)
	}
	return issuedText(m.(*wire.EpochFromService))
}

func verifierText(m *wire.FromVerifier) string {
	switch {
	case m.GetChallenge() != nil:
		return "Challenge"
	case m.GetTicket() != nil:
		t, err := m.GetTicket().HullmarkTicket()
		must(err)
		return fmt.Sprintf("Ticket %s %s %x %v e%d e%d", t.Kind, name(t.Disk.UUID), t.Disk.Owner[:2], t.Disk.FormatAllowed, t.Disk.Epoch.Committed, t.Disk.Epoch.Issued)
	case m.GetProceed() != nil:
		return fmt.Sprintf("Proceed %s t%s", m.GetProceed().GetNodeName(), tokenOf(m.GetProceed().GetKubeadmDocuments()))
	}
	return "denied " + m.GetDenied().GetCode()
}

func nodeText(m *wire.FromNode) string {
	switch {
	case m.GetHello() != nil:
		h, err := wire.DecodeHello(m.GetHello())
		must(err)
		d, err := h.GetDisk().DiskClaim()
		must(err)
		return fmt.Sprintf("Hello %s %s %x", d.State, name(d.UUID), d.Owner[:2])
	case m.GetProof() != nil:
		return fmt.Sprintf("Proof %x", m.GetProof().GetSignature()[:4])
	case m.GetOpened() != nil:
		o := m.GetOpened()
		return fmt.Sprintf("Opened e%d e%d %v", o.GetIssued(), o.GetEpochRead(), o.GetJoined())
	}
	p := m.GetProgress()
	return fmt.Sprintf("Progress %s %v %s", p.GetPhase(), p.GetReady(), p.GetFailed().GetCode())
}

func askText(m *wire.EpochFromNode) string {
	if m.GetAsk() == nil {
		return fmt.Sprintf("EpochStored e%d", m.GetStored().GetIssued())
	}
	claim, err := wire.DecodeEpochClaim(m.GetAsk().GetClaim())
	must(err)
	return fmt.Sprintf("EpochAsk e%d", claim.GetEpoch())
}

func issuedText(m *wire.EpochFromService) string {
	switch {
	case m.GetIssued() != nil:
		return fmt.Sprintf("EpochIssued e%d", m.GetIssued().GetIssued())
	case m.GetCommitted() != nil:
		return "EpochCommitted"
	}
	return "denied " + m.GetDenied().GetCode()
}

var tokenPattern = regexp.MustCompile(`([0-9]{6})\.[0-9a-f]{16}`)

// tokenOf returns the public half of the token in kubeadm documents.
func tokenOf(documents []byte) string {
	if m := tokenPattern.FindSubmatch(documents); m != nil {
		return string(m[1])
	}
	return ""
}
