package firstboot

import (
	"slices"
	"testing"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest/wire"
)

// comeBackWith plays a worker's return with hooks.
func (s *stage) comeBackWith(t *testing.T, hooks ...string) *wire.Progress {
	t.Helper()
	return s.comeBackTo(t, &wire.Proceed{Hooks: hooks})
}

// comeBackTo plays a worker's return to what its join service lets it have.
func (s *stage) comeBackTo(t *testing.T, proceed *wire.Proceed) *wire.Progress {
	t.Helper()
	service := s.service(t)
	s.dials(t, service.address)
	s.comeBack(t, "kubelet.conf")
	s.serve(t)
	c := service.accept()
	c.ticket(c.admit(s))
	c.receive()
	proceed.NodeName, proceed.Role = "node-1", string(hullmark.Worker)
	c.proceedWith(proceed)
	_, last := c.finish()
	return last
}

// Hooks are started in their order, when the disk is there and before the kubelet.
func TestHooksAreStarted(t *testing.T) {
	s := newStage(t)
	if last := s.comeBackWith(t, "site-b.service", "site-a.service"); !last.GetReady() {
		t.Fatalf("last = %v", last)
	}
	at := func(unit string) int { return slices.Index(s.machine.Did(), "start "+unit) }
	if order := []int{at(stateUnit), at("site-b.service"), at("site-a.service"), at(kubeletUnit)}; order[0] < 0 || !slices.IsSorted(order) {
		t.Errorf("machine did %q", s.machine.Did())
	}
}

func TestHookThatFails(t *testing.T) {
	s := newStage(t)
	s.machine.Fail = "start site-a.service"
	if last := s.comeBackWith(t, "site-a.service"); last.GetFailed().GetCode() != "hook-failed" || s.machine.Has("start "+kubeletUnit) {
		t.Errorf("last = %v, machine did %q", last, s.machine.Did())
	}
}

// What is no service of the image's owner is refused before the fuse.
func TestHooksAreChecked(t *testing.T) {
	for _, hook := range []string{"", "a", "a.target", "../a.service", "a@b.service", "hullmark-state.service", "kubelet.service", "containerd.service"} {
		if err := checkHooks([]string{hook}); err == nil {
			t.Errorf("%q is taken", hook)
		}
	}
	s := newStage(t)
	if last := s.comeBackWith(t, "reboot.target"); last.GetFailed().GetCode() != "proceed-refused" || s.machine.Has("start reboot.target") {
		t.Errorf("last = %v", last)
	}
}
