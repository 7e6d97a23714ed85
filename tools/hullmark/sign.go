package main

import (
	"bytes"
	"cmp"
	"crypto"
	"crypto/sha256"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"github.com/youmark/pkcs8"

	"github.com/hullmark/hullmark/internal/nodump"
	"github.com/hullmark/hullmark/measurements"
	"github.com/hullmark/hullmark/pcrs"
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
	document, err := readDocument(file)
	return func(key crypto.Signer) ([]byte, error) { return measurements.Sign(key, document) }, err
}

func readDocument(file string) (measurements.Document, error) {
	text, err := readBounded(file, measurements.MaxDocument)
	if err != nil {
		return measurements.Document{}, err
	}
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

// verifyOptions are the flags of `hullmark verify`.
type verifyOptions struct {
	key, image, sbom, cycloneDX, provenance, document, output string
}

// verified is what hullmark verify says, as JSON or as text.
type verified struct {
	// Document is the digest that names the document.
	Document measurements.DocumentID `json:"document"`
	Image    measurements.Image      `json:"image"`
	Release  string                  `json:"release"`
	SVN      uint32                  `json:"svn"`
	Builder  string                  `json:"builder,omitempty"`
	// Key is the kind of the key that signed, and Checked what was compared beside its signature: registers, image, sbom, cyclonedx.
	Key     string   `json:"key"`
	Checked []string `json:"checked"`
	// Provenance says where the image was built, if that was checked.
	Provenance *builtBy `json:"provenance,omitempty"`
	// registers is how many the document has; the text tells it.
	registers int
}

// builtBy is what a signed provenance says, in short.
type builtBy struct {
	Builder    string `json:"builder"`
	Invocation string `json:"invocation,omitempty"`
	Commit     string `json:"commit,omitempty"`
	Changed    bool   `json:"changed,omitempty"`
}

func newVerifyCommand() *cobra.Command {
	var o verifyOptions
	cmd := &cobra.Command{
		Use:   "verify FILE",
		Short: "Check a signed measurement document, offline",
		Long: `Check a signed measurement document, offline, and say what was checked.

Nothing but the file and the public key is needed. With --image the disk is compared with what was signed, with --sbom and --cyclonedx the bill of
materials; with --provenance a provenance that the same key signed has to be about the document's disk and lock. The document is written to --document,
for measure's peers, explain and init, only after everything was checked.

Exit codes: 0 all is right, 3 the image or a bill of materials is another than the signed one, or the provenance is of another image, 1 anything else is wrong, 2 usage.`,
		Example: "  hullmark verify node.dsse --key release.pub --image node.raw --document node.json",
		Args:    exactArg("verify", "the signed document"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.run(args[0], cmd.OutOrStdout())
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.key, "key", "", "public key `FILE` (PEM)")
	f.StringVar(&o.image, "image", "", "also compare this disk image `FILE`")
	f.StringVar(&o.sbom, "sbom", "", "also compare this bill of materials `FILE` (SPDX)")
	f.StringVar(&o.cycloneDX, "cyclonedx", "", "also compare this bill of materials `FILE` (CycloneDX)")
	f.StringVar(&o.provenance, "provenance", "", "also check this signed provenance `FILE`")
	f.StringVar(&o.document, "document", "", "write the verified document to `FILE`")
	f.StringVarP(&o.output, "output", "o", "text", "`FORMAT` of the output: text or json")
	require(cmd, "key")
	return cmd
}

func (o *verifyOptions) run(file string, out io.Writer) error {
	if err := checkOutput("verify", o.output); err != nil {
		return err
	}
	if err := notOver(o.document, file, o.key, o.image, o.sbom, o.cycloneDX, o.provenance); err != nil {
		return fmt.Errorf("verify: %w", err)
	}
	key, err := readPublicKey(o.key)
	if err != nil {
		return err
	}
	document, err := openSigned(file, key)
	if err != nil {
		return err
	}
	checked, err := o.compare(document)
	if err != nil {
		return err
	}
	provenance, err := o.checkProvenance(document, key)
	if err != nil {
		return err
	}
	if provenance != nil {
		checked = append(checked, "provenance")
	}
	encoded, err := document.Encode()
	if err != nil {
		return err
	}
	if o.document != "" {
		if err := writeWhole(o.document, encoded, 0o644); err != nil {
			return fmt.Errorf("verify: %w", err)
		}
	}
	return o.write(out, verified{
		Document: sha256.Sum256(encoded), Image: document.Image, Release: document.Name, SVN: document.SVN, Builder: document.Builder,
		Key: measurements.KeyKind(key), Checked: checked, Provenance: provenance, registers: len(document.Registers),
	})
}

// openSigned reads an envelope and the document in it, which the key has to have signed.
func openSigned(file string, key crypto.PublicKey) (measurements.Document, error) {
	signed, err := readBounded(file, measurements.MaxEnvelope)
	if err != nil {
		return measurements.Document{}, err
	}
	document, err := measurements.Open(signed, key)
	if err != nil && bytes.Contains(signed[:min(len(signed), 4096)], []byte(measurements.DocumentSchema)) {
		return document, fmt.Errorf("%s: it is a measurement document without a signature; hullmark sign makes one", file)
	}
	if err != nil {
		return document, fmt.Errorf("%s: %w", file, err)
	}
	return document, nil
}

// compare compares the named files with the document, and returns what was checked.
func (o *verifyOptions) compare(document measurements.Document) (checked []string, err error) {
	if o.image != "" {
		if err := compareFile(o.image, "disk", document.Image.Disk); err != nil {
			return nil, err
		}
		checked = append(checked, "image")
	}
	checked = append(checked, "registers") // when the document was opened
	if o.sbom != "" {
		if err := compareFile(o.sbom, "bill of materials", document.SBOM); err != nil {
			return nil, err
		}
		checked = append(checked, "sbom")
	}
	if o.cycloneDX != "" {
		if err := compareFile(o.cycloneDX, "CycloneDX bill of materials", document.CycloneDX); err != nil {
			return nil, err
		}
		checked = append(checked, "cyclonedx")
	}
	return checked, nil
}

// checkProvenance opens the named provenance, if there is one, and holds it against the document.
func (o *verifyOptions) checkProvenance(document measurements.Document, key crypto.PublicKey) (*builtBy, error) {
	if o.provenance == "" {
		return nil, nil
	}
	signed, err := readBounded(o.provenance, measurements.MaxEnvelope)
	if err != nil {
		return nil, err
	}
	p, err := measurements.OpenProvenance(signed, key)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", o.provenance, err)
	}
	if err := document.CheckProvenance(p); err != nil {
		return nil, withCode(exitMismatch, fmt.Errorf("%s: %w", o.provenance, err))
	}
	said := builtBy{Builder: p.Predicate.Run.Builder.ID}
	if p.Predicate.Run.Metadata != nil {
		said.Invocation = p.Predicate.Run.Metadata.InvocationID
	}
	said.Commit, said.Changed = p.Commit()
	return &said, nil
}

func (o *verifyOptions) write(out io.Writer, v verified) error {
	if o.output == "json" {
		return writeJSON(out, v)
	}
	checked := []string{
		fmt.Sprintf("signature   by the key in %s (%s)", o.key, v.Key),
		"statement   in-toto, about the disk and the kernel image of the document",
		fmt.Sprintf("registers   %d, each replayed from its events", v.registers),
	}
	if o.image != "" {
		checked = append(checked, "image       "+o.image+" is the signed disk, byte for byte")
	}
	if o.sbom != "" {
		checked = append(checked, "packages    "+o.sbom+" is the signed bill of materials, byte for byte")
	}
	if o.cycloneDX != "" {
		checked = append(checked, "packages    "+o.cycloneDX+" is the signed CycloneDX bill of materials, byte for byte")
	}
	if p := v.Provenance; p != nil {
		from := "no commit"
		if p.Commit != "" {
			from = "commit " + printable(p.Commit)
		}
		if p.Changed {
			from += ", with changes"
		}
		checked = append(checked, "provenance  of the signed disk, from "+from+", by "+printable(p.Builder))
	}
	_, err := fmt.Fprintf(out, "%s\n\nimage %s %s, release %s, security version %d, built by %s\nroot hash %v\ndocument %v\n",
		strings.Join(checked, "\n"), printable(v.Image.ID), printable(v.Image.Version), printable(v.Release), v.SVN,
		cmp.Or(printable(v.Builder), "an unnamed builder"), v.Image.RootHash, v.Document)
	return err
}

// compareFile compares a file with a signed digest; none means that nothing was signed.
func compareFile(file, what string, signed pcrs.Digest) error {
	got, err := digestOf(file)
	if err != nil {
		return fmt.Errorf("verify: %w", err)
	}
	if len(signed) == 0 {
		return withCode(exitMismatch, fmt.Errorf("%s: the document names no %s", file, what))
	}
	if !signed.Equal(got) {
		return withCode(exitMismatch, fmt.Errorf("%s: signed is a %s with sha256 %v, this one has %v", file, what, signed, got))
	}
	return nil
}
