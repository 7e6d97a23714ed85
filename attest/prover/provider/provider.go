// Package provider gathers the evidence of machines whose provider certified a key of their TPM: Azure's Trusted Launch, and Google.
// It has that key quote the registers for the exchange.
package provider

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/google/go-tpm/tpm2"
	"github.com/google/go-tpm/tpm2/transport"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest"
	"github.com/hullmark/hullmark/attest/ekcert"
	"github.com/hullmark/hullmark/attest/prover"
)

// maxIndex bounds what is read of an NV index, in bytes.
const maxIndex = 4 << 10

// source is where a provider keeps the key and its certificate: the key at a handle, or by a template that makes it.
type source struct {
	kind                  string
	certificate, template tpm2.TPMHandle
	key                   tpm2.TPMHandle
}

// sources are those that are known (go-tpm-tools, client: GceAKCertNVIndexRSA and its kin; Azure, "Trusted Launch": vTPM).
var sources = []source{
	{kind: hullmark.PlatformAzureTL, certificate: 0x01c101d0, key: 0x81000003},
	{kind: hullmark.PlatformGCP, certificate: 0x01c10000, template: 0x01c10001},
	{kind: hullmark.PlatformGCP, certificate: 0x01c10002, template: 0x01c10003},
}

// Evidence returns a machine's evidence; nil if its TPM has no key with a provider's certificate.
func Evidence(_ context.Context, tpm transport.TPM) (*prover.Platform, error) {
	for _, s := range sources {
		certificate, err := prover.ReadIndex(tpm, s.certificate, maxIndex)
		if err != nil {
			return nil, fmt.Errorf("certificate of the provider's key: %w", err)
		}
		if certificate == nil {
			continue
		}
		p, err := s.evidence(tpm, certificate)
		if err != nil {
			return nil, fmt.Errorf("the provider's key: %w", err)
		}
		return p, nil
	}
	return nil, nil
}

func (s source) evidence(tpm transport.TPM, certificate []byte) (*prover.Platform, error) {
	der, err := ekcert.FromIndex(certificate)
	if err != nil {
		return nil, fmt.Errorf("certificate: %w", err)
	}
	p := &prover.Platform{Kind: s.kind, Certificates: [][]byte{der}}
	err = s.use(tpm, func(_ tpm2.NamedHandle, public []byte) error { p.Report = public; return nil })
	p.Prove = func(tpm transport.TPM, binding attest.Binding) (proof []byte, err error) {
		err = s.use(tpm, func(key tpm2.NamedHandle, _ []byte) error { proof, err = prove(tpm, key, binding); return err })
		return proof, err
	}
	return p, err
}

// use loads the key while it is used, and hands over its TPMT_PUBLIC.
func (s source) use(tpm transport.TPM, with func(key tpm2.NamedHandle, public []byte) error) error {
	if s.template == 0 {
		reply, err := tpm2.ReadPublic{ObjectHandle: s.key}.Execute(tpm)
		if err != nil {
			return err
		}
		return with(tpm2.NamedHandle{Handle: s.key, Name: reply.Name}, reply.OutPublic.Bytes())
	}
	template, err := prover.ReadIndex(tpm, s.template, maxIndex)
	if err == nil && template == nil {
		err = errors.New("it has a certificate, and no template")
	}
	if err != nil {
		return err
	}
	made, err := tpm2.CreatePrimary{
		PrimaryHandle: tpm2.AuthHandle{Handle: tpm2.TPMRHEndorsement, Auth: tpm2.PasswordAuth(nil)},
		InPublic:      tpm2.BytesAs2B[tpm2.TPMTPublic](template),
	}.Execute(tpm)
	if err != nil {
		return err
	}
	err = with(tpm2.NamedHandle{Handle: made.ObjectHandle, Name: made.Name}, made.OutPublic.Bytes())
	_, flushed := tpm2.FlushContext{FlushHandle: made.ObjectHandle}.Execute(tpm)
	return errors.Join(err, flushed)
}

// prove returns a quote as a TPM2B_ATTEST and a TPMT_SIGNATURE.
func prove(tpm transport.TPM, key tpm2.NamedHandle, binding attest.Binding) ([]byte, error) {
	quote, _, err := prover.Quote(tpm, key, binding)
	if err != nil {
		return nil, err
	}
	return append(append(binary.BigEndian.AppendUint16(nil, uint16(len(quote.Quoted))), quote.Quoted...), quote.Signature...), nil
}
