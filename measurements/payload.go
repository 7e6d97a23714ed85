package measurements

import (
	"crypto"
	"fmt"
)

// Payload returns what was signed, byte for byte: the statement in an envelope of at most MaxEnvelope bytes, one of whose
// signatures has to be by public. Nothing of it is decoded; Open does that.
func Payload(signed []byte, public crypto.PublicKey) ([]byte, error) {
	payload, err := unseal(signed, public)
	if err != nil {
		return nil, fmt.Errorf("open signed statement: %w", err)
	}
	return payload, nil
}
