package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"

	"github.com/hullmark/hullmark/image/build"
	"github.com/hullmark/hullmark/image/lock"
	"github.com/hullmark/hullmark/measurements"
)

// The firmware that an image is measured for when nobody names another: what `hullmark vm` runs from the tools tree.
const (
	treeFirmware = "usr/share/OVMF/OVMF_CODE_4M.fd"
	treeVars     = "usr/share/OVMF/OVMF_VARS_4M.fd"
)

// accompany leaves beside a finished image what its users need next: its bill of materials in two forms, the measurement document that names all, the provenance
// of all four, the tools tree and kubectl.
func accompany(r build.Result, release measurements.Release, provenance provenanceOptions) error {
	out := filepath.Dir(r.Image)
	sbom, cycloneDX := lock.Beside(r.Image, lock.SPDXEnding), lock.Beside(r.Image, lock.CycloneDXEnding)
	contents := lock.Contents{ID: r.ID, Version: r.Version, RootHash: r.RootHash, Modules: r.Inputs.Modules}
	for file, write := range map[string]func(lock.Contents) ([]byte, error){sbom: r.Lock.SPDX, cycloneDX: r.Lock.CycloneDX} {
		bill, err := write(contents)
		if err != nil {
			return err
		}
		if err := writeWhole(file, bill, 0o644); err != nil {
			return err
		}
	}
	document, err := measureImage(r.Image, measureOptions{
		firmware: filepath.Join(r.Tools, treeFirmware), vars: filepath.Join(r.Tools, treeVars), release: release, lock: r.LockFile, sbom: sbom, cycloneDX: cycloneDX,
	})
	if err != nil {
		return fmt.Errorf("measure: %w", err)
	}
	text, err := document.Encode()
	if err != nil {
		return fmt.Errorf("measure: %w", err)
	}
	described := lock.Beside(r.Image, lock.DocumentEnding)
	if err := writeWhole(described, text, 0o644); err != nil {
		return err
	}
	if err := provenance.writeProvenance(r, release, r.Image, sbom, cycloneDX, described); err != nil {
		return err
	}
	if err := link(r.Tools, filepath.Join(out, "tools")); err != nil || r.Bundle == "" {
		return err
	}
	return link(filepath.Join(r.Bundle, "usr/lib/kubernetes/bin/kubectl"), filepath.Join(out, "kubectl"))
}

// releasedAs is what a released program calls itself; the linker sets it.
var releasedAs string

// thisBuilder names this program as PATH@VERSION. Two builds of one release have to have equal documents, so nothing is in it that depends on how
// the checkout came to be: whatever is no release is called devel.
func thisBuilder() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	for _, known := range []string{releasedAs, info.Main.Version} {
		if build.IsRelease(known) {
			return info.Main.Path + "@" + known
		}
	}
	return info.Main.Path + "@devel"
}

// link makes name a symbolic link to target, in place of an older link.
func link(target, name string) error {
	if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.Symlink(target, name)
}
