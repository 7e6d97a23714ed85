package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/hullmark/hullmark/image/build"
)

// The firmware that an image is measured for when nobody names another: what `hullmark vm` runs from the tools tree.
const (
	treeFirmware = "usr/share/OVMF/OVMF_CODE_4M.fd"
	treeVars     = "usr/share/OVMF/OVMF_VARS_4M.fd"
)

// accompany leaves beside a finished image what its users need next: the measurement document, the tools tree and kubectl.
func accompany(r build.Result) error {
	out := filepath.Dir(r.Image)
	document, err := measureImage(r.Image, measureOptions{
		firmware: filepath.Join(r.Tools, treeFirmware), vars: filepath.Join(r.Tools, treeVars), lock: r.LockFile, svn: 1,
	})
	if err != nil {
		return fmt.Errorf("measure: %w", err)
	}
	text, err := document.Encode()
	if err != nil {
		return fmt.Errorf("measure: %w", err)
	}
	if err := os.WriteFile(strings.TrimSuffix(r.Image, ".raw")+".json", text, 0o644); err != nil {
		return err
	}
	if err := link(r.Tools, filepath.Join(out, "tools")); err != nil || r.Bundle == "" {
		return err
	}
	return link(filepath.Join(r.Bundle, "usr/lib/kubernetes/bin/kubectl"), filepath.Join(out, "kubectl"))
}

// link makes name a symbolic link to target, in place of an older link.
func link(target, name string) error {
	if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.Symlink(target, name)
}
