package build

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/hullmark/hullmark/image/lock"
	"github.com/hullmark/hullmark/internal/atomicfile"
)

// localArchive is the archive name of a repository of packages that are already locked.
const localArchive = "local"

// ReadLock reads and checks the lock file that o names.
func ReadLock(o Options) (lock.Lock, error) {
	text, err := os.ReadFile(o.LockFile)
	if err != nil {
		return lock.Lock{}, fmt.Errorf("read lock: %w (hullmark lock makes it)", err)
	}
	return lock.Parse(text)
}

// Lock chooses the newest packages that the signed Debian archives offer for the definitions in o, with all that they depend
// on, and pins the Kubernetes bundle's sources and the machine's release of Go. It writes nothing. An index that is older than
// the earlier lock's, or past its end, wraps ErrReplayed, a suite that is gone ErrSuiteLost; the earlier lock may be empty.
func Lock(ctx context.Context, o Options, earlier lock.Lock) (lock.Lock, error) {
	return choose(ctx, o, nil, lock.Lock{Suites: earlier.Suites}, "")
}

// Relock chooses anew only those packages of old that are gone from every source, and what is made from the same source as they
// are; everything else stays if it still fits together. If it does not, all packages are chosen anew. It returns the new lock
// and what moved.
func Relock(ctx context.Context, o Options, old lock.Lock, gone []lock.Package) (lock.Lock, []lock.Move, error) {
	o.FewerSuites = true // The lock that o names stays as it is, with all its suites.
	return keep(ctx, o, old, gone)
}

// LockMore adds to a lock what the definitions in o ask for beyond it, such as the packages of a new profile, with the newest
// versions. What is locked stays, but for what is gone from every source, as in Relock. It writes nothing, and refuses indexes as
// Lock does.
func LockMore(ctx context.Context, o Options, old lock.Lock) (lock.Lock, error) {
	err := fetch(ctx, o, old, old.Packages)
	gone := movedPackages(err)
	if err != nil && len(gone) == 0 {
		return old, err
	}
	l, _, err := keep(ctx, o, old, gone)
	return l, err
}

func keep(ctx context.Context, o Options, old lock.Lock, gone []lock.Package) (lock.Lock, []lock.Move, error) {
	kept := stillThere(o, old, gone)
	repository, err := makeRepository(ctx, o.Store, old, uniqueFiles(kept))
	if err != nil {
		return old, nil, err
	}
	local := aptSource{archive: localArchive, url: "file:" + repository, suites: []string{release}, local: true}
	l, err := choose(ctx, o, []aptSource{local}, old, pins(kept))
	if err != nil {
		o.Progress.Say("the packages that stayed do not fit the new ones, choosing all anew: %v", err)
		l, err = choose(ctx, o, nil, lock.Lock{Go: old.Go, Suites: old.Suites}, "")
	}
	return l, lock.Compare(old, l), err
}

// stillThere lists the locked packages that can stay: in the store, and from another source package than any that is gone.
func stillThere(o Options, old lock.Lock, gone []lock.Package) []lock.Package {
	moving := map[string]bool{}
	for _, p := range gone {
		moving[sourceOf(p)] = true
	}
	var kept []lock.Package
	for _, p := range old.Packages {
		if _, err := os.Stat(o.Store.BlobPath(p.SHA256)); err == nil && !moving[sourceOf(p)] {
			kept = append(kept, p)
		}
	}
	return kept
}

// sourceOf names the source package: archives keep all that is built from one source in one folder.
func sourceOf(p lock.Package) string { return path.Base(path.Dir(p.Path)) }

func uniqueFiles(packages []lock.Package) []lock.Package {
	seen := map[string]bool{}
	return slices.DeleteFunc(slices.Clone(packages), func(p lock.Package) bool {
		was := seen[p.SHA256]
		seen[p.SHA256] = true
		return was
	})
}

