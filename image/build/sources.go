package build

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// hashSources condenses what our programs are compiled from: go.mod, go.sum and everything in those folders of the checkout
// that hold Go files, but for tests and for other modules (a checkout in the output folder, say). That is more than a program needs;
// Go's own cache then knows what to compile.
func hashSources(dir string) (string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return "", err
	}
	var kept []string
	for _, e := range entries {
		counts := isSource(e.Name()) && (filepath.Ext(e.Name()) == ".go" || strings.HasPrefix(e.Name(), "go."))
		if e.IsDir() {
			if counts, err = holdsGo(filepath.Join(dir, e.Name())); err != nil {
				return "", err
			}
		}
		if counts {
			kept = append(kept, e.Name())
		}
	}
	h := sha256.New()
	err = hashInto(h, dir, func(name string) bool {
		first, _, _ := strings.Cut(name, string(filepath.Separator))
		return !slices.Contains(kept, first) || !isSource(filepath.Base(name)) || isModule(filepath.Join(dir, name))
	}, nil)
	return hex.EncodeToString(h.Sum(nil)), err
}

// isSource tells whether a file or folder can be a part of a program.
func isSource(name string) bool {
	return !strings.HasPrefix(name, ".") && name != "testdata" && !strings.HasSuffix(name, "_test.go")
}

// isModule tells whether a folder is the root of a module, which no program of another one is compiled from.
func isModule(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, "go.mod"))
	return err == nil
}

// errFound ends a walk.
var errFound = errors.New("found")

func holdsGo(dir string) (bool, error) {
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case e.IsDir() && (!isSource(e.Name()) || isModule(path)):
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
