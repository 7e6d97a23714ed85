package firstboot

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest"
	"github.com/hullmark/hullmark/attest/wire"
	"github.com/hullmark/hullmark/firstboot/servicefiles"
	"github.com/hullmark/hullmark/firstboot/statedisk"
	"github.com/hullmark/hullmark/internal/atomicfile"
	"github.com/hullmark/hullmark/kubeadm"
)

// The names in the manifest, by who they are for: the agent's own notes (statedisk.IntentFile is one), files that programs see in
// keptDir, files of a rotation that they see elsewhere, and what the join service keeps.
const (
	keptNotes   = "agent/"
	keptFiles   = "files/"
	keptPlaced  = "placed/"
	keptService = "joinservice/"
)

// keptDir is where programs see files of the manifest: shownDir in the agent's folder on a RAM disk is bound there.
const (
	keptDir  = "/var/lib/hullmark/"
	shownDir = "files"
	// keysFile in the agent's folder, for a later run of it in this boot.
	keysFile = "disk-keys"
)

// errNotOpen says that no disk was opened in this boot.
var errNotOpen = errors.New("the state disk is not open")

// kept is the manifest of the open disk (docs/state-disk.md, The manifest). The agent alone reads and writes it, one change
// after the other. The zero value is of a boot without an open disk.
type kept struct {
	mutex sync.Mutex
	// stateDir is where the disk is mounted, keysPath where what follows is kept for a later run of the agent.
	stateDir, keysPath string
	keys               diskKeys
}

// diskKeys are what the agent keeps of a disk's key, and what it takes the disk by.
type diskKeys struct {
	manifest, epoch hullmark.Secret
	disk            hullmark.UUID
	generation      uint32
	owner, node     hullmark.EKID
	controlPlane    bool
	// last and next are the manifests that the disk may hold: the one that was written last, and the one that is being written.
	last, next statedisk.MAC
}

// deriveKeys keeps of a ticket's key what is needed once the disk is open.
func deriveKeys(g hullmark.DiskGrant, node hullmark.EKID) (diskKeys, error) {
	k := diskKeys{disk: g.UUID, generation: g.Generation, owner: g.Owner, node: node}
	var err error
	if k.manifest, err = statedisk.ManifestKey(g.Key); err != nil {
		return k, err
	}
	k.epoch, err = attest.EpochKey(g.Key)
	return k, err
}

// take begins with the manifest that the helper left on the disk.
func (k *kept) take(keys diskKeys, found statedisk.MAC) {
	k.mutex.Lock()
	defer k.mutex.Unlock()
	k.keys.manifest.Wipe()
	k.keys.epoch.Wipe()
	k.keys = keys
	k.keys.last, k.keys.next = found, found
}

// setRole says what the node is: a control plane has a join service of its own.
func (k *kept) setRole(role hullmark.Role) {
	k.mutex.Lock()
	defer k.mutex.Unlock()
	k.keys.controlPlane = role == hullmark.ControlPlane
}

// opened returns the keys of the open disk.
func (k *kept) opened() (diskKeys, error) {
	k.mutex.Lock()
	defer k.mutex.Unlock()
	if k.keys.manifest.Len() == 0 {
		return diskKeys{}, errNotOpen
	}
	return k.keys, nil
}

// look calls with the manifest, and does not let it out.
func (k *kept) look(at func(statedisk.Manifest) error) error {
	k.mutex.Lock()
	defer k.mutex.Unlock()
	return k.withLocked(func(_ *os.Root, m statedisk.Manifest) error { return at(m) })
}

// change replaces the manifest by what edit makes of it. After a cut the disk holds the old one or the new one.
func (k *kept) change(edit func(*statedisk.Manifest) error) error {
	k.mutex.Lock()
	defer k.mutex.Unlock()
	return k.withLocked(func(root *os.Root, m statedisk.Manifest) error {
		if err := edit(&m); err != nil {
			return err
		}
		encoded, err := m.Encode(k.keys.manifest)
		if err != nil {
			return err
		}
		defer clear(encoded)
		k.keys.next = statedisk.MAC(encoded[len(encoded)-sha256.Size:])
		if err := k.storeKeysLocked(); err != nil {
			return err
		}
		if _, err := statedisk.WriteManifest(root, k.keys.manifest, m); err != nil {
			return err
		}
		k.keys.last = k.keys.next
		return k.storeKeysLocked()
	})
}

