// Package build makes an image: it locks and fetches packages, runs mkosi and mkfs.erofs, compiles our programs, and hands the parts to package image.
package build

import (
	"path/filepath"

	"github.com/hullmark/hullmark/internal/cache"
)

// Options say what to build and where. Source and Store have to be set.
type Options struct {
	// Source is the folder of the checkout; it holds mkosi/, systemd/ and tools/.
	Source string
	// LockFile is the lock to build from; Out is where the image goes.
	LockFile, Out string
	// ID names the image; it is part of os-release and of the file's name.
	ID string
	// Config is a definition folder of the user's own that is layered over mkosi/; empty means none.
	Config string
	// Profile is a mkosi profile ("debug"); empty means none.
	Profile string
	// Mirror is the URL of a Debian archive to use instead of the machine's own; empty means none.
	Mirror string
	// Store keeps packages and finished steps.
	Store cache.Store
	// Progress is told what happens; it may be nil.
	Progress *Progress
}

// mirrors returns the URL of each archive.
func (o Options) mirrors() (map[string]string, error) {
	if o.Mirror != "" {
		m := map[string]string{}
		addMirror(m, o.Mirror)
		if m[mainArchive] == "" {
			m = map[string]string{mainArchive: o.Mirror}
		}
		return m, nil
	}
	return machineMirrors(filepath.FromSlash("/etc/apt"))
}
