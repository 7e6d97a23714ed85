package build

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/hullmark/hullmark/image/lock"
	"github.com/hullmark/hullmark/internal/cache"
)

// dpkgStatus is where a Debian tree records what is installed in it.
const dpkgStatus = "var/lib/dpkg/status"

// treeFormat changes whenever makeTree makes another tree of the same definitions and packages.
const treeFormat = "3"

// The files of a tree's folder: the tree, and the kernel command line that the definitions ask for.
const (
	treeTar     = "root.tar"
	treeCmdline = "cmdline"
)

// Tree returns the folder with the root tree that mkosi makes from the locked packages and the definitions; l is the image's own lock
// (lock.Lock.For). What was installed is held against the lock; any difference is an error that names the package.
func Tree(ctx context.Context, o Options, l lock.Lock, tools string) (folder string, hit bool, err error) {
	m, err := openMkosi(ctx, o, l)
	if err != nil {
		return "", false, err
	}
	rest, err := treeKey(o, l, m)
	if err != nil {
		return "", false, err
	}
	folder, hit, err = o.Store.Step("tree", cache.Key(rest, l.Digest(lock.Root)), func(dir string) error {
		if err := fetch(ctx, o, l, treePackages(l)); err != nil {
			return err
		}
		if reused, err := reuse(ctx, o.Store, rest, l, dir); err != nil || reused {
			return err
		}
		if err := makeTree(ctx, o, l, m, tools, rest, dir); err != nil {
			return err
		}
		return still(rest, func() (string, error) { return treeKey(o, l, m) })
	})
	if err != nil {
		return "", false, err
	}
	return folder, hit, o.Store.Trim("tree", keptTrees)
}

// treePackages are what mkosi can install: into the tree, and beside it for build scripts.
func treePackages(l lock.Lock) []lock.Package { return append(l.Of(lock.Root), l.Of(lock.Build)...) }

// treeKey condenses all that a tree is made of but its packages.
func treeKey(o Options, l lock.Lock, m mkosi) (string, error) {
	parts := append([]string{treeFormat, baseFormat, l.Digest(lock.Build), l.Digest(lock.Tools)}, o.Profiles...)
	files, err := verbatim(o)
	if err != nil {
		return "", fmt.Errorf("list definitions: %w", err)
	}
	copied := slices.Collect(maps.Values(files))
	for _, dir := range []string{m.definitions, filepath.Join(o.Source, "systemd"), m.config} {
		if dir == "" {
			continue
		}
		h := sha256.New()
		if err := hashInto(h, dir, without(dir, notSources(o)), func(name string) bool { return slices.Contains(copied, filepath.Join(dir, name)) }); err != nil {
			return "", fmt.Errorf("hash definitions: %w", err)
		}
		parts = append(parts, hex.EncodeToString(h.Sum(nil)))
	}
	return cache.Key(parts...), nil
}

// errChanged says that what was made is neither of the old sources nor of the new ones.
var errChanged = errors.New("the sources changed while they were read: build again")

// still fails if a key is another by now: what was made between is not kept under the old one.
func still(key string, now func() (string, error)) error {
	if again, err := now(); err != nil || again != key {
		return errors.Join(err, errChanged)
	}
	return nil
}

func makeTree(ctx context.Context, o Options, l lock.Lock, m mkosi, tools, rest, dir string) error {
	s := o.Store
	repository, err := makeRepository(ctx, s, l, treePackages(l))
	if err != nil {
		return err
	}
	b, err := makeBase(ctx, s, repository, l.Of(lock.Root))
	if err != nil {
		return err
	}
	var asked summary
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() (err error) { asked, err = m.summary(ctx); return err })
	group.Go(func() error { return m.rootTar(ctx, tools, offer(repository, s), b, dir) })
	if err := group.Wait(); err != nil {
		return errors.Join(err, unlocked(asked.Packages, l))
	}
	return errors.Join(
		checkTree(filepath.Join(dir, treeTar), l.Of(lock.Root)),
		os.WriteFile(filepath.Join(dir, treeCmdline), []byte(strings.Join(asked.KernelCommandLine, " ")), 0o644),
		noteMade(o, repository, rest, asked.RemoveFiles, l, dir),
	)
}

// unlocked is what to do about packages that the definitions ask for and the lock does not have by these names, which may be
// why mkosi failed.
func unlocked(asked []string, l lock.Lock) error {
	var missing []string
	for _, name := range asked {
		if !slices.ContainsFunc(l.Of(lock.Root), func(p lock.Package) bool { return p.Name == name }) {
			missing = append(missing, name)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	return fmt.Errorf("the lock has no package %s: hullmark lock --config FOLDER --lock FOLDER/hullmark.lock writes one that has, for build's --lock", strings.Join(missing, ", "))
}

// checkTree reads the dpkg database in a tree's tar file and compares it with the lock.
func checkTree(file string, want []lock.Package) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	in := tar.NewReader(f)
	for {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return fmt.Errorf("check root tree: %s is not in it", dpkgStatus)
		}
		if err != nil {
			return fmt.Errorf("check root tree: %w", err)
		}
		if strings.TrimPrefix(h.Name, "./") != dpkgStatus {
			continue
		}
		have, err := lock.ParseStatus(in)
		if err != nil {
			return err
		}
		return lock.CheckInstalled(want, have)
	}
}

// hashFolder condenses names, types, executable bits and content of all that is below dir; times and owners do not count, as in git.
func hashFolder(dir string) (string, error) {
	h := sha256.New()
	err := hashInto(h, dir, nil, nil)
	return hex.EncodeToString(h.Sum(nil)), err
}

// hashInto adds the files, links and empty folders below dir to h, under their names there, but for what leave leaves out. If
// it is given, verbatim says of which files the content does not count.
func hashInto(h hash.Hash, dir string, leave, verbatim func(name string) bool) error {
	return walk(dir, leave, func(name, path string, e fs.DirEntry) error {
		if e.IsDir() {
			inside, err := os.ReadDir(path)
			if len(inside) == 0 {
				fmt.Fprintf(h, "%q empty 0\n", name)
			}
			return err
		}
		if !e.Type().IsRegular() && e.Type() != fs.ModeSymlink {
			return nil // nobody copies it, and who reads a pipe waits
		}
		kind, content, err := fileContent(path, e)
		if verbatim != nil && verbatim(name) {
			kind, content = "verbatim "+kind, nil
		}
		fmt.Fprintf(h, "%q %s %d\n", name, kind, len(content))
		h.Write(content)
		return err
	})
}

func fileContent(path string, e fs.DirEntry) (kind string, content []byte, err error) {
	if e.Type()&fs.ModeSymlink != 0 {
		target, err := os.Readlink(path)
		return "link", []byte(target), err
	}
	info, err := e.Info()
	if err != nil {
		return "", nil, err
	}
	content, err = os.ReadFile(path)
	return fmt.Sprintf("file %t", info.Mode()&0o100 != 0), content, err
}
