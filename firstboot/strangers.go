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
