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

	"filippo.io/age"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/internal/atomicfile"
)

// ErrPassphrase says that a passphrase does not open a file.
var ErrPassphrase = errors.New("the passphrase does not open it")

// File is a cluster file: a Cluster encrypted under a passphrase in the age
// format (age-encryption.org/v1, scrypt recipient). It is not safe for concurrent use.
type File struct {
	// Cluster is the content as it was read or last written; change it by Update only.
	Cluster *Cluster

	path       string
	passphrase hullmark.Secret
	workFactor int
	// seen is the SHA-256 of the encrypted file that Cluster is the content of.
	seen [sha256.Size]byte
}

// WorkFactor is the work factor for people's passphrases, scrypt's log2 N: one guess costs about a second.
const WorkFactor = 18

// maxWorkFactor is the highest that is opened: a guess of some seconds and 1 GiB.
const maxWorkFactor = 20

// Create writes a new cluster file, which must not exist yet, and returns it
// once it is safely on disk. The file keeps its work factor, which is
// WorkFactor in all but tests.
func Create(path string, passphrase hullmark.Secret, c *Cluster, workFactor int) (*File, error) {
	f := &File{Cluster: c, path: path, passphrase: passphrase, workFactor: workFactor}
	if passphrase.Len() == 0 {
		return nil, errors.New("create cluster file: the passphrase is empty")
	}
	encrypted, err := f.encrypt(c)
	if err != nil {
		return nil, fmt.Errorf("create cluster file: %w", err)
	}
	if err := f.write(encrypted, atomicfile.Options{Mode: 0o600, New: true}); err != nil {
		return nil, fmt.Errorf("create cluster file: %w", err)
	}
	return f, nil
}

// Open reads a cluster file. A wrong passphrase is ErrPassphrase.
func Open(path string, passphrase hullmark.Secret) (*File, error) {
	f := &File{path: path, passphrase: passphrase}
	encrypted, err := readFile(path)
	if err != nil {
		return nil, fmt.Errorf("cluster file: %w", err)
	}
	f.seen = sha256.Sum256(encrypted)
	if f.workFactor, err = readWorkFactor(encrypted); err != nil {
		return nil, fmt.Errorf("cluster file %s: %w", path, err)
	}
	plain, err := decrypt(encrypted, passphrase)
	if err != nil {
		return nil, fmt.Errorf("cluster file %s: %w", path, err)
	}
	defer clear(plain)
	if f.Cluster, err = decode(plain); err != nil {
		return nil, fmt.Errorf("cluster file %s: %w", path, err)
	}
	return f, nil
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

func readFile(path string) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	content, err := io.ReadAll(io.LimitReader(file, maxFile+1))
	if err == nil && len(content) > maxFile {
		err = fmt.Errorf("%s: more than %d bytes", path, maxFile)
	}
	return content, err
}

// Update lets change edit a copy of the cluster's records and writes the
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
	encrypted, err := f.encrypt(&next)
	if err != nil {
		return fmt.Errorf("update cluster file: %w", err)
	}
	if err := f.write(encrypted, atomicfile.Options{Mode: 0o600, Check: f.unchanged}); err != nil {
		return fmt.Errorf("update cluster file: %w", err)
	}
	f.Cluster = &next
	return nil
}

// unchanged refuses another file than the very one that was read.
func (f *File) unchanged() error {
	current, err := readFile(f.path)
	if err != nil {
		return err
	}
	if sha256.Sum256(current) != f.seen {
		return fmt.Errorf("%s: another process changed it meanwhile; run the command again", f.path)
	}
	return nil
}

func (f *File) write(encrypted []byte, o atomicfile.Options) error {
	err := atomicfile.Stream(f.path, o, func(file *os.File) error {
		_, err := file.Write(encrypted)
		return err
	})
	if err == nil {
		f.seen = sha256.Sum256(encrypted)
	}
	return err
}

func (f *File) encrypt(c *Cluster) ([]byte, error) {
	plain, err := c.encode()
	if err != nil {
		return nil, err
	}
	defer clear(plain)
	var out bytes.Buffer
	writer, err := f.Encrypt(&out)
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
		return nil, fmt.Errorf("the cluster file would have %d bytes, and more than %d are never read; remove documents from the policy", out.Len(), maxFile)
	}
	return out.Bytes(), nil
}

// Encrypt encrypts what is kept beside the cluster file, in its format and under its passphrase. Only what was closed without
// an error is whole.
func (f *File) Encrypt(w io.Writer) (io.WriteCloser, error) {
	recipient, err := age.NewScryptRecipient(string(f.passphrase.Expose()))
	if err != nil {
		return nil, err
	}
	recipient.SetWorkFactor(f.workFactor)
	return age.Encrypt(w, recipient)
}

// Decrypt reads what Encrypt wrote. Another passphrase is ErrPassphrase.
func (f *File) Decrypt(r io.Reader) (io.Reader, error) { return open(r, f.passphrase) }

func open(r io.Reader, passphrase hullmark.Secret) (io.Reader, error) {
	identity, err := age.NewScryptIdentity(string(passphrase.Expose()))
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

func decrypt(encrypted []byte, passphrase hullmark.Secret) ([]byte, error) {
	reader, err := open(bytes.NewReader(encrypted), passphrase)
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
