package bench

import (
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

// BenchmarkAgent lets an agent join at a service, as a worker and as a control plane, and reports what of the time until kubeadm starts was its own: all but
// what it waits for its TPM, the disk helper, the network and other programs.
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
		comparisons = append(comparisons, comparison{
			what: "the agent's own time before kubeadm, as a " + string(role), peer: "no peer: what it may take",
			ours: own[len(own)/2], peers: ownTime, target: 1, atMost: true,
		})
		b.ReportMetric(float64(own[len(own)/2].Microseconds())/1000, string(role)+"-ms")
	}
	b.ReportMetric(0, "ns/op")
}
