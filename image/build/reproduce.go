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
	"slices"
)

// circumstance is what differs between two builds that must not differ.
type circumstance struct {
	folder   string
	umask    fs.FileMode
	oneCore  bool
	settings []string // of the environment
}

func circumstances() [2]circumstance {
	return [2]circumstance{
		{folder: "a", umask: 0o022, oneCore: true, settings: []string{"TZ=UTC", "LC_ALL=C", "GOMAXPROCS=1"}},
		{folder: "another/folder", umask: 0o077, settings: []string{"TZ=Pacific/Kiritimati", "LC_ALL=de_DE.UTF-8", "LANG=de_DE.UTF-8", "GOMAXPROCS=7"}},
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
	for _, c := range circumstances() { // both before the first build, which takes long enough for someone to edit a file
		if err := copyFolder(o.Source, filepath.Join(work, c.folder, "source"), c.mode, ".git", o.Out); err != nil {
			return "", fmt.Errorf("reproduce: copy sources: %w", err)
		}
	}
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

// buildUnder runs a build of dir/source in a folder of its own and returns the image's path.
func (o Options) buildUnder(ctx context.Context, program, dir string, c circumstance) (string, error) {
	source, store := filepath.Join(dir, "source"), filepath.Join(dir, "cache")
	if err := o.shareVerified(store); err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, "sh", append([]string{"-c", c.script(), "sh", program}, o.buildArgs(source, filepath.Join(dir, "out"))...)...)
	cmd.Env = slices.Concat(os.Environ(), c.settings, []string{"HULLMARK_CACHE=" + store, "GOCACHE=" + filepath.Join(store, "go")})
	if o.Progress != nil {
		cmd.Stderr = o.Progress.out
	}
	interruptible(cmd)
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("build in %s: %w", dir, err)
	}
	return filepath.Join(dir, "out", o.ID+".raw"), nil
}

// mode is what a file's permissions are in a checkout that was made under c's umask.
func (c circumstance) mode(m fs.FileMode) fs.FileMode { return m.Perm() &^ c.umask }

// script runs the program that follows it.
func (c circumstance) script() string {
	command := `exec "$@"`
	if c.oneCore {
		command = `exec taskset --cpu-list 0 "$@"`
	}
	return fmt.Sprintf("umask %03o; %s", uint32(c.umask), command)
}

func (o Options) buildArgs(source, out string) []string {
	args := []string{
		"build", "--source", source, "--lock", o.LockFile, "--out", out, "--image-id", o.ID,
		"--config", o.Config, "--profile", o.Profile, "--mirror", o.Mirror,
	}
	if o.WithoutKubernetes {
		args = append(args, "--without-kubernetes")
	}
	return args
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
