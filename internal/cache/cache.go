// Package cache keeps downloads and finished build steps between runs, outside the checkout, under names made of their content or of what they were made from.
package cache

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path/filepath"
	"syscall"
)

// Dir returns the cache folder: $HULLMARK_CACHE, else $XDG_CACHE_HOME/hullmark, else ~/.cache/hullmark. It does not create it.
func Dir() (string, error) {
	if d := os.Getenv("HULLMARK_CACHE"); d != "" {
		return filepath.Abs(d)
	}
	d, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find cache folder: %w (set HULLMARK_CACHE)", err)
	}
	return filepath.Join(d, "hullmark"), nil
}

// Store is one cache folder. Several processes may use it at once.
type Store struct {
	// Root is the folder; it is created when something is first kept.
	Root string
}

// Open returns the store in Dir.
func Open() (Store, error) {
	d, err := Dir()
	return Store{Root: d}, err
}

// Step returns the folder kept as kind/key, and makes it with fill if it is not there yet. Fill writes into an empty folder that gets its final name
// only when fill succeeded, so a folder that exists is whole. Of two processes that want the same folder one waits for the other.
func (s Store) Step(kind, key string, fill func(dir string) error) (dir string, hit bool, err error) {
	dir = filepath.Join(s.Root, kind, key)
	unlock, err := s.lock(kind, key)
	if err != nil {
		return "", false, fmt.Errorf("cache: %s: %w", dir, err)
	}
	defer unlock()
	if _, err := os.Stat(dir); err == nil {
		return dir, true, nil
	}
	tmp, err := os.MkdirTemp(filepath.Join(s.Root, kind), ".making-")
	if err != nil {
		return "", false, fmt.Errorf("cache: %w", err)
	}
	defer func() { _ = os.RemoveAll(tmp) }()
	if err := os.Chmod(tmp, 0o755); err != nil {
		return "", false, fmt.Errorf("cache: %w", err)
	}
	if err := fill(tmp); err != nil {
		return "", false, err
	}
	if err := os.Rename(tmp, dir); err != nil {
		return "", false, fmt.Errorf("cache: %w", err)
	}
	return dir, false, nil
}

// lock takes the advisory lock of one entry; a process that dies releases it.
func (s Store) lock(kind, key string) (unlock func(), err error) {
	folder := filepath.Join(s.Root, kind)
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(folder, "."+key+".lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return func() { _ = f.Close() }, nil
}

// ErrContent says that bytes were received, but not those that were asked for.
var ErrContent = errors.New("other content than asked for")

// Blob returns the path of the bytes whose SHA-256 is sum (64 lower-case hex digits), and gets them with fetch if they are not there yet.
// Whatever fetch writes is kept only if it hashes to sum; otherwise the error wraps ErrContent and names the hash that was found.
func (s Store) Blob(sum string, fetch func(io.Writer) error) (string, error) {
	path := s.BlobPath(sum)
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return "", fmt.Errorf("cache: %w", err)
	}
	tmp, err := os.CreateTemp(filepath.Dir(path), ".fetching-")
	if err != nil {
		return "", fmt.Errorf("cache: %w", err)
	}
	defer func() { _ = os.Remove(tmp.Name()) }()
	h := sha256.New()
	if err := errors.Join(fetch(io.MultiWriter(tmp, h)), tmp.Chmod(0o644), tmp.Close()); err != nil {
		return "", err
	}
	if got := sumOf(h); got != sum {
		return "", fmt.Errorf("%w: want sha256 %s, got %s", ErrContent, sum, got)
	}
	return path, os.Rename(tmp.Name(), path)
}

// BlobPath returns where Blob keeps the bytes whose SHA-256 is sum, whether or not they are there.
func (s Store) BlobPath(sum string) string { return filepath.Join(s.Root, "sha256", sum) }

func sumOf(h hash.Hash) string { return hex.EncodeToString(h.Sum(nil)) }

// Key condenses what a step was made from into a name: the SHA-256 of all parts, each preceded by its length so that no two lists collide.
func Key(parts ...string) string {
	h := sha256.New()
	for _, p := range parts {
		fmt.Fprintf(h, "%d:%s", len(p), p)
	}
	return sumOf(h)
}
