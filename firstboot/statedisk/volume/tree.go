package volume

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/firstboot/etcdwal"
	"github.com/hullmark/hullmark/firstboot/statedisk"
)

// directories are made on a new disk. hullmark-state.service binds them over paths of the root: etc-kubernetes over
// /etc/kubernetes, var over /var, and once more, so that programs may be executed there, containerd and pods.
var directories = []struct {
	name string
	mode os.FileMode
}{
	{"var", 0o755},
	{"etc-kubernetes", 0o755},
	{"var/lib", 0o755},
	{"var/lib/containerd", 0o711},
	{"var/lib/kubelet", 0o700},
	{"var/lib/kubelet/pods", 0o750},
	{"var/lib/etcd", 0o700},
	{"var/lib/hullmark", 0o700}, // What the manifest holds for programs is bound over it.
	{statedisk.AgentDir, 0o700},
}

// mountOptions end writing, rather than going on, where the file system finds an error.
const mountOptions = "errors=remount-ro"

// mounted calls do with the file system mounted in the workspace. What is done there stays there: the disk's links lead nowhere else.
func (w Workspace) mounted(do func(*os.Root) error) error {
	const flags = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	if err := unix.Mount("/dev/mapper/"+Name, w.mount(), "ext4", flags, mountOptions); err != nil {
		return fmt.Errorf("mount: %w", err)
	}
	err := within(w.mount(), do)
	return errors.Join(err, unix.Unmount(w.mount(), 0))
}

func within(dir string, do func(*os.Root) error) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	return errors.Join(do(root), root.Close())
}

// makeTree fills a new file system: a disk has a manifest from its formatting on. Its counter begins with the least number of
// the ticket's window, which is above what earlier disks of the machine can hold.
func makeTree(root *os.Root, disk hullmark.UUID, epoch uint64, key hullmark.Secret) error {
	for _, d := range directories {
		if err := root.Mkdir(d.name, d.mode); err != nil {
			return err
		}
		if err := root.Chmod(d.name, d.mode); err != nil { // whatever the umask is
			return err
		}
	}
	_, err := statedisk.WriteManifest(root, key, statedisk.Manifest{Disk: disk, Epoch: epoch})
	return err
}

// advance compares the disk's counter with the window and moves it on. The
// counter is stored before it returns.
func (w Workspace) advance(g hullmark.DiskGrant, keys statedisk.Keys) (statedisk.Opened, error) {
	var opened statedisk.Opened
	err := w.mounted(func(root *os.Root) (err error) {
		opened, err = advanceIn(root, g, keys.Manifest)
		return err
	})
	if err != nil {
		return statedisk.Opened{}, hullmark.AsCondition(fmt.Errorf("epoch: %w", err), "EPOCH", "epoch-failed")
	}
	return opened, nil
}

func advanceIn(root *os.Root, g hullmark.DiskGrant, key hullmark.Secret) (statedisk.Opened, error) {
	m, code, err := statedisk.ReadManifest(root, key)
	if err != nil || m.Disk != g.UUID {
		return statedisk.Opened{}, refused(err)
	}
	defer m.Wipe()
	if err := checkFolders(root); err != nil {
		return statedisk.Opened{}, err
	}
	opened := statedisk.Opened{
		EpochRead: m.Epoch, Joined: m.Joined(), LastBoot: string(m.Files[statedisk.LastBoot].Content), CertificateEnds: certificateEnds(root), Etcd: etcdState(root.Name()), Manifest: code,
	}
	if g.Epoch.Unchecked {
		return opened, nil
	}
	if m.Epoch < g.Epoch.Committed || m.Epoch >= g.Epoch.Issued {
		return statedisk.Opened{}, &hullmark.Condition{
			Code: "rollback-detected", Step: "EPOCH", Title: "the state disk is not in the state in which the node left it",
			Expected: fmt.Sprintf("%d ≤ epoch < %d", g.Epoch.Committed, g.Epoch.Issued), Got: strconv.FormatUint(m.Epoch, 10),
			Next: "if an old copy of the disk was put back on purpose, sign an epoch override; otherwise attach the newest disk",
		}
	}
	m.Epoch = g.Epoch.Issued
	m.Files[statedisk.LastBoot] = statedisk.KeptFile{Mode: 0o600, Content: []byte(time.Now().UTC().Format(time.RFC3339))}
	opened.Manifest, err = statedisk.WriteManifest(root, key, m)
	return opened, err
}

// checkFolders refuses a disk with anything else in the place of a folder that hullmark-state.service binds or mounts over: by a
// link there, which root left, the mount would lie over a folder of the verity root.
func checkFolders(root *os.Root) error {
	names := []string{"var/lib/cni", "journal", "var/log", "var/log/journal"} // The unit makes them.
	for _, d := range directories {
		names = append(names, d.name)
	}
	for _, name := range names {
		info, err := root.Lstat(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return fmt.Errorf("the state disk's folder %s: %w", name, err)
		}
		if !info.IsDir() {
			return &hullmark.Condition{
				Code: "folder-refused", Step: "EPOCH", Title: "the state disk has something else where a folder belongs",
				Expected: name + ": a folder", Got: info.Mode().Type().String(),
				Next: "somebody who was root on the node left it: treat the node as taken over (docs/operate.md), and reset it",
			}
		}
	}
	return nil
}

// etcdState returns what the disk's member of etcd has stored. Of one that cannot be read whoever decides is told as of none,
// and the journal why.
func etcdState(dir string) hullmark.EtcdState {
	state, err := etcdwal.StoredIn(dir)
	if err != nil && !errors.Is(err, etcdwal.ErrNone) {
		fmt.Fprintln(os.Stderr, err)
	}
	return state
}

// refused is the condition of a disk without the manifest that its node wrote.
func refused(err error) *hullmark.Condition {
	c := &hullmark.Condition{
		Code: "manifest-refused", Step: "EPOCH", Title: "the state disk's manifest is another disk's",
		Next: "do not trust this disk: someone changed it outside of the node; attach the right one, or reset the node",
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		c.Title = "the state disk lacks its manifest, which it has from its formatting on"
	case err != nil:
		c.Title = "the state disk's manifest is not as its node wrote it: " + err.Error()
	}
	return c
}
