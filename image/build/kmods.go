package build

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/hullmark/hullmark/image/cpio"
)

// modulesFile lists, in a definition folder, the kernel modules that the initrd loads: one name a line, # starts a comment.
const modulesFile = "modules.initrd"

// initrdModules reads the module lists of definition folders; the first has to have one.
func initrdModules(folders ...string) ([]string, error) {
	var names []string
	for i, dir := range folders {
		text, err := os.ReadFile(filepath.Join(dir, modulesFile))
		if i > 0 && errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("choose initrd modules: %w", err)
		}
		for line := range strings.Lines(string(text)) {
			line, _, _ = strings.Cut(line, "#")
			names = append(names, strings.Fields(line)...)
		}
	}
	return names, nil
}

// kernelModules is the index of one kernel's modules, modules.dep(5).
type kernelModules struct {
	dir     string              // usr/lib/modules/VERSION
	path    map[string]string   // module name → path below dir
	needs   map[string][]string // path → paths, nearest first
	builtin map[string]bool
}

func readKernelModules(tree members) (k kernelModules, err error) {
	version, err := kernelVersion(tree)
	if err != nil {
		return k, err
	}
	k = kernelModules{dir: "usr/lib/modules/" + version, path: map[string]string{}, needs: map[string][]string{}, builtin: map[string]bool{}}
	deps, err := tree.read(k.dir + "/modules.dep")
	if err != nil {
		return k, err
	}
	in := bufio.NewScanner(bytes.NewReader(deps))
	for in.Scan() {
		file, needs, _ := strings.Cut(in.Text(), ":")
		k.path[moduleName(file)] = file
		k.needs[file] = strings.Fields(needs)
	}
	builtin, err := tree.read(k.dir + "/modules.builtin")
	if err != nil {
		return k, err
	}
	for line := range strings.Lines(string(builtin)) {
		k.builtin[moduleName(strings.TrimSpace(line))] = true
	}
	return k, in.Err()
}

// kernelVersion finds the one kernel of a tree.
func kernelVersion(tree members) (string, error) {
	var found []string
	for name := range tree {
		if dir, file := path.Split(name); file == "vmlinuz" && path.Dir(path.Clean(dir)) == "usr/lib/modules" {
			found = append(found, path.Base(dir))
		}
	}
	if len(found) != 1 {
		return "", fmt.Errorf("root tree: %d kernels in usr/lib/modules, want 1 %v", len(found), found)
	}
	return found[0], nil
}

// moduleName is the name by which a module is known; file names spell some underscores as dashes.
func moduleName(file string) string {
	base, _, _ := strings.Cut(path.Base(file), ".ko")
	return strings.ReplaceAll(base, "-", "_")
}

// order lists the files of the named modules and of all that they need, each after what it needs.
func (k kernelModules) order(names []string) ([]string, error) {
	var out []string
	for _, name := range names {
		name = moduleName(name)
		file, ok := k.path[name]
		if !ok && k.builtin[name] {
			continue
		}
		if !ok {
			return nil, fmt.Errorf("kernel module %s is neither in %s nor built in", name, k.dir)
		}
		needs := slices.Clone(k.needs[file])
		slices.Reverse(needs)
		for _, f := range append(needs, file) {
			if !slices.Contains(out, f) {
				out = append(out, f)
			}
		}
	}
	return out, nil
}

// packInitrd returns the archive of the initrd: our program as /init, and modules in the order in which it has to load them.
func packInitrd(tree members, program []byte, modules []string) ([]byte, error) {
	k, err := readKernelModules(tree)
	if err != nil {
		return nil, err
	}
	files, err := k.order(modules)
	if err != nil {
		return nil, err
	}
	entries := []cpio.Entry{{Name: "init", Mode: 0o755, Data: program}}
	for i, file := range files {
		module, err := tree.read(k.dir + "/" + file)
		if err != nil {
			return nil, fmt.Errorf("pack initrd: %w", err)
		}
		entries = append(entries, cpio.Entry{Name: fmt.Sprintf("lib/modules/%02d-%s.ko", i, moduleName(file)), Mode: 0o644, Data: module})
	}
	var archive bytes.Buffer
	if err := cpio.Write(&archive, entries); err != nil {
		return nil, fmt.Errorf("pack initrd: %w", err)
	}
	return archive.Bytes(), nil
}
