package main

import (
	"context"
	"crypto/rsa"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/image/secureboot"
)

// keysOptions are the flags of `hullmark keys create` and `hullmark keys rotate`.
type keysOptions struct {
	name, passphraseFile string
	publicKey, signer    string // of a db key that is elsewhere
}

func newKeysCreateCommand() *cobra.Command {
	var o keysOptions
	cmd := &cobra.Command{
		Use:   "create DIR",
		Short: "Make the keys of Secure Boot, and the files that enrol them",
		Long: `Make the keys of Secure Boot, and the files that enrol them.

DIR gets a platform key (PK), a key exchange key (KEK) and a key for images (db), RSA of 2048 bits: NAME.key is the key (PKCS #8, encrypted), NAME.pem and
NAME.der its certificate, NAME.esl the signature list and NAME.auth the signed update of the firmware's variable. ` + varsFile + ` is a file of
variables for OVMF in which all three are enrolled.

With --public-key and --signer the key for images stays where it is: the command is asked to sign its certificate, as hullmark keys sign asks it to
sign images.`,
		Example: "  hullmark keys create keys\n  hullmark vm signed.raw --secure-boot --vars keys/" + varsFile,
		Args:    exactArg("keys create", "the folder to make"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.create(cmd.Context(), args[0], cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	o.register(cmd)
	cmd.Flags().StringVar(&o.name, "name", "Hullmark", "`NAME` that the certificates begin with, which firmware shows")
	return cmd
}

func newKeysRotateCommand() *cobra.Command {
	var o keysOptions
	cmd := &cobra.Command{
		Use:   "rotate OLD NEW",
		Short: "Make a new key for images, under the same PK and KEK",
		Long: `Make a new key for images, under the same PK and KEK.

NEW is a folder as hullmark keys create makes it. PK and KEK are those of OLD, with the same passphrase, which the new key gets too. Firmware takes its db.auth in
place of the old one, because the same KEK signed it later.`,
		Example: "  hullmark keys rotate keys keys-2027",
		Args:    exactArgs(2, "keys rotate", "the folder of keys and the one to make"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.rotate(cmd.Context(), args[0], args[1], cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	o.register(cmd)
	return cmd
}

func (o *keysOptions) register(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&o.passphraseFile, "passphrase-file", "", "`FILE` whose first line is the keys' passphrase (default: ask)")
	f.StringVar(&o.publicKey, "public-key", "", "public key `FILE` (PEM) of a key for images that is elsewhere")
	f.StringVar(&o.signer, "signer", "", "`COMMAND` that signs with that key")
}

// check refuses before any work what cannot be done.
func (o *keysOptions) check(dir string) error {
	if (o.publicKey == "") != (o.signer == "") {
		return withCode(exitUsage, errors.New("keys: a key that is elsewhere needs both --public-key and --signer"))
	}
	dir = filepath.Clean(dir)
	if _, err := os.Lstat(dir); err == nil {
		return fmt.Errorf("keys: %s exists already; keys are never overwritten", dir)
	}
	if _, err := os.Stat(filepath.Dir(dir)); err != nil {
		return fmt.Errorf("keys: %w", err)
	}
	return nil
}

func (o *keysOptions) create(ctx context.Context, dir string, out, notes io.Writer) error {
	if o.name == "" || len(o.name) > 50 || oneLine(o.name) != o.name {
		return withCode(exitUsage, fmt.Errorf("keys create: --name %q: want 1 to 50 printable bytes", o.name))
	}
	if err := o.check(dir); err != nil {
		return err
	}
	passphrase, err := newPassphrase(o.passphraseFile, notes)
	if err != nil {
		return err
	}
	defer passphrase.Wipe()
	var s keySet
	if s.image, err = o.imageKey(ctx, passphrase, notes); err != nil {
		return err
	}
	if s.platform, err = newBootKey(o.name, platformKey, passphrase); err != nil {
		return err
	}
	if s.exchange, err = newBootKey(o.name, exchangeKey, passphrase); err != nil {
		return err
	}
	return s.publish(dir, out)
}

func (o *keysOptions) rotate(ctx context.Context, old, dir string, out, notes io.Writer) error {
	if err := o.check(dir); err != nil {
		return err
	}
	passphrase, err := readPassphrase(o.passphraseFile, notes, "Passphrase of the keys in "+old)
	if err != nil {
		return err
	}
	defer passphrase.Wipe()
	var s keySet
	if s.platform, err = readBootKey(old, platformKey, passphrase); err != nil {
		return err
	}
	if s.exchange, err = readBootKey(old, exchangeKey, passphrase); err != nil {
		return err
	}
	before, err := readCertificate(filepath.Join(old, imageKey+".pem"))
	if err != nil {
		return err
	}
	if !time.Now().Truncate(time.Second).After(before.NotBefore) {
		return fmt.Errorf("keys rotate: %s is from %v, which is not over by this machine's clock; firmware would not take an older key in its place", old, before.NotBefore)
	}
	o.name = strings.TrimSuffix(before.Subject.CommonName, " "+imageKey)
	if s.image, err = o.imageKey(ctx, passphrase, notes); err != nil {
		return err
	}
	return s.publish(dir, out)
}

// publish writes the folder, and says what is in it.
func (s keySet) publish(dir string, out io.Writer) error {
	if err := s.write(dir); err != nil {
		return err
	}
	for _, k := range []bootKey{s.platform, s.exchange, s.image} {
		fmt.Fprintf(out, "%-4s %s, serial %x\n", k.name, oneLine(k.certificate.Subject.CommonName), k.certificate.SerialNumber)
	}
	_, err := fmt.Fprintln(out, filepath.Join(dir, varsFile))
	return err
}

// imageKey makes the key for images, or a certificate for the one that is elsewhere.
func (o *keysOptions) imageKey(ctx context.Context, passphrase hullmark.Secret, notes io.Writer) (bootKey, error) {
	if o.signer == "" {
		return newBootKey(o.name, imageKey, passphrase)
	}
	public, err := readPublicKey(o.publicKey)
	if err != nil {
		return bootKey{}, err
	}
	if key, ok := public.(*rsa.PublicKey); !ok || key.N.BitLen() < secureboot.MinBits {
		return bootKey{}, fmt.Errorf("%s: firmware takes RSA keys of at least %d bits, and this is no such key", o.publicKey, secureboot.MinBits)
	}
	return certify(o.name, imageKey, commandSigner{ctx: ctx, command: o.signer, public: public, notes: notes})
}
