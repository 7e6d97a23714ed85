package infrastructure

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"

	"github.com/hullmark/hullmark/internal/atomicfile"
)

// folders are all that the provider keeps, below one root. One controller works there at a time.
type folders struct {
	root string

	mu   sync.Mutex
	lock *os.File
}

// own makes this process the one that works in the folders, until it ends. It fails while another one does.
func (f *folders) own() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.lock != nil {
		return nil
	}
	if err := os.MkdirAll(f.root, 0o700); err != nil {
		return fmt.Errorf("provider's folder: %w", err)
	}
	lock, err := os.OpenFile(filepath.Join(f.root, lockName), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return fmt.Errorf("provider's folder: %w", err)
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		lock.Close()
		return fmt.Errorf("provider's folder %s: another controller works there (%w): end it, or use another folder", f.root, err)
	}
	f.lock = lock
	return nil
}

// clusterFolder is the folder of one cluster.
type clusterFolder string

func (f *folders) cluster(namespace, name string) clusterFolder {
	return clusterFolder(filepath.Join(f.root, namespace, name))
}

func (c clusterFolder) network() string    { return filepath.Join(string(c), "network") }
func (c clusterFolder) networkLog() string { return filepath.Join(string(c), "network.log") }

// slots is how many cards a network's router gives addresses to.
const slots = 16

// slot is the folder of one machine.
type slot string

func (c clusterFolder) slot(i int) slot {
	return slot(filepath.Join(string(c), fmt.Sprintf("slot-%02d", i)))
}

func (s slot) machine() string     { return filepath.Join(string(s), "vm") }
func (s slot) console() string     { return filepath.Join(s.machine(), "console.log") }
func (s slot) log() string         { return filepath.Join(string(s), "vm.log") }
func (s slot) nodeConfig() string  { return filepath.Join(string(s), "node.json") }
func (s slot) machineFile() string { return filepath.Join(string(s), "machine.json") }

// pluggedIn is the file that says which run of the network the machine was plugged into.
func (s slot) pluggedIn() string { return filepath.Join(string(s), "network") }

// owner is the object that a slot's machine is for.
type owner struct{ name, uid string }

func (s slot) ownerFile() string { return filepath.Join(string(s), "owner") }

// owner reads whom the slot is for; the zero owner where it is free.
func (s slot) owner() (owner, error) {
	content, err := os.ReadFile(s.ownerFile())
	if errors.Is(err, fs.ErrNotExist) {
		return owner{}, nil
	}
	if err != nil {
		return owner{}, err
	}
	name, uid, found := strings.Cut(strings.TrimSpace(string(content)), " ")
	if !found {
		return owner{}, fmt.Errorf("%s: want a name and a uid", s.ownerFile())
	}
	return owner{name, uid}, nil
}

func (s slot) setOwner(o owner) error {
	return atomicfile.Write(s.ownerFile(), []byte(o.name+" "+o.uid+"\n"), 0o600)
}

// find returns the slot of the machine of this name, and whom it is for; the empty slot where it has none.
func (c clusterFolder) find(name string) (slot, owner, error) {
	for i := range slots {
		o, err := c.slot(i).owner()
		if err != nil {
			return "", o, err
		}
		if o.name == name {
			return c.slot(i), o, nil
		}
	}
	return "", owner{}, nil
}

// errFull says that all of a network's slots are in use.
var errFull = fmt.Errorf("the cluster's network has %d machines, more cannot be", slots)

// claim takes a free slot. What is left there of a machine whose removal was interrupted is removed first: its disk and its keys must
// not become another's.
func (c clusterFolder) claim(o owner) (slot, error) {
	for i := range slots {
		s := c.slot(i)
		has, err := s.owner()
		if err != nil {
			return "", err
		}
		if has != (owner{}) {
			continue
		}
		if err := s.remove(); err != nil {
			return "", err
		}
		if err := os.MkdirAll(string(s), 0o700); err != nil {
			return "", err
		}
		return s, s.setOwner(o)
	}
	return "", errFull
}

// remove removes a slot whose machine has ended: the machine, with its keys, first. What an interrupted removal leaves of a slot without
// an owner, the next claim or the cluster's end removes.
func (s slot) remove() error {
	if err := removeRun(s.machine()); err != nil {
		return err
	}
	return errors.Join(os.RemoveAll(s.machine()), os.RemoveAll(string(s)))
}

// runName is the link in a network's or a machine's folder to the folder of its sockets, elsewhere; runPrefix begins that one's name.
const (
	runName   = "run"
	runPrefix = "hullmark-vm-"
)

// removeRun removes the folder of sockets that a killed process left.
func removeRun(folder string) error {
	target, err := os.Readlink(filepath.Join(folder, runName))
	if err == nil && strings.HasPrefix(filepath.Base(target), runPrefix) {
		return os.RemoveAll(target)
	}
	return nil
}

// hasContent reports whether a file exists and is not empty.
func hasContent(path string) (bool, error) {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil && info.Size() > 0, err
}
