package firstboot

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest/wire"
	"github.com/hullmark/hullmark/firstboot/statedisk"
	"github.com/hullmark/hullmark/kubeadm"
)

// announcing is Proceed of a first node that begins with a backup. The pieces follow.
func announcing(content []byte, backup string) *wire.Proceed {
	p := controlPlane()
	sum, from := sha256.Sum256(content), sha256.Sum256([]byte(backup))
	p.Snapshot = &wire.Snapshot{Size: uint64(len(content)), Sha256: sum[:], Backup: from[:], Bump: 1}
	p.KubeadmDocuments = []byte("kind: ClusterConfiguration\n---\nkind: InitConfiguration\nlocalAPIEndpoint: {advertiseAddress: 192.0.2.7}\n")
	return p
}

// restore plays an init with Proceed and these pieces, and returns how it ended.
func (s *stage) restore(t *testing.T, proceed *wire.Proceed, pieces ...[]byte) *wire.Progress {
	t.Helper()
	address, _ := s.serve(t)
	c := dial(t, operator(t, address, s.root, s.rootKey))
	c.ticket(c.admit(s))
	c.receive()
	c.send(&wire.FromVerifier{Message: &wire.FromVerifier_Proceed{Proceed: proceed}})
	for _, piece := range pieces {
		// A node that has refused Proceed ends the stream.
		_ = c.stream.Send(&wire.FromVerifier{Message: &wire.FromVerifier_Snapshot{Snapshot: piece}})
	}
	_, last := c.rest()
	return last
}

// rebooted is the same disk in another boot.
func (s *stage) rebooted(t *testing.T) *stage {
	t.Helper()
	next := newStage(t)
	next.agent.StateDir, next.cluster.StateDir, next.disk.StateDir = s.agent.StateDir, s.agent.StateDir, s.agent.StateDir
	return next
}

func (s *stage) exists(name string) bool {
	file, err := onState(name)
	if err == nil {
		_, err = os.Lstat(filepath.Join(s.agent.StateDir, file))
	}
	return err == nil
}

func TestInitBeginsWithABackup(t *testing.T) {
	s := newStage(t)
	content := bytes.Repeat([]byte("etcd"), 200_000)
	if last := s.restore(t, announcing(content, "monday"), content[:wire.MaxPiece], content[wire.MaxPiece:]); !last.GetReady() {
		t.Fatalf("last = %v", last)
	}
	if len(s.cluster.Restored) != 1 || s.cluster.Restored[0] != string(content) {
		t.Errorf("etcd's data was made %d times, or of something else", len(s.cluster.Restored))
	}
	if !s.cluster.Works[0].Restored || s.cluster.Works[0].Retry || s.exists(kubeadm.SnapshotFile) {
		t.Errorf("work = %+v; the snapshot is left: %v", s.cluster.Works[0], s.exists(kubeadm.SnapshotFile))
	}
}

// A kubeadm init that failed goes on with the etcd that it has begun with: its data is not made again. The operator names the
// backup until the node was Ready.
func TestEtcdIsRestoredOnce(t *testing.T) {
	content := []byte("etcd")
	for name, c := range map[string]struct {
		again *wire.Proceed
		code  string
	}{
		"with the backup": {announcing(content, "monday"), ""}, "with another": {announcing(content, "tuesday"), "restore-late"}, "without": {controlPlane(), "restore-unfinished"},
	} {
		s := newStage(t)
		s.cluster.Fail = errors.New("kubeadm failed")
		if last := s.restore(t, announcing(content, "monday"), content); last.GetFailed() == nil {
			t.Fatalf("last = %v", last)
		}
		s = s.rebooted(t)
		last := s.restore(t, c.again, content)
		if last.GetFailed().GetCode() != c.code || last.GetReady() != (c.code == "") || len(s.cluster.Restored) != 0 {
			t.Errorf("%s: last = %v, restored %q", name, last, s.cluster.Restored)
		}
		if c.code == "" && (!s.cluster.Works[0].Restored || !s.cluster.Works[0].Retry) {
			t.Errorf("%s: work %+v", name, s.cluster.Works[0])
		}
	}
}