// withLocked reads the manifest, which has to be the one that was written last: in a boot the host can exchange it for no
// other, not even of the same epoch.
func (k *kept) withLocked(do func(*os.Root, statedisk.Manifest) error) error {
	if k.keys.manifest.Len() == 0 {
		return errNotOpen
	}
	root, err := os.OpenRoot(k.stateDir)
	if err != nil {
		return err
	}
	defer root.Close()
	m, code, err := statedisk.ReadManifest(root, k.keys.manifest)
	if err == nil && code != k.keys.last && code != k.keys.next {
		m.Wipe()
		err = errors.New("manifest: another one than the node wrote last")
	}
	if err != nil {
		return &hullmark.Condition{
			Code: "manifest-refused", Step: StepDisk, Title: "the open state disk has changed under the node: " + err.Error(),
			Next: "do not trust this machine's host: it wrote to the disk; reboot the node with the right one",
		}
	}
	defer m.Wipe()
	k.keys.last = code // Whichever of the two it was: another change may be cut short, too.
	return do(root, m)
}

// read returns a copy of one file; fs.ErrNotExist says that there is none.
func (k *kept) read(name string) (content []byte, err error) {
	err = k.look(func(m statedisk.Manifest) error {
		f, ok := m.Files[name]
		if !ok {
			return fmt.Errorf("%s: %w", name, fs.ErrNotExist)
		}
		content = bytes.Clone(f.Content)
		return nil
	})
	return content, err
}

// write replaces one file.
func (k *kept) write(name string, content []byte) error {
	return k.change(func(m *statedisk.Manifest) error {
		m.Files[name] = statedisk.KeptFile{Mode: 0o600, Content: content}
		return nil
	})
}

// serviceFiles are what the join service keeps (servicefiles.Store), and what it is told of certificates on the state disk.
type serviceFiles struct{ agent *Agent }

// Read returns one of them.
func (s serviceFiles) Read(name string) (content []byte, found bool, err error) {
	if name == servicefiles.Superseded {
		content, found = s.superseded()
		return content, found, nil
	}
	err = s.agent.kept.look(func(m statedisk.Manifest) error {
		var f statedisk.KeptFile
		f, found = m.Files[keptService+name]
		content = bytes.Clone(f.Content)
		return nil
	})
	return content, found, err
}

// superseded says why not all certificates of this control plane, as they lie on the state disk, are of the authorities that sign by now.
func (s serviceFiles) superseded() (why []byte, found bool) {
	err := kubeadm.Renewal{Read: s.agent.readState}.Current()
	if err == nil {
		return nil, false
	}
	why = []byte(err.Error())
	return why[:min(len(why), servicefiles.MaxSuperseded)], true
}

// Write replaces one of them.
func (s serviceFiles) Write(name string, content []byte) error {
	return s.agent.kept.write(keptService+name, content)
}

// note returns one of the agent's own notes; empty is none.
func (a *Agent) note(name string) (string, error) {
	text, err := a.kept.read(name)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	return string(text), err
}

// keptName returns what the manifest calls a file that programs see in keptDir.
func keptName(name string) (string, bool) {
	rest, ok := strings.CutPrefix(path.Clean(name), keptDir)
	return keptFiles + rest, ok
}

// proceedName returns what the manifest calls a file of Proceed that it keeps: one of keptDir, or one that comes with a rotation.
func proceedName(name string) (string, bool) {
	if kept, ok := keptName(name); ok {
		return kept, true
	}
	return keptPlaced + strings.TrimPrefix(name, "/"), hullmark.Rotated(name)
}

// keepFiles puts files of Proceed into the manifest, all or none of them, and takes the documents that came with an earlier
// policy than the one among them out: systemd hands the join service no more than 1 MiB. Then it brings what the manifest holds.
func (a *Agent) keepFiles(files []*wire.File) error {
	err := a.kept.change(func(m *statedisk.Manifest) error {
		if slices.ContainsFunc(files, func(f *wire.File) bool { return f.GetPath() == hullmark.PolicyFile }) {
			documents, _ := keptName(hullmark.DocumentsFolder)
			maps.DeleteFunc(m.Files, func(name string, _ statedisk.KeptFile) bool { return strings.HasPrefix(name, documents+"/") })
		}
		// Of the pool's surroundings the disk holds what this boot's Proceed brings, and no mirror or collector of an earlier policy.
		pool, _ := keptName(hullmark.PoolFolder)
		maps.DeleteFunc(m.Files, func(name string, _ statedisk.KeptFile) bool { return strings.HasPrefix(name, pool+"/") })
		for _, f := range files {
			name, ok := proceedName(f.GetPath())
			if !ok {
				return fmt.Errorf("%.80q is not kept in the manifest", f.GetPath())
			}
			m.Files[name] = statedisk.KeptFile{Mode: uint16(f.GetMode()), Content: f.GetContent()}
		}
		return nil
	})
	if err != nil {
		return err
	}
	return bringKept(a)
}

