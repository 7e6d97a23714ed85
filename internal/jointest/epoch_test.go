package jointest

import (
	"os"
	"testing"
	"time"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/firstboot"
	"github.com/hullmark/hullmark/firstboot/statedisk"
	"github.com/hullmark/hullmark/joinservice"
)

// epoch is what the disk's manifest holds.
func (s *Site) epoch(t *testing.T) uint64 {
	t.Helper()
	key, err := statedisk.ManifestKey(hullmark.NewSecret(append([]byte(nil), s.Disk.Key...)))
	if err != nil {
		t.Fatal(err)
	}
	root, err := os.OpenRoot(s.Agent.StateDir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	m, _, err := statedisk.ReadManifest(root, key)
	if err != nil {
		t.Fatal(err)
	}
	return m.Epoch
}

// A node that is Ready moves its epoch on, on the disk and in its record, while its service answers, and goes on when it comes back.
func TestEpochGoesOnWhileReady(t *testing.T) {
	s := New(t, hullmark.Worker)
	s.Agent.Timing.Epoch = time.Second
	s.Serve(t)
	end := s.Boot(t)
	defer end()
	s.Await(t, "Ready", func(d firstboot.Document) bool { return d.Ready })
	for _, want := range []uint64{2, 3} {
		for limit := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
			m, v, err := s.Records.Load(t.Context(), s.EKID)
			if err != nil {
				t.Fatal(err)
			}
			if m.Record.Committed == want {
				if got := s.epoch(t); got != want || m.Record.Issued != want || m.State != joinservice.MachineReady {
					t.Errorf("the disk is at %d, and the record %+v", got, m)
				}
				m.Advanced = time.Time{} // The service would have it wait for minutes.
				if _, err := s.Records.Store(t.Context(), m, v); err != nil {
					t.Fatal(err)
				}
				break
			}
			if time.Now().After(limit) {
				t.Fatalf("the record is %+v, want epoch %d", m, want)
			}
		}
	}
	s.Records.SetDown(true)
	time.Sleep(3 * time.Second)
	s.Records.SetDown(false)
	if got := s.epoch(t); got < 3 {
		t.Errorf("the disk is at %d", got)
	}
}
