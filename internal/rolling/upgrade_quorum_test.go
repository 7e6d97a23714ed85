//go:build quorum

package rolling

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/internal/testenv"
	"github.com/hullmark/hullmark/internal/upgradetest"
	"github.com/hullmark/hullmark/joinservice/registry"
	"github.com/hullmark/hullmark/upgrade"
)

// Three control planes and five workers go to another release, with pods that a budget keeps together: real members of etcd, API servers,
// join services and engines, those of a control plane away while it is. One control plane at a time leaves, while both others are ready,
// and before any worker; nothing that was acknowledged is lost, and no watch misses anything.
func TestUpgradeOfThreePlanes(t *testing.T) {
	s := newSite(t, 3, 5)
	controller, err := testenv.StartController(t.Context(), s.dir+"/controller", s.planes[0].Plane, s.balancer.Addr().String())
	must(t, err)
	t.Cleanup(func() {
		if err := controller.Stop(); err != nil {
			t.Error(err)
		}
	})
	must(t, s.Deploy(t.Context(), 3))
	order := s.watchOrder(t)
	f := startTraffic(t, s.admin)
	last := s.wanted(t, "00000000000000d1", images[1])
	if last.Phase != upgrade.Done || last.Term < 2 {
		t.Errorf("it ended as %s, in term %d: %+v", last.Phase, last.Term, last.Failed)
	}
	f.check(t, s.admin)
	if left := order(); len(left) != 8 {
		t.Errorf("those left: %q", left)
	}
	for name, m := range s.machines {
		s.Change(name, func(*upgradetest.Machine) {
			if m.Release() != upgradetest.RootHash(s.documents[images[1]]) || !m.Committed() || m.Boots != 2 {
				t.Errorf("%s runs %s, in its boot %d", name, m.Release(), m.Boots)
			}
		})
	}
	s.wantRecords(t)
	for _, step := range s.taken() {
		t.Logf("%s was away for %v", step.plane, step.back.Sub(step.left).Round(time.Second))
	}
	t.Log(f.report(time.Time{}, time.Now()))
}

// watchOrder holds those that leave to what was promised, from now on; what it returns are their names.
func (s *site) watchOrder(t *testing.T) func() []string {
	t.Helper()
	var mutex sync.Mutex
	var left []string
	client, err := rest.HTTPClientFor(s.admin)
	must(t, err)
	for _, m := range s.machines {
		s.Change(m.Name, func(played *upgradetest.Machine) {
			leaves := played.Leaves
			played.Leaves = func(to hullmark.DocumentID) {
				mutex.Lock()
				defer mutex.Unlock()
				left = append(left, m.Name)
				if m.Role == hullmark.ControlPlane && len(left) > len(s.planes) {
					t.Errorf("%s leaves after %q", m.Name, left)
				}
				for _, p := range s.planes {
					if err := answers(client, p); err != nil && p != m.plane {
						t.Errorf("%s leaves, and %s: %v", m.Name, p.name, err)
					}
				}
				leaves(to)
			}
		})
	}
	return func() []string {
		mutex.Lock()
		defer mutex.Unlock()
		return slices.Clone(left)
	}
}

// answers returns nil if a plane's API server is ready.
func answers(client *http.Client, p *plane) error {
	answer, err := client.Get("https://" + p.Address + "/readyz")
	if err != nil {
		return err
	}
	if answer.StatusCode != http.StatusOK {
		err = errors.New(answer.Status)
	}
	return errors.Join(err, answer.Body.Close())
}

// wantRecords wants the join services' records to say what the machines run, and which document they showed at their last boot.
func (s *site) wantRecords(t *testing.T) {
	t.Helper()
	admin, err := registry.New(s.admin)
	must(t, err)
	d := s.documents[images[1]]
	for name, m := range s.machines {
		must(t, eventually(t.Context(), func() error {
			record, _, err := admin.Load(t.Context(), m.EKID)
			if u := record.Update; err == nil && (record.Document != upgradetest.ID(d) || u == nil || u.Release() != upgradetest.RootHash(d)) {
				err = fmt.Errorf("%s is recorded with %s and %+v", name, record.Document, u)
			}
			return err
		}))
	}
}
