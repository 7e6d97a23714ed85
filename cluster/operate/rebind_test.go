package operate

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/hullmark/hullmark/joinservice"
)

// Two machines that the cluster cannot tell apart are not made of one, unless the operator knows that the first is gone.
func TestRebindWantsTheOldMachineGone(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	lives, over := joinservice.Machine{Name: "w1", CertificateEnds: now.Add(time.Hour)}, joinservice.Machine{Name: "w1", CertificateEnds: now}
	if err := (RebindOptions{}).checkGone(lives, now); err == nil || !strings.Contains(err.Error(), "--gone") || !errors.Is(err, ErrDenied) {
		t.Errorf("a certificate that lives: %v", err)
	}
	if err := (RebindOptions{Gone: true}).checkGone(lives, now); err != nil {
		t.Errorf("with --gone: %v", err)
	}
	for _, m := range []joinservice.Machine{over, {Name: "w1"}} {
		if err := (RebindOptions{}).checkGone(m, now); err != nil {
			t.Errorf("%v: %v", m.CertificateEnds, err)
		}
	}
}
