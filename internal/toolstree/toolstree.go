// Package toolstree runs programs out of an unpacked tree of pinned packages, so that what they do does not depend on the
// machine around them.
package toolstree

import (
	"context"
	"os"
	"os/exec"
	"sort"
)

// Bind shows one path of the machine inside the tree.
type Bind struct {
	// Host is the path on the machine, Tree the absolute path at which the program sees it; an empty Tree means the same path.
	Host, Tree string
	// Writable lets the program change it.
	Writable bool
}

// Sandbox says how a program is run.
type Sandbox struct {
	// Tree is the folder that holds the unpacked packages; its /usr and /etc become the program's, read-only.
	Tree string
	// Binds are shown over the tree in order.
	Binds []Bind
	// Env is the program's whole environment besides PATH and LC_ALL; nothing is inherited.
	Env map[string]string
	// Dir is the working directory as the program sees it; empty means /tmp.
	Dir string
	// Offline takes the network away.
	Offline bool
	// Ordinary has root's programs run as an ordinary user, who has the right to nothing but root's files that are shown; an
	// ordinary user's do anyway.
	Ordinary bool
}

// Command prepares argv to run with tree as its root, as Sandbox{Tree: tree, Binds: binds} does.
func Command(ctx context.Context, tree string, binds []Bind, argv ...string) *exec.Cmd {
	return Sandbox{Tree: tree, Binds: binds}.Command(ctx, argv...)
}

// Command prepares argv to run in the sandbox by bwrap, which is the only program that the machine itself has to bring. It
// works as root and, by user namespaces, as an ordinary user. The program has its own /tmp, /run, /proc and process IDs; it
// dies with its caller, and everything it started with it.
func (s Sandbox) Command(ctx context.Context, argv ...string) *exec.Cmd {
	args := []string{
		"--die-with-parent", "--unshare-pid", "--unshare-ipc", "--unshare-uts",
		"--ro-bind", s.Tree + "/usr", "/usr", "--ro-bind", s.Tree + "/etc", "/etc",
		"--symlink", "usr/bin", "/bin", "--symlink", "usr/sbin", "/sbin", "--symlink", "usr/lib", "/lib", "--symlink", "usr/lib64", "/lib64",
		"--proc", "/proc", "--dev", "/dev", "--dev-bind-try", "/dev/kvm", "/dev/kvm", "--tmpfs", "/tmp", "--tmpfs", "/run", "--dir", "/var/tmp",
		"--clearenv", "--setenv", "PATH", "/usr/bin:/usr/sbin", "--setenv", "LC_ALL", "C.UTF-8",
	}
	if s.Offline {
		args = append(args, "--unshare-net")
	}
	if s.Ordinary && os.Geteuid() == 0 {
		args = append(args, "--unshare-user", "--uid", "1000", "--gid", "1000", "--cap-drop", "ALL")
	}
	args = append(args, s.environment()...)
	for _, b := range s.Binds {
		args = append(args, b.args()...)
	}
	dir := s.Dir
	if dir == "" {
		dir = "/tmp"
	}
	args = append(args, "--chdir", dir, "--")
	return exec.CommandContext(ctx, "bwrap", append(args, argv...)...)
}

func (s Sandbox) environment() []string {
	names := make([]string, 0, len(s.Env))
	for n := range s.Env {
		names = append(names, n)
	}
	sort.Strings(names)
	var args []string
	for _, n := range names {
		args = append(args, "--setenv", n, s.Env[n])
	}
	return args
}

func (b Bind) args() []string {
	inside := b.Tree
	if inside == "" {
		inside = b.Host
	}
	if b.Writable {
		return []string{"--bind", b.Host, inside}
	}
	return []string{"--ro-bind", b.Host, inside}
}
