package volume

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
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
	{"var/lib/hullmark", 0o700},
	{statedisk.AgentDir, 0o700},
}

const (
	epochFile    = statedisk.AgentDir + "/epoch"
	lastBootFile = statedisk.AgentDir + "/last-boot"
)

// mountOptions end writing, rather than going on, where the file system finds an error.
const mountOptions = "errors=remount-ro"

// mounted calls do with the file system mounted in the workspace.
func (w Workspace) mounted(do func(dir string) error) error {
	const flags = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	if err := unix.Mount("/dev/mapper/"+Name, w.mount(), "ext4", flags, mountOptions); err != nil {
		return fmt.Errorf("mount: %w", err)
	}
	err := do(w.mount())
	return errors.Join(err, unix.Unmount(w.mount(), 0))
}

// makeTree fills a new file system.
func makeTree(dir string) error {
	for _, d := range directories {
		if err := os.Mkdir(filepath.Join(dir, d.name), d.mode); err != nil {
			return err
		}
		if err := os.Chmod(filepath.Join(dir, d.name), d.mode); err != nil { // whatever the umask is
			return err
		}
	}
	return writeCounter(dir, 0)
}

// advance compares the disk's counter with the window and moves it on. The
// counter is stored before it returns.
func (w Workspace) advance(epoch hullmark.Epoch) (statedisk.Opened, error) {
	var opened statedisk.Opened
	err := w.mounted(func(dir string) (err error) {
		opened, err = advanceIn(dir, epoch)
		return err
	})
	if err != nil {
		return statedisk.Opened{}, hullmark.AsCondition(fmt.Errorf("epoch: %w", err), "EPOCH", "epoch-failed")
	}
	return opened, nil
}

func advanceIn(dir string, epoch hullmark.Epoch) (statedisk.Opened, error) {
	e, err := readCounter(dir)
	if err != nil {
		return statedisk.Opened{}, err
	}
	opened := statedisk.Opened{EpochRead: e, Joined: joined(dir), LastBoot: lastBoot(dir), CertificateEnds: certificateEnds(dir), Etcd: etcdState(dir)}
	if epoch.Unchecked {
		return opened, nil
	}
	if e < epoch.Committed || e >= epoch.Issued {
		return statedisk.Opened{}, &hullmark.Condition{
			Code: "rollback-detected", Step: "EPOCH", Title: "the state disk is not in the state in which the node left it",
			Expected: fmt.Sprintf("%d ≤ epoch < %d", epoch.Committed, epoch.Issued), Got: strconv.FormatUint(e, 10),
			Next: "if an old copy of the disk was put back on purpose, sign an epoch override; otherwise attach the newest disk",
		}
	}
	if err := writeCounter(dir, epoch.Issued); err != nil {
		return statedisk.Opened{}, err
	}
	return opened, replaceFile(filepath.Join(dir, lastBootFile), time.Now().UTC().Format(time.RFC3339)+"\n")
}

// joined reports whether the agent recorded a finished kubeadm run.
func joined(dir string) bool {
	text, err := os.ReadFile(filepath.Join(dir, statedisk.AgentDir, statedisk.IntentFile))
	return err == nil && string(text) == statedisk.IntentDone
}

// etcdState returns what the disk's member of etcd has stored. Of one that cannot be read whoever decides is told as of none, and the journal why.
func etcdState(dir string) hullmark.EtcdState {
	state, err := etcdwal.StoredIn(dir)
	if err != nil && !errors.Is(err, etcdwal.ErrNone) {
		fmt.Fprintln(os.Stderr, err)
	}
	return state
}

func lastBoot(dir string) string {
	text, err := os.ReadFile(filepath.Join(dir, lastBootFile))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}

func readCounter(dir string) (uint64, error) {
	text, err := os.ReadFile(filepath.Join(dir, epochFile))
	if err != nil {
		return 0, err
	}
	return strconv.ParseUint(strings.TrimSuffix(string(text), "\n"), 10, 64)
}

func writeCounter(dir string, e uint64) error {
	return replaceFile(filepath.Join(dir, epochFile), strconv.FormatUint(e, 10)+"\n")
}

// replaceFile writes a file so that a crash leaves the old or the new content,
// and returns once the new one is stored.
func replaceFile(path, content string) error {
	f, err := os.OpenFile(path+".new", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteString(content)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(path+".new", path); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
