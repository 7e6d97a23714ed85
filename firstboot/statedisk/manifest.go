package statedisk

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"slices"
	"syscall"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/internal/atomicfile"
)

// ManifestFile holds the epoch and the small files that security rests on, relative to the file system's root.
const ManifestFile = AgentDir + "/manifest"

// MaxManifest is the largest manifest, in bytes.
const MaxManifest = 32 << 20

const (
	manifestMagic   = "hullmark-kept\x00\x00\x00"
	manifestVersion = 1
	manifestHeader  = 48 // magic, version, uuid, epoch, number of files
	fileHeader      = 8  // length of the name, mode, length of the content
	maxKeptName     = 255
)

// manifestKeyInfo names the key that authenticates the manifest.
const manifestKeyInfo = "hullmark/v1/manifest\x00"

// LastBoot names the note in which the helper keeps when the disk was last opened, in RFC 3339.
const LastBoot = "agent/last-boot"

// Manifest is one state of a disk: how recent it is, and all that a node believes of its own disk before anybody else tells it.
// It is stored whole, so that an old file can only come back with the old epoch. The epoch is authenticated, and in no key.
type Manifest struct {
	Disk  hullmark.UUID
	Epoch uint64
	// Files are named as AgentFile, and the agent, say.
	Files map[string]KeptFile
}

// KeptFile is one of a manifest's.
type KeptFile struct {
	// Mode are permission bits.
	Mode    uint16
	Content []byte
}

// ManifestKey derives from a disk's key the one that authenticates its manifest.
func ManifestKey(disk hullmark.Secret) (hullmark.Secret, error) {
	return disk.Derive(manifestKeyInfo, sha256.Size)
}

// Joined reports whether the agent recorded a finished kubeadm run.
func (m Manifest) Joined() bool { return string(m.Files[IntentFile].Content) == IntentDone }

// Wipe overwrites the content of all files: keys are among them.
func (m Manifest) Wipe() {
	for _, f := range m.Files {
		clear(f.Content)
	}
}

// Encode returns the form that DecodeManifest reads (docs/state-disk.md, The manifest). The caller wipes it.
func (m Manifest) Encode(key hullmark.Secret) ([]byte, error) {
	size := manifestHeader + sha256.Size
	for name, f := range m.Files {
		if err := checkKept(name, f.Mode); err != nil {
			return nil, fmt.Errorf("encode manifest: %w", err)
		}
		size += fileHeader + len(name) + len(f.Content)
	}
	if size > MaxManifest {
		return nil, fmt.Errorf("encode manifest: %d bytes, at most %d are allowed", size, MaxManifest)
	}
	be, b := binary.BigEndian, make([]byte, 0, size) // Never grown: a copy of a key would stay behind.
	b = be.AppendUint32(append(b, manifestMagic...), manifestVersion)
	b = be.AppendUint64(append(b, m.Disk[:]...), m.Epoch)
	b = be.AppendUint32(b, uint32(len(m.Files)))
	for _, name := range slices.Sorted(maps.Keys(m.Files)) {
		f := m.Files[name]
		b = be.AppendUint16(be.AppendUint16(b, uint16(len(name))), f.Mode)
		b = append(be.AppendUint32(b, uint32(len(f.Content))), name...)
		b = append(b, f.Content...)
	}
	return append(b, mac(key, b)...), nil
}

func checkKept(name string, mode uint16) error {
	if !fs.ValidPath(name) || name == "." || len(name) > maxKeptName || mode&^0o777 != 0 {
		return fmt.Errorf("file %.80q with mode %o: want a relative path and permission bits", name, mode)
	}
	return nil
}

// DecodeManifest reads a manifest that was written under the key: ErrMAC says that it was not, or was changed. What it
// returns keeps b's memory.
func DecodeManifest(b []byte, key hullmark.Secret) (Manifest, error) {
	end := len(b) - sha256.Size
	if end < manifestHeader || len(b) > MaxManifest || !hmac.Equal(b[end:], mac(key, b[:end])) {
		return Manifest{}, fmt.Errorf("manifest: %w", ErrMAC)
	}
	m, err := parseManifest(b[:end])
	if err != nil {
		return Manifest{}, fmt.Errorf("manifest: %w", err)
	}
	return m, nil
}

func parseManifest(b []byte) (Manifest, error) {
	be := binary.BigEndian
	if string(b[:16]) != manifestMagic || be.Uint32(b[16:]) != manifestVersion {
		return Manifest{}, fmt.Errorf("not of version %d", manifestVersion)
	}
	m := Manifest{Disk: hullmark.UUID(b[20:36]), Epoch: be.Uint64(b[36:]), Files: map[string]KeptFile{}}
	last := ""
	rest := b[manifestHeader:]
	for range be.Uint32(b[44:]) {
		name, f, more, err := parseKept(rest)
		if err != nil {
			return Manifest{}, err
		}
		if name <= last {
			return Manifest{}, fmt.Errorf("file %.80q is not in its order", name)
		}
		m.Files[name], last, rest = f, name, more
	}
	if len(rest) > 0 {
		return Manifest{}, errors.New("data after the last file")
	}
	return m, nil
}

// parseKept reads one file and returns what follows it.
func parseKept(b []byte) (name string, f KeptFile, rest []byte, err error) {
	be := binary.BigEndian
	if len(b) < fileHeader {
		return "", f, nil, io.ErrUnexpectedEOF
	}
	named, size := int(be.Uint16(b)), int64(be.Uint32(b[4:]))
	f.Mode, b = be.Uint16(b[2:]), b[fileHeader:]
	if int64(len(b)) < int64(named)+size {
		return "", f, nil, io.ErrUnexpectedEOF
	}
	name, f.Content = string(b[:named]), b[named:named+int(size):named+int(size)]
	return name, f, b[named+int(size):], checkKept(name, f.Mode)
}

// MAC is a manifest's authentication code, which tells it from all others.
type MAC [sha256.Size]byte

// ReadManifest reads the manifest of the mounted disk once, through no link that leaves it. The caller wipes it.
func ReadManifest(root *os.Root, key hullmark.Secret) (m Manifest, code MAC, err error) {
	b, err := ReadRegular(root, ManifestFile, MaxManifest)
	if err != nil {
		return Manifest{}, MAC{}, fmt.Errorf("manifest: %w", err)
	}
	if m, err = DecodeManifest(b, key); err != nil {
		return Manifest{}, MAC{}, err
	}
	return m, MAC(b[len(b)-sha256.Size:]), nil
}

// ReadRegular reads a whole file of the mounted disk that is a regular one of at most limit bytes. It follows no link that leaves
// the disk, and waits for nobody, as who opens a pipe does.
func ReadRegular(root *os.Root, name string, limit int64) ([]byte, error) {
	f, err := root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Size() > limit {
		return nil, fmt.Errorf("%.200q: %v of %d bytes, want a file of at most %d", name, info.Mode(), info.Size(), limit)
	}
	b := make([]byte, info.Size())
	_, err = io.ReadFull(f, b)
	return b, err
}

// WriteManifest replaces the manifest of the mounted disk. After a cut there is the old one or the new one, and once it returns
// the new one.
func WriteManifest(root *os.Root, key hullmark.Secret, m Manifest) (MAC, error) {
	b, err := m.Encode(key)
	if err != nil {
		return MAC{}, err
	}
	defer clear(b)
	if err := atomicfile.WriteIn(root, ManifestFile, b, 0o600); err != nil {
		return MAC{}, fmt.Errorf("manifest: %w", err)
	}
	return MAC(b[len(b)-sha256.Size:]), nil
}
