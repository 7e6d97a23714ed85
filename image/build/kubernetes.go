package build

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/hullmark/hullmark/image/lock"
	"github.com/hullmark/hullmark/internal/cache"
)

// KubernetesRepository is the name that the side-loaded images live under. No registry answers to it, so none can be asked by mistake.
const KubernetesRepository = "localhost/hullmark"

// kubernetesFormat changes whenever the code below makes another bundle from the same sources.
const kubernetesFormat = "1"

// kubernetesHome is the folder of the root tree that holds everything of the bundle but the links in /usr/bin.
const kubernetesHome = "usr/lib/kubernetes"

// kubePrograms are the names that the multi-call binary is linked under; the first three are for people too and also stand in /usr/bin.
var kubePrograms = []string{"kubeadm", "kubectl", "kubelet", "kube-apiserver", "kube-controller-manager", "kube-proxy", "kube-scheduler"}

// Kubernetes returns the folder that holds the Kubernetes bundle, laid out as it is in the root tree: usr/lib/kubernetes with
// bin, images and patches, and links in usr/bin. It is compiled from the modules that tools/kubernetes pins, which takes
// minutes, unless the store holds the bundle of these sources and this compiler already (hit). The same sources and compiler
// give the same bytes, wherever they are.
func Kubernetes(ctx context.Context, o Options, l lock.Lock) (root string, hit bool, err error) {
	key, err := kubernetesKey(ctx, o, l.Go)
	if err != nil {
		return "", false, fmt.Errorf("build Kubernetes: %w", err)
	}
	dir, hit, err := o.Store.Step("kubernetes", key, func(dir string) error {
		b := bundle{
			release:  l.Go,
			source:   kubernetesSource(o),
			home:     filepath.Join(dir, kubernetesHome),
			objects:  filepath.Join(o.Store.Root, "kubernetes-objects"),
			progress: o.Progress,
		}
		if err := b.make(ctx); err != nil {
			return err
		}
		return still(key, func() (string, error) { return kubernetesKey(ctx, o, l.Go) })
	})
	if err != nil {
		return "", false, fmt.Errorf("build Kubernetes: %w", err)
	}
	return dir, hit, nil
}

func kubernetesSource(o Options) string { return filepath.Join(o.Source, "tools", "kubernetes") }

func kubernetesKey(ctx context.Context, o Options, release string) (string, error) {
	sources, err := hashFolder(kubernetesSource(o))
	if err != nil {
		return "", err
	}
	compiler, err := goTool(ctx, release, kubernetesSource(o), "", "version")
	if err != nil {
		return "", err
	}
	return cache.Key(kubernetesFormat, sources, strings.TrimSpace(string(compiler))), nil
}

// stripped leaves debugging information and the build's own identity out of a program.
const stripped = "-s -w -buildid="

// bundle is one compilation.
type bundle struct {
	// release is the release of Go that compiles.
	release string
	source  string
	// home is usr/lib/kubernetes of the new tree.
	home string
	// objects keeps compiled packages until the bundle is whole, so that an interrupted compilation goes on where it was.
	objects  string
	progress *Progress
}

func (b bundle) make(ctx context.Context) error {
	stamps, err := b.stamps(ctx)
	if err != nil {
		return err
	}
	for _, m := range []struct{ dir, packages, stamps string }{
		{".", "./kube ./etcd ./pause", stamps},
		// These have a client-go of their own, which is of another release.
		{"coredns", ".", stripped},
		{"flannel", ".", stripped},
	} {
		if err := b.compile(ctx, m.dir, m.stamps, strings.Fields(m.packages)); err != nil {
			return fmt.Errorf("compile %s: %w", m.dir, err)
		}
	}
	if err := b.link(); err != nil {
		return err
	}
	if err := b.images(ctx); err != nil {
		return fmt.Errorf("side-loaded images: %w", err)
	}
	if err := os.CopyFS(filepath.Join(b.home, "patches"), os.DirFS(filepath.Join(b.source, "patches"))); err != nil {
		return fmt.Errorf("kubeadm patches: %w", err)
	}
	if err := setModes(filepath.Join(b.home, "..", "..")); err != nil {
		return err
	}
	return os.RemoveAll(b.objects)
}

