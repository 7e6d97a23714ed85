package firstboot

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/kubeadm"
)

// dropStaticPods removes every static pod that neither kubeadm nor Proceed has put there: the kubelet runs each with whatever powers
// its manifest asks for, before the API is asked, so that one that an intruder left would come back with a clean image. A
// worker has none of kubeadm's. Those of Proceed are placed afterwards.
func (f *finishing) dropStaticPods() error {
	var known []string
	if hullmark.Role(f.proceed.GetRole()) == hullmark.ControlPlane {
		known = kubeadm.StaticPods()
	}
	dropped, err := dropOthers(f.agent.StateDir, kubeadm.StaticPodsDir, known)
	if err != nil {
		return fmt.Errorf("remove static pods that nobody signed: %w", err)
	}
	for _, name := range dropped {
		f.progress("static-pods", fmt.Sprintf("removed %.200q, which is not among this boot's files", name))
	}
	return nil
}

// dropFlags removes the kubelet's flags unless they are as kubeadm writes them; the kubelet runs without.
func (f *finishing) dropFlags() error {
	text, err := f.agent.readState(kubeadm.FlagsFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = kubeadm.CheckFlags(text)
	}
	if err == nil {
		return nil
	}
	f.progress("kubelet-flags", fmt.Sprintf("removed the flags on the disk: %.300s", err))
	return f.agent.removeState(kubeadm.FlagsFile)
}

// dropPrograms leaves no program in the kubeconfigs that the kubelet, kubeadm and kubectl read: they would run it, as root and
// outside of any container. What is in the place of one and is no regular file goes, too: nobody whom the node runs makes a
// link there, and it could lead past whoever looks.
func (f *finishing) dropPrograms() error {
	for _, name := range kubeadm.HostKubeconfigs() {
		regular, err := f.isRegular(name)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			continue
		case err == nil && !regular:
			f.progress("kubeconfigs", "removed "+name+", which is no regular file")
			err = f.agent.removeState(name)
		case err == nil:
			err = f.dropProgramsIn(name)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

// dropProgramsIn leaves a file alone that names no program, or that cannot be read: no client can read it either, for all do so
// by the same package.
func (f *finishing) dropProgramsIn(name string) error {
	text, err := f.agent.readState(name)
	if err != nil {
		return err
	}
	plain, dropped, err := kubeadm.WithoutPrograms(text)
	if err != nil || len(dropped) == 0 {
		return nil
	}
	f.progress("kubeconfigs", fmt.Sprintf("removed %.100q from %s", dropped, name))
	return f.agent.storeState(name, plain)
}

// isRegular reports whether a file of the state disk, which programs see as name, is a regular one.
func (f *finishing) isRegular(name string) (bool, error) {
	file, err := onState(name)
	if err != nil {
		return false, err
	}
	root, err := os.OpenRoot(f.agent.StateDir)
	if err != nil {
		return false, err
	}
	defer root.Close()
	info, err := root.Lstat(file)
	if err != nil {
		return false, err
	}
	return info.Mode().IsRegular(), nil
}

// dropOthers empties a folder of the state disk, which programs see as dir, but for the regular files with these paths, and
// returns what it removed. A link, or a file, in the folder's place goes, too.
func dropOthers(state, dir string, known []string) (dropped []string, err error) {
	root, err := os.OpenRoot(state)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	folder, err := onState(dir)
	if err != nil {
		return nil, err
	}
	info, err := root.Lstat(folder)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, err
	case !info.IsDir():
		return []string{dir}, root.RemoveAll(folder)
	}
	entries, err := fs.ReadDir(root.FS(), folder)
	if err != nil {
		return nil, err
	}
	for _, entry := range entries {
		name := path.Join(dir, entry.Name())
		if entry.Type().IsRegular() && slices.Contains(known, name) {
			continue
		}
		if err := root.RemoveAll(path.Join(folder, entry.Name())); err != nil {
			return dropped, err
		}
		dropped = append(dropped, name)
	}
	return dropped, nil
}
