// Package pemcert reads certificates in PEM (RFC 7468), as operators hand them over.
package pemcert

import (
	"bytes"
	"encoding/pem"
	"errors"
	"fmt"
)

// Split returns the content (DER) of the certificates in a text, of which there is at least one. Words before a certificate are
// passed over, as many tools write some; whatever else is there is an error, so that a text that was cut off is noticed.
func Split(text []byte) (certificates [][]byte, err error) {
	for rest := text; len(bytes.TrimSpace(rest)) > 0; {
		before := rest
		var block *pem.Block
		block, rest = pem.Decode(before)
		switch read := before[:len(before)-len(rest)]; {
		case block == nil && len(certificates) == 0:
			return nil, errors.New("no certificate in PEM was found")
		case block == nil, bytes.Count(read, []byte("-----BEGIN ")) != 1:
			return nil, errors.New("beside certificates in PEM there is something else, or one of them was cut off")
		case block.Type != "CERTIFICATE":
			return nil, fmt.Errorf("a PEM block of type %q, want CERTIFICATE", block.Type)
		}
		certificates = append(certificates, block.Bytes)
	}
	if len(certificates) == 0 {
		return nil, errors.New("no certificate in PEM was found")
	}
	return certificates, nil
}
