package build

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/hullmark/hullmark/image/lock"
	"github.com/hullmark/hullmark/internal/cache"
	"github.com/hullmark/hullmark/internal/toolstree"
)

// nodeHome is the folder of the root tree that holds our own programs.
const nodeHome = "usr/lib/hullmark"

// programsFormat changes whenever programs makes others from the same sources.
const programsFormat = "1"

// makePrograms returns the folder of what runs on a node, compiled from these sources by this compiler: the initrd's program as
// initrd, and what goes to nodeHome below node. What is in the store is taken (hit).
func makePrograms(ctx context.Context, o Options, l lock.Lock, tools string) (dir string, hit bool, err error) {
	if err := checkGo(ctx, l.Go, o.Source); err != nil {
		return "", false, err
	}
	sources, err := hashSources(o.Source)
	if err != nil {
		return "", false, fmt.Errorf("hash sources: %w", err)
	}
	return o.Store.Step("programs", cache.Key(programsFormat, sources, l.Go, l.Digest(lock.Tools)), func(dir string) error {
		p := programs{source: o.Source, store: o.Store, tools: tools, out: dir}
		if err := os.Mkdir(filepath.Join(dir, "node"), 0o755); err != nil {
			return err
		}
		if err := p.make(ctx, l); err != nil {
			return err
		}
		return still(sources, func() (string, error) { return hashSources(o.Source) })
	})
}

// programs compiles what runs on a node.
type programs struct {
	source string
	store  cache.Store
	tools  string
	out    string // folder for the results
}

// make compiles everything into out: the initrd's program as initrd, and what goes to nodeHome below node.
func (p programs) make(ctx context.Context, l lock.Lock) error {
	if err := p.static(ctx, l.Go, "initrd", filepath.Join(p.out, "initrd")); err != nil {
		return err
	}
	for _, name := range []string{"firstboot", "joinservice", "journal", "metrics", "slots", "upgrade"} {
		if err := p.static(ctx, l.Go, name, filepath.Join(p.out, "node", name)); err != nil {
			return err
		}
	}
	return p.linked(ctx, "statedisk", l)
}

// goFlags make a program's bytes independent of where and when it is compiled.
func goFlags(extra ...string) []string {
	return append([]string{"build", "-trimpath", linkerFlags}, extra...)
}

const linkerFlags = "-ldflags=" + stripped

// static compiles tools/name without C, so Go is all that it needs.
func (p programs) static(ctx context.Context, release, name, out string) error {
	cmd := goCommand(ctx, release, p.source, "", goFlags("-o", out, "./tools/"+name)...)
	return runQuiet(cmd, "compile "+name)
}

// linked compiles tools/name, which uses a C library, with the compiler and the libraries of the tools tree: their versions are
// those of the image, and the machine's do not matter. Go and its modules are shown read-only.
func (p programs) linked(ctx context.Context, name string, l lock.Lock) error {
	if err := runQuiet(goCommand(ctx, l.Go, p.source, "", "mod", "download"), "download modules"); err != nil {
		return err
	}
	root, modules, err := p.goFolders(ctx, l.Go)
	if err != nil {
		return err
	}
	objects := filepath.Join(p.store.Root, "go-build", l.Digest(lock.Tools))
	if err := os.MkdirAll(objects, 0o755); err != nil {
		return err
	}
	s := toolstree.Sandbox{
		Tree: p.tools, Offline: true, Dir: "/source",
		Binds: []toolstree.Bind{
			{Host: p.source, Tree: "/source"},
			{Host: root, Tree: "/go"},
			{Host: modules, Tree: "/modules"},
			{Host: objects, Tree: "/objects", Writable: true},
			{Host: p.out, Tree: "/out", Writable: true},
		},
		Env: map[string]string{
			"CGO_ENABLED": "1", "CC": "gcc", "GOROOT": "/go", "GOMODCACHE": "/modules", "GOCACHE": "/objects", "GOPROXY": "off", "GOFLAGS": "-mod=readonly -buildvcs=false", "GOENV": "off",
			"GOTOOLCHAIN": "local", "GOAMD64": "v1", "GOWORK": "off", "HOME": "/tmp", "CGO_CFLAGS": "-O2 -g0", "GOTELEMETRY": "off",
		},
	}
	args := goFlags("-o", "/out/node/"+name, "./tools/"+name)
	return runQuiet(s.Command(ctx, append([]string{"/go/bin/go"}, args...)...), "compile "+name)
}

// goFolders returns where the machine keeps a release of Go and the modules that it downloaded.
func (p programs) goFolders(ctx context.Context, release string) (root, modules string, err error) {
	out, err := goTool(ctx, release, p.source, "", "env", "GOROOT", "GOMODCACHE")
	f := strings.Fields(string(out))
	if err != nil || len(f) != 2 {
		return "", "", fmt.Errorf("find Go: %w: %q", err, out)
	}
	return f[0], f[1], nil
}

// runQuiet runs cmd; what it printed is shown only if it fails. A cmd whose Stdout is set keeps it.
func runQuiet(cmd *exec.Cmd, what string) error {
	if log, err := runLogged(cmd); err != nil {
		return fmt.Errorf("%s: %w\n%s", what, err, tail(log, 4096))
	}
	return nil
}

// runLogged runs cmd and returns all that it printed.
func runLogged(cmd *exec.Cmd) (log []byte, err error) {
	var b bytes.Buffer
	if cmd.Stderr = &b; cmd.Stdout == nil {
		cmd.Stdout = &b
	}
	interruptible(cmd)
	err = cmd.Run()
	return b.Bytes(), err
}

// interruptible makes the end of cmd's context an interrupt, so that a program ends those that it started and removes what it
// made; only one that does not listen is killed.
func interruptible(cmd *exec.Cmd) {
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 20 * time.Second
}
