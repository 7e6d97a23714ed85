package pemcert

import (
	"crypto/x509"
	"encoding/pem"
	"errors"
	"time"
)

// End returns when the first certificate in a text ends, which may hold keys, too, as a kubelet's file does.
func End(text []byte) (time.Time, error) {
	for {
		var block *pem.Block
		if block, text = pem.Decode(text); block == nil {
			return time.Time{}, errors.New("no certificate in PEM was found")
		}
		if block.Type != "CERTIFICATE" {
			continue
		}
		certificate, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return time.Time{}, err
		}
		return certificate.NotAfter, nil
	}
}
