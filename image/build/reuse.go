package build

import (
	"archive/tar"
	"bytes"
	"context"
	"debug/elf"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/hullmark/hullmark/image/lock"
	"github.com/hullmark/hullmark/internal/cache"
)

// A tree is a function of its packages' files and of what their scripts make of them, and scripts take most of the time. A script
// does the same again where all that it reads is the same. So where nothing read the files that a new version of a package has
// otherwise, the tree is the earlier one with those files.

// The files of a tree's folder that serve the next tree: what the tree was made of, and files that have another content than in
// root.tar.
const (
	treeMade    = "made.json"
	treeChanged = "changed"
)

// made is what a tree was made of.
type made struct {
	// Rest is the key of everything but the image's packages.
	Rest     string
	Packages []lock.Package
	// Control is what each package says of itself, by field.
	Control map[string]fields
	// Read, Linked, Bases and Asked are as in reads, sorted.
	Read, Linked, Bases, Asked []string
	// Removed are the patterns of what mkosi took out of the tree.
	Removed []string
}

// errOther says why an earlier tree does not serve.
var errOther = errors.New("another tree")

// reuse makes a tree of an earlier one in the store that was made of everything as now, but for packages whose changed files
// nothing read. It tells whether there was such a tree.
func reuse(ctx context.Context, s cache.Store, rest string, l lock.Lock, dir string) (bool, error) {
	for _, earlier := range earlierTrees(s) {
		var m made
		text, err := os.ReadFile(filepath.Join(earlier, treeMade))
		if err != nil || json.Unmarshal(text, &m) != nil || m.Rest != rest || len(m.Read) == 0 {
			continue
		}
		pairs, err := changedPackages(m.Packages, l.Of(lock.Root))
		now := time.Now()
		if err != nil || os.Chtimes(earlier, now, now) != nil || !s.Whole("tree", filepath.Base(earlier)) {
			continue
		}
		switch err := m.change(ctx, s, pairs, l.Of(lock.Root), earlier, dir); {
		case err == nil:
			return true, nil
		case ctx.Err() != nil:
			return false, err
		}
		if err := emptyFolder(dir); err != nil {
			return false, err
		}
	}
	return false, nil
}

// earlierTrees lists the folders of trees, the one that was used last first.
func earlierTrees(s cache.Store) []string {
	used := map[string]time.Time{}
	folders, _ := filepath.Glob(filepath.Join(s.Root, "tree", "[0-9a-f]*"))
	for _, dir := range folders {
		if info, err := os.Stat(dir); err == nil {
			used[dir] = info.ModTime()
		}
	}
	return slices.SortedFunc(maps.Keys(used), func(a, b string) int { return used[b].Compare(used[a]) })
}

func emptyFolder(dir string) error {
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		err = errors.Join(err, os.RemoveAll(filepath.Join(dir, e.Name())))
	}
	return err
}

// change writes the folder of a tree of l's packages, from that of the tree that m tells of. Any error means that the tree has to be made
// from nothing.
func (m made) change(ctx context.Context, s cache.Store, pairs []packagePair, now []lock.Package, earlier, dir string) error {
	tree := members{}
	if err := tree.addTree(earlier); err != nil {
		return err
	}
	shared, err := tree.shared()
	if err != nil {
		return err
	}
	changed, control := map[string]*debFile{}, maps.Clone(m.Control)
	for _, pair := range pairs {
		files, said, err := m.inert(ctx, s, pair)
		if err != nil {
			return err
		}
		control[pair.is.Name] = said
		for name, file := range files {
			switch there, err := tree.has(name, file.was); {
			case err != nil:
				return err
			case shared[name] || changed[name] != nil || !there && !m.removed(name):
				return fmt.Errorf("%w: %s is not its package's alone", errOther, name)
			case there:
				changed[name] = file.is
			}
		}
	}
	if err := sameRelations(ctx, m.Control, control, versions(m.Packages), versions(now)); err != nil {
		return err
	}
	for _, name := range []string{treeTar, treeCmdline} {
		if err := os.Link(filepath.Join(earlier, name), filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	if _, err := os.Stat(filepath.Join(earlier, treeChanged)); err == nil {
		if err := os.CopyFS(filepath.Join(dir, treeChanged), os.DirFS(filepath.Join(earlier, treeChanged))); err != nil {
			return err
		}
	}
	for name, file := range changed {
		to := filepath.Join(dir, treeChanged, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(to), 0o755), os.WriteFile(to, file.content, 0o644)); err != nil {
			return err
		}
	}
	if !s.Whole("tree", filepath.Base(earlier)) {
		return fmt.Errorf("%w: it went meanwhile", errOther)
	}
	m.Packages, m.Control = now, control
	return m.write(dir)
}

func (m made) write(dir string) error {
	text, err := json.Marshal(m)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, treeMade), text, 0o644)
}

