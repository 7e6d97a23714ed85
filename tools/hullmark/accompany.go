package main

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"

	"github.com/hullmark/hullmark/image/build"
	"github.com/hullmark/hullmark/image/lock"
	"github.com/hullmark/hullmark/inspect"
	"github.com/hullmark/hullmark/measurements"
	"github.com/hullmark/hullmark/pcrs"
	"github.com/hullmark/hullmark/pcrs/machine"
)

// accompany leaves beside a finished image what its users need next: what describes it, for the firmware that `hullmark vm` runs from the
// tools tree, that tree, and kubectl.
func accompany(r build.Result, release measurements.Release, by inspect.Vouched) error {
	m, err := inspect.OpenMachine(machine.Hardware{Tools: r.Tools})
	if err != nil {
		return err
	}
	files, err := inspect.Build{
		Image: r.Image, Contents: lock.Contents{ID: r.ID, Version: r.Version, RootHash: r.RootHash, Modules: r.Inputs.Modules},
		LockFile: r.LockFile, Lock: r.Lock, Profiles: r.Profiles, Kubernetes: r.Bundle != "",
		Commit: r.Inputs.Commit, Changed: r.Inputs.Changed, Sources: r.Inputs.Sources, Definitions: r.Inputs.Config,
	}.Describe(pcrs.Boot{Machine: m}, release, by)
	if err != nil {
		return err
	}
	for _, f := range files {
		if err := writeWhole(f.Name, f.Content, 0o644); err != nil {
			return err
		}
	}
	out := filepath.Dir(r.Image)
	if err := link(r.Tools, filepath.Join(out, "tools")); err != nil || r.Bundle == "" {
		return err
	}
	return link(filepath.Join(r.Bundle, "usr/lib/kubernetes/bin/kubectl"), filepath.Join(out, "kubectl"))
}

// releasedAs is what a released program calls itself; the linker sets it.
var releasedAs string

// thisBuilder names this program as PATH@VERSION. Two builds of one release have to have equal documents, so nothing is in it
// that depends on how the checkout came to be: whatever is no release is called devel.
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
