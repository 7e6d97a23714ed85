package firstboot

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest/wire"
	"github.com/hullmark/hullmark/firstboot/kubeadm"
	"github.com/hullmark/hullmark/firstboot/statedisk"
)

// restoredFile names, on the state disk, the backup that etcd's data was made of: the hexadecimal SHA-256 of its content.
const restoredFile = "restored"

func (a *Agent) restoredFile() string {
	return filepath.Join(a.StateDir, statedisk.AgentDir, restoredFile)
}

// restored returns the backup that the disk's etcd was made of, or nothing.
func (a *Agent) restored() (string, error) {
	text, err := os.ReadFile(a.restoredFile())
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	return string(text), err
}

// checkSnapshot refuses a snapshot for anything but the first init of a disk.
func (x *exchange) checkSnapshot(p *wire.Proceed) error {
	if p.GetSnapshot() == nil {
		return nil
	}
	if x.kind != hullmark.Init || x.opened.Joined {
		return errors.New("it brings a backup of etcd, but the disk holds a node")
	}
	return x.restoration(p).Check()
}

func (x *exchange) restoration(p *wire.Proceed) kubeadm.Restoration {
	return kubeadm.Restoration{
		Documents: p.GetKubeadmDocuments(), NodeName: p.GetNodeName(), Bump: p.GetSnapshot().GetBump(),
		Report: func(p kubeadm.Phase) { x.progress(p.Name, p.Text) },
	}
}

// restore takes the snapshot that M6 announced, if it did, and makes etcd's data of it, once for a disk. It reports whether etcd's data is a backup's, be it
// since an earlier boot.
func (x *exchange) restore(ctx context.Context, intent string) (restored bool, err error) {
	held, err := x.agent.restored()
	if err != nil {
		return false, err
	}
	if held == "" && intent == "" {
		// No kubeadm has begun: what there is of etcd's data is half of a restoration.
		if err := x.agent.removeState(kubeadm.EtcdData, kubeadm.SnapshotFile); err != nil {
			return false, err
		}
	}
	announced := x.proceed.GetSnapshot()
	if announced == nil {
		return held != "", nil
	}
	backup := hex.EncodeToString(announced.GetBackup())
	switch {
	case held == backup:
		return true, x.takeSnapshot(announced, io.Discard)
	case held != "" || intent != "":
		return false, &hullmark.Condition{
			Code: "restore-late", Step: StepKubeadm, Title: "this disk's etcd has begun already, and not with this backup",
			Expected: "a disk on which no kubeadm has begun", Got: or(held, "kubeadm "+intent),
			Next: "go on without this backup, or give the node an empty disk (hullmark init --new-disk)",
		}
	}
	return true, x.restoreFirst(ctx, announced, backup)
}

func or(text, otherwise string) string {
	if text == "" {
		return otherwise
	}
	return "backup " + text
}

// restoreFirst makes etcd's data. That it is whole is recorded once it is stored.
func (x *exchange) restoreFirst(ctx context.Context, announced *wire.Snapshot, backup string) error {
	x.progress("restore", fmt.Sprintf("taking the backup of etcd, %d MiB", announced.GetSize()>>20))
	if err := x.storeSnapshot(announced); err != nil {
		return err
	}
	x.progress("restore", "making etcd's data of it")
	if err := x.agent.Cluster.Restore(ctx, x.restoration(x.proceed)); err != nil {
		return &hullmark.Condition{
			Code: "restore-failed", Step: StepKubeadm, Title: err.Error(), Next: "run hullmark init again; if it fails again, with another backup",
		}
	}
	if err := errors.Join(x.agent.removeState(kubeadm.SnapshotFile), x.agent.syncState()); err != nil {
		return err
	}
	return storeFile(x.agent.restoredFile(), backup)
}

// storeSnapshot writes the announced pieces to SnapshotFile.
func (x *exchange) storeSnapshot(announced *wire.Snapshot) error {
	name, err := onState(kubeadm.SnapshotFile)
	if err != nil {
		return err
	}
	root, err := os.OpenRoot(x.agent.StateDir)
	if err != nil {
		return err
	}
	defer root.Close()
	f, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	return errors.Join(x.takeSnapshot(announced, f), f.Close())
}

// takeSnapshot receives the announced pieces and hands them on. An error means that they are not what was announced, or could not be written.
func (x *exchange) takeSnapshot(announced *wire.Snapshot, w io.Writer) error {
	digest, tenth := sha256.New(), uint64(0)
	for got := uint64(0); got < announced.GetSize(); {
		n, err := x.takePiece(io.MultiWriter(w, digest), announced.GetSize()-got)
		if err != nil {
			return err
		}
		got += n
		if now := got * 10 / announced.GetSize(); now > tenth {
			tenth = now
			x.progress("restore", fmt.Sprintf("taken %d of %d MiB", got>>20, announced.GetSize()>>20))
		}
	}
	return checkDigest(digest, announced.GetSha256())
}

// takePiece receives one piece of at most so many bytes.
func (x *exchange) takePiece(w io.Writer, most uint64) (uint64, error) {
	message, err := x.receive(x.agent.Timing.Proceed)
	if err != nil {
		return 0, err
	}
	piece := message.GetSnapshot()
	defer clear(piece)
	if len(piece) == 0 || uint64(len(piece)) > most {
		return 0, x.outOfTurn("the announced snapshot's next piece")
	}
	n, err := w.Write(piece)
	return uint64(n), err
}

func checkDigest(got hash.Hash, want []byte) error {
	if sum := got.Sum(nil); string(sum) != string(want) {
		return &hullmark.Condition{
			Code: "restore-broken", Step: StepKubeadm, Title: "the backup arrived with another content than was announced", Retry: true,
			Expected: hex.EncodeToString(want), Got: hex.EncodeToString(sum), Next: "run hullmark init again",
		}
	}
	return nil
}