// pins makes apt keep to the given versions, apt_preferences(5).
func pins(packages []lock.Package) string {
	var b strings.Builder
	for _, p := range packages {
		fmt.Fprintf(&b, "Package: %s\nPin: version %s\nPin-Priority: 1001\n\n", p.Name, p.Version)
	}
	return b.String()
}

// choose resolves both sets against the archives and, before them, the extra sources.
func choose(ctx context.Context, o Options, extra []aptSource, old lock.Lock, pinned string) (l lock.Lock, err error) {
	mirrors, err := o.mirrors()
	if err != nil {
		return l, err
	}
	dir, err := os.MkdirTemp("", "hullmark-apt-")
	if err != nil {
		return l, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	a, err := newApt(dir, append(extra, aptSources(mirrors)...), pinned)
	if err != nil {
		return l, err
	}
	if err := a.update(ctx); err != nil {
		return l, fmt.Errorf("fetch signed archive indexes: %w", err)
	}
	if l.Suites, l.Time, err = o.suites(a, old.Suites, time.Now()); err != nil {
		return l, err
	}
	if err := chooseTools(ctx, o, a, &l, old); err != nil {
		return l, err
	}
	if err := chooseRoot(ctx, o, a, &l, old, newFetcher(o, mirrors)); err != nil {
		return l, err
	}
	if l.Go = old.Go; l.Go == "" {
		if l.Go, err = machineGo(ctx, o.Source); err != nil {
			return l, err
		}
	}
	l.Kubernetes, err = kubernetesSources(ctx, o.Source)
	l.Sort()
	return l, err
}

func chooseTools(ctx context.Context, o Options, a apt, l *lock.Lock, old lock.Lock) error {
	tools, err := a.resolve(ctx, lock.Tools, toolPackages())
	if err != nil {
		return err
	}
	alone, err := a.only(ctx, lock.Tools, mkosiPackage)
	l.Packages = append(l.Packages, restorePaths(append(tools, alone...), old)...)
	return err
}

// chooseRoot asks mkosi which packages the definitions name, without a profile and with each, so it needs the mkosi that was just chosen.
func chooseRoot(ctx context.Context, o Options, a apt, l *lock.Lock, old lock.Lock, f fetcher) error {
	i := slices.IndexFunc(l.Packages, func(p lock.Package) bool { return p.Name == mkosiPackage })
	if err := f.fetch(ctx, *l, l.Packages[i:i+1]); err != nil {
		return err
	}
	m, err := openMkosi(ctx, o, *l)
	if err != nil {
		return err
	}
	plain, err := m.summary(ctx)
	if err != nil {
		return err
	}
	root, err := a.resolveAsked(ctx, plain)
	if err != nil {
		return err
	}
	chosen, forScripts := root, plain.BuildPackages
	profiles, err := Profiles(o)
	if err != nil {
		return err
	}
	for _, profile := range profiles {
		m.profiles = []string{profile}
		with, err := m.summary(ctx)
		if err != nil {
			return err
		}
		forScripts = append(forScripts, with.BuildPackages...)
		packages, err := a.resolveAsked(ctx, with)
		if err != nil {
			return fmt.Errorf("profile %s: %w", profile, err)
		}
		chosen = append(chosen, lock.Differences(profile, root, packages)...)
	}
	if len(forScripts) > 0 {
		packages, err := a.resolve(ctx, lock.Build, forScripts)
		if err != nil {
			return err
		}
		chosen = append(chosen, lock.Beyond(packages, root, lock.Build)...)
	}
	l.Packages = append(l.Packages, restorePaths(chosen, old)...)
	return nil
}

// resolveAsked returns the packages of an image with these definitions, from main and the components that they name.
func (a apt) resolveAsked(ctx context.Context, asked summary) ([]lock.Package, error) {
	a, err := a.with(asked.Repositories)
	if err != nil {
		return nil, err
	}
	return a.resolve(ctx, lock.Root, essentialAnd(asked.Packages))
}

// essentialAnd are names, and what every Debian system holds (Debian Policy 3.8).
func essentialAnd(names []string) []string { return append([]string{"?essential"}, names...) }

// restorePaths gives packages that came from the repository of locked ones the path under which archives know them.
func restorePaths(packages []lock.Package, old lock.Lock) []lock.Package {
	paths := map[string]string{}
	for _, p := range old.Packages {
		paths[p.SHA256] = p.Path
	}
	for i, p := range packages {
		if strings.HasPrefix(p.Path, localArchive+"/") {
			packages[i].Path = paths[p.SHA256]
		}
	}
	return packages
}

// kubernetesSources reads what the Kubernetes bundle's modules ask for and what their go.sum files pin.
func kubernetesSources(ctx context.Context, source string) (k lock.Kubernetes, err error) {
	base := filepath.Join(source, "tools", "kubernetes")
	found, err := filepath.Glob(filepath.Join(base, "*", "go.sum"))
	if err != nil {
		return k, err
	}
	for _, file := range append([]string{filepath.Join(base, "go.sum")}, found...) {
		if err := addModules(ctx, &k, source, filepath.Dir(file)); err != nil {
			return k, fmt.Errorf("lock Kubernetes modules: %w", err)
		}
	}
	return k, nil
}

func addModules(ctx context.Context, k *lock.Kubernetes, source, dir string) error {
	sums, err := os.ReadFile(filepath.Join(dir, "go.sum"))
	if err != nil {
		return err
	}
	name, err := filepath.Rel(source, dir)
	if err != nil {
		return err
	}
	whole := sha256.Sum256(sums)
	k.Sums = append(k.Sums, lock.GoSum{Dir: filepath.ToSlash(name), SHA256: hex.EncodeToString(whole[:])})
	required, err := directModules(ctx, dir)
	if err != nil {
		return err
	}
	for line := range bytes.Lines(sums) {
		f := strings.Fields(string(line))
		if len(f) == 3 && required[f[0]] == f[1] {
			k.Modules = append(k.Modules, lock.Module{Path: f[0], Version: f[1], Sum: f[2]})
		}
	}
	slices.SortFunc(k.Modules, func(a, b lock.Module) int { return strings.Compare(a.Path+" "+a.Version, b.Path+" "+b.Version) })
	k.Modules = slices.Compact(k.Modules)
	return nil
}

// checkModules holds the checkout's go.sum files, which pin every module of the bundle, to the locked ones.
func checkModules(source string, locked lock.Kubernetes) error {
	for _, sum := range locked.Sums {
		content, err := os.ReadFile(filepath.Join(source, filepath.FromSlash(sum.Dir), "go.sum"))
		if err != nil {
			return fmt.Errorf("locked modules: %w", err)
		}
		whole := sha256.Sum256(content)
		if got := hex.EncodeToString(whole[:]); got != sum.SHA256 {
			return fmt.Errorf("locked modules: %s/go.sum: locked with sha256 %s, found %s (hullmark lock accepts the change)", sum.Dir, sum.SHA256, got)
		}
	}
	return nil
}

// directModules maps the modules that go.mod in dir requires by itself to their versions.
func directModules(ctx context.Context, dir string) (map[string]string, error) {
	cmd := exec.CommandContext(ctx, "go", "mod", "edit", "-json")
	cmd.Dir = dir
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("read go.mod in %s: %w", dir, err)
	}
	var mod struct {
		Require []struct {
			Path, Version string
			Indirect      bool
		}
	}
	if err := json.Unmarshal(out, &mod); err != nil {
		return nil, fmt.Errorf("read go.mod in %s: %w", dir, err)
	}
	required := map[string]string{}
	for _, r := range mod.Require {
		if !r.Indirect {
			required[r.Path] = r.Version
		}
	}
	return required, nil
}

// WriteLock writes l to file. What was there stays when it cannot be written.
func WriteLock(file string, l lock.Lock) error {
	text, err := lock.Encode(l)
	if err != nil {
		return err
	}
	return atomicfile.Write(file, text, 0o644)
}
