package pemcert

import (
	"crypto/x509"
	"encoding/pem"
	"errors"
	"time"
)

// End returns when the first certificate in a text ends, which may hold keys, too, as a kubelet's file does.
func End(text []byte) (time.Time, error) {
	_, end, err := Span(text)
	return end, err
}

// Span is End that also says when the certificate begins.
func Span(text []byte) (begin, end time.Time, err error) {
	certificate, err := First(text)
	if err != nil {
		return begin, end, err
	}
	return certificate.NotBefore, certificate.NotAfter, nil
}

// First returns the first certificate in such a text.
func First(text []byte) (*x509.Certificate, error) {
	for {
		var block *pem.Block
		if block, text = pem.Decode(text); block == nil {
			return nil, errors.New("no certificate in PEM was found")
		}
		if block.Type == "CERTIFICATE" {
			return x509.ParseCertificate(block.Bytes)
		}
	}
}
