// Package tdx verifies quotes of Intel TDX guests offline: the signature up to Intel's root, the platform, the TDX module and the
// quoting enclave against stored collateral, and the guest against what an operator demands. It judges the age of firmware itself
// (docs/measuring.md), since the library of the field passes revoked levels.
package tdx

import (
	"bytes"
	"encoding/binary"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
)

// Sizes of a quote's parts in bytes (Intel TDX DCAP Quoting Library API, Appendix A).
const (
	// MaxQuote bounds a quote; recorded ones have 5,006 bytes.
	MaxQuote       = 16 << 10
	headerSize     = 48
	bodySize       = 584
	bodySize15     = bodySize + 16 + 48
	reportSize     = 384
	signatureSize  = 64
	descriptorSize = 6
)

// The numbers by which a quote names its forms (the same, A.3 and A.4).
const (
	keyECDSAP256      = 2
	teeTDX            = 0x81
	bodyTDX10         = 2
	bodyTDX15         = 3
	certificationQE   = 6
	certificationPEM  = 5
	maxChain          = 3
	maxAuthentication = 1 << 10
)

// vendorIntel is the quoting enclave's vendor that a header names (the same, A.3.1).
var vendorIntel = []byte{0x93, 0x9a, 0x72, 0x33, 0xf7, 0x9c, 0x4c, 0xa9, 0x94, 0x0a, 0x0d, 0xb3, 0x95, 0x7f, 0x06, 0x07}

// Quote is a decoded quote, version 4 or 5. Nothing of it is verified.
type Quote struct {
	Version        uint16
	TEETCBSVN      [16]byte
	MRSEAM         [48]byte
	MRSignerSEAM   [48]byte
	SEAMAttributes [8]byte
	Attributes     [8]byte
	XFAM           [8]byte
	MRTD           [48]byte
	MRConfigID     [48]byte
	MROwner        [48]byte
	MROwnerConfig  [48]byte
	RTMRs          [4][48]byte
	ReportData     [64]byte
	// MRServiceTD is that of a TDX 1.5 body; zero otherwise.
	MRServiceTD [48]byte

	// signed is what the attestation key signed: header to body.
	signed             []byte
	signature, key     []byte
	qe                 enclave
	qeReport           []byte
	qeSignature        []byte
	authenticationData []byte
	chain              [][]byte
}

// enclave is what is needed of the quoting enclave's report (Intel SDM Vol. 3D, REPORT structure).
type enclave struct {
	miscSelect [4]byte
	attributes [16]byte
	mrSigner   [32]byte
	productID  uint16
	svn        uint16
	reportData [64]byte
}

// reader takes a message apart; after the first failure it returns zeros.
type reader struct {
	rest []byte
	err  error
}

func (r *reader) take(what string, n int) []byte {
	if r.err == nil && len(r.rest) < n {
		r.err = fmt.Errorf("cut off in its %s", what)
	}
	if r.err != nil {
		return make([]byte, n)
	}
	taken := r.rest[:n]
	r.rest = r.rest[n:]
	return taken
}

func (r *reader) u16(what string) uint16 { return binary.LittleEndian.Uint16(r.take(what, 2)) }
func (r *reader) u32(what string) uint32 { return binary.LittleEndian.Uint32(r.take(what, 4)) }

// sized takes a part whose length stands before it, at most limit bytes.
func (r *reader) sized(what string, length uint64, limit int) []byte {
	if r.err == nil && length > uint64(limit) {
		r.err = fmt.Errorf("%s of %d bytes, at most %d are allowed", what, length, limit)
	}
	if r.err != nil {
		return nil
	}
	return r.take(what, int(length))
}

// is notes an error unless the two numbers are equal.
func (r *reader) is(what string, got, want uint64) {
	if r.err == nil && got != want {
		r.err = fmt.Errorf("%s %#x, want %#x", what, got, want)
	}
}

// Parse decodes a quote with nothing after it but zeros, with which some platforms pad it.
func Parse(raw []byte) (Quote, error) {
	if len(raw) > MaxQuote {
		return Quote{}, fmt.Errorf("quote of %d bytes, at most %d are allowed", len(raw), MaxQuote)
	}
	q, r := Quote{}, &reader{rest: raw}
	q.readHeader(r)
	body := q.bodyLength(r)
	q.readBody(r, body)
	q.signed = raw[:len(raw)-len(r.rest)]
	size := r.u32("signature's size")
	signature := &reader{rest: r.sized("signature data", uint64(size), MaxQuote), err: r.err}
	if r.err == nil && slices.ContainsFunc(r.rest, func(b byte) bool { return b != 0 }) {
		r.err = errors.New("data after its end")
	}
	q.readSignature(signature)
	if err := errors.Join(r.err, signature.err); err != nil {
		return Quote{}, fmt.Errorf("quote: %w", firstOf(r.err, signature.err))
	}
	return q, nil
}

