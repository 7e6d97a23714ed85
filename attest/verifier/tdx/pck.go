package tdx

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"errors"
	"fmt"
	"slices"
)

// The object identifiers of a PCK certificate's extension (Intel SGX PCK Certificate and CRL Specification §1.3.5).
var (
	oidSGX           = asn1.ObjectIdentifier{1, 2, 840, 113741, 1, 13, 1}
	oidTCB           = append(slices.Clone(oidSGX), 2)
	oidPCEID         = append(slices.Clone(oidSGX), 3)
	oidFMSPC         = append(slices.Clone(oidSGX), 4)
	oidInstance      = append(slices.Clone(oidSGX), 6)
	oidConfiguration = append(slices.Clone(oidSGX), 7)
)

// platform is what Intel certified of the machine.
type platform struct {
	components [16]uint64
	pceSVN     uint64
	pceID      []byte
	fmspc      []byte
	// instance identifies a platform of more than one package; empty where the certificate has none.
	instance []byte
	// smt reports that hyper-threading is on, as a multi-package platform's certificate says; known reports whether it does.
	smt, smtKnown bool
}

// attribute is one of the extension's values.
type attribute struct {
	ID    asn1.ObjectIdentifier
	Value asn1.RawValue
}

// readPlatform reads the extension of a PCK certificate.
func readPlatform(pck *x509.Certificate) (p platform, err error) {
	i := slices.IndexFunc(pck.Extensions, func(e pkix.Extension) bool { return e.Id.Equal(oidSGX) })
	if i < 0 {
		return p, errors.New("PCK certificate: no SGX extension")
	}
	attributes, err := readAttributes(pck.Extensions[i].Value)
	if err != nil {
		return p, err
	}
	for _, a := range attributes {
		if err := p.take(a); err != nil {
			return p, fmt.Errorf("PCK certificate: %v: %w", a.ID, err)
		}
	}
	if len(p.fmspc) != 6 || len(p.pceID) != 2 {
		return p, errors.New("PCK certificate: without FMSPC or PCE ID")
	}
	return p, nil
}

func readAttributes(der []byte) (attributes []attribute, err error) {
	if rest, err := asn1.Unmarshal(der, &attributes); err != nil || len(rest) > 0 {
		return nil, fmt.Errorf("PCK certificate: extension: %d bytes left, %w", len(rest), firstOf(err, errors.New("malformed")))
	}
	for i, a := range attributes {
		if slices.ContainsFunc(attributes[:i], func(b attribute) bool { return b.ID.Equal(a.ID) }) {
			return nil, fmt.Errorf("PCK certificate: %v is there twice", a.ID)
		}
	}
	return attributes, nil
}

func (p *platform) take(a attribute) (err error) {
	switch {
	case a.ID.Equal(oidTCB):
		return p.takeTCB(a.Value.FullBytes)
	case a.ID.Equal(oidPCEID):
		_, err = asn1.Unmarshal(a.Value.FullBytes, &p.pceID)
	case a.ID.Equal(oidFMSPC):
		_, err = asn1.Unmarshal(a.Value.FullBytes, &p.fmspc)
	case a.ID.Equal(oidInstance):
		_, err = asn1.Unmarshal(a.Value.FullBytes, &p.instance)
	case a.ID.Equal(oidConfiguration):
		return p.takeConfiguration(a.Value.FullBytes)
	}
	return err
}

// takeTCB reads components 1 to 16, PCESVN (17) and CPUSVN (18), which repeats the components.
func (p *platform) takeTCB(der []byte) error {
	attributes, err := readAttributes(der)
	if err != nil {
		return err
	}
	seen := 0
	for _, a := range attributes {
		if len(a.ID) != len(oidTCB)+1 || !a.ID[:len(oidTCB)].Equal(oidTCB) {
			return fmt.Errorf("%v is no component", a.ID)
		}
		n, value := a.ID[len(oidTCB)], int64(0)
		if n < 1 || n > 17 {
			continue
		}
		if _, err := asn1.Unmarshal(a.Value.FullBytes, &value); err != nil || value < 0 || value > 0xffff {
			return fmt.Errorf("component %d is no number of 16 bits", n)
		}
		if seen++; n == 17 {
			p.pceSVN = uint64(value)
		} else {
			p.components[n-1] = uint64(value)
		}
	}
	if seen != 17 {
		return fmt.Errorf("%d components, want 17", seen)
	}
	return nil
}

func (p *platform) takeConfiguration(der []byte) error {
	attributes, err := readAttributes(der)
	if err != nil {
		return err
	}
	for _, a := range attributes {
		if a.ID.Equal(append(slices.Clone(oidConfiguration), 3)) {
			p.smtKnown = true
			if _, err := asn1.Unmarshal(a.Value.FullBytes, &p.smt); err != nil {
				return err
			}
		}
	}
	return nil
}