// packagePair is a package as it was and as it is.
type packagePair struct{ was, is lock.Package }

// changedPackages pairs the packages of the same names that are others. Both lists are sorted by name, and have to have the same.
func changedPackages(was, is []lock.Package) ([]packagePair, error) {
	var pairs []packagePair
	if len(was) != len(is) {
		return nil, fmt.Errorf("%w: it has %d packages, not %d", errOther, len(was), len(is))
	}
	for i := range was {
		if was[i].Name != is[i].Name || was[i].Arch != is[i].Arch {
			return nil, fmt.Errorf("%w: it has %s, not %s", errOther, was[i].ID(), is[i].ID())
		}
		if was[i].SHA256 != is[i].SHA256 {
			pairs = append(pairs, packagePair{was[i], is[i]})
		}
	}
	return pairs, nil
}

// debFile is a file of a package.
type debFile struct {
	kind    byte
	mode    int64
	uid     int
	gid     int
	link    string
	content []byte
}

// deb reads one of the two archives of a package (deb(5)): its files, or what dpkg knows of it.
func deb(ctx context.Context, s cache.Store, p lock.Package, which string) (map[string]*debFile, error) {
	if sum, err := cache.HashFile(s.BlobPath(p.SHA256)); err != nil || sum != p.SHA256 {
		return nil, errors.Join(err, fmt.Errorf("unpack %s: %w", p.ID(), cache.ErrContent))
	}
	out, err := exec.CommandContext(ctx, "dpkg-deb", which, s.BlobPath(p.SHA256)).Output()
	if err != nil {
		return nil, fmt.Errorf("unpack %s: %w", p.ID(), err)
	}
	files := map[string]*debFile{}
	in := tar.NewReader(bytes.NewReader(out))
	for {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return files, nil
		}
		if err != nil {
			return nil, fmt.Errorf("unpack %s: %w", p.ID(), err)
		}
		content, err := io.ReadAll(in)
		if err != nil {
			return nil, fmt.Errorf("unpack %s: %w", p.ID(), err)
		}
		files[path.Clean(h.Name)] = &debFile{h.Typeflag, h.Mode, h.Uid, h.Gid, h.Linkname, content}
	}
}

func (f *debFile) alike(g *debFile) bool {
	return g != nil && f.kind == g.kind && f.mode == g.mode && f.uid == g.uid && f.gid == g.gid && f.link == g.link
}

// unread are the members of a package's control archive that are for building other packages, or for checking.
var unread = []string{"md5sums", "shlibs", "symbols"}

// changedFile is a file that two versions of a package have with other contents.
type changedFile struct{ was, is *debFile }

