package main

import (
	"bytes"
	"context"
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/hullmark/hullmark/image"
	"github.com/hullmark/hullmark/image/pe"
	"github.com/hullmark/hullmark/image/secureboot"
	"github.com/hullmark/hullmark/image/uki"
)

// keysSignOptions are the flags of `hullmark keys sign`.
type keysSignOptions struct {
	certificate, out        string
	key, passphraseFile     string
	signer                  string
	request, signature      string
	keepEarlier, replaceOld bool
}

func newKeysSignCommand() *cobra.Command {
	var o keysSignOptions
	cmd := &cobra.Command{
		Use:   "sign FILE --certificate FILE (--key FILE | --signer COMMAND | --request FILE | --signature FILE)",
		Short: "Sign the kernel image of a disk, or an addon, for Secure Boot",
		Long: `Sign the kernel image of a disk, or an addon, for Secure Boot.

FILE is a disk image, whose kernel image is signed, or a PE image such as an addon. The result is another file. A signature has no time, so the same
key gives the same bytes. Of a disk nothing changes but the ESP.

The key is a file (--key), or elsewhere. --signer names a command of the shell, which gets a message on standard input and answers on standard output with
its raw signature: RSASSA-PKCS1-v1_5 with SHA-256. --request writes that message to a file, and --signature takes the answer, for a machine without
a network. Whatever signed, the signature is checked with the certificate before anything is written.`,
		Example: "  hullmark keys sign out/hullmark.raw --certificate keys/db.pem --key keys/db.key --out signed.raw\n" +
			"  hullmark keys sign out/hullmark.raw --certificate db.pem --signer 'PIN=$(cat pin) pkcs11-tool --module token.so --login --pin env:PIN --label db --sign -m SHA256-RSA-PKCS' --out signed.raw\n" +
			"  hullmark keys sign out/hullmark.raw --certificate db.pem --request db.request",
		Args: exactArg("keys sign", "the disk image or addon"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.run(cmd.Context(), args[0], cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.certificate, "certificate", "", "certificate `FILE` (PEM) of the key, as it is in db")
	f.StringVar(&o.out, "out", "", "`FILE` to write")
	f.StringVar(&o.key, "key", "", "private key `FILE` (PEM, PKCS #8)")
	f.StringVar(&o.passphraseFile, "passphrase-file", "", "`FILE` whose first line is the key's passphrase (default: ask, if the key is encrypted)")
	f.StringVar(&o.signer, "signer", "", "`COMMAND` that signs")
	f.StringVar(&o.request, "request", "", "only write what has to be signed to `FILE`")
	f.StringVar(&o.signature, "signature", "", "`FILE` with the raw signature over that")
	f.BoolVar(&o.keepEarlier, "add", false, "where it is signed already: keep those signatures, and add one")
	f.BoolVar(&o.replaceOld, "replace", false, "where it is signed already: replace those signatures")
	require(cmd, "certificate")
	cmd.MarkFlagsOneRequired("key", "signer", "request", "signature")
	cmd.MarkFlagsMutuallyExclusive("key", "signer", "request", "signature")
	cmd.MarkFlagsMutuallyExclusive("add", "replace")
	cmd.MarkFlagsMutuallyExclusive("out", "request")
	cmd.MarkFlagsOneRequired("out", "request")
	return cmd
}

func (o *keysSignOptions) run(ctx context.Context, file string, out, notes io.Writer) error {
	to := o.out + o.request
	if err := notOver(to, file, o.certificate, o.key, o.passphraseFile, o.signature); err != nil {
		return fmt.Errorf("keys sign: %w", err)
	}
	certificate, err := readCertificate(o.certificate)
	if err != nil {
		return err
	}
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	subject, message, err := o.open(f)
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	if o.request != "" {
		err = writeWhole(o.request, message, 0o644)
	} else {
		err = o.sign(ctx, subject, message, certificate, notes)
	}
	if err != nil {
		return fmt.Errorf("keys sign: %w", err)
	}
	_, err = fmt.Fprintln(out, to)
	return err
}

// open reads what is to be signed, and says which bytes the key has to sign for it.
func (o *keysSignOptions) open(f *os.File) (s subject, message []byte, err error) {
	if s, err = openSubject(f); err != nil {
		return s, nil, err
	}
	if s.image, err = o.withoutSignatures(s.image); err != nil {
		return s, nil, err
	}
	message, err = secureboot.Message(s.image)
	return s, message, err
}

// sign writes the subject with its image signed.
func (o *keysSignOptions) sign(ctx context.Context, s subject, message []byte, certificate *x509.Certificate, notes io.Writer) error {
	signature, err := o.ask(ctx, certificate, message, notes)
	if err != nil {
		return err
	}
	signed, err := secureboot.Attach(s.image, certificate, signature)
	if errors.Is(err, secureboot.ErrSignature) {
		return fmt.Errorf("%s: %w %s: want %d bytes of RSASSA-PKCS1-v1_5 with SHA-256, not encoded; these are %d",
			o.source(), err, o.certificate, certificate.PublicKey.(*rsa.PublicKey).Size(), len(signature))
	}
	if err != nil {
		return err
	}
	return s.write(o.out, signed)
}

// source names where the signature is from.
func (o *keysSignOptions) source() string {
	if o.signer != "" {
		return fmt.Sprintf("signer %q", o.signer)
	}
	return o.key + o.signature
}

// ask lets the key, wherever it is, sign the message.
func (o *keysSignOptions) ask(ctx context.Context, certificate *x509.Certificate, message []byte, notes io.Writer) ([]byte, error) {
	if o.signature != "" {
		return readBounded(o.signature, maxSignature)
	}
	var key crypto.Signer = commandSigner{ctx: ctx, command: o.signer, public: certificate.PublicKey, notes: notes}
	if o.key != "" {
		var err error
		if key, err = readPrivateKey(o.key, o.passphraseFile, notes); err != nil {
			return nil, err
		}
		if !certificate.PublicKey.(*rsa.PublicKey).Equal(key.Public()) {
			return nil, fmt.Errorf("%s: it is not the key of the certificate %s", o.key, o.certificate)
		}
	}
	return crypto.SignMessage(key, rand.Reader, message, crypto.SHA256)
}

// withoutSignatures returns the image that a signature is added to.
func (o *keysSignOptions) withoutSignatures(signed []byte) ([]byte, error) {
	f, err := pe.Parse(bytes.NewReader(signed), int64(len(signed)))
	if err != nil {
		return nil, err
	}
	earlier, err := f.Signatures()
	switch {
	case err != nil:
		return nil, err
	case len(earlier) == 0 || o.keepEarlier || o.request != "":
		return signed, nil
	case o.replaceOld:
		return pe.WithSignatures(signed)
	}
	return nil, errors.New("it is signed already; sign the unsigned one, or say what becomes of the signatures it has (--add, --replace)")
}

// subject is what is signed: a PE image, and the disk that it is on.
type subject struct {
	disk  *image.Disk // nil for a PE image alone
	image []byte
}

// openSubject reads a disk image, whose content has to have its own root hash, or a PE image.
func openSubject(f *os.File) (subject, error) {
	var magic [2]byte
	if _, err := f.ReadAt(magic[:], 0); err != nil {
		return subject{}, fmt.Errorf("neither a disk image nor a PE image: %w", err)
	}
	if string(magic[:]) == "MZ" {
		content, err := readBounded(f.Name(), uki.MaxSize)
		return subject{image: content}, err
	}
	info, err := f.Stat()
	if err != nil {
		return subject{}, err
	}
	disk, err := image.Open(f, info.Size())
	if err != nil {
		return subject{}, err
	}
	return subject{disk, disk.UKIBytes}, disk.Verify()
}

// write writes the subject with the signed image in place of its own.
func (s subject) write(file string, signed []byte) error {
	if s.disk == nil {
		return writeWhole(file, signed, 0o644)
	}
	layout, err := s.disk.WithUKI(signed)
	if err != nil {
		return err
	}
	return replace(file, 0o644, func(f *os.File) error { return layout.WriteInto(f) })
}
