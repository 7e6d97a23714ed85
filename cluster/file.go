package cluster

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"strconv"
	"time"

	"filippo.io/age"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/internal/atomicfile"
)

// ErrPassphrase says that a passphrase does not open a file.
var ErrPassphrase = errors.New("the passphrase does not open it")

// File is a cluster file: a Cluster encrypted in the age format (age-encryption.org/v1), under a passphrase or, if it was lent,
// sealed to whoever borrows it. It is not safe for concurrent use.
type File struct {
	// Cluster is the content as it was read or last written; change it by Update only.
	Cluster *Cluster

	key   key
	store Store
}

// key is what a file is encrypted under.
type key interface {
	// encrypt and decrypt are File.Encrypt and File.Decrypt.
	encrypt(w io.Writer) (io.WriteCloser, error)
	decrypt(r io.Reader) (io.Reader, error)
}

// Store is where a cluster file lies.
type Store interface {
	// Replace puts an encrypted content in the place of the one that was read or written last. It returns once that is safe, and
	// fails if somebody else has changed it since.
	Replace(encrypted []byte) error
}

// onDisk is a file's place on disk.
type onDisk struct {
	path string
	// seen is the SHA-256 of the encrypted file that was read or written last.
	seen [sha256.Size]byte
}

// passphrase is a file's, with its work factor.
type passphrase struct {
	secret     hullmark.Secret
	workFactor int
}

// WorkFactor is the work factor for people's passphrases, scrypt's log2 N: one guess costs about a second.
const WorkFactor = 18

// maxWorkFactor is the highest that is opened: a guess of some seconds and 1 GiB.
const maxWorkFactor = 20

// Create writes a new cluster file, which must not exist yet, and returns it
// once it is safely on disk. The file keeps its work factor, which is
// WorkFactor in all but tests.
func Create(path string, secret hullmark.Secret, c *Cluster, workFactor int) (*File, error) {
	if secret.Len() == 0 {
		return nil, errors.New("create cluster file: the passphrase is empty")
	}
	return create(path, passphrase{secret, workFactor}, c)
}

func create(path string, k key, c *Cluster) (*File, error) {
	place := &onDisk{path: path}
	f := &File{Cluster: c, key: k, store: place}
	encrypted, err := f.encrypt(c)
	if err != nil {
		return nil, fmt.Errorf("create cluster file: %w", err)
	}
	if err := place.write(encrypted, atomicfile.Options{Mode: 0o600, New: true}); err != nil {
		return nil, fmt.Errorf("create cluster file: %w", err)
	}
	return f, nil
}

// Open reads a cluster file. A wrong passphrase is ErrPassphrase.
func Open(path string, secret hullmark.Secret) (*File, error) {
	return openFile(path, func(encrypted []byte) (key, error) {
		workFactor, err := readWorkFactor(encrypted)
		return passphrase{secret, workFactor}, err
	})
}

// openFile reads a file, for which keyOf finds the key.
func openFile(path string, keyOf func(encrypted []byte) (key, error)) (*File, error) {
	encrypted, err := atomicfile.Read(path, maxFile)
	if err != nil {
		return nil, fmt.Errorf("cluster file: %w", err)
	}
	k, err := keyOf(encrypted)
	if err != nil {
		return nil, fmt.Errorf("cluster file %s: %w", path, err)
	}
	f := &File{key: k, store: &onDisk{path, sha256.Sum256(encrypted)}}
	if err := f.read(encrypted); err != nil {
		return nil, fmt.Errorf("cluster file %s: %w", path, err)
	}
	return f, nil
}

// read takes the content of what is encrypted.
func (f *File) read(encrypted []byte) error {
	plain, err := decrypt(encrypted, f.key)
	if err != nil {
		return err
	}
	defer clear(plain)
	f.Cluster, err = decode(plain)
	return err
}

// readWorkFactor reads the second line of an age file: "-> scrypt SALT FACTOR".
func readWorkFactor(encrypted []byte) (int, error) {
	_, rest, _ := bytes.Cut(encrypted, []byte("\n"))
	line, _, _ := bytes.Cut(rest, []byte("\n"))
	fields := bytes.Fields(line)
	if len(fields) != 4 || string(fields[1]) != "scrypt" {
		return 0, errors.New("this is no file that is encrypted under a passphrase")
	}
	factor, err := strconv.Atoi(string(fields[3]))
	if err != nil || factor < 1 || factor > maxWorkFactor {
		return 0, fmt.Errorf("work factor %q: want a number up to %d", fields[3], maxWorkFactor)
	}
	return factor, nil
}