// inert holds two versions of a package against each other, and returns the files that differ in content, and what the new one says of
// itself. It fails if they differ in anything else that is installed, or in what somebody read.
func (m made) inert(ctx context.Context, s cache.Store, pair packagePair) (map[string]changedFile, fields, error) {
	differs := func(what string) error {
		return fmt.Errorf("%w: %s is not %s in %s", errOther, pair.is.ID(), pair.was.ID(), what)
	}
	if slices.Contains(m.Asked, pair.is.Name) || slices.ContainsFunc(m.Asked, func(word string) bool { return strings.ContainsAny(word, "*?[") }) {
		return nil, nil, fmt.Errorf("%w: a script asks for the version of %s", errOther, pair.is.Name)
	}
	was, err := deb(ctx, s, pair.was, "--ctrl-tarfile")
	if err != nil {
		return nil, nil, err
	}
	is, err := deb(ctx, s, pair.is, "--ctrl-tarfile")
	if err != nil {
		return nil, nil, err
	}
	for _, name := range unread {
		delete(was, name)
		delete(is, name)
	}
	said, err := checkControl(is["control"], pair.is)
	if err != nil {
		return nil, nil, err
	}
	for name := range joined(was, is) {
		if was[name] == nil || !was[name].alike(is[name]) || name != "control" && !bytes.Equal(was[name].content, is[name].content) {
			return nil, nil, differs(name)
		}
	}
	if was, err = deb(ctx, s, pair.was, "--fsys-tarfile"); err != nil {
		return nil, nil, err
	}
	if is, err = deb(ctx, s, pair.is, "--fsys-tarfile"); err != nil {
		return nil, nil, err
	}
	files := map[string]changedFile{}
	for name := range joined(was, is) {
		if isDocumentation(name) && plain(was[name]) && plain(is[name]) {
			continue
		}
		if was[name] == nil || !was[name].alike(is[name]) {
			return nil, nil, differs(name)
		}
		if bytes.Equal(was[name].content, is[name].content) {
			continue
		}
		installed := underUsr(name)
		if m.reads(installed) || slices.Contains(m.Linked, installed) && !linkedAlike(was[name].content, is[name].content) {
			return nil, nil, differs(name)
		}
		files[installed] = changedFile{was[name], is[name]}
	}
	for name, file := range is {
		if _, other := files[underUsr(path.Clean(file.link))]; other && file.kind == tar.TypeLink {
			return nil, nil, differs(name) // a second name of it
		}
	}
	return files, said, nil
}

func joined[V any](a, b map[string]V) map[string]bool {
	names := map[string]bool{}
	for name := range a {
		names[name] = true
	}
	for name := range b {
		names[name] = true
	}
	return names
}

// underUsr is where a file of a package is in a tree whose /bin, /lib and the like are links into /usr.
func underUsr(name string) string {
	first, _, _ := strings.Cut(name, "/")
	if slices.Contains(mergedUsr, first) {
		return "usr/" + name
	}
	return name
}

// reads tells whether a file may have a part in the rest of the tree: it was opened or ran, or a last step of mkosi's looks at such files
// or runs it, or the kernel opens it by itself to run others.
func (m made) reads(name string) bool {
	base := path.Base(name)
	_, opened := slices.BinarySearch(m.Read, name)
	_, ran := slices.BinarySearch(m.Bases, base)
	return opened || ran || base == "kmod" || strings.HasPrefix(base, "ld-") || strings.HasPrefix(base, "ld.") || strings.HasPrefix(base, "klibc-") ||
		slices.ContainsFunc([]string{"etc/", "usr/share/systemd/", "usr/local/"}, func(p string) bool { return strings.HasPrefix(name, p) }) ||
		slices.ContainsFunc(processed, func(p string) bool { return strings.HasPrefix(name, p) })
}

// removed tells whether mkosi takes a file, or a folder that it is in, out of the tree.
func (m made) removed(name string) bool {
	for at := name; at != "."; at = path.Dir(at) {
		if slices.ContainsFunc(m.Removed, func(pattern string) bool {
			match, err := path.Match(strings.TrimPrefix(pattern, "/"), at)
			return match && err == nil
		}) {
			return true
		}
	}
	return false
}

// shared are the files of a tree that two packages have, or that dpkg keeps under another name (dpkg-divert(1)).
func (m members) shared() (map[string]bool, error) {
	owned, shared := map[string]bool{}, map[string]bool{}
	note := func(file string) error {
		text, err := m.read(file)
		for name := range strings.Lines(string(text)) {
			name = underUsr(strings.Trim(name, "/\n"))
			shared[name] = shared[name] || owned[name]
			owned[name] = true
		}
		return err
	}
	for file := range m {
		if strings.HasPrefix(file, "var/lib/dpkg/info/") && strings.HasSuffix(file, ".list") {
			if err := note(file); err != nil {
				return nil, err
			}
		}
	}
	diversions, err := m.read("var/lib/dpkg/diversions")
	for name := range strings.Lines(string(diversions)) {
		shared[underUsr(strings.Trim(name, "/\n"))] = true
	}
	return shared, err
}

