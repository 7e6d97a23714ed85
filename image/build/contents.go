package build

import (
	"bytes"
	"cmp"
	"debug/buildinfo"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/hullmark/hullmark/image/lock"
)

// goModules returns the modules that the programs below some folders say they were compiled of (debug/buildinfo), each once,
// sorted. Programs that are not Go's are an error: what is in them would be unknown. Their main modules, which are ours, have
// no version and are left out.
func goModules(dirs ...string) ([]lock.Module, error) {
	var all []lock.Module
	for _, dir := range dirs {
		err := filepath.WalkDir(dir, func(file string, e fs.DirEntry, err error) error {
			if err != nil || !e.Type().IsRegular() {
				return err
			}
			found, err := modulesOf(file)
			all = append(all, found...)
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("list modules: %w", err)
		}
	}
	slices.SortFunc(all, func(a, b lock.Module) int {
		return cmp.Or(cmp.Compare(a.Path, b.Path), cmp.Compare(a.Version, b.Version))
	})
	return slices.Compact(all), nil
}

func modulesOf(file string) (found []lock.Module, err error) {
	if program, err := isELF(file); err != nil || !program {
		return nil, err
	}
	info, err := buildinfo.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("%s: no program of Go: %w", file, err)
	}
	for _, m := range info.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		if m.Sum != "" { // else it is a folder of ours
			found = append(found, lock.Module{Path: m.Path, Version: m.Version, Sum: m.Sum})
		}
	}
	return found, nil
}

func isELF(file string) (bool, error) {
	f, err := os.Open(file)
	if err != nil {
		return false, err
	}
	defer func() { _ = f.Close() }()
	magic := make([]byte, 4)
	n, err := io.ReadFull(f, magic)
	if n < len(magic) {
		return false, nil
	}
	return bytes.Equal(magic, []byte("\x7fELF")), err
}
