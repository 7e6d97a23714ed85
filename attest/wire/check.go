package wire

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
)

// errEmpty is a message whose oneof holds nothing that this version knows.
var errEmpty = errors.New("the message is empty or of an unknown kind")

// CheckFromNode enforces the limits of a message from a node, before it is used.
// A Hello inside is only bounded: DecodeHello looks into it.
func CheckFromNode(m *FromNode) error {
	if err := strict(m.ProtoReflect()); err != nil {
		return fmt.Errorf("message from the node: %w", err)
	}
	if err := checkNodeKind(m); err != nil {
		return fmt.Errorf("message from the node: %w", err)
	}
	return nil
}

func checkNodeKind(m *FromNode) error {
	switch kind := m.GetMessage().(type) {
	case *FromNode_Hello:
		return atMost("hello", len(kind.Hello), MaxHello)
	case *FromNode_Proof:
		return checkProof(kind.Proof)
	case *FromNode_Opened:
		if kind.Opened.GetCertificateEnds() < 0 {
			return errors.New("certificate_ends: before 1970")
		}
		return checkAddresses(kind.Opened.GetAddresses())
	case *FromNode_Progress:
		return checkCauses(kind.Progress.GetFailed())
	}
	return errEmpty
}

func checkAddresses(addresses []string) error {
	if len(addresses) > MaxAddresses {
		return fmt.Errorf("addresses: %d, at most %d are allowed", len(addresses), MaxAddresses)
	}
	for _, a := range addresses {
		if _, err := netip.ParseAddr(a); err != nil {
			return fmt.Errorf("addresses: %w", err)
		}
	}
	return nil
}

func checkProof(p *Proof) error {
	return firstError(
		atMost("quoted", len(p.GetQuoted()), MaxQuoted),
		atMost("signature", len(p.GetSignature()), MaxSignature),
		exactly("pcr_values", len(p.GetPcrValues()), PCRValues),
		atMost("event_log", len(p.GetEventLog()), MaxEventLog),
		atMost("platform_report", len(p.GetPlatformReport()), MaxPlatformReport),
	)
}

// CheckFromVerifier enforces the limits of a message from an operator or a join service, before it is used.
func CheckFromVerifier(m *FromVerifier) error {
	if err := strict(m.ProtoReflect()); err != nil {
		return fmt.Errorf("message from the verifier: %w", err)
	}
	if err := checkVerifierKind(m); err != nil {
		return fmt.Errorf("message from the verifier: %w", err)
	}
	return nil
}

func checkVerifierKind(m *FromVerifier) error {
	switch kind := m.GetMessage().(type) {
	case *FromVerifier_Call:
		return nil
	case *FromVerifier_Challenge:
		return firstError(
			atMost("credential", len(kind.Challenge.GetCredential()), MaxCredential),
			atMost("secret", len(kind.Challenge.GetSecret()), MaxCredential))
	case *FromVerifier_Ticket:
		return checkTicket(kind.Ticket)
	case *FromVerifier_Proceed:
		return checkProceed(kind.Proceed)
	case *FromVerifier_Denied:
		return checkCauses(kind.Denied)
	case *FromVerifier_Snapshot:
		return atMost("snapshot", len(kind.Snapshot), MaxPiece)
	}
	return errEmpty
}

func checkTicket(t *Ticket) error {
	return firstError(
		exactly("disk_key", len(t.GetDiskKey()), 32),
		exactly("uuid", len(t.GetUuid()), 16),
		exactly("owner", len(t.GetOwner()), 32),
	)
}

func checkProceed(p *Proceed) error {
	if len(p.GetFiles()) > MaxFiles || len(p.GetManifests()) > MaxManifests {
		return fmt.Errorf("%d files and %d manifests, at most %d and %d are allowed",
			len(p.GetFiles()), len(p.GetManifests()), MaxFiles, MaxManifests)
	}
	if err := firstError(atMost("names", len(p.GetNames()), MaxNames), atMost("hooks", len(p.GetHooks()), MaxHooks)); err != nil {
		return err
	}
	if err := checkOwnAddress(p); err != nil {
		return err
	}
	for _, f := range p.GetFiles() {
		if err := atMost(f.GetPath(), len(f.GetContent()), MaxFile); err != nil {
			return err
		}
		if f.GetMode()&^0o777 != 0 {
			return fmt.Errorf("%s: mode %#o has more than permission bits", f.GetPath(), f.GetMode())
		}
	}
	for i, m := range p.GetManifests() {
		if err := atMost(fmt.Sprintf("manifest %d", i), len(m), MaxFile); err != nil {
			return err
		}
	}
	if err := checkSnapshot(p.GetSnapshot()); err != nil {
		return err
	}
	return atMost("kubeadm_documents", len(p.GetKubeadmDocuments()), MaxFile)
}

// checkOwnAddress accepts the absence of an address and of refusals.
func checkOwnAddress(p *Proceed) error {
	if _, err := p.NodeAddresses(); err != nil {
		return err
	}
	for _, c := range p.GetRefused() {
		if err := checkCauses(c); err != nil {
			return err
		}
	}
	return atMost("refused", len(p.GetRefused()), MaxAddresses)
}

// SetNodeAddresses has the node's kubelet name these: one, or one of each family, the cluster's primary one first.
func (p *Proceed) SetNodeAddresses(addresses []netip.Addr) {
	var all []string
	for _, a := range addresses {
		all = append(all, a.String())
	}
	p.Address = strings.Join(all, ",")
}

// NodeAddresses are what SetNodeAddresses wrote; none is none.
func (p *Proceed) NodeAddresses() (addresses []netip.Addr, err error) {
	text := p.GetAddress()
	if text == "" {
		return nil, nil
	}
	for one := range strings.SplitSeq(text, ",") {
		a, err := netip.ParseAddr(one)
		if err != nil || a.String() != one || a.Zone() != "" || a.Is4In6() {
			return nil, fmt.Errorf("address %.80q: want an IP address in its usual form, or one of each family", text)
		}
		addresses = append(addresses, a)
	}
	if len(addresses) > 2 || len(addresses) == 2 && addresses[0].Is4() == addresses[1].Is4() {
		return nil, fmt.Errorf("address %.80q: want one of each family at most", text)
	}
	return addresses, nil
}

// checkSnapshot accepts the absence of one.
func checkSnapshot(s *Snapshot) error {
	switch {
	case s == nil:
		return nil
	case s.GetSize() == 0 || s.GetSize() > MaxSnapshot:
		return fmt.Errorf("snapshot: %d bytes, want 1 to %d", s.GetSize(), MaxSnapshot)
	case s.GetBump() == 0 || s.GetBump() > MaxBump:
		return fmt.Errorf("snapshot: bump: %d, want 1 to %d", s.GetBump(), MaxBump)
	}
	return firstError(exactly("snapshot: sha256", len(s.GetSha256()), 32), exactly("snapshot: backup", len(s.GetBackup()), 32))
}

func checkCauses(c *Condition) error {
	for depth := 0; c != nil; c = c.GetBecause() {
		if depth++; depth > MaxCauses {
			return fmt.Errorf("condition: more than %d causes", MaxCauses)
		}
	}
	return nil
}
