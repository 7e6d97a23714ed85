package vm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"

	"github.com/hullmark/hullmark/internal/toolstree"
)

// The programs that a machine needs.
const (
	qemuProgram       = "qemu-system-x86_64"
	swtpmProgram      = "swtpm"
	swtpmSetupProgram = "swtpm_setup"
	swtpmCAProgram    = "swtpm_localca"
)

// packageOf names the Debian package that a program is in.
func packageOf(program string) string {
	switch program {
	case qemuProgram:
		return "qemu-system-x86"
	case swtpmSetupProgram, swtpmCAProgram:
		return "swtpm-tools"
	default:
		return program
	}
}

// toolset is where programs and firmware come from: a tools tree, or the host if tree is empty.
type toolset struct {
	tree string
}

// treePrefix is where the host's files appear inside a tools tree: beside the tree's own, whatever they are called.
const treePrefix = "/vm"

// inside is the path at which a program finds a file of the host that was bound for it.
func (t toolset) inside(path string) string {
	if t.tree == "" {
		return path
	}
	return treePrefix + path
}

// command prepares a program. binds are the host's files that it has to see; without a tree it sees them all anyway.
func (t toolset) command(ctx context.Context, binds []toolstree.Bind, program string, args ...string) (*exec.Cmd, error) {
	if err := t.require(program); err != nil {
		return nil, err
	}
	if t.tree == "" {
		return exec.CommandContext(ctx, program, args...), nil
	}
	inner := slices.Clone(binds)
	for i := range inner {
		inner[i].Tree = t.inside(inner[i].Host)
	}
	return toolstree.Command(ctx, t.tree, inner, append([]string{program}, args...)...), nil
}

// require fails where one of the programs is missing, and says what to install.
func (t toolset) require(programs ...string) error {
	if t.tree != "" {
		if _, err := exec.LookPath("bwrap"); err != nil {
			return errors.New("vm: bwrap is missing, which runs the tools tree: apt-get install bubblewrap")
		}
	}
	for _, program := range programs {
		if _, err := t.program(program); err != nil {
			return err
		}
	}
	return nil
}

// program finds a program's path, as the programs of the toolset see it.
func (t toolset) program(name string) (string, error) {
	if t.tree == "" {
		path, err := exec.LookPath(name)
		if err != nil {
			return "", fmt.Errorf("vm: %s is missing: apt-get install %s", name, packageOf(name))
		}
		return path, nil
	}
	if _, err := os.Stat(filepath.Join(t.tree, "usr/bin", name)); err != nil {
		return "", fmt.Errorf("vm: tools tree %s: %s is missing: the tree needs package %s", t.tree, name, packageOf(name))
	}
	return "/usr/bin/" + name, nil
}

var qemuVersion = regexp.MustCompile(`version (\d+)\.`)

// qemuMajor asks QEMU for its major version.
func (t toolset) qemuMajor(ctx context.Context) (int, error) {
	cmd, err := t.command(ctx, nil, qemuProgram, "--version")
	if err != nil {
		return 0, err
	}
	out, err := cmd.Output()
	if err != nil {
		return 0, fmt.Errorf("vm: %s --version: %w", qemuProgram, err)
	}
	found := qemuVersion.FindSubmatch(out)
	if found == nil {
		return 0, fmt.Errorf("vm: %s --version: no version in %q", qemuProgram, bytes.TrimSpace(out))
	}
	return strconv.Atoi(string(found[1]))
}