// Update lets change edit a copy of the cluster's records, counts the change and writes the
// result. It returns once the file is safely on disk; until then nothing that
// depends on the change may leave this process. A file that another process
// changed since it was read is left alone.
func (f *File) Update(change func(*Cluster) error) error {
	next := *f.Cluster
	next.Epochs = maps.Clone(f.Cluster.Epochs)
	if f.Cluster.First != nil {
		record := *f.Cluster.First
		next.First = &record
	}
	if err := change(&next); err != nil {
		return err
	}
	next.count(time.Now())
	encrypted, err := f.encrypt(&next)
	if err != nil {
		return fmt.Errorf("update cluster file: %w", err)
	}
	if err := f.store.Replace(encrypted); err != nil {
		return fmt.Errorf("update cluster file: %w", err)
	}
	f.Cluster = &next
	return nil
}

// Replace implements Store.
func (p *onDisk) Replace(encrypted []byte) error {
	return p.write(encrypted, atomicfile.Options{Mode: 0o600, Check: p.unchanged})
}

// unchanged refuses another file than the very one that was read.
func (p *onDisk) unchanged() error {
	current, err := atomicfile.Read(p.path, maxFile)
	if err != nil {
		return err
	}
	if sha256.Sum256(current) != p.seen {
		return fmt.Errorf("%s: another process changed it meanwhile; run the command again", p.path)
	}
	return nil
}

func (p *onDisk) write(encrypted []byte, o atomicfile.Options) error {
	err := atomicfile.Stream(p.path, o, func(file *os.File) error {
		_, err := file.Write(encrypted)
		return err
	})
	if err == nil {
		p.seen = sha256.Sum256(encrypted)
	}
	return err
}

func (f *File) encrypt(c *Cluster) ([]byte, error) {
	plain, err := c.encode()
	if err != nil {
		return nil, err
	}
	defer clear(plain)
	return encrypt(plain, f.key)
}

// EncryptUnder encrypts what is kept beside a cluster file under a passphrase of its own, in a cluster file's format.
func EncryptUnder(secret hullmark.Secret, workFactor int, plain []byte) ([]byte, error) {
	if secret.Len() == 0 {
		return nil, errors.New("the passphrase is empty")
	}
	return encrypt(plain, passphrase{secret, workFactor})
}

// DecryptUnder reads what EncryptUnder wrote. Another passphrase is ErrPassphrase.
func DecryptUnder(secret hullmark.Secret, encrypted []byte) ([]byte, error) {
	workFactor, err := readWorkFactor(encrypted)
	if err != nil {
		return nil, err
	}
	return decrypt(encrypted, passphrase{secret, workFactor})
}

// Encrypt encrypts what is kept beside the cluster file, in its format and under its key. Only what was closed without
// an error is whole.
func (f *File) Encrypt(w io.Writer) (io.WriteCloser, error) { return f.key.encrypt(w) }

// Decrypt reads what Encrypt wrote. Another passphrase is ErrPassphrase.
func (f *File) Decrypt(r io.Reader) (io.Reader, error) { return f.key.decrypt(r) }

func (p passphrase) encrypt(w io.Writer) (io.WriteCloser, error) {
	recipient, err := age.NewScryptRecipient(string(p.secret.Expose()))
	if err != nil {
		return nil, err
	}
	recipient.SetWorkFactor(p.workFactor)
	return age.Encrypt(w, recipient)
}

func (p passphrase) decrypt(r io.Reader) (io.Reader, error) {
	identity, err := age.NewScryptIdentity(string(p.secret.Expose()))
	if err != nil {
		return nil, err
	}
	identity.SetMaxWorkFactor(maxWorkFactor)
	reader, err := age.Decrypt(r, identity)
	var mismatch *age.NoIdentityMatchError
	if errors.As(err, &mismatch) {
		return nil, ErrPassphrase
	}
	return reader, err
}

func encrypt(plain []byte, k key) ([]byte, error) {
	var out bytes.Buffer
	writer, err := k.encrypt(&out)
	if err != nil {
		return nil, err
	}
	if _, err := writer.Write(plain); err != nil {
		return nil, err
	}
	if err := writer.Close(); err != nil {
		return nil, err
	}
	if out.Len() > maxFile {
		return nil, fmt.Errorf("the file would have %d bytes, and more than %d are never read; remove documents from the policy", out.Len(), maxFile)
	}
	return out.Bytes(), nil
}

func decrypt(encrypted []byte, k key) ([]byte, error) {
	reader, err := k.decrypt(bytes.NewReader(encrypted))
	if err != nil {
		return nil, err
	}
	// It is shorter than what it was encrypted to, so that the buffer does not grow: copies would stay behind.
	plain := bytes.NewBuffer(make([]byte, 0, len(encrypted)+bytes.MinRead))
	if _, err := plain.ReadFrom(reader); err != nil {
		clear(plain.Bytes())
		return nil, fmt.Errorf("decrypt: %w", err)
	}
	return plain.Bytes(), nil
}
