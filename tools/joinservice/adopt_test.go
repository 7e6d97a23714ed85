package main

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/firstboot/servicefiles"
	"github.com/hullmark/hullmark/joinservice"
	"github.com/hullmark/hullmark/measurements"
)

// oneRecord keeps the record of one machine, and counts its changes.
type oneRecord struct {
	joinservice.Records
	machine joinservice.Machine
	changes int
}

func (r *oneRecord) version() joinservice.Version {
	return joinservice.Version(strconv.Itoa(1 + r.changes))
}

func (r *oneRecord) Load(context.Context, hullmark.EKID) (joinservice.Machine, joinservice.Version, error) {
	return r.machine, r.version(), nil
}

func (r *oneRecord) Store(_ context.Context, m joinservice.Machine, _ joinservice.Version) (joinservice.Version, error) {
	r.machine, r.changes = m, r.changes+1
	return r.version(), nil
}

// A control plane's record says the rotation of its keys only while its certificates are of the authorities of that rotation, and an
// earlier one as long as they are not, or as nobody says it, also if an earlier boot said more. All else is recorded at once.
func TestRotationIsNotedByCertificates(t *testing.T) {
	s, folder := newSite(t), t.TempDir()
	s.policy.Members = []measurements.Member{{EKID: s.node.ID, Role: hullmark.ControlPlane, Name: "control-plane-1"}}
	s.policy.Rotation = 2
	envelope, err := measurements.SignPolicy(s.cluster.Root.Key, s.cluster.ID(), s.policy)
	if err != nil {
		t.Fatal(err)
	}
	s.write(t, "policy", envelope)
	s.write(t, rotationCredential, hullmark.KeyRotation{Number: 2, Blind: s.cluster.Blind}.Encode())
	a, err := prepare(options{credentials: s.credentials, files: servicefiles.Files{Folder: folder}, api: apiServer, log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	record := &oneRecord{machine: joinservice.Machine{EKID: s.node.ID, Name: "control-plane-1", Role: hullmark.ControlPlane, Rotation: 2}}
	a.service.Records = record
	says := filepath.Join(folder, servicefiles.Superseded)
	boot, recorded := joinservice.Boot{Document: hullmark.DocumentID{9}}, false
	for i, step := range []struct {
		socket, superseded string
		rotation           uint64
		changes            int
	}{
		{filepath.Join(folder, "nobody"), "", 1, 1},
		{"", "etcd/peer.crt is not of the authority that signs by now", 1, 1},
		{"", "", 2, 2},
	} {
		if a.files.Socket = step.socket; step.superseded != "" {
			if err := os.WriteFile(says, []byte(step.superseded), 0o600); err != nil {
				t.Fatal(err)
			}
		} else if err := os.RemoveAll(says); err != nil {
			t.Fatal(err)
		}
		done, err := a.noteBootOnce(t.Context(), "control-plane-1", boot, &recorded)
		if want := step.rotation == 2; done != want || (err == nil) != want || err != nil && !strings.Contains(err.Error(), step.superseded) {
			t.Errorf("step %d: done %t, %v", i, done, err)
		}
		if record.machine.Rotation != step.rotation || record.machine.Document != boot.Document || record.changes != step.changes {
			t.Errorf("step %d: after %d changes the record is %+v", i, record.changes, record.machine)
		}
	}
	a.credentials.rotation = 0
	if rotation, err := a.runsBy(); rotation != 0 || err != nil {
		t.Errorf("of keys that were never exchanged: %d, %v", rotation, err)
	}
}