// isDocumentation tells whether mkosi leaves a file of this name out of the tree (WithDocs=no): copyrights are in it, and folders and
// links are.
func isDocumentation(name string) bool {
	if strings.HasPrefix(name, "usr/share/doc/") && strings.HasSuffix(name, "/copyright") {
		return false
	}
	return slices.ContainsFunc(documentation, func(dir string) bool { return strings.HasPrefix(name, dir) })
}

// plain tells whether a package has a file with content by that name, or none.
func plain(f *debFile) bool { return f == nil || f.kind == tar.TypeReg }

// fields are those of a control file, by name (Debian Policy §5.1).
type fields map[string]string

// checkControl holds what a package says of itself against the lock, and returns it.
func checkControl(control *debFile, p lock.Package) (fields, error) {
	if control == nil {
		return nil, fmt.Errorf("%s says nothing of itself", p.ID())
	}
	said := parseFields(string(control.content))
	if said["Package"] != p.Name || said["Version"] != p.Version || said["Architecture"] != p.Arch {
		return nil, fmt.Errorf("%s calls itself %s %s %s", p.ID(), said["Package"], said["Version"], said["Architecture"])
	}
	return said, nil
}

func parseFields(text string) fields {
	all := fields{}
	last := ""
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		if line != "" && (line[0] == ' ' || line[0] == '\t') {
			all[last] += "\n" + line
			continue
		}
		name, value, _ := strings.Cut(line, ":")
		last, all[name] = name, strings.TrimSpace(value)
	}
	delete(all, "")
	return all
}

// parseIndex reads a repository's index, by package.
func parseIndex(text string) map[string]fields {
	all := map[string]fields{}
	for paragraph := range strings.SplitSeq(text, "\n\n") {
		if said := parseFields(paragraph); said["Package"] != "" {
			all[said["Package"]] = said
		}
	}
	return all
}

// relationFields say which packages a package goes with (Policy §7).
var relationFields = []string{"Pre-Depends", "Depends", "Recommends", "Suggests", "Enhances", "Breaks", "Conflicts", "Replaces", "Provides"}

// idleFields are those that nothing decides by; the last three are the repository's.
var idleFields = []string{
	"Version", "Installed-Size", "Source", "Maintainer", "Original-Maintainer", "Description", "Homepage", "Built-Using", "Static-Built-Using", "X-Cargo-Built-Using",
	"Filename", "Size", "SHA256",
}

// versions are those of packages by name.
func versions(packages []lock.Package) map[string]string {
	out := map[string]string{}
	for _, p := range packages {
		out[p.Name] = p.Version
	}
	return out
}

// sameRelations fails unless packages go together as they did: each says the same of itself, but for versions, and each condition on a
// version is met if it was met before.
func sameRelations(ctx context.Context, was, is map[string]fields, before, after map[string]string) error {
	for name := range is {
		for field := range joined(was[name], is[name]) {
			switch {
			case slices.Contains(idleFields, field):
			case slices.Contains(relationFields, field):
				a, b := parseRelations(was[name][field]), parseRelations(is[name][field])
				if err := relationsAlike(ctx, a, b, field == "Provides", before, after); err != nil {
					return fmt.Errorf("%s: %s: %w", name, field, err)
				}
			case was[name][field] != is[name][field]:
				return fmt.Errorf("%w: %s has another %s", errOther, name, field)
			}
		}
	}
	return nil
}

func relationsAlike(ctx context.Context, was, is []relation, provides bool, before, after map[string]string) error {
	if len(was) != len(is) {
		return errOther
	}
	for i, a := range was {
		b := is[i]
		if a.name != b.name || a.operator != b.operator || a.rest != b.rest || provides && a.version != b.version {
			return fmt.Errorf("%w: %s", errOther, b.name)
		}
		if provides || a.version == b.version && before[a.name] == after[a.name] {
			continue
		}
		if before[a.name] == "" { // somebody may provide it
			return fmt.Errorf("%w: %s", errOther, b.name)
		}
		met, err1 := a.met(ctx, before)
		still, err2 := b.met(ctx, after)
		if err1 != nil || err2 != nil || met != still {
			return errors.Join(fmt.Errorf("%w: %s", errOther, b.name), err1, err2)
		}
	}
	return nil
}

