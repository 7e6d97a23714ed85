package firstboot

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/hullmark/hullmark/firstboot/statedisk"
)

// onState returns where on the state disk, relative to its root, a file lies that programs see at name: under one of the
// folders that are bound there.
func onState(name string) (string, error) {
	for root, folder := range map[string]string{"/etc/kubernetes/": "etc-kubernetes", "/var/": "var"} {
		if rest, ok := strings.CutPrefix(filepath.Clean(name), root); ok {
			return filepath.Join(folder, rest), nil
		}
	}
	return "", fmt.Errorf("%.200q is not on the state disk", name)
}

// maxStateFile bounds what is read of the state disk, in bytes: kubeconfigs, certificates and flags.
const maxStateFile = 4 << 20

// readState reads a file of the state disk, or of its manifest, by the name that programs see. It may be a link to another one: a
// kubelet's newest certificate is. Nothing is read that is not on the disk, no regular file, or larger than maxStateFile.
func (a *Agent) readState(name string) ([]byte, error) {
	if kept, ok := keptName(name); ok {
		return a.kept.read(kept)
	}
	file, err := onState(name)
	if err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(a.StateDir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	if target, err := root.Readlink(file); err == nil {
		if !filepath.IsAbs(target) {
			target = filepath.Join(filepath.Dir(name), target)
		}
		if file, err = onState(target); err != nil {
			return nil, err
		}
	}
	return statedisk.ReadRegular(root, file, maxStateFile)
}

// removeState removes files and folders of the state disk by the names that programs see, and never follows a link out of it.
func (a *Agent) removeState(names ...string) error {
	root, err := os.OpenRoot(a.StateDir)
	if err != nil {
		return err
	}
	defer root.Close()
	for _, name := range names {
		file, err := onState(name)
		if err != nil {
			return err
		}
		if err := root.RemoveAll(file); err != nil {
			return err
		}
	}
	return nil
}
