package build

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/hullmark/hullmark/image/lock"
	"github.com/hullmark/hullmark/internal/toolstree"
)

// mkosi is an unpacked mkosi package and the definitions that it is given.
type mkosi struct {
	program     string // folder of the unpacked package
	definitions string // our folder mkosi/
	config      string // the user's definition folder, layered over ours; may be empty
	profiles    []string
	skip        []string // names and paths of what is no definition
}

// stage returns m with copies of the definitions below dir, with modes that depend only on what git keeps: a checkout made
// under another umask gives the same tree.
func (m mkosi) stage(dir string) (mkosi, error) {
	systemd := filepath.Join(filepath.Dir(m.definitions), "systemd")
	for _, c := range []struct{ from, to string }{{m.definitions, "mkosi"}, {systemd, "systemd"}, {m.config, "config"}} {
		if c.from == "" {
			continue
		}
		if err := copyFolder(c.from, filepath.Join(dir, c.to), plainMode, m.skip...); err != nil {
			return m, fmt.Errorf("copy definitions: %w", err)
		}
	}
	m.definitions = filepath.Join(dir, "mkosi")
	if m.config != "" {
		m.config = filepath.Join(dir, "config")
	}
	return m, nil
}

// openMkosi unpacks the locked mkosi, which is fetched if need be, for definitions that may be given to it.
func openMkosi(ctx context.Context, o Options, l lock.Lock) (mkosi, error) {
	if strings.ContainsAny(o.Store.Root, " \t\n") {
		return mkosi{}, fmt.Errorf("cache %q: mkosi does not work in a folder whose name has a space: use another (HULLMARK_CACHE)", o.Store.Root)
	}
	if err := CheckDefinitions(o); err != nil {
		return mkosi{}, err
	}
	return unpackMkosi(ctx, o, l)
}

func unpackMkosi(ctx context.Context, o Options, l lock.Lock) (mkosi, error) {
	m := mkosi{definitions: filepath.Join(o.Source, "mkosi"), config: o.Config, profiles: o.Profiles, skip: notSources(o)}
	for _, folder := range []*string{&m.definitions, &m.config} { // as its sandbox has them, whose working folder is another
		if path, err := filepath.Abs(*folder); err == nil && *folder != "" {
			*folder = path
		}
	}
	for _, p := range l.Of(lock.Tools) {
		if p.Name != mkosiPackage {
			continue
		}
		dir, _, err := o.Store.Step("mkosi", p.SHA256, func(dir string) error {
			if err := fetch(ctx, o, l, []lock.Package{p}); err != nil {
				return err
			}
			return unpack(ctx, o.Store.BlobPath(p.SHA256), dir)
		})
		m.program = dir
		return m, err
	}
	return m, fmt.Errorf("package %s is not locked: run hullmark lock", mkosiPackage)
}

// command prepares a run of mkosi in a sandbox: mkosi's own is not meant to hold a program that wants to get out of it
// (mkosi-sandbox(1)). It has no network, and sees of this machine what is in /usr and /etc, its own package and shown; home, which
// has to be among these, or /tmp, is where it works. So a build does not depend on the caller's environment either.
func (m mkosi) command(ctx context.Context, home string, shown []toolstree.Bind, args ...string) *exec.Cmd {
	return toolstree.Sandbox{
		Tree: "/", Binds: append(shown, toolstree.Bind{Host: m.program}), Env: m.environment(home), Offline: true, Ordinary: true,
	}.Command(ctx, m.argv(args...)...)
}

// argv is a run of mkosi for the definitions.
func (m mkosi) argv(args ...string) []string {
	// Debian's own Python: another one that is first in PATH may be of any version. Scripts make files, so the umask is part of the input.
	all := []string{"sh", "-c", `umask 022; exec /usr/bin/python3 "$@"`, "sh", "-m", "mkosi", "--directory", m.definitions}
	if m.config != "" {
		all = append(all, "--include", m.config)
	}
	for _, p := range m.profiles {
		all = append(all, "--profile", p)
	}
	return append(all, args...)
}

// environment is mkosi's, beside PATH and LC_ALL.
func (m mkosi) environment(home string) map[string]string {
	return map[string]string{
		"TZ": "UTC", "HOME": home, "TMPDIR": home, "PYTHONPATH": filepath.Join(m.program, "usr/lib/python3/dist-packages"), "PYTHONDONTWRITEBYTECODE": "1",
	}
}

// summary is what we take from mkosi's own reading of the definitions; its JSON has the names of mkosi.conf.
type summary struct {
	// Packages are the names of what the image is asked to hold, BuildPackages of what build scripts find beside it.
	Packages, BuildPackages []string
	// Repositories are the archive's components, beside main, that packages may be of.
	Repositories []string
	// RemoveFiles are patterns of what is taken out of the tree, from its root.
	RemoveFiles []string
	// KernelCommandLine are the words of the kernel command line, in order.
	KernelCommandLine []string
}

