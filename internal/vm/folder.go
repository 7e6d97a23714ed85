package vm

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/hullmark/hullmark/internal/atomicfile"
)

// Names inside the state folder.
const (
	lockName       = "lock"
	runtimeName    = "run" // symbolic link to the folder of the sockets while the machine runs
	consoleName    = "console.log"
	previousName   = "console.previous.log"
	stateName      = "state.raw"
	nodeConfigFile = "config.json"
)

// lockFolder makes the state folder and locks it for this process. The lock is the open file: it ends with the process.
func lockFolder(dir string) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("vm: state folder: %w", err)
	}
	f, err := os.OpenFile(filepath.Join(dir, lockName), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("vm: state folder: %w", err)
	}
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if err == nil {
		return f, nil
	}
	f.Close()
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return nil, fmt.Errorf("vm: state folder %s: another machine runs on it: stop that one, or use another folder", dir)
	}
	return nil, fmt.Errorf("vm: state folder %s: lock: %w", dir, err)
}

// runtimePrefix begins the name of a folder of sockets, and is how a left-over one is recognised.
const runtimePrefix = "hullmark-vm-"

// maxRuntimeDir leaves room for a socket's name: sun_path has 108 bytes with its NUL.
const maxRuntimeDir = 80

// makeRuntime makes the folder of the sockets, with a short path, and links it as "run" in the state folder. What a killed
// process left there is removed first.
func makeRuntime(dir string) (string, error) {
	link := filepath.Join(dir, runtimeName)
	removeRuntime(link)
	parent := os.TempDir()
	if len(parent) > maxRuntimeDir-len(runtimePrefix)-10 {
		parent = "/tmp"
	}
	runtime, err := os.MkdirTemp(parent, runtimePrefix)
	if err != nil {
		return "", fmt.Errorf("vm: folder of the sockets: %w", err)
	}
	if err := os.Symlink(runtime, link); err != nil {
		os.RemoveAll(runtime)
		return "", fmt.Errorf("vm: state folder: %w", err)
	}
	return runtime, nil
}

// removeRuntime removes the folder that link names, if it is one of ours, and the link.
func removeRuntime(link string) {
	target, err := os.Readlink(link)
	if err != nil {
		return
	}
	if strings.HasPrefix(filepath.Base(target), runtimePrefix) {
		os.RemoveAll(target)
	}
	os.Remove(link)
}

// varsCopy is where a machine keeps its copy of a variables template. The name carries the template's digest, so another
// template starts another copy instead of being ignored.
func varsCopy(dir, template string) (string, error) {
	content, err := os.ReadFile(template)
	if err != nil {
		return "", fmt.Errorf("vm: firmware variables: %w", err)
	}
	digest := sha256.Sum256(content)
	return filepath.Join(dir, fmt.Sprintf("vars-%x.fd", digest[:6])), nil
}

// copyOnce copies a file if the copy does not exist. The copy appears whole or not at all.
func copyOnce(from, to string) error {
	if _, err := os.Stat(to); err == nil {
		return nil
	}
	content, err := os.ReadFile(from)
	if err != nil {
		return fmt.Errorf("vm: copy: %w", err)
	}
	return atomicfile.Write(to, content, 0o600)
}

// StateDiskSize is the size in bytes of the state disk that a state folder holds, 0 if it holds none.
func StateDiskSize(dir string) (int64, error) { return diskSize(filepath.Join(dir, stateName)) }

func diskSize(path string) (int64, error) {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("vm: disk: %w", err)
	}
	return info.Size(), nil
}

// makeDisk makes a sparse disk unless it is there, and returns its path; without a size, the empty path.
func makeDisk(dir, name string, size int64) (string, error) {
	path := filepath.Join(dir, name)
	if size == 0 {
		return "", nil
	}
	existing, err := diskSize(path)
	if err != nil {
		return "", err
	}
	if existing != 0 && existing != size {
		return "", fmt.Errorf("vm: disk %s: it has %d bytes, %d were asked for: use its size, or remove it and its data", path, existing, size)
	}
	if existing == size {
		return path, nil
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return "", fmt.Errorf("vm: disk: %w", err)
	}
	if err := errors.Join(f.Truncate(size), f.Close()); err != nil {
		return "", fmt.Errorf("vm: disk %s: %w", path, err)
	}
	return path, nil
}

// writeNodeConfig puts the node config where QEMU reads it from; nil means none, and an empty path.
func writeNodeConfig(dir string, config []byte) (string, error) {
	path := filepath.Join(dir, nodeConfigFile)
	if config == nil {
		return "", nil
	}
	if err := atomicfile.Write(path, config, 0o600); err != nil {
		return "", fmt.Errorf("vm: node config: %w", err)
	}
	return path, nil
}
