package firstboot

import (
	"context"
	"encoding/json"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest/wire"
	"github.com/hullmark/hullmark/internal/atomicfile"
	"github.com/hullmark/hullmark/internal/pemcert"
	"github.com/hullmark/hullmark/kubeadm"
	"github.com/hullmark/hullmark/kubeadm/run"
)

// readyMark is the file in RunDir by which a later run of the agent knows that this boot came to Ready, and what it needs to know of it.
const readyMark = "ready"

// mark is the content of readyMark.
type mark struct {
	// Name and Role are the node's.
	Name string        `json:"name"`
	Role hullmark.Role `json:"role"`
	// Began and Ready are when the machine was started, and when it was Ready, in Unix time: the verifier's time, which Proceed
	// brought, and the machine's uptime. Both are 0 if Proceed brought none.
	Began int64 `json:"began"`
	Ready int64 `json:"ready"`
	// Ends is when the kubelet's certificate ends, in Unix time; 0 if it had none before this boot.
	Ends int64 `json:"ends"`
	// Came is the machine's uptime, in seconds, when that certificate was first seen; 0 if the machine had it before this boot.
	Came int64 `json:"came"`
}

// machineBegan returns when the machine was started by its verifier's clock, in Unix time; 0 if Proceed, which has just come, does
// not say the time.
func (a *Agent) machineBegan(p *wire.Proceed) (int64, error) {
	if p.GetTime() == 0 {
		return 0, nil
	}
	up, err := a.Machine.Uptime()
	return time.Unix(p.GetTime(), 0).Add(-up).Unix(), err
}

// markReady notes that this boot came to Ready.
func (f *finishing) markReady() error {
	m := mark{Name: f.proceed.GetNodeName(), Role: hullmark.Role(f.proceed.GetRole()), Began: f.machineBegan, Ends: f.disk.CertificateEnds}
	if m.Began != 0 {
		up, err := f.agent.Machine.Uptime()
		if err != nil {
			return err
		}
		m.Ready = time.Unix(m.Began, 0).Add(up).Unix()
	}
	return f.agent.writeMark(m)
}

func (a *Agent) writeMark(m mark) error {
	text, err := json.Marshal(m)
	if err != nil {
		return err
	}
	return atomicfile.Write(filepath.Join(a.RunDir, readyMark), text, 0o600)
}

func (a *Agent) wasReady() bool {
	_, err := os.Stat(filepath.Join(a.RunDir, readyMark))
	return err == nil
}

// certificateWatch looks at the certificate of a Ready node's kubelet.
type certificateWatch struct{ *Agent }

// run looks, from Ready on, whether the kubelet's certificate has ended: then the API was down for so long that the kubelet
// could not renew it, or the machine is no member any more. It shows that, and lets a worker restart, which brings it a token
// for another, once its cluster answers again. It returns when ctx ends.
//
// The machine's clock counts for nothing here: its host sets it. A certificate that came in this boot lives as long as it says,
// by the machine's uptime alone. One that the machine had before ends by the verifier's time, but that may be wrong, too: at
// Ready the API server took the certificate. So a verifier whose clock is days ahead costs one restart at most, after which the
// kubelet has a new certificate; and whether the machine comes back with a token for it is decided by a join service's clock.
func (a certificateWatch) run(ctx context.Context) {
	tick := time.NewTicker(a.Timing.Certificate)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		role, ended := a.look()
		if !ended || role != hullmark.Worker || !a.clusterAnswers(ctx) {
			continue
		}
		// Machines that lost their certificates together do not restart in step, and not for an API that only blinked.
		select {
		case <-ctx.Done():
			return
		case <-time.After(rand.N(a.Timing.Restart)):
		}
		if a.clusterAnswers(ctx) {
			_ = updater(a).restart(endedCertificate(role))
			return
		}
	}
}

// look shows what is wrong with the kubelet's certificate, and reports whether it has ended.
func (a certificateWatch) look() (role hullmark.Role, ended bool) {
	m, state := a.judge()
	switch state {
	case certificateEnded:
		a.Status.Warn(endedCertificate(m.Role))
	case clockDisagrees:
		a.Status.WarnUnlessWarned(disagreeingClock(m.Ends))
	case certificateLives:
		a.Status.Unwarn(codeClockDisagrees)
	}
	return m.Role, state == certificateEnded
}

// certificateState is what is known of the kubelet's certificate in a boot that came to Ready.
type certificateState int

const (
	certificateLives certificateState = iota
	certificateEnded
	// clockDisagrees is a certificate that has ended by the verifier's clock alone.
	clockDisagrees
)

// judge looks at the kubelet's certificate, and notes one that came. What cannot be read may be written just now.
func (a certificateWatch) judge() (m mark, state certificateState) {
	text, err := os.ReadFile(filepath.Join(a.RunDir, readyMark))
	if err != nil || json.Unmarshal(text, &m) != nil || m.Began == 0 {
		return m, certificateLives
	}
	if text, err = a.readState(kubeadm.ClientCertificate); err != nil {
		return m, certificateLives
	}
	begins, ends, err := pemcert.Span(text)
	if err != nil {
		return m, certificateLives
	}
	up, err := a.Machine.Uptime()
	if err != nil {
		return m, certificateLives
	}
	if ends.Unix() != m.Ends {
		m.Ends, m.Came = ends.Unix(), int64(up.Seconds())
		if err := a.writeMark(m); err != nil {
			return m, certificateLives // The next look notes it.
		}
	}
	return m, m.judge(ends.Sub(begins), up)
}

// judge says what a certificate of this life is worth when the machine is up for so long.
func (m mark) judge(life, up time.Duration) certificateState {
	over := m.Began+int64(up.Seconds()) > m.Ends
	switch {
	case m.Came > 0 && up >= time.Duration(m.Came)*time.Second+life:
		return certificateEnded
	case !over:
		return certificateLives
	case m.Came > 0, m.Ready >= m.Ends:
		return clockDisagrees
	}
	return certificateEnded
}

// clusterAnswers reports whether a restart would help: a join service of the node's cluster answers, and the API server says
// that it is ready. While only the first one does, pods that run would be stopped for nothing.
func (a certificateWatch) clusterAnswers(ctx context.Context) bool {
	for _, endpoint := range a.config.Endpoints {
		conn, _, condition := a.reach(ctx, endpoint)
		if condition != nil {
			continue
		}
		_ = conn.Close()
		return run.Answers(ctx, run.Access{Kubeconfig: kubeletConf, Read: a.readState}) == nil
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

// codeClockDisagrees is the code of disagreeingClock.
const codeClockDisagrees = "clock-disagrees"

func disagreeingClock(ends int64) *hullmark.Condition {
	return &hullmark.Condition{
		Code: codeClockDisagrees, Step: StepReady, Title: "by its verifier's clock the kubelet's certificate has ended, but it lives: a clock is wrong by hours",
		Expected: "a time before " + time.Unix(ends, 0).UTC().Format(time.RFC3339),
		Next:     "compare the clocks of the control planes, and set the one right that the node came back by: it gives its time to every node that joins, and ends tokens by it",
	}
}
