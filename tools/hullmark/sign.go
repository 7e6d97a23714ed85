package main

import (
	"bytes"
	"crypto"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"github.com/youmark/pkcs8"

	"github.com/hullmark/hullmark/internal/nodump"
	"github.com/hullmark/hullmark/measurements"
)

// maxKeyFile is the largest key file, in bytes.
const maxKeyFile = 1 << 16

// signOptions are the flags of `hullmark sign`.
type signOptions struct {
	key, passphraseFile, out string
}

func newSignCommand() *cobra.Command {
	var o signOptions
	cmd := &cobra.Command{
		Use:   "sign DOCUMENT",
		Short: "Sign a measurement document, or an image's provenance, for others",
		Long: `Sign a measurement document, or an image's provenance, for others.

A provenance is an in-toto statement already. The document becomes the predicate of an in-toto statement about its disk and its kernel image. Both come into a DSSE envelope. The key is an ECDSA P-256 or Ed25519
key in a PKCS #8 file, encrypted or not; openssl genpkey makes one.`,
		Example: "  openssl genpkey -algorithm ED25519 -aes256 -out release.key\n  openssl pkey -in release.key -pubout -out release.pub\n  hullmark sign out/node.json --key release.key",
		Args:    exactArg("sign", "the measurement document"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.run(args[0], cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.key, "key", "", "private key `FILE` (PEM, PKCS #8)")
	f.StringVar(&o.passphraseFile, "passphrase-file", "", "`FILE` whose first line is the key's passphrase (default: ask, if the key is encrypted)")
	f.StringVar(&o.out, "out", "", "`FILE` to write (default: DOCUMENT with the ending .dsse)")
	require(cmd, "key")
	return cmd
}

func (o *signOptions) run(file string, out, notes io.Writer) error {
	if err := notOver(o.out, file, o.key, o.passphraseFile); err != nil {
		return fmt.Errorf("sign: %w", err)
	}
	sign, err := readSignable(file)
	if err != nil {
		return err
	}
	key, err := readPrivateKey(o.key, o.passphraseFile, notes)
	if err != nil {
		return err
	}
	signed, err := sign(key)
	if err != nil {
		return err
	}
	to := o.out
	if to == "" {
		to = strings.TrimSuffix(file, ".json") + ".dsse"
	}
	if err := writeWhole(to, signed, 0o644); err != nil {
		return fmt.Errorf("sign: %w", err)
	}
	_, err = fmt.Fprintln(out, to)
	return err
}

// readSignable reads what can be signed, and returns what does it.
func readSignable(file string) (func(crypto.Signer) ([]byte, error), error) {
	text, err := readBounded(file, max(measurements.MaxDocument, measurements.MaxProvenance))
	if err != nil {
		return nil, err
	}
	if bytes.Contains(text, []byte(`"predicateType": "`+measurements.ProvenanceType+`"`)) {
		p, err := measurements.ParseProvenance(text)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		return func(key crypto.Signer) ([]byte, error) { return measurements.SignProvenance(key, p) }, nil
	}
	document, err := parseDocument(file, text)
	return func(key crypto.Signer) ([]byte, error) { return measurements.Sign(key, document) }, err
}

func readDocument(file string) (measurements.Document, error) {
	text, err := readBounded(file, measurements.MaxDocument)
	if err != nil {
		return measurements.Document{}, err
	}
	return parseDocument(file, text)
}

// parseDocument parses the content of that file.
func parseDocument(file string, text []byte) (measurements.Document, error) {
	document, err := measurements.Parse(text)
	if err != nil && bytes.Contains(text[:min(len(text), 4096)], []byte(`"payloadType"`)) {
		return document, fmt.Errorf("%s: it is a signed envelope; hullmark verify --document writes the document in it", file)
	}
	if err != nil {
		return document, fmt.Errorf("%s: %w", file, err)
	}
	return document, nil
}

// readPrivateKey reads a PKCS #8 key, and asks for its passphrase if it has one.
func readPrivateKey(file, passphraseFile string, notes io.Writer) (crypto.Signer, error) {
	if err := nodump.Process(); err != nil {
		return nil, err
	}
	block, err := readPEM(file)
	if err != nil {
		return nil, err
	}
	defer clear(block.Bytes)
	var passphrase []byte
	if block.Type == "ENCRYPTED PRIVATE KEY" {
		secret, err := readPassphrase(passphraseFile, notes, "Passphrase of "+file)
		if err != nil {
			return nil, err
		}
		defer secret.Wipe()
		passphrase = secret.Expose()
	}
	return parsePrivateKey(file, block, passphrase)
}

// parsePrivateKey parses a PKCS #8 key of that file; one that is not encrypted needs no passphrase.
func parsePrivateKey(file string, block *pem.Block, passphrase []byte) (crypto.Signer, error) {
	switch block.Type {
	case "PRIVATE KEY":
		passphrase = nil
	case "ENCRYPTED PRIVATE KEY":
	default:
		return nil, fmt.Errorf("%s: it holds a %q, want a PKCS #8 private key (openssl pkcs8 -topk8 makes one of others)", file, block.Type)
	}
	key, err := pkcs8.ParsePKCS8PrivateKey(block.Bytes, passphrase)
	if err != nil {
		if passphrase == nil {
			return nil, fmt.Errorf("%s: no private key can be read: it is damaged, or of another kind", file)
		}
		return nil, fmt.Errorf("%s: no private key can be read; is the passphrase right?", file)
	}
	signer, ok := key.(crypto.Signer)
	if !ok {
		return nil, fmt.Errorf("%s: a %T cannot sign", file, key)
	}
	return signer, nil
}

func readPublicKey(file string) (crypto.PublicKey, error) {
	block, err := readPEM(file)
	if err != nil {
		return nil, err
	}
	if block.Type != "PUBLIC KEY" {
		return nil, fmt.Errorf("%s: it holds a %q, want a public key (openssl pkey -pubout makes one)", file, block.Type)
	}
	key, err := x509.ParsePKIXPublicKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return key, nil
}

// readPEM reads a file that holds exactly one PEM block.
func readPEM(file string) (*pem.Block, error) {
	text, err := readBounded(file, maxKeyFile)
	if err != nil {
		return nil, err
	}
	block, rest := pem.Decode(text)
	if block != nil && block.Type == "EC PARAMETERS" { // openssl ecparam writes them before the key
		block, rest = pem.Decode(rest)
	}
	if block == nil || strings.TrimSpace(string(rest)) != "" {
		return nil, fmt.Errorf("%s: want one PEM block and nothing after it", file)
	}
	return block, nil
}
