package etcdwal

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/hullmark/hullmark"
)

// folder is where kubeadm's etcd has its log, on the state disk.
const folder = "var/lib/etcd/member/wal"

// StoredIn reads the state of the member on a state disk, and returns it once all that it says is stored for good, whether etcd
// runs or not: etcd writes to its log what it has yet to store, and tells nobody before it is. A power cut takes back nothing
// of what is returned. ErrNone says that there is no member.
func StoredIn(disk string) (hullmark.EtcdState, error) {
	root, err := os.OpenRoot(disk)
	if err != nil {
		return hullmark.EtcdState{}, fmt.Errorf("etcd's write-ahead log: %w", err)
	}
	defer root.Close()
	log, err := root.OpenRoot(folder)
	if errors.Is(err, fs.ErrNotExist) {
		return hullmark.EtcdState{}, ErrNone
	}
	if err != nil {
		return hullmark.EtcdState{}, fmt.Errorf("etcd's write-ahead log: %w", err)
	}
	defer log.Close()
	state, err := Read(log.FS())
	if err != nil {
		return hullmark.EtcdState{}, err
	}
	if err := sync(log); err != nil {
		return hullmark.EtcdState{}, fmt.Errorf("etcd's write-ahead log: %w", err)
	}
	return state, nil
}

// sync stores the segments that were read, and their names.
func sync(log *os.Root) error {
	names, err := Segments(log.FS())
	if err != nil {
		return err
	}
	for _, name := range append(names, ".") {
		file, err := log.Open(name)
		if err != nil {
			return err
		}
		if err := errors.Join(file.Sync(), file.Close()); err != nil {
			return err
		}
	}
	return nil
}