func firstOf(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

func (q *Quote) readHeader(r *reader) {
	header := &reader{rest: r.take("header", headerSize), err: r.err}
	q.Version = header.u16("version")
	if q.Version != 4 && q.Version != 5 && header.err == nil {
		header.err = fmt.Errorf("version %d, want 4 or 5", q.Version)
	}
	header.is("attestation key of type", uint64(header.u16("key type")), keyECDSAP256)
	header.is("evidence of type", uint64(header.u32("TEE type")), teeTDX)
	header.take("SVNs", 4)
	if vendor := header.take("vendor", 16); header.err == nil && !slices.Equal(vendor, vendorIntel) {
		header.err = fmt.Errorf("quoting enclave of vendor %x, want %x", vendor, vendorIntel)
	}
	r.err = header.err
}

// bodyLength is fixed in version 4; version 5 says it.
func (q *Quote) bodyLength(r *reader) int {
	if q.Version != 5 {
		return bodySize
	}
	kind, size := r.u16("body type"), r.u32("body size")
	switch kind {
	case bodyTDX10:
		r.is("body of size", uint64(size), bodySize)
		return bodySize
	case bodyTDX15:
		r.is("body of size", uint64(size), bodySize15)
		return bodySize15
	}
	if r.err == nil {
		r.err = fmt.Errorf("body of type %d, want %d or %d", kind, bodyTDX10, bodyTDX15)
	}
	return bodySize
}

func (q *Quote) readBody(r *reader, length int) {
	body := &reader{rest: r.take("body", length)}
	for _, field := range [][]byte{
		q.TEETCBSVN[:], q.MRSEAM[:], q.MRSignerSEAM[:], q.SEAMAttributes[:], q.Attributes[:], q.XFAM[:], q.MRTD[:], q.MRConfigID[:],
		q.MROwner[:], q.MROwnerConfig[:], q.RTMRs[0][:], q.RTMRs[1][:], q.RTMRs[2][:], q.RTMRs[3][:], q.ReportData[:],
	} {
		copy(field, body.take("body", len(field)))
	}
	if length == bodySize15 {
		body.take("second SVN", 16) // of the module that runs by now; the first is the launch's
		copy(q.MRServiceTD[:], body.take("service TD", 48))
	}
}

func (q *Quote) readSignature(r *reader) {
	q.signature, q.key = r.take("signature", signatureSize), r.take("attestation key", 64)
	r.is("certification data of type", uint64(r.u16("certification type")), certificationQE)
	size := r.u32("certification size")
	inner := &reader{rest: r.sized("certification data", uint64(size), MaxQuote), err: r.err}
	r.end()
	q.qeReport = inner.take("report of the quoting enclave", reportSize)
	q.qe = readEnclave(q.qeReport)
	q.qeSignature = inner.take("signature of that report", signatureSize)
	q.authenticationData = inner.sized("authentication data", uint64(inner.u16("authentication size")), maxAuthentication)
	inner.is("certificates of type", uint64(inner.u16("certificate type")), certificationPEM)
	chain := inner.sized("certificates", uint64(inner.u32("certificates' size")), MaxQuote)
	inner.end()
	if inner.err == nil {
		q.chain, inner.err = splitPEM(chain)
	}
	r.err = firstOf(r.err, inner.err)
}

// end notes an error if something is left.
func (r *reader) end() {
	if r.err == nil && len(r.rest) > 0 {
		r.err = fmt.Errorf("%d bytes more than it says", len(r.rest))
	}
}

func readEnclave(report []byte) (e enclave) {
	copy(e.miscSelect[:], report[16:])
	copy(e.attributes[:], report[48:])
	copy(e.mrSigner[:], report[128:])
	e.productID, e.svn = binary.LittleEndian.Uint16(report[256:]), binary.LittleEndian.Uint16(report[258:])
	copy(e.reportData[:], report[320:])
	return e
}

// splitPEM returns the certificates of a chain, of which there are at most three. Lines may end anywhere, and a zero byte may be last;
// but for that there is one way to write a chain, so that no byte of a quote can be changed and mean the same.
func splitPEM(text []byte) (certificates [][]byte, err error) {
	var written []byte
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" || len(certificates) == maxChain {
			return nil, fmt.Errorf("chain: want at most %d certificates and nothing else", maxChain)
		}
		block.Headers = nil
		certificates, written = append(certificates, block.Bytes), append(written, pem.EncodeToMemory(block)...)
	}
	if len(certificates) == 0 || !bytes.Equal(withoutLines(bytes.TrimSuffix(text, []byte{0})), withoutLines(written)) {
		return nil, errors.New("chain: no certificates in PEM, or something else beside them")
	}
	return certificates, nil
}

func withoutLines(text []byte) []byte {
	return bytes.ReplaceAll(bytes.ReplaceAll(text, []byte("\r"), nil), []byte("\n"), nil)
}
