package build

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/hullmark/hullmark/image/lock"
	"github.com/hullmark/hullmark/internal/cache"
)

// circumstance is what differs between builds that must not differ.
type circumstance struct {
	name, folder string
	umask        fs.FileMode
	settings     []string // of the environment
	// ahead is on which day the build runs, from today. Another day's kernel has one processor, and Kubernetes would take hours
	// on it: such a build takes the bundle that the build before it made.
	ahead time.Duration
}

func circumstances() []circumstance {
	elsewhere := circumstance{
		name: "elsewhere", folder: "another/folder", umask: 0o077,
		settings: []string{"TZ=Pacific/Kiritimati", "LC_ALL=tr_TR.UTF-8", "LANG=tr_TR.UTF-8", "GOMAXPROCS=7"},
	}
	otherDay := elsewhere
	otherDay.name, otherDay.folder, otherDay.ahead = "on another day", "third/folder", 400*24*time.Hour+7*time.Hour
	// Its compiler makes do with little memory: that kernel maps each page for itself, and the machine's lets a process have
	// 65,530 maps (vm.max_map_count) unless somebody raised that.
	otherDay.settings = []string{"TZ=America/St_Johns", "LC_ALL=tr_TR.UTF-8", "LANG=tr_TR.UTF-8", "GOPROXY=off", "GOGC=20"}
	return []circumstance{{name: "here", folder: "a", umask: 0o022, settings: []string{"TZ=UTC", "LC_ALL=C"}}, elsewhere, otherDay}
}

// otherMemory is what the kernel of another day gets, in MiB: a root tree, and the objects of all programs.
const otherMemory = 14 << 10

// Reproduce builds the image of o three times and compares: in three folders with copies of the sources and of the user's
// folder, under another umask, time zone and locale, the third time on another kernel with one processor, whose clock stands on
// another day. Each has an empty store and an empty Go cache. They share only what is held by hash, which is packages and Go
// modules, and the tools tree; the third takes the second's Kubernetes bundle. Program is the hullmark program that is started
// for each. It returns the SHA-256 in hex that all images have; if two differ, the error names the first partition, file and
// offset that do. What the program writes beside an image, its SBOM and its measurement document, has to be equal, too. If use is not
// nil, it is called when all is equal, with the paths of the first image, beside which that lies, and of the tools tree. The image is
// gone afterwards.
func Reproduce(ctx context.Context, o Options, program string, use func(image, tools string) error) (sum string, err error) {
	if o.LockFile, err = filepath.Abs(o.LockFile); err != nil { // The kernel of another day works in another folder.
		return "", err
	}
	l, err := ReadLock(o)
	if err != nil {
		return "", err
	}
	tools, err := Tools(ctx, o, l)
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(o.Out, 0o755); err != nil {
		return "", err
	}
	work, err := os.MkdirTemp(o.Out, ".reproduce-")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(work) }()
	for _, c := range circumstances() { // all before the first build, which takes long enough for someone to edit a file
		if err := o.copyInputs(filepath.Join(work, c.folder), c); err != nil {
			return "", fmt.Errorf("reproduce: copy sources: %w", err)
		}
	}
	var images []string
	for i, c := range circumstances() {
		err := o.Progress.Step("build "+c.name, func() (string, error) {
			file, err := o.buildUnder(ctx, program, work, c)
			images = append(images, file)
			return "", err
		})
		if err != nil {
			return "", fmt.Errorf("reproduce: %w", err)
		}
		if i == 0 {
			continue
		}
		if err := errors.Join(compareImages(ctx, tools, images[i-1], images[i]), compareDocuments(images[i-1], images[i])); err != nil {
			return "", fmt.Errorf("reproduce: built %s and %s: %w", circumstances()[i-1].name, c.name, err)
		}
	}
	if use != nil {
		if err := use(images[0], tools); err != nil {
			return "", err
		}
	}
	return cache.HashFile(images[0])
}

// copyInputs copies the checkout to dir/source and the user's folder to dir/definitions, as they are under c.
func (o Options) copyInputs(dir string, c circumstance) error {
	err := copyFolder(o.Source, filepath.Join(dir, "source"), c.mode, notSources(o)...)
	if err == nil && o.Config != "" {
		err = copyFolder(o.Config, filepath.Join(dir, "definitions"), c.mode, notSources(o)...)
	}
	return err
}

