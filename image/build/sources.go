package build

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// hashSources condenses what our programs are compiled from: go.mod, go.sum and everything in those folders of the checkout that hold Go files, but
// for tests. That is more than a program needs; Go's own cache then knows what to compile.
func hashSources(dir string) (string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return "", err
	}
	h := sha256.New()
	for _, e := range entries {
		name := filepath.Join(dir, e.Name())
		switch {
		case e.IsDir():
			if there, err := holdsGo(name); err != nil || !there {
				if err != nil {
					return "", err
				}
				continue
			}
		case isSource(e.Name()) && (filepath.Ext(e.Name()) == ".go" || strings.HasPrefix(e.Name(), "go.")):
		default:
			continue
		}
		if err := hashInto(h, dir, name, func(rel string) bool { return isSource(filepath.Base(rel)) }, nil); err != nil {
			return "", err
		}
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// isSource tells whether a file or folder can be a part of a program.
func isSource(name string) bool {
	return !strings.HasPrefix(name, ".") && name != "testdata" && !strings.HasSuffix(name, "_test.go")
}

// errFound ends a walk.
var errFound = errors.New("found")

func holdsGo(dir string) (bool, error) {
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case e.IsDir() && !isSource(e.Name()):
			return fs.SkipDir
		case !e.IsDir() && filepath.Ext(path) == ".go":
			return errFound
		}
		return nil
	})
	if errors.Is(err, errFound) {
		return true, nil
	}
	return false, err
}
