//go:build long

package main

import (
	"bytes"
	"context"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hullmark/hullmark/image/build"
	"github.com/hullmark/hullmark/image/disk"
	"github.com/hullmark/hullmark/image/lock"
	"github.com/hullmark/hullmark/inspect"
	"github.com/hullmark/hullmark/internal/buildtest"
	"github.com/hullmark/hullmark/measurements"
)

// realImage builds an image, without Kubernetes, with all that hullmark build leaves beside it.
func realImage(t *testing.T, change func(*build.Options)) string {
	t.Helper()
	o, _ := buildtest.Options(t)
	change(&o)
	settled, err := build.Settle(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	r, err := build.Build(t.Context(), settled)
	if err != nil {
		t.Fatal(err)
	}
	if err := accompany(r, measurements.Release{}, inspect.Vouched{Builder: measurements.LocalBuilder}); err != nil {
		t.Fatal(err)
	}
	return r.Image
}

// check runs a command of others, which has to agree.
func check(t *testing.T, script string) {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), "bash", "-eu", "-o", "pipefail", "-c", script).CombinedOutput(); err != nil {
		t.Errorf("%s: %v (apt-get install qemu-utils zstd)\n%s", script, err, out)
	}
}

// TestFormatsOfARealImage converts an image twice, and has qemu-img and zstd compare what came of it with the raw disk.
func TestFormatsOfARealImage(t *testing.T) {
	path := realImage(t, func(*build.Options) {})
	name, again := strings.TrimSuffix(path, ".raw"), filepath.Join(t.TempDir(), "test")
	for _, out := range []string{filepath.Dir(name), filepath.Dir(again)} {
		code, printed := hullmarkCLI(t, "convert", path, "--out", out)
		wantExit(t, code, 0, printed)
	}
	for _, f := range append(disk.Formats(), "formats.json") {
		check(t, "cmp "+name+"."+string(f)+" "+again+"."+string(f))
	}
	check(t, "qemu-img check -f qcow2 "+name+".qcow2")
	check(t, "qemu-img compare -f raw -F qcow2 "+name+".raw "+name+".qcow2")
	check(t, "qemu-img compare -f raw -F vpc "+name+".raw "+name+".vhd")
	check(t, "zstd -dcq "+name+".raw.zst | cmp - "+name+".raw")
	check(t, "tar -xzSf "+name+".tar.gz -C "+filepath.Dir(again)+" && qemu-img compare -f raw "+name+".raw "+filepath.Join(filepath.Dir(again), "disk.raw"))
	check(t, "test $(stat -c %s "+filepath.Join(filepath.Dir(again), "disk.raw")+") = 2147483648")
}

// TestDiffOfRealImages compares an image with that of the profile debug, which has a shell.
func TestDiffOfRealImages(t *testing.T) {
	a, b := realImage(t, func(*build.Options) {}), realImage(t, func(o *build.Options) { o.Profiles = []string{"debug"} })
	code, out := hullmarkCLI(t, "diff", a, b)
	wantExit(t, code, exitMismatch, out, "+ /usr/bin/bash", "section .osrel of the unified", "section .cmdline of the unified", "root file system", "unit\n")
	for _, same := range []string{"PCR  7", "CONFIG_", "not compared"} {
		if strings.Contains(out, same) {
			t.Errorf("%s differs", same)
		}
	}
	tools := buildtest.Tools(t)
	boot, err := diffOptions{}.openBoot(tools)
	if err != nil {
		t.Fatal(err)
	}
	x, err := inspect.List(t.Context(), boot, func(ctx context.Context, root io.Reader, visit func(string, string, fs.FileInfo) error) error {
		return build.WalkRoot(ctx, tools, root, visit)
	}, a)
	if err != nil {
		t.Fatal(err)
	}
	config := x.Found[inspect.KindConfig]
	if config["CONFIG_EROFS_FS"] != "m" || len(x.Found[inspect.KindPackage]) < 100 || x.Missing[inspect.KindConfig] != "" {
		t.Errorf("EROFS is %q, %d packages, %v", config["CONFIG_EROFS_FS"], len(x.Found[inspect.KindPackage]), x.Missing)
	}
	sbom, err := os.ReadFile(lock.Beside(a, lock.CycloneDXEnding))
	if err != nil || !bytes.Contains(sbom, []byte("pkg:golang/github.com/google/go-tpm@")) {
		t.Errorf("the agent's TPM library is not in the SBOM, %v", err)
	}
}
