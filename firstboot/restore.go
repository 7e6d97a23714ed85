package firstboot

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest/wire"
	"github.com/hullmark/hullmark/internal/atomicfile"
	"github.com/hullmark/hullmark/kubeadm"
)

// Notes that name a backup by the hexadecimal SHA-256 of its content: the one that etcd's data was made of, and the one of
// which it was begun to.
const (
	restoredFile  = keptNotes + "restored"
	restoringFile = keptNotes + "restoring"
)

// checkSnapshot refuses a snapshot for anything but the first init of a disk.
func (o *opened) checkSnapshot(p *wire.Proceed) error {
	if p.GetSnapshot() == nil {
		return nil
	}
	if o.kind != hullmark.Init || o.disk.Joined {
		return errors.New("it brings a backup of etcd, but the disk holds a node")
	}
	return restoring{o.conversation, p}.restoration().Check()
}

// restoring makes what etcd begins with of the backup that Proceed announces, if it announces one.
type restoring struct {
	*conversation
	proceed *wire.Proceed
}

func (r restoring) restoration() kubeadm.Restoration {
	return kubeadm.Restoration{
		Documents: r.proceed.GetKubeadmDocuments(), NodeName: r.proceed.GetNodeName(), Bump: r.proceed.GetSnapshot().GetBump(),
		Report: func(p kubeadm.Phase) { r.progress(p.Name, p.Text) },
	}
}

// clear removes half of a restoration, which no kubeadm has begun with, before anything else is written to a disk that it may have filled.
func (r restoring) clear() error {
	held, err := r.agent.note(restoredFile)
	if err != nil {
		return err
	}
	intent, err := r.agent.intent()
	if err != nil || held != "" || intent != "" {
		return err
	}
	return r.agent.removeState(kubeadm.EtcdData, kubeadm.SnapshotFile)
}

// run takes the snapshot that Proceed announced, if it did, and makes etcd's data of it, once for a disk. It reports whether etcd's
// data is a backup's, be it since an earlier boot.
func (r restoring) run(ctx context.Context, intent string) (restored bool, err error) {
	held, err := r.agent.note(restoredFile)
	if err != nil {
		return false, err
	}
	announced := r.proceed.GetSnapshot()
	backup := hex.EncodeToString(announced.GetBackup())
	switch {
	case announced == nil:
		return false, r.checkUnfinished()
	case held == backup:
		return true, r.takeSnapshot(announced, io.Discard)
	case held != "" || intent != "":
		return false, &hullmark.Condition{
			Code: "restore-late", Step: StepKubeadm, Title: "this disk's etcd has begun already, and not with this backup",
			Expected: "a disk on which no kubeadm has begun", Got: cmp.Or(held, "no backup, and kubeadm "+intent),
			Next: "go on without this backup, or give the node an empty disk (hullmark init --new-disk)",
		}
	}
	return true, r.first(ctx, announced, backup)
}

// checkUnfinished refuses to go on without a backup where one was begun with: whoever runs init once more may have forgotten to
// name it, and what else comes with it.
func (r restoring) checkUnfinished() error {
	begun, err := r.agent.note(restoringFile)
	if err != nil || begun == "" {
		return err
	}
	return &hullmark.Condition{
		Code: "restore-unfinished", Step: StepKubeadm, Title: "this disk was to begin with a backup of etcd, and the node was not Ready since", Expected: "backup " + begun, Got: "no backup",
		Next: "name the backup again (hullmark init --etcd-backup), or give the node an empty disk (--new-disk)",
	}
}

// first makes etcd's data. That it is whole is recorded once it is stored; what fails leaves nothing of it.
func (r restoring) first(ctx context.Context, announced *wire.Snapshot, backup string) error {
	if err := r.checkRoom(announced.GetSize()); err != nil {
		return err
	}
	if err := r.agent.kept.write(restoringFile, []byte(backup)); err != nil {
		return err
	}
	if err := r.makeEtcd(ctx, announced); err != nil {
		return errors.Join(err, r.agent.removeState(kubeadm.EtcdData, kubeadm.SnapshotFile))
	}
	if err := errors.Join(r.agent.removeState(kubeadm.SnapshotFile), r.agent.syncState()); err != nil {
		return err
	}
	return r.agent.kept.write(restoredFile, []byte(backup))
}

