package build

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
)

// circumstance is what differs between two builds that must not differ.
type circumstance struct {
	folder, umask, cores string
	env                  []string
}

func circumstances() [2]circumstance {
	return [2]circumstance{
		{folder: "a", umask: "022", cores: "0", env: []string{"TZ=UTC", "LC_ALL=C", "GOMAXPROCS=1"}},
		{folder: "another/folder", umask: "077", cores: "0-", env: []string{"TZ=Pacific/Kiritimati", "LC_ALL=de_DE.UTF-8", "LANG=de_DE.UTF-8", "GOMAXPROCS=7"}},
	}
}

// Reproduce builds the image of o twice and compares: in two folders with two copies of the sources, under another umask, time zone, locale and
// number of processors, minutes apart, each with an empty store and an empty Go cache. They share only packages, which are held by hash, and the
// tools tree. Program is the hullmark program that is started for each. It returns the SHA-256 in hex that both images have; if they differ, the
// error names the first partition, file and offset that do.
func Reproduce(ctx context.Context, o Options, program string) (sum string, err error) {
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
	var images [2]string
	for i, c := range circumstances() {
		err := o.Progress.Step("build "+c.folder, func() (string, error) {
			images[i], err = o.buildUnder(ctx, program, filepath.Join(work, c.folder), c)
			return "", err
		})
		if err != nil {
			return "", fmt.Errorf("reproduce: %w", err)
		}
	}
	if err := compareImages(ctx, tools, images[0], images[1]); err != nil {
		return "", fmt.Errorf("reproduce: %w", err)
	}
	return fileSum(images[0])
}

// buildUnder runs a build in a folder of its own and returns the image's path.
func (o Options) buildUnder(ctx context.Context, program, dir string, c circumstance) (string, error) {
	source, store := filepath.Join(dir, "source"), filepath.Join(dir, "cache")
	if err := copySources(o.Source, source, o.Out); err != nil {
		return "", fmt.Errorf("copy sources: %w", err)
	}
	if err := o.shareVerified(store); err != nil {
		return "", err
	}
	args := []string{"build", "--source", source, "--lock", o.LockFile, "--out", filepath.Join(dir, "out"), "--image-id", o.ID, "--config", o.Config, "--profile", o.Profile, "--mirror", o.Mirror}
	if o.WithoutKubernetes {
		args = append(args, "--without-kubernetes")
	}
	script := `umask "$1"; shift; exec taskset -c "$@"`
	cmd := exec.CommandContext(ctx, "sh", append([]string{"-c", script, "sh", c.umask, c.cores, program}, args...)...)
	if c.cores == "0-" {
		cmd.Args = append([]string{"sh", "-c", `umask "$1"; shift; exec "$@"`, "sh", c.umask, program}, args...)
	}
	cmd.Env = append(os.Environ(), c.env...)
	cmd.Env = append(cmd.Env, "HULLMARK_CACHE="+store, "GOCACHE="+filepath.Join(store, "go"))
	if o.Progress != nil {
		cmd.Stderr = o.Progress.out
	}
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("build in %s: %w", dir, err)
	}
	return filepath.Join(dir, "out", o.ID+".raw"), nil
}

// shareVerified makes a store that has nothing but the packages and the tools tree of o's.
func (o Options) shareVerified(store string) error {
	if err := os.MkdirAll(store, 0o755); err != nil {
		return err
	}
	for _, kind := range []string{"sha256", "tools"} {
		if err := os.Symlink(filepath.Join(o.Store.Root, kind), filepath.Join(store, kind)); err != nil {
			return err
		}
	}
	return nil
}

// copySources copies a checkout without its history and without the folder that images go to.
func copySources(from, to, out string) error {
	out, err := filepath.Abs(out)
	if err != nil {
		return err
	}
	from, err = filepath.Abs(from)
	if err != nil {
		return err
	}
	return filepath.WalkDir(from, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if e.IsDir() && (path == out || e.Name() == ".git") {
			return fs.SkipDir
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		return copyEntry(path, filepath.Join(to, rel), e)
	})
}

func copyEntry(from, to string, e fs.DirEntry) error {
	switch {
	case e.IsDir():
		return os.MkdirAll(to, 0o755)
	case e.Type()&fs.ModeSymlink != 0:
		target, err := os.Readlink(from)
		if err != nil {
			return err
		}
		return os.Symlink(target, to)
	case !e.Type().IsRegular():
		return nil
	}
	info, err := e.Info()
	if err != nil {
		return err
	}
	content, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, content, info.Mode().Perm())
}

func fileSum(file string) (string, error) {
	f, err := os.Open(file)
	if err != nil {
		return "", err
	}
	h := sha256.New()
	_, err = io.Copy(h, f)
	return hex.EncodeToString(h.Sum(nil)), errors.Join(err, f.Close())
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