// buildUnder runs a build of c's inputs below all in a folder of its own and returns the image's path.
func (o Options) buildUnder(ctx context.Context, program, all string, c circumstance) (string, error) {
	dir := filepath.Join(all, c.folder)
	source, work := filepath.Join(dir, "source"), filepath.Join(dir, "work")
	store, out := filepath.Join(work, "cache"), filepath.Join(work, "out")
	if o.Config != "" {
		o.Config = filepath.Join(dir, "definitions")
	}
	if err := os.Mkdir(work, 0o755); err != nil {
		return "", err
	}
	locales, err := makeLocale(ctx, dir)
	if err != nil {
		return "", err
	}
	shared := []string{filepath.Join(o.Store.Root, "sha256"), filepath.Join(o.Store.Root, "tools")}
	if c.ahead != 0 && !o.WithoutKubernetes {
		shared = append(shared, filepath.Join(all, circumstances()[1].folder, "work", "cache", "kubernetes"))
	}
	script := fmt.Sprintf("mkdir -p %s && ln -s %s && umask %03o && export %s && %s",
		quote(store), quoteAll(append(shared, store)), uint32(c.umask),
		quoteAll(slices.Concat(c.settings, []string{"LOCPATH=" + locales, "HULLMARK_CACHE=" + store, "GOCACHE=" + filepath.Join(store, "go")})),
		quoteAll(append([]string{program}, o.buildArgs(source, out)...)))
	image := filepath.Join(out, o.ID+lock.DiskEnding)
	if c.ahead != 0 {
		return o.buildOnOtherDay(ctx, dir, work, script, out, c.ahead)
	}
	cmd := exec.CommandContext(ctx, "sh", "-c", script)
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	interruptible(cmd)
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("build in %s: %w", dir, err)
	}
	return image, nil
}

// buildOnOtherDay runs a build's script with an environment like the machine's, on a kernel of another day, and returns the
// image's path in a copy of out.
func (o Options) buildOnOtherDay(ctx context.Context, dir, work, script, out string, ahead time.Duration) (string, error) {
	kernel := otherDay{ahead: ahead, dir: filepath.Join(dir, "kernel"), memory: otherMemory}
	if err := os.Mkdir(kernel.dir, 0o755); err != nil {
		return "", err
	}
	modules, err := goTool(ctx, "local", o.Source, "", "env", "GOMODCACHE")
	if err != nil {
		return "", err
	}
	environment := quoteAll([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + work, "GOMODCACHE=" + strings.TrimSpace(string(modules))})
	built, err := kernel.run(ctx, work, "export "+environment+" && "+script, out, os.Stderr)
	return filepath.Join(built, o.ID+lock.DiskEnding), err
}

// makeLocale compiles the locale in which letters are least like elsewhere, and returns the folder that LOCPATH names.
func makeLocale(ctx context.Context, dir string) (string, error) {
	locales := filepath.Join(dir, "locales")
	if err := os.Mkdir(locales, 0o755); err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, "localedef", "-i", "tr_TR", "-f", "UTF-8", filepath.Join(locales, "tr_TR.UTF-8"))
	if err := runQuiet(cmd, "localedef"); err != nil {
		return "", fmt.Errorf("%w (apt-get install locales)", err)
	}
	return locales, nil
}

// mode is what a file's permissions are in a checkout that was made under c's umask.
func (c circumstance) mode(m fs.FileMode) fs.FileMode { return m.Perm() &^ c.umask }

func (o Options) buildArgs(source, out string) []string {
	args := []string{
		"build", "--source", source, "--lock", o.LockFile, "--out", out, "--image-id", o.ID,
		"--config", o.Config, "--profile", strings.Join(o.Profiles, ","), "--mirror", o.Mirror,
	}
	if o.WithoutKubernetes {
		args = append(args, "--without-kubernetes")
	}
	return args
}

// firstDifference returns the offset of the first byte in which a and b differ, or -1; where one ends, it differs from a longer one.
func firstDifference(a, b io.Reader) (int64, error) {
	const size = 1 << 20
	x, y := make([]byte, size), make([]byte, size)
	for at := int64(0); ; at += size {
		n, errA := io.ReadFull(a, x)
		m, errB := io.ReadFull(b, y)
		for i := range min(n, m) {
			if x[i] != y[i] {
				return at + int64(i), nil
			}
		}
		if n != m {
			return at + int64(min(n, m)), nil
		}
		for _, err := range []error{errA, errB} {
			if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
				return 0, err
			}
		}
		if n < size {
			return -1, nil
		}
	}
}