// bringKept has programs see what the manifest holds, in keptDir and elsewhere.
func bringKept(a *Agent) error {
	changed := false
	err := a.kept.look(func(m statedisk.Manifest) (err error) {
		changed, err = placeKept(a.StateDir, m)
		return errors.Join(a.showFiles(m), err)
	})
	if err != nil || !changed {
		return err
	}
	return a.syncState()
}

// placeKept writes what the manifest has for other folders than keptDir in the place of what the state disk, mounted at dir, has there,
// and reports whether that was something else. So a boot that was cut leaves nothing half written, and blocks that the host put back
// bring no authority back that was exchanged. What comes with no rotation is not placed: whoever was root on the node could have put it
// there, as a static pod, or as a kubeconfig that names a program.
func placeKept(dir string, m statedisk.Manifest) (changed bool, err error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return false, err
	}
	defer root.Close()
	for name, f := range m.Files {
		rest := strings.TrimPrefix(name, keptPlaced)
		if kept, ok := proceedName("/" + rest); !ok || kept != name {
			continue
		}
		file, err := place("/" + rest)
		if err != nil {
			return changed, err
		}
		if isPlaced(root, file, f) {
			continue
		}
		if err := writeFile(root, file, f.Content, fs.FileMode(f.Mode)); err != nil {
			return changed, fmt.Errorf("/%s: %w", rest, err)
		}
		changed = true
	}
	return changed, nil
}

// isPlaced reports whether a file of the state disk is as it is to be.
func isPlaced(root *os.Root, name string, f statedisk.KeptFile) bool {
	if info, err := root.Lstat(name); err != nil || info.Mode() != fs.FileMode(f.Mode) {
		return false // A link is no regular file, whatever it leads to.
	}
	held, err := statedisk.ReadRegular(root, name, maxStateFile)
	defer clear(held)
	return err == nil && bytes.Equal(held, f.Content)
}

// showFiles writes what programs see to the RAM disk: they read nothing of it from the disk, whose host could exchange it
// between two looks.
func (a *Agent) showFiles(m statedisk.Manifest) error {
	root, err := os.OpenRoot(a.RunDir)
	if err != nil {
		return err
	}
	defer root.Close()
	for name, f := range m.Files {
		rest, ok := strings.CutPrefix(name, keptFiles)
		if !ok {
			continue
		}
		if err := writeFile(root, path.Join(shownDir, rest), f.Content, fs.FileMode(f.Mode)); err != nil {
			return err
		}
	}
	return nil
}

// makeShown makes the empty folder that stateUnit binds.
func (a *Agent) makeShown() error {
	shown := filepath.Join(a.RunDir, shownDir)
	return errors.Join(os.RemoveAll(shown), os.Mkdir(shown, 0o700))
}

// keysSize is the length of what storeKeysLocked writes, in bytes.
const keysSize = 2*32 + 16 + 4 + 2*32 + 1 + 2*32

// storeKeysLocked writes the keys to a RAM disk, readable by root alone, for a later run of the agent in this boot. Root on
// this node can do with its own disk what they allow anyway.
func (k *kept) storeKeysLocked() error {
	b := make([]byte, 0, keysSize)
	defer func() { clear(b[:cap(b)]) }()
	b = append(append(b, k.keys.manifest.Expose()...), k.keys.epoch.Expose()...)
	b = binary.BigEndian.AppendUint32(append(b, k.keys.disk[:]...), k.keys.generation)
	b = append(append(b, k.keys.owner[:]...), k.keys.node[:]...)
	role := byte(0)
	if k.keys.controlPlane {
		role = 1
	}
	b = append(append(append(b, role), k.keys.last[:]...), k.keys.next[:]...)
	return atomicfile.Write(k.keysPath, b, 0o600)
}

// resume takes up what an earlier run of the agent in this boot stored.
func (k *kept) resume() error {
	b, err := os.ReadFile(k.keysPath)
	if err != nil {
		return err
	}
	if len(b) != keysSize {
		return fmt.Errorf("%s: %d bytes, want %d", k.keysPath, len(b), keysSize)
	}
	k.mutex.Lock()
	defer k.mutex.Unlock()
	next := func(n int) (part []byte) { part, b = b[:n:n], b[n:]; return part }
	k.keys.manifest, k.keys.epoch = hullmark.NewSecret(next(32)), hullmark.NewSecret(next(32))
	k.keys.disk, k.keys.generation = hullmark.UUID(next(16)), binary.BigEndian.Uint32(next(4))
	k.keys.owner, k.keys.node = hullmark.EKID(next(32)), hullmark.EKID(next(32))
	k.keys.controlPlane = next(1)[0] == 1
	k.keys.last, k.keys.next = statedisk.MAC(next(32)), statedisk.MAC(next(32))
	return nil
}