// A restoration that did not end leaves nothing. It is done again, with that backup or another; an etcd that is empty is not
// begun in its place.
func TestHalfARestorationIsRemoved(t *testing.T) {
	content := []byte("etcd")
	for name, again := range map[string]*wire.Proceed{"with the backup": announcing(content, "monday"), "with another": announcing(content, "tuesday"), "without": controlPlane()} {
		s := newStage(t)
		s.cluster.Unrestorable = errors.New("no room")
		if last := s.restore(t, announcing(content, "monday"), content); last.GetFailed().GetCode() != "restore-failed" {
			t.Fatalf("last = %v", last)
		}
		if s.exists(kubeadm.EtcdData) || s.exists(kubeadm.SnapshotFile) {
			t.Error("something is left")
		}
		s = s.rebooted(t)
		// The power went before all was removed.
		if err := os.Mkdir(filepath.Join(s.agent.StateDir, "var/lib/etcd"), 0o700); err != nil {
			t.Fatal(err)
		}
		last := s.restore(t, again, content)
		if again.GetSnapshot() == nil {
			if last.GetFailed().GetCode() != "restore-unfinished" || len(s.cluster.Works) != 0 {
				t.Errorf("%s: last = %v", name, last)
			}
			continue
		}
		if !last.GetReady() || !s.cluster.Works[0].Restored || len(s.cluster.Restored) != 1 {
			t.Errorf("%s: last = %v, work = %+v", name, last, s.cluster.Works)
		}
	}
}

func TestRoomForABackup(t *testing.T) {
	if err := checkRoom(3<<30, 1<<30); err != nil {
		t.Error(err)
	}
	var c *hullmark.Condition
	if err := checkRoom(2<<30, 1<<30); !errors.As(err, &c) || c.Code != "disk-too-small" || c.Expected != "2560 MiB free" {
		t.Errorf("error %v", err)
	}
}

func TestBackupThatCannotBeTaken(t *testing.T) {
	content := []byte("etcd")
	begun := func(s *stage) error { s.keep(statedisk.IntentFile, statedisk.IntentStarted); return nil }
	other := func(s *stage) error { s.keep(restoredFile, "another"); return nil }
	joined := func(s *stage) error {
		s.disk.Claim = hullmark.DiskClaim{State: hullmark.DiskReady, UUID: hullmark.UUID{1}, Generation: 1, Owner: hullmark.EKID{2}}
		s.disk.Opened = statedisk.Opened{EpochRead: 1, Joined: true}
		return nil
	}
	nowhere := announcing(content, "monday")
	nowhere.KubeadmDocuments = []byte("kind: InitConfiguration\n")
	for name, c := range map[string]struct {
		before  func(*stage) error
		proceed *wire.Proceed
		piece   string
		code    string
	}{
		"kubeadm has begun with an empty etcd": {begun, announcing(content, "monday"), "etcd", "restore-late"},
		"etcd is another backup's":             {other, announcing(content, "monday"), "etcd", "restore-late"},
		"the disk holds a node":                {joined, announcing(content, "monday"), "etcd", "proceed-refused"},
		"an etcd without an address":           {nil, nowhere, "etcd", "proceed-refused"},
		"other content":                        {nil, announcing(content, "monday"), "abcd", "restore-broken"},
		"more than announced":                  {nil, announcing(content, "monday"), "etcd and more", "out-of-turn"},
		"an empty piece":                       {nil, announcing(content, "monday"), "", "out-of-turn"},
	} {
		s := newStage(t)
		if c.before != nil {
			if err := c.before(s); err != nil {
				t.Fatal(err)
			}
		}
		if last := s.restore(t, c.proceed, []byte(c.piece)); last.GetFailed().GetCode() != c.code {
			t.Errorf("%s: last = %v, want %s", name, last, c.code)
		}
		if len(s.cluster.Restored) != 0 || len(s.cluster.Works) != 0 {
			t.Errorf("%s: etcd's data was made, or kubeadm ran", name)
		}
		if refused := c.code == "proceed-refused"; refused == s.machine.Has("start "+stateUnit) || !strings.Contains(s.console.String(), c.code) {
			t.Errorf("%s: machine did %q, console %q", name, s.machine.Did(), s.console)
		}
	}
}