// named lists the paths that the definitions name, as mkosi read them: image is the JSON of one.
func named(image []byte) (paths []string, err error) {
	var all map[string]json.RawMessage
	if err := json.Unmarshal(image, &all); err != nil {
		return nil, err
	}
	for name, value := range all {
		var list []string
		var trees []struct{ Source string }
		switch known[name].kind {
		case ofPaths:
			err = errors.Join(err, json.Unmarshal(value, &list))
		case ofTrees:
			err = errors.Join(err, json.Unmarshal(value, &trees))
		}
		for _, tree := range trees {
			list = append(list, tree.Source)
		}
		paths = append(paths, list...)
	}
	slices.Sort(paths)
	return paths, err
}

func (m mkosi) summary(ctx context.Context) (summary, error) {
	var shown []toolstree.Bind
	for _, folder := range []string{m.definitions, filepath.Join(filepath.Dir(m.definitions), "systemd"), m.config} {
		if folder != "" {
			shown = append(shown, toolstree.Bind{Host: folder})
		}
	}
	cmd := m.command(ctx, "/tmp", shown, "--json", "summary")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return summary{}, fmt.Errorf("read mkosi definitions: %w\n%s", err, stderr.Bytes())
	}
	var all struct{ Images []json.RawMessage }
	if err := json.Unmarshal(out, &all); err != nil {
		return summary{}, fmt.Errorf("read mkosi definitions: %w", err)
	}
	if len(all.Images) != 1 {
		return summary{}, fmt.Errorf("read mkosi definitions: %d images, want 1", len(all.Images))
	}
	var s summary
	paths, err := named(all.Images[0])
	if err := errors.Join(err, json.Unmarshal(all.Images[0], &s)); err != nil {
		return s, fmt.Errorf("read mkosi definitions: %w", err)
	}
	return s, m.checkOwn(paths)
}

// checkOwn refuses paths outside of the definitions and of mkosi itself: what is there may change, and no key would tell.
func (m mkosi) checkOwn(paths []string) error {
	folders := ownFolders(m.definitions, m.config, m.program)
	for _, path := range paths {
		target, err := filepath.EvalSymlinks(path)
		if err != nil {
			target = path // mkosi says what is not there
		}
		if !isBelow(folders, target) {
			return fmt.Errorf("read mkosi definitions: they name %s, outside of their folder: put it there", path)
		}
	}
	return nil
}

// treeEpoch is when mkosi says that all files of a tree were made, in seconds of Unix time. In an image each has the lock's time.
const treeEpoch = 1577836800

// rootTar installs packages from a repository, as offered, into the tree of base, or into an empty one, and writes it as out/root.tar.
func (m mkosi) rootTar(ctx context.Context, tools string, offered []toolstree.Bind, base base, out string) error {
	work, err := os.MkdirTemp(out, "work-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(work) }()
	if m, err = m.stage(filepath.Join(work, "definitions")); err != nil {
		return err
	}
	args := []string{
		"--tools-tree", tools, "--local-mirror", "file://" + repositoryPlace, "--source-date-epoch", strconv.Itoa(treeEpoch),
		"--output-dir", out, "--output", "root", "--workspace-dir", work, "--package-cache-dir", filepath.Join(work, "packages"), "--force",
	}
	shown := append(offered, toolstree.Bind{Host: tools}, toolstree.Bind{Host: out, Writable: true})
	if base.tarFile != "" {
		shown = append(shown, toolstree.Bind{Host: base.tarFile})
		args = append(args, "--base-tree", base.tarFile, "--package", strings.Join(base.packages, ","))
	}
	log, err := runLogged(m.command(ctx, work, shown, append(args, "build")...))
	if said := failedScript(log); err != nil && said != "" {
		return fmt.Errorf("mkosi: %w: a package's script failed\n%s", err, said)
	}
	if err != nil {
		return fmt.Errorf("mkosi: %w\n%s", err, tail(log, 4096))
	}
	return nil
}

// failedScript finds where dpkg says which package it gave up, and returns that with the lines around it, in which the script
// had its last word: dpkg goes on with other packages, whose lines come after it. It returns nothing if dpkg gave up none.
func failedScript(log []byte) string {
	lines := strings.Split(string(log), "\n")
	at := slices.IndexFunc(lines, func(line string) bool { return strings.HasPrefix(line, "dpkg: error processing ") })
	if at < 0 {
		return ""
	}
	return strings.Join(lines[max(0, at-15):min(len(lines), at+2)], "\n")
}

func tail(b []byte, n int) []byte { return b[max(0, len(b)-n):] }