// setModes makes what the umask left the same everywhere: programs and folders 0755, files 0644.
func setModes(dir string) error {
	return filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.Type()&fs.ModeSymlink != 0 {
			return err
		}
		if e.IsDir() || filepath.Base(filepath.Dir(path)) == "bin" {
			return os.Chmod(path, 0o755)
		}
		return os.Chmod(path, 0o644)
	})
}

// stamps are the linker flags that tell the programs their version. Time is the release's, as the module proxy records it.
func (b bundle) stamps(ctx context.Context) (string, error) {
	release, err := b.module(ctx, ".", "k8s.io/kubernetes")
	if err != nil {
		return "", err
	}
	number := strings.Split(strings.TrimPrefix(release.Version, "v"), ".")
	if release.Time == "" || len(number) < 3 {
		return "", fmt.Errorf("module k8s.io/kubernetes: version %q of time %q: a release with its time is needed; is the module proxy reachable?", release.Version, release.Time)
	}
	flags := []string{stripped}
	for _, p := range []string{"k8s.io/client-go/pkg/version", "k8s.io/component-base/version"} {
		flags = append(flags,
			"-X", p+".gitVersion="+release.Version,
			"-X", p+".gitMajor="+number[0],
			"-X", p+".gitMinor="+number[1],
			// A module does not say which commit it was made from; left alone, this is a placeholder of git.
			"-X", p+".gitCommit=",
			"-X", p+".gitTreeState=archive",
			"-X", p+".buildDate="+release.Time)
	}
	return strings.Join(flags, " "), nil
}

type goModule struct{ Version, Time string }

func (b bundle) module(ctx context.Context, dir, path string) (m goModule, err error) {
	out, err := goTool(ctx, b.release, filepath.Join(b.source, dir), b.objects, "list", "-m", "-json", path)
	if err != nil {
		return m, err
	}
	err = json.Unmarshal(out, &m)
	return m, err
}

// compile builds packages of the module in dir into bin. A package is named after its folder.
func (b bundle) compile(ctx context.Context, dir, stamps string, packages []string) error {
	dir = filepath.Join(b.source, dir)
	all, err := goTool(ctx, b.release, dir, b.objects, append([]string{"list", "-deps"}, packages...)...)
	if err != nil {
		return err
	}
	bin := filepath.Join(b.home, "bin")
	if err := os.MkdirAll(bin, 0o755); err != nil {
		return err
	}
	cmd := goCommand(ctx, b.release, dir, b.objects, append([]string{"build", "-v", "-trimpath", "-ldflags", stamps, "-o", bin + "/"}, packages...)...)
	lines, err := cmd.StderrPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	last := b.follow(lines, "compiled packages of "+filepath.Base(dir), int64(strings.Count(string(all), "\n")))
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("go build: %w: %s", err, last)
	}
	return nil
}

// follow counts the packages that go build -v names and returns its last lines, which are the reason if it failed.
func (b bundle) follow(r io.Reader, what string, total int64) (last string) {
	var recent []string
	var done int64
	for s := bufio.NewScanner(r); s.Scan(); {
		if done++; done < total {
			b.progress.Part(what, done, total)
		}
		recent = append(recent, s.Text())
		recent = recent[max(0, len(recent)-10):]
	}
	return strings.Join(recent, "\n")
}

// link gives the programs that do several things their names.
func (b bundle) link() error {
	usrBin := filepath.Join(b.home, "..", "..", "bin")
	if err := os.MkdirAll(usrBin, 0o755); err != nil {
		return err
	}
	if err := os.Symlink("etcd", filepath.Join(b.home, "bin", "etcdutl")); err != nil {
		return err
	}
	for i, name := range kubePrograms {
		if err := os.Symlink("kube", filepath.Join(b.home, "bin", name)); err != nil {
			return err
		}
		if i < 3 {
			if err := os.Symlink("../lib/kubernetes/bin/"+name, filepath.Join(usrBin, name)); err != nil {
				return err
			}
		}
	}
	return nil
}
