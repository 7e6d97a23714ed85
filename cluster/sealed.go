package cluster

import (
	"bytes"
	"errors"
	"fmt"
	"io"

	"filippo.io/age"

	"github.com/hullmark/hullmark/internal/atomicfile"
)

// ErrSealed says that a file is not sealed to whoever wants to open it.
var ErrSealed = errors.New("it is sealed to somebody else")

// sealedTo is the key of a file that was lent to somebody who has an age identity: no passphrase has to be kept or told.
type sealedTo struct {
	// recipients are whoever borrows the file, and whoever lent it.
	recipients []age.Recipient
	// identity is that of whoever opened it; nil of a file that was only made.
	identity age.Identity
}

func (s sealedTo) encrypt(w io.Writer) (io.WriteCloser, error) {
	return age.Encrypt(w, s.recipients...)
}

func (s sealedTo) decrypt(r io.Reader) (io.Reader, error) {
	reader, err := age.Decrypt(r, s.identity)
	var mismatch *age.NoIdentityMatchError
	if errors.As(err, &mismatch) {
		return nil, ErrSealed
	}
	return reader, err
}

// CreateSealed writes a new file that was lent, sealed to the age recipient of whoever borrows it, and to whoever lent it.
func CreateSealed(path string, recipient *age.X25519Recipient, lent *Cluster) error {
	if lent.Lease == nil {
		return errors.New("create cluster file: only one that is lent can be sealed to a recipient")
	}
	recipients, err := lent.Lease.sealedTo(recipient)
	if err != nil {
		return fmt.Errorf("create cluster file: %w", err)
	}
	_, err = create(path, sealedTo{recipients: recipients}, lent)
	return err
}

// sealedTo are those who can open the file.
func (l *Lease) sealedTo(borrower *age.X25519Recipient) ([]age.Recipient, error) {
	lender, err := age.ParseX25519Recipient(l.Lender)
	return []age.Recipient{borrower, lender}, err
}

// OpenSealed reads what CreateSealed wrote, wherever it lies, for whoever borrowed it. A file that is sealed to somebody else is ErrSealed.
func OpenSealed(encrypted []byte, identity *age.X25519Identity, store Store) (*File, error) {
	if len(encrypted) > maxFile {
		return nil, fmt.Errorf("cluster file: more than %d bytes", maxFile)
	}
	f := &File{key: sealedTo{identity: identity}, store: store}
	if err := f.read(encrypted); err != nil {
		return nil, fmt.Errorf("cluster file: %w", err)
	}
	if f.Cluster.Lease == nil {
		return nil, errors.New("cluster file: it was not lent, so it has to be under a passphrase")
	}
	recipients, err := f.Cluster.Lease.sealedTo(identity.Recipient())
	f.key = sealedTo{recipients: recipients, identity: identity}
	return f, err
}

// OpenLent reads a sealed file that this cluster's lent.
func (c *Cluster) OpenLent(path string) (*File, error) {
	if c.lender == nil {
		return nil, errors.New("this cluster's file was lent to nobody")
	}
	return openFile(path, func([]byte) (key, error) { return sealedTo{identity: c.lender}, nil })
}

// IsSealed reports whether a file is sealed to somebody, and not under a passphrase.
func IsSealed(path string) (bool, error) {
	encrypted, err := atomicfile.Read(path, maxFile)
	return bytes.HasPrefix(encrypted, []byte("age-encryption.org/v1\n-> X25519 ")), err
}
