package wire

import (
	"errors"
	"fmt"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/hullmark/hullmark"
)

// The limits of what a peer may send, in bytes unless it is said otherwise.
// They are checked before anything else is done with a message.
const (
	// MaxHello bounds an encoded Hello: a node configuration, two public keys, one certificate, and a platform's evidence.
	MaxHello = hullmark.MaxNodeConfig + 16<<10 + MaxPlatform
	// MaxPlatform bounds a platform's evidence in a Hello; a TD quote with its certificates needs about 10 KiB.
	MaxPlatform = 32 << 10
	// MaxPlatformKind bounds the name of its kind.
	MaxPlatformKind = 32
	// MaxPlatformCertificates bounds the number of its certificates.
	MaxPlatformCertificates = 8
	// MaxPlatformReport bounds the evidence that a platform made for the exchange.
	MaxPlatformReport = 16 << 10
	// MaxPublic bounds a TPMT_PUBLIC; an RSA-4096 key needs 600.
	MaxPublic = 1 << 10
	// MaxCertificate bounds an X.509 certificate in DER.
	MaxCertificate = 8 << 10
	// MaxCredential bounds each half of a Challenge.
	MaxCredential = 1 << 10
	// MaxQuoted bounds a TPMS_ATTEST; a quote over one bank needs about 150.
	MaxQuoted = 1 << 10
	// MaxSignature bounds a TPMT_SIGNATURE.
	MaxSignature = 1 << 10
	// PCRValues is the exact length of Proof.pcr_values: 15 SHA-256 values.
	PCRValues = 15 * 32
	// MaxEventLog bounds the log that a proof may carry.
	MaxEventLog = 1 << 20
	// MaxEpochClaim bounds an encoded EpochClaim.
	MaxEpochClaim = 1 << 10
	// MaxText bounds every string.
	MaxText = 4 << 10
	// MaxAddresses bounds the number of addresses in an Opened.
	MaxAddresses = 16
	// MaxFiles bounds the number of files in a Proceed.
	MaxFiles = 96
	// MaxManifests bounds the number of manifests in a Proceed.
	MaxManifests = 64
	// MaxNames bounds the number of names in a Proceed.
	MaxNames = 64
	// MaxHooks bounds the number of hooks in a Proceed.
	MaxHooks = 16
	// MaxFile bounds one file, manifest or kubeadm document.
	MaxFile = 1 << 20
	// MaxSnapshot bounds the size that a Snapshot announces: etcd's own advice for its largest quota.
	MaxSnapshot = 8 << 30
	// MaxBump bounds by how much it raises revisions, of which etcd has 2^63.
	MaxBump = 1 << 48
	// MaxPiece bounds one piece of a snapshot.
	MaxPiece = 512 << 10
	// MaxFromNode bounds any message from a node: the proof is the largest.
	MaxFromNode = MaxEventLog + 16<<10 + MaxPlatformReport
	// MaxFromVerifier bounds any message from a verifier: Proceed is the largest.
	MaxFromVerifier = 4 << 20
	// MaxCauses bounds the chain of causes of a Condition.
	MaxCauses = 8
	// MaxStatus bounds a status document and one chunk of a journal.
	MaxStatus = 1 << 20
)

// strict fails if the message, or any message in it, has a field that the
// schema does not know, or a string that is too long.
func strict(m protoreflect.Message) error {
	if len(m.GetUnknown()) > 0 {
		return fmt.Errorf("%s: unknown field", m.Descriptor().Name())
	}
	var err error
	m.Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		err = strictField(field, value)
		return err == nil
	})
	return err
}

func strictField(field protoreflect.FieldDescriptor, value protoreflect.Value) error {
	if !field.IsList() {
		return strictValue(field, value)
	}
	for i := range value.List().Len() {
		if err := strictValue(field, value.List().Get(i)); err != nil {
			return err
		}
	}
	return nil
}

func strictValue(field protoreflect.FieldDescriptor, value protoreflect.Value) error {
	switch field.Kind() {
	case protoreflect.StringKind:
		return atMost(string(field.Name()), len(value.String()), MaxText)
	case protoreflect.MessageKind:
		return strict(value.Message())
	}
	return nil
}

// atMost fails if a field is longer than its limit.
func atMost(name string, length, limit int) error {
	if length > limit {
		return fmt.Errorf("%s: %d bytes, at most %d are allowed", name, length, limit)
	}
	return nil
}

// exactly fails if a field has not the one length that it can have.
func exactly(name string, length, want int) error {
	if length != want {
		return fmt.Errorf("%s: %d bytes, want %d", name, length, want)
	}
	return nil
}

// firstError returns the first of some checks that failed.
func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// EncodeHello returns the bytes of Hello that both sides hash.
func EncodeHello(h *Hello) ([]byte, error) {
	if err := checkHello(h); err != nil {
		return nil, fmt.Errorf("encode hello: %w", err)
	}
	raw, err := proto.MarshalOptions{Deterministic: true}.Marshal(h)
	if err != nil {
		return nil, fmt.Errorf("encode hello: %w", err)
	}
	return raw, nil
}

// DecodeHello strictly decodes the bytes of Hello. Of the fields it checks the
// lengths; what they mean is for package verifier. An error leaves nothing to use.
func DecodeHello(raw []byte) (*Hello, error) {
	if err := atMost("hello", len(raw), MaxHello); err != nil {
		return nil, fmt.Errorf("decode hello: %w", err)
	}
	h := &Hello{}
	if err := proto.Unmarshal(raw, h); err != nil {
		return nil, fmt.Errorf("decode hello: %w", err)
	}
	if err := firstError(strict(h.ProtoReflect()), checkHello(h)); err != nil {
		return nil, fmt.Errorf("decode hello: %w", err)
	}
	return h, nil
}

func checkHello(h *Hello) error {
	if h.GetDisk() == nil {
		return fmt.Errorf("disk: missing")
	}
	return firstError(
		CheckPlatform(h.GetPlatform()),
		atMost("ek_public", len(h.GetEkPublic()), MaxPublic),
		atMost("ek_certificate", len(h.GetEkCertificate()), MaxCertificate),
		atMost("ak_public", len(h.GetAkPublic()), MaxPublic),
		atMost("node_config", len(h.GetNodeConfig()), hullmark.MaxNodeConfig),
	)
}

// CheckPlatform enforces the limits of a platform's evidence. It accepts the absence of any.
func CheckPlatform(p *Platform) error {
	if p == nil {
		return nil
	}
	if p.GetKind() == "" {
		return errors.New("platform: its kind is missing")
	}
	total := len(p.GetReport()) + len(p.GetQuote())
	for _, certificate := range p.GetCertificates() {
		if len(certificate) == 0 {
			return errors.New("platform: an empty certificate")
		}
		total += len(certificate)
	}
	return firstError(
		atMost("platform: kind", len(p.GetKind()), MaxPlatformKind),
		counted("platform: certificates", len(p.GetCertificates()), MaxPlatformCertificates),
		atMost("platform", total, MaxPlatform-1<<10),
	)
}

// counted fails if a list is longer than its limit.
func counted(name string, length, limit int) error {
	if length > limit {
		return fmt.Errorf("%s: %d, at most %d are allowed", name, length, limit)
	}
	return nil
}
