package bench

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/firstboot"
	"github.com/hullmark/hullmark/internal/agenttest"
	"github.com/hullmark/hullmark/internal/jointest"
)

// ownTime is what the agent may take between the network and kubeadm.
const ownTime = 200 * time.Millisecond

// BenchmarkAgent lets an agent join at a service, as a worker and as a control plane, and reports what of the time until
// kubeadm starts was its own: all but what it waits for its TPM, the disk helper, the network and other programs.
func BenchmarkAgent(b *testing.B) {
	for _, role := range []hullmark.Role{hullmark.Worker, hullmark.ControlPlane} {
		own := make([]time.Duration, 5)
		for i := range own {
			s := jointest.New(b, role)
			s.Serve(b)
			end := s.Boot(b)
			s.Await(b, "Ready", func(d firstboot.Document) bool { return d.Ready })
			end()
			own[i] = agenttest.TookIn(b, s.Log.String()).Own
		}
		slices.Sort(own)
		median := own[len(own)/2]
		goals = append(goals, goal{
			"the agent's own time before kubeadm, as a " + string(role), short(median).String(), fmt.Sprintf("at most %v", ownTime), median <= ownTime,
		})
		b.ReportMetric(milliseconds(median), string(role)+"-ms")
	}
	b.ReportMetric(0, "ns/op")
}
