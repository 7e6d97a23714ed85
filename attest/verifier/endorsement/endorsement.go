// Package endorsement verifies what Google signs of the firmware of its confidential machines: which launch digests and MRTDs a build
// of it has. It says what firmware a digest is of, not that a machine runs it; a report or a quote says that.
package endorsement

import (
	"crypto/x509"
	"errors"
	"fmt"
	"time"

	epb "github.com/google/gce-tcb-verifier/proto/endorsement"
	"google.golang.org/protobuf/proto"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest/verifier/evidence"
)

// MaxEndorsement bounds an endorsement, in bytes.
const MaxEndorsement = 64 << 10

const (
	// digestSize is that of all measurements, in bytes.
	digestSize = 48
	kind       = hullmark.PlatformGCP
)

// Endorsement is a decoded one. Nothing of it is verified.
type Endorsement struct {
	// Firmware is the SHA-384 of the firmware file, and Time when it was signed.
	Firmware []byte
	Time     time.Time
	// SNP are launch digests by the number of processors, with the firmware's version; TDX are MRTDs by gibibytes of memory, where that
	// counts, else by 0.
	SNP    map[uint32][]byte
	SNPSVN uint32
	TDX    map[uint32][][]byte

	certificate, signed, signature []byte
}

// Parse decodes an endorsement (gce-tcb-verifier, proto/endorsement.proto: VMLaunchEndorsement).
func Parse(raw []byte) (Endorsement, error) {
	if len(raw) > MaxEndorsement {
		return Endorsement{}, fmt.Errorf("%d bytes, at most %d are read", len(raw), MaxEndorsement)
	}
	var outer epb.VMLaunchEndorsement
	var golden epb.VMGoldenMeasurement
	if err := errors.Join(proto.Unmarshal(raw, &outer), proto.Unmarshal(outer.GetSerializedUefiGolden(), &golden)); err != nil {
		return Endorsement{}, err
	}
	switch {
	case len(outer.GetSerializedUefiGolden()) == 0 || len(outer.GetSignature()) == 0:
		return Endorsement{}, errors.New("no measurements, or no signature")
	case len(outer.ProtoReflect().GetUnknown()) > 0:
		return Endorsement{}, errors.New("fields that nobody signed")
	case len(golden.GetDigest()) != digestSize || golden.GetTimestamp().CheckValid() != nil:
		return Endorsement{}, errors.New("no digest of a firmware, or no time")
	}
	e := Endorsement{
		Firmware: golden.GetDigest(), Time: golden.GetTimestamp().AsTime(), SNP: golden.GetSevSnp().GetMeasurements(), SNPSVN: golden.GetSevSnp().GetSvn(),
		TDX: map[uint32][][]byte{}, certificate: golden.GetCert(), signed: outer.GetSerializedUefiGolden(), signature: outer.GetSignature(),
	}
	for n, digest := range e.SNP {
		if len(digest) != digestSize {
			return Endorsement{}, fmt.Errorf("launch digest of %d processors: %d bytes", n, len(digest))
		}
	}
	for _, m := range golden.GetTdx().GetMeasurements() {
		if len(m.GetMrtd()) != digestSize {
			return Endorsement{}, fmt.Errorf("MRTD of %d bytes", len(m.GetMrtd()))
		}
		e.TDX[m.GetRamGib()] = append(e.TDX[m.GetRamGib()], m.GetMrtd())
	}
	return e, nil
}

// Verify holds an endorsement to the signer's certificate, and that to roots, at a time. A refusal is an *evidence.Refusal.
func (e Endorsement) Verify(roots *x509.CertPool, at time.Time) error {
	signer, err := x509.ParseCertificate(e.certificate)
	if err == nil && len(signer.Raw) != len(e.certificate) {
		err = errors.New("data after its end")
	}
	if err != nil {
		return evidence.Refuse(kind, evidence.Chain, "the signer's certificate", err)
	}
	_, err = signer.Verify(x509.VerifyOptions{Roots: roots, CurrentTime: at, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}})
	if invalid, ok := errors.AsType[x509.CertificateInvalidError](err); ok && invalid.Reason == x509.Expired {
		return evidence.Refuse(kind, evidence.Expired, "the signer's certificate", err)
	}
	if err != nil {
		return evidence.Refuse(kind, evidence.Chain, "the signer's certificate", err)
	}
	if err := signer.CheckSignature(x509.SHA256WithRSAPSS, e.signed, e.signature); err != nil {
		return evidence.Refuse(kind, evidence.Signature, "the endorsement", err)
	}
	return nil
}
