//go:build long

package build

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/hullmark/hullmark/image/lock"
)

// The definition folder that docs/build.md makes becomes an image that has its package, its unit, its setting and its kernel module.
func TestUserDefinitions(t *testing.T) {
	o, _, tools := settled(t)
	dir := t.TempDir()
	text, err := os.ReadFile(filepath.Join(o.Source, "docs", "build.md"))
	if err != nil {
		t.Fatal(err)
	}
	script := regexp.MustCompile("(?ms)^```sh\n(mkdir -p out/mine.*?)^```$").FindSubmatch(text)
	if script == nil {
		t.Fatal("docs/build.md shows no definition folder")
	}
	cmd := exec.CommandContext(t.Context(), "sh", "-eu", "-c", string(script[1]))
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	o.Config, o.Out = filepath.Join(dir, "out", "mine"), filepath.Join(dir, "image")
	if _, err := Build(t.Context(), o); err == nil || !strings.Contains(err.Error(), "htop") {
		t.Fatalf("built with our lock, in which its package is not: %v", err)
	}
	l, err := Lock(t.Context(), o, lock.Lock{})
	if err != nil {
		t.Fatal(err)
	}
	o.LockFile = filepath.Join(dir, "mine.lock")
	if err := WriteLock(o.LockFile, l); err != nil {
		t.Fatal(err)
	}
	r, err := Build(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	disk, done, err := openImage(r.Image)
	if err != nil {
		t.Fatal(err)
	}
	defer done()
	root := filepath.Join(dir, "root")
	if err := unpackErofs(t.Context(), tools, disk.disk.Root, root); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"/usr/bin/htop", "/usr/lib/systemd/system/hello.service", "/usr/lib/systemd/system/multi-user.target.wants/hello.service",
		"/usr/lib/sysctl.d/60-mine.conf", "/usr/lib/systemd/system/hullmark-firstboot.service",
	} {
		if _, err := os.Lstat(filepath.Join(root, want)); err != nil {
			t.Error(err)
		}
	}
	if initrd := measuredSection(t, r.Image, ".initrd"); !bytes.Contains(initrd, []byte("virtio_pmem.ko")) || !bytes.Contains(initrd, []byte("erofs.ko")) {
		t.Error("the initrd has not the modules of both lists")
	}
}

// mkosi tells of every kind of thing that definitions take from elsewhere.
func TestDefinitionsFromElsewhere(t *testing.T) {
	o, l, _ := settled(t)
	elsewhere := t.TempDir()
	put(t, elsewhere, map[string]string{"script": "#!/bin/sh\n"})
	for _, setting := range []string{
		"[Content]\nExtraTrees=%s", "[Content]\nSkeletonTrees=%s:/opt", "[Content]\nBaseTrees=%s", "[Content]\nPackageDirectories=%s", "[Content]\nVolatilePackageDirectories=%s",
		"[Content]\nSyncScripts=%s/script", "[Content]\nPrepareScripts=%s/script", "[Content]\nBuildScripts=%s/script", "[Content]\nPostInstallationScripts=%s/script",
		"[Content]\nFinalizeScripts=%s/script", "[Config]\nConfigureScripts=%s/script", "[Build]\nBuildSources=%s:x", "[Build]\nSandboxTrees=%s", "[Build]\nEnvironmentFiles=%s/script",
	} {
		o.Config = t.TempDir()
		if err := os.Chmod(filepath.Join(elsewhere, "script"), 0o755); err != nil {
			t.Fatal(err)
		}
		put(t, o.Config, map[string]string{"mkosi.conf": fmt.Sprintf(setting, elsewhere) + "\n"})
		m, err := openMkosi(t.Context(), o, l)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := m.summary(t.Context(), t.TempDir()); err == nil || !strings.Contains(err.Error(), "they name "+elsewhere) {
			t.Errorf(setting+": %v", elsewhere, err)
		}
	}
}

func TestDebugProfileIsVisible(t *testing.T) {
	o, _, _ := settled(t)
	o.Profiles = []string{"debug"}
	r, err := Build(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if release := measuredSection(t, r.Image, ".osrel"); !strings.Contains(string(release), "\nVARIANT_ID=debug\n") {
		t.Errorf("what PCR 11 measures does not name the profile:\n%s", release)
	}
	if err := os.Remove(r.Image); err != nil {
		t.Fatal(err)
	}
	o.Profiles = nil
	if r, err = Build(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	if release := measuredSection(t, r.Image, ".osrel"); strings.Contains(string(release), "VARIANT_ID") {
		t.Errorf("an image without a profile names one:\n%s", release)
	}
}
