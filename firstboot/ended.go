package firstboot

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/firstboot/kubeadm"
	"github.com/hullmark/hullmark/internal/atomicfile"
	"github.com/hullmark/hullmark/internal/pemcert"
)

// readyMark is the file in RunDir by which a later run of the agent knows that this boot came to Ready, and what it needs to know of it.
const readyMark = "ready"

// mark is the content of readyMark.
type mark struct {
	// Role is the node's.
	Role hullmark.Role `json:"role"`
	// Began is when the machine was started, in Unix time: the verifier's time, which M6 brought, less the machine's uptime then. It is 0 if M6 brought none.
	Began int64 `json:"began"`
}

// takeTime notes when the machine was started by its verifier's clock. M6 has just come.
func (x *exchange) takeTime() error {
	if x.proceed.GetTime() == 0 {
		return nil
	}
	up, err := x.agent.Machine.Uptime()
	x.machineBegan = time.Unix(x.proceed.GetTime(), 0).Add(-up).Unix()
	return err
}

// markReady notes that this boot came to Ready.
func (x *exchange) markReady() error {
	text, err := json.Marshal(mark{Role: hullmark.Role(x.proceed.GetRole()), Began: x.machineBegan})
	if err != nil {
		return err
	}
	return atomicfile.Write(filepath.Join(x.agent.RunDir, readyMark), text, 0o600)
}

func (a *Agent) wasReady() bool {
	_, err := os.Stat(filepath.Join(a.RunDir, readyMark))
	return err == nil
}

// watchCertificate looks, from Ready on, whether the kubelet's certificate has ended: then the API was down for so long that the kubelet could not renew it, or the machine is
// no member any more. It shows that, and lets a worker restart, which brings it a token for another, once its cluster answers again. It returns when ctx ends.
//
// The machine's clock counts for nothing here: its host sets it. What counts is the verifier's time when this boot began, and the machine's uptime. So each restart takes what
// was left of a certificate's life at Ready; and whether the machine comes back with a token is decided by a join service's clock.
func (a *Agent) watchCertificate(ctx context.Context) {
	tick := time.NewTicker(a.Timing.Certificate)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		role, ended := a.certificateEnded()
		if !ended {
			continue
		}
		a.Status.Warn(endedCertificate(role))
		if role != hullmark.Worker || !a.clusterAnswers(ctx) {
			continue
		}
		// Machines that lost their certificates together do not restart in step, and not for an API that only blinked.
		select {
		case <-ctx.Done():
			return
		case <-time.After(rand.N(a.Timing.Restart)):
		}
		if a.clusterAnswers(ctx) {
			a.restart(fmt.Errorf("%w: %w", errReboot, endedCertificate(role)))
			return
		}
	}
}

// restart lets the machine restart, unless it does already.
func (a *Agent) restart(why error) {
	select {
	case a.over <- why:
	default:
	}
}

// certificateEnded reports whether the kubelet's certificate has ended in a boot that came to Ready. What cannot be read may be written just now.
func (a *Agent) certificateEnded() (hullmark.Role, bool) {
	var m mark
	text, err := os.ReadFile(filepath.Join(a.RunDir, readyMark))
	if err != nil || json.Unmarshal(text, &m) != nil || m.Began == 0 {
		return "", false
	}
	if text, err = a.readState(kubeadm.ClientCertificate); err != nil {
		return "", false
	}
	ends, err := pemcert.End(text)
	if err != nil {
		return "", false
	}
	up, err := a.Machine.Uptime()
	return m.Role, err == nil && time.Unix(m.Began, 0).Add(up).After(ends)
}

// clusterAnswers reports whether a restart would help: a join service of the node's cluster answers, and the API server says that it is ready. While only the first one does, pods that
// run would be stopped for nothing.
func (a *Agent) clusterAnswers(ctx context.Context) bool {
	for _, endpoint := range a.config.Endpoints {
		conn, _, condition := a.reach(ctx, endpoint)
		if condition != nil {
			continue
		}
		_ = conn.Close()
		return kubeadm.Answers(ctx, kubeadm.Access{Kubeconfig: kubeletConf, Read: a.readState}) == nil
	}
	return false
}

func endedCertificate(role hullmark.Role) *hullmark.Condition {
	c := &hullmark.Condition{
		Code: "certificate-ended", Step: StepReady, Title: "the kubelet's certificate has ended, and it could not renew it",
		Next: "bring the control planes back: the node restarts once a join service and the API server answer; if they do, see that the policy still admits the machine",
	}
	if role == hullmark.ControlPlane {
		c.Next = "reboot this control plane when etcd has its quorum; a single one is recovered (hullmark recover)"
	}
	return c
}
