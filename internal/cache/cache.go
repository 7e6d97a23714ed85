// Package cache keeps downloads and finished build steps between runs, outside the checkout, under names made of their content
// or of what they were made from.
package cache

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/hullmark/hullmark/internal/atomicfile"
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

// Step returns the folder kept as kind/key, and makes it with fill if it is not there yet. Fill writes into an empty folder
// that gets its final name only when fill succeeded, so a folder that exists is whole; one that is no longer what fill made, by
// the hash of its files, is made anew. Of two processes that want the same folder one waits for the other.
func (s Store) Step(kind, key string, fill func(dir string) error) (dir string, hit bool, err error) {
	dir = filepath.Join(s.Root, kind, key)
	unlock, err := s.lock(kind, key)
	if err != nil {
		return "", false, fmt.Errorf("cache: %s: %w", dir, err)
	}
	defer unlock()
	if s.Whole(kind, key) {
		now := time.Now()
		_ = os.Chtimes(dir, now, now) // It is in use, for Trim.
		return dir, true, nil
	}
	if err := os.RemoveAll(dir); err != nil {
		return "", false, fmt.Errorf("cache: %w", err)
	}
	err = atomicfile.Folder(dir, 0o755, func(made string) error {
		if err := fill(made); err != nil {
			return err
		}
		return s.note(kind, key, made)
	})
	return dir, false, err
}

// unused is how long an entry lies unused before Trim removes it: who uses it needs no lock.
const unused = time.Hour

// Trim removes the entries of a kind that were not used for an hour, but for so many that were used last.
func (s Store) Trim(kind string, keep int) error {
	type entry struct {
		key string
		at  time.Time
	}
	var all []entry
	folders, err := os.ReadDir(filepath.Join(s.Root, kind))
	if err != nil {
		return fmt.Errorf("cache: %w", err)
	}
	for _, f := range folders {
		if info, err := f.Info(); err == nil && f.IsDir() && !strings.HasPrefix(f.Name(), ".") {
			all = append(all, entry{f.Name(), info.ModTime()})
		}
	}
	slices.SortFunc(all, func(a, b entry) int { return b.at.Compare(a.at) })
	for _, e := range all[min(keep, len(all)):] {
		if time.Since(e.at) < unused {
			continue
		}
		unlock, err := s.lock(kind, e.key)
		if err == nil {
			err = errors.Join(os.RemoveAll(filepath.Join(s.Root, kind, e.key)), os.Remove(s.sumFile(kind, e.key)))
			unlock()
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("cache: %w", err)
		}
	}
	return nil
}

// sumFile keeps the hash of an entry beside it.
func (s Store) sumFile(kind, key string) string { return filepath.Join(s.Root, kind, "."+key+".sum") }

// note keeps the hash of what is in dir and becomes an entry.
func (s Store) note(kind, key, dir string) error {
	sum, err := hashFolder(dir)
	if err != nil {
		return err
	}
	return atomicfile.Write(s.sumFile(kind, key), []byte(sum), 0o644)
}

// Whole tells whether a folder that Step keeps is there as it was made. It may go as soon as nobody used it for an hour.
func (s Store) Whole(kind, key string) bool {
	want, err := os.ReadFile(s.sumFile(kind, key))
	if err != nil {
		return false
	}
	got, err := hashFolder(filepath.Join(s.Root, kind, key))
	return err == nil && got == string(want)
}

// HashFile returns the SHA-256 of a file in hex.
func HashFile(name string) (string, error) {
	f, err := os.Open(name)
	if err != nil {
		return "", err
	}
	h := sha256.New()
	_, err = io.Copy(h, f)
	return sumOf(h), errors.Join(err, f.Close())
}

// hashFolder condenses names, kinds, modes and content of all that is below dir, reading several files at once.
func hashFolder(dir string) (string, error) {
	var group errgroup.Group
	group.SetLimit(runtime.GOMAXPROCS(0))
	var lines []*string
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		mode := info.Mode()
		if e.IsDir() {
			mode = fs.ModeDir // Whoever shares a store opens its folders.
		}
		line := fmt.Sprintf("%q %s", path[len(dir):], mode)
		lines = append(lines, &line)
		switch {
		case info.Mode().IsRegular():
			group.Go(func() error {
				sum, err := HashFile(path)
				line += " " + sum
				return err
			})
		case info.Mode()&fs.ModeSymlink != 0:
			target, err := os.Readlink(path)
			line += " " + target
			return err
		}
		return nil
	})
	if err := errors.Join(err, group.Wait()); err != nil {
		return "", err
	}
	h := sha256.New()
	for _, line := range lines {
		fmt.Fprintln(h, *line)
	}
	return sumOf(h), nil
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

// Blob returns the path of the bytes whose SHA-256 is sum (64 lower-case hex digits), and gets them with fetch if they are not
// there yet, or are others by now. Whatever fetch writes is kept only if it hashes to sum; otherwise the error wraps ErrContent
// and names the hash that was found.
func (s Store) Blob(sum string, fetch func(io.Writer) error) (string, error) {
	path := s.BlobPath(sum)
	if got, err := HashFile(path); err == nil && got == sum {
		return path, nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return "", fmt.Errorf("cache: %w", err)
	}
	return path, atomicfile.Stream(path, atomicfile.Options{Mode: 0o644}, func(f *os.File) error {
		h := sha256.New()
		if err := fetch(io.MultiWriter(f, h)); err != nil {
			return err
		}
		if got := sumOf(h); got != sum {
			return fmt.Errorf("%w: want sha256 %s, got %s", ErrContent, sum, got)
		}
		return nil
	})
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
