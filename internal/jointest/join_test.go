package jointest

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest/wire"
	"github.com/hullmark/hullmark/firstboot"
	"github.com/hullmark/hullmark/joinservice"
)

// trouble is what keeps a machine from joining for a while.
type trouble struct {
	role hullmark.Role
	// begin makes it, before the service runs, and returns what mends it.
	begin func(*testing.T, *Site) (mend func())
	// code and title are the condition's; ADDRESS in the title is the service's, and the title may go on.
	code, title string
	// recorded says that the service keeps the condition, for hullmark node list.
	recorded bool
	// tickets is how many the machine gets at least, and opens its disk with.
	tickets int
}

// What passes by itself is shown, with a countdown, on the node and its console, and the node becomes Ready once it has passed.
func TestWaitsAndJoins(t *testing.T) {
	for name, c := range map[string]trouble{
		"the API is down": {
			role: hullmark.Worker, begin: recordsDown, code: "api-unreachable", title: "the records are down", tickets: 1,
		},
		"the service ends between Opened and Proceed": {
			role: hullmark.Worker, begin: stoppedMidJoin, code: "service-unreachable", title: "the join service at ADDRESS does not answer: ", tickets: 2,
		},
		"the clock is an hour ahead": {
			role: hullmark.Worker, begin: clockOff(-time.Hour), code: "clock-off", title: "the machine's clock is off by 1h0m", recorded: true, tickets: 2,
		},
		"the clock is an hour behind": {
			role: hullmark.ControlPlane, begin: clockOff(time.Hour), code: "clock-off", title: "the machine's clock is off by -", recorded: true, tickets: 2,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c.waitsAndJoins(t)
		})
	}
}

// The positive control of all that.
func TestJoins(t *testing.T) {
	for _, role := range []hullmark.Role{hullmark.Worker, hullmark.ControlPlane} {
		t.Run(string(role), func(t *testing.T) {
			t.Parallel()
			s := New(t, role)
			s.Serve(t)
			end := s.Boot(t)
			s.Await(t, "Ready", func(d firstboot.Document) bool { return d.Ready })
			end()
			s.checkJoined(t, role)
		})
	}
}

func (c trouble) waitsAndJoins(t *testing.T) {
	s := New(t, c.role)
	// So that at least two seconds are counted down.
	s.Agent.Timing.FirstPause, s.Agent.Timing.LongestPause = 4*time.Second, 4*time.Second
	mend := c.begin(t, s)
	s.Serve(t)
	end := s.Boot(t)
	d := s.counts(t)
	c.check(t, s, d)
	mend()
	s.Await(t, "Ready", func(d firstboot.Document) bool { return d.Ready })
	end()
	s.checkJoined(t, c.role)
	if got := len(s.Disk.Grants); got < c.tickets {
		t.Errorf("the machine opened its disk %d times, want %d at least", got, c.tickets)
	}
}

// counts waits until the node, which something keeps from joining, counts down to its next attempt.
func (s *Site) counts(t *testing.T) firstboot.Document {
	t.Helper()
	before := 0
	return s.Await(t, "a condition and a countdown", func(d firstboot.Document) bool {
		var left int
		if d.Condition != nil && d.Joining != nil {
			_, _ = fmt.Sscanf(d.Joining.Doing, "trying again in %d s", &left)
		}
		fell := left > 0 && left < before
		before = left
		return fell
	})
}

// check looks at what the node shows, and the service keeps, while the trouble lasts.
func (c trouble) check(t *testing.T, s *Site, d firstboot.Document) {
	t.Helper()
	title := strings.ReplaceAll(c.title, "ADDRESS", s.Address)
	if got := d.Condition; got.Code != c.code || !strings.HasPrefix(got.Title, title) || !got.Retry || got.Next == "" || d.Ready {
		t.Errorf("the status shows %+v, want %s: %s", got, c.code, title)
	}
	if asked := d.Joining.Endpoints; len(asked) != 1 || asked[0].Endpoint != s.Address || asked[0].Condition == nil || asked[0].Condition.Code != c.code {
		t.Errorf("the status shows of the endpoints %+v", asked)
	}
	if console := s.Console.String(); !strings.Contains(console, "HULLMARK: "+title) || !strings.Contains(console, "code:     "+c.code+"\n") {
		t.Errorf("the console shows %q", console)
	}
	m, _, err := s.Records.Load(t.Context(), s.EKID)
	if c.recorded && (err != nil || m.State != joinservice.MachineFailed || m.Condition == nil || m.Condition.Code != c.code) {
		t.Errorf("the service keeps %+v, %v", m, err)
	}
}

// checkJoined looks at what is left once both have ended.
func (s *Site) checkJoined(t *testing.T, role hullmark.Role) {
	t.Helper()
	if d := s.Status(t); !d.Ready || d.Condition != nil || d.Joining != nil {
		t.Errorf("status %s", s.Agent.Status.Document())
	}
	if len(s.Kubernetes.Joins) != 1 {
		t.Errorf("kubeadm joined %d times", len(s.Kubernetes.Joins))
	}
	m, _, err := s.Records.Load(t.Context(), s.EKID)
	if err != nil || m.State != joinservice.MachineReady || m.Role != role || m.Condition != nil || m.Record.Disk != s.Disk.Claim.UUID || m.Record.Committed != s.Disk.Opened.EpochRead {
		t.Errorf("the service keeps %+v, %v; the disk is %s with epoch %d", m, err, s.Disk.Claim.UUID, s.Disk.Opened.EpochRead)
	}
	if left := s.Records.Tokens(); len(left) != 0 {
		t.Errorf("tokens are left: %v", left)
	}
}

func recordsDown(_ *testing.T, s *Site) (mend func()) {
	s.Records.SetDown(true)
	return func() { s.Records.SetDown(false) }
}

// stoppedMidJoin ends the service when it is about to record what Opened said. A process that has ended records nothing any more;
// the next one finds what it did before.
func stoppedMidJoin(t *testing.T, s *Site) (mend func()) {
	stopped, over := make(chan struct{}), make(chan struct{})
	var once sync.Once
	s.Records.BeforeStore = func(m joinservice.Machine) {
		if m.State == joinservice.MachineJoining {
			once.Do(func() {
				go func() {
					defer close(stopped)
					s.Stop()
				}()
				<-over
			})
		}
	}
	release := sync.OnceFunc(func() { close(over) })
	t.Cleanup(release)
	return func() {
		if tokens := s.Records.Tokens(); len(tokens) != 0 {
			t.Errorf("tokens were made before the service ended: %v", tokens)
		}
		s.Records.SetDown(true)
		release()
		<-stopped
		s.Records.SetDown(false)
		s.Serve(t)
	}
}

// clockOff lets the service's time be so far ahead of the node's.
func clockOff(by time.Duration) func(*testing.T, *Site) (mend func()) {
	return func(t *testing.T, s *Site) (mend func()) {
		s.EditProceed = func(p *wire.Proceed) { p.Time += int64(by / time.Second) }
		return func() {
			s.Stop()
			s.EditProceed = nil
			s.Serve(t)
		}
	}
}