func (r restoring) makeEtcd(ctx context.Context, announced *wire.Snapshot) error {
	r.progress("restore", fmt.Sprintf("taking the backup of etcd, %d MiB", announced.GetSize()>>20))
	if err := r.storeSnapshot(announced); err != nil {
		return err
	}
	r.progress("restore", "making etcd's data of it")
	defer wait(&r.took.programs, time.Now())
	if err := r.agent.Cluster.Restore(ctx, r.restoration()); err != nil {
		return &hullmark.Condition{
			Code: "restore-failed", Step: StepKubeadm, Title: err.Error(), Next: "run hullmark init --etcd-backup again; if it fails again, with another backup",
		}
	}
	return nil
}

// checkRoom makes sure that the snapshot and etcd's data find room beside each other, and what comes after them.
func (r restoring) checkRoom(size uint64) error {
	var s unix.Statfs_t
	if err := unix.Statfs(r.agent.StateDir, &s); err != nil {
		return fmt.Errorf("how much room the state disk has: %w", err)
	}
	return checkRoom(s.Bavail*uint64(s.Bsize), size)
}

func checkRoom(free, size uint64) error {
	const others = 512 << 20
	if need := 2*size + others; free < need {
		return &hullmark.Condition{
			Code: "disk-too-small", Step: StepKubeadm, Title: "the state disk has no room for the backup of etcd",
			Expected: fmt.Sprintf("%d MiB free", need>>20), Got: fmt.Sprintf("%d MiB", free>>20), Next: "give the node a larger empty disk (hullmark init --new-disk)",
		}
	}
	return nil
}

// storeSnapshot writes the announced pieces to SnapshotFile.
func (r restoring) storeSnapshot(announced *wire.Snapshot) error {
	name, err := onState(kubeadm.SnapshotFile)
	if err != nil {
		return err
	}
	root, err := os.OpenRoot(r.agent.StateDir)
	if err != nil {
		return err
	}
	defer root.Close()
	return atomicfile.StreamIn(root, name, atomicfile.Options{Mode: 0o600}, func(f *os.File) error { return r.takeSnapshot(announced, f) })
}

// tellEvery is how often the other end hears how far a snapshot has come.
const tellEvery = 10 * time.Second

// takeSnapshot receives the announced pieces and hands them on. An error means that they are not what was announced, or could
// not be written.
func (r restoring) takeSnapshot(announced *wire.Snapshot, w io.Writer) error {
	digest, told := sha256.New(), time.Now()
	for got := uint64(0); got < announced.GetSize(); {
		n, err := r.takePiece(io.MultiWriter(w, digest), announced.GetSize()-got)
		if err != nil {
			return err
		}
		got += n
		if time.Since(told) > tellEvery {
			told = time.Now()
			r.progress("restore", fmt.Sprintf("taken %d of %d MiB", got>>20, announced.GetSize()>>20))
		}
	}
	return checkDigest(digest, announced.GetSha256())
}

// takePiece receives one piece of at most so many bytes.
func (r restoring) takePiece(w io.Writer, most uint64) (uint64, error) {
	message, err := r.receive(r.agent.Timing.Proceed)
	if err != nil {
		return 0, err
	}
	piece := message.GetSnapshot()
	defer clear(piece)
	if len(piece) == 0 || uint64(len(piece)) > most {
		return 0, r.outOfTurn("the announced snapshot's next piece")
	}
	n, err := w.Write(piece)
	return uint64(n), err
}

func checkDigest(got hash.Hash, want []byte) error {
	if sum := got.Sum(nil); string(sum) != string(want) {
		return &hullmark.Condition{
			Code: "restore-broken", Step: StepKubeadm, Title: "the backup arrived with another content than was announced", Retry: true,
			Expected: hex.EncodeToString(want), Got: hex.EncodeToString(sum), Next: "run hullmark init --etcd-backup again",
		}
	}
	return nil
}
