package wire

import (
	"crypto/sha256"
	"fmt"

	"google.golang.org/protobuf/proto"
)

// CheckEpochFromNode enforces the limits of EpochAsk or EpochStored, before it is used. A claim inside is only bounded:
// DecodeEpochClaim looks into it.
func CheckEpochFromNode(m *EpochFromNode) error {
	err := strict(m.ProtoReflect())
	switch kind := m.GetMessage().(type) {
	case *EpochFromNode_Ask:
		err = firstError(err, atMost("claim", len(kind.Ask.GetClaim()), MaxEpochClaim), exactly("mac", len(kind.Ask.GetMac()), sha256.Size))
	case *EpochFromNode_Stored:
	default:
		err = firstError(err, errEmpty)
	}
	if err != nil {
		return fmt.Errorf("message from the node: %w", err)
	}
	return nil
}

// CheckEpochFromService enforces the limits of EpochIssued, EpochCommitted or a denial, before it is used.
func CheckEpochFromService(m *EpochFromService) error {
	err := strict(m.ProtoReflect())
	switch kind := m.GetMessage().(type) {
	case *EpochFromService_Issued, *EpochFromService_Committed:
	case *EpochFromService_Denied:
		err = firstError(err, checkCauses(kind.Denied))
	default:
		err = firstError(err, errEmpty)
	}
	if err != nil {
		return fmt.Errorf("message from the service: %w", err)
	}
	return nil
}

// DecodeEpochClaim strictly decodes what EpochAsk authenticates. An error leaves nothing to use.
func DecodeEpochClaim(raw []byte) (*EpochClaim, error) {
	c := &EpochClaim{}
	err := atMost("claim", len(raw), MaxEpochClaim)
	if err == nil {
		err = proto.Unmarshal(raw, c)
	}
	if err == nil {
		err = firstError(
			strict(c.ProtoReflect()),
			exactly("ekid", len(c.GetEkid()), 32), exactly("uuid", len(c.GetUuid()), 16), exactly("owner", len(c.GetOwner()), 32))
	}
	if err != nil {
		return nil, fmt.Errorf("decode epoch claim: %w", err)
	}
	return c, nil
}