// relation is one name in a relationship field.
type relation struct{ name, operator, version, rest string }

// parseRelations reads a relationship field. The separator before a name, and what stands around it, is in rest.
func parseRelations(field string) []relation {
	var all []relation
	for field != "" {
		end := strings.IndexAny(field, ",|")
		separator := ""
		term := field
		if end >= 0 {
			term, separator, field = field[:end], field[end:end+1], field[end+1:]
		} else {
			field = ""
		}
		name, condition, _ := strings.Cut(strings.TrimSpace(term), "(")
		condition, after, _ := strings.Cut(condition, ")")
		name, qualifier, _ := strings.Cut(strings.TrimSpace(name), ":")
		version := strings.TrimLeft(condition, "<>= ")
		all = append(all, relation{
			name: strings.TrimSpace(name), operator: strings.TrimSpace(condition[:len(condition)-len(version)]), version: strings.TrimSpace(version),
			rest: separator + qualifier + strings.TrimSpace(after),
		})
	}
	return all
}

// met tells whether the package is there in such a version.
func (r relation) met(ctx context.Context, versions map[string]string) (bool, error) {
	version, there := versions[r.name]
	if !there || r.operator == "" {
		return there, nil
	}
	err := exec.CommandContext(ctx, "dpkg", "--compare-versions", version, r.operator, r.version).Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() == 1 {
		return false, nil
	}
	return err == nil, err
}

// linkedAlike tells whether ldconfig says the same of two libraries: it reads what kind of file it is, the name that it is linked by, and
// notes on the system that it is for (ldconfig(8)).
func linkedAlike(a, b []byte) bool {
	x, err := linkage(a)
	if err != nil {
		return false
	}
	y, err := linkage(b)
	return err == nil && x == y
}

func linkage(content []byte) (string, error) {
	f, err := elf.NewFile(bytes.NewReader(content))
	if err != nil {
		return "", err
	}
	name, err := f.DynString(elf.DT_SONAME)
	if err != nil {
		return "", err
	}
	if f.Section(".dynamic") == nil {
		return "", errors.New("no library")
	}
	header := f.FileHeader
	header.Entry = 0
	out := fmt.Sprintf("%+v %q %x", header, name, content[:min(64, len(content))][48:52]) // e_flags, which debug/elf leaves out
	for _, s := range f.Sections {
		if s.Type == elf.SHT_NOTE && s.Name != ".note.gnu.build-id" && s.Name != ".note.package" {
			data, err := s.Data()
			if err != nil {
				return "", err
			}
			out += fmt.Sprintf(" %s %x", s.Name, data)
		}
	}
	return out, nil
}

// addTree adds the files of a tree's folder.
func (m members) addTree(folder string) error {
	if err := m.addTar(filepath.Join(folder, treeTar)); err != nil {
		return err
	}
	changed := filepath.Join(folder, treeChanged)
	if _, err := os.Stat(changed); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return walk(changed, nil, func(name, file string, e fs.DirEntry) error {
		info, err := e.Info()
		if err != nil || !info.Mode().IsRegular() {
			return err
		}
		f := m[name]
		f.header.Size, f.open = info.Size(), section(file, 0, info.Size())
		m[name] = f
		return nil
	})
}

// has tells whether a file of a package is in the tree as the package has it. A file that is not there was removed; one that is
// another is an error, since somebody made it of the package's.
func (m members) has(name string, file *debFile) (bool, error) {
	f, there := m[name]
	if !there {
		return false, nil
	}
	content, err := m.read(name)
	if err != nil {
		return false, err
	}
	if f.same != "" || !bytes.Equal(content, file.content) {
		return false, fmt.Errorf("%w: %s is not as its package has it", errOther, name)
	}
	return true, nil
}
