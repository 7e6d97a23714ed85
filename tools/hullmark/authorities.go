package main

import (
	"crypto/x509"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/hullmark/hullmark/attest/verifier"
)

// authorityOptions are the flags that name the CAs of endorsement keys.
type authorityOptions struct {
	ca, root []string
}

func (o *authorityOptions) addFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringArrayVar(&o.ca, "ek-ca", nil, "`FILE` (PEM, or one certificate in DER) of CAs that sign the certificates of endorsement keys themselves; repeat for more")
	f.StringArrayVar(&o.root, "ek-root", nil, "`FILE` of roots to which those certificates lead by the ones that the TPM has of its maker's CAs; repeat for more")
}

// read reads the certificates of both kinds.
func (o *authorityOptions) read() (authorities, roots []*x509.Certificate, err error) {
	if authorities, err = readCertificates("--ek-ca", o.ca); err != nil {
		return nil, nil, err
	}
	roots, err = readCertificates("--ek-root", o.root)
	return authorities, roots, err
}

// readCertificates reads the files that a flag names.
func readCertificates(flag string, files []string) (all []*x509.Certificate, err error) {
	for _, file := range files {
		text, err := readBounded(file, maxCertificates)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", flag, err)
		}
		certificates, err := verifier.ParseAuthorities(text)
		if err != nil {
			return nil, fmt.Errorf("%s %s: %w", flag, file, err)
		}
		all = append(all, certificates...)
	}
	return all, nil
}

// maxCertificates bounds a file of certificates, in bytes.
const maxCertificates = 1 << 20

// encoded are certificates in DER.
func encoded(all []*x509.Certificate) (ders [][]byte) {
	for _, c := range all {
		ders = append(ders, c.Raw)
	}
	return ders
}
