//go:build long

package load

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/internal/policytest"
	"github.com/hullmark/hullmark/internal/testenv"
	"github.com/hullmark/hullmark/joinservice"
	"github.com/hullmark/hullmark/joinservice/keys"
	"github.com/hullmark/hullmark/joinservice/registry"
	"github.com/hullmark/hullmark/measurements"
)

var (
	number     = flag.Int("n", 12, "how many machines join at once")
	profileDir = flag.String("profiles", "", "`folder` for processor profiles of the replicas during the first joins")
)

// outage is how long the API server is gone.
const outage = 20 * time.Second

func TestLoad(t *testing.T) {
	began := time.Now()
	s := newSite(t, *number)
	t.Logf("%d machines were made in %v", *number, time.Since(began).Round(time.Second))
	for _, step := range []struct {
		name string
		run  func(*testing.T, *site)
	}{
		{"all at once", testAllAtOnce},
		{"policy push", testPolicyPush},
		{"document removed", testDocumentRemoved},
		{"API outage", testAPIOutage},
		{"replica killed", testReplicaKilled},
		{"keeper outage", testKeeperOutage},
	} {
		if !t.Run(step.name, func(t *testing.T) { step.run(t, s) }) {
			return
		}
	}
}

// wave lets machines join at once, and returns what each of them was told.
func (s *site) wave(ctx context.Context, machines []*machine) []error {
	ctx, cancel := context.WithTimeout(ctx, 15*time.Minute)
	defer cancel()
	told := make([]error, len(machines))
	var all sync.WaitGroup
	for i, m := range machines {
		all.Go(func() { told[i] = m.join(ctx, s) })
	}
	all.Wait()
	return told
}

// joinAll lets all machines join anew while something happens, which begins when it is time for
// it, and holds what the API has of them afterwards to what was decided.
func (s *site) joinAll(t *testing.T, begin func() error, meanwhile func(context.Context) error) {
	t.Helper()
	s.forget(t)
	ended := make(chan error, 1)
	go func() {
		err := testenv.Poll(t.Context(), 5*time.Millisecond, begin) // Few joins are over in half a second.
		if err == nil && s.underWay() == 0 {
			err = errors.New("all had joined before it began: this tested nothing")
		}
		if err == nil {
			err = meanwhile(t.Context())
		}
		ended <- err
	}()
	began, before := time.Now(), s.account(t)
	for i, err := range s.wave(t.Context(), s.machines) {
		if err != nil {
			t.Errorf("%s: %v", s.machines[i].name(), err)
		}
	}
	took := time.Since(began)
	must(t, <-ended)
	if t.Failed() {
		t.FailNow()
	}
	s.report(t, took, before)
	s.checkIdentities(t)
	s.checkTokens(t)
}

// told adds up what all machines were told since they joined last.
func (s *site) told() told {
	sum := told{}
	for _, m := range s.machines {
		m.mutex.Lock()
		for code, n := range m.told {
			sum[code] += n
		}
		m.mutex.Unlock()
	}
	return sum
}

// wantTold fails the test if no machine was told this code: then nobody met what went wrong, and the test shows nothing.
func (s *site) wantTold(t *testing.T, code string) {
	t.Helper()
	if told := s.told(); told[code] == 0 {
		t.Errorf("no machine was told %s: %v", code, told)
	}
}

// underWay counts the machines that have not joined yet.
func (s *site) underWay() int {
	n := 0
	for _, m := range s.machines {
		if !m.did("end") {
			n++
		}
	}
	return n
}

// nothing happens.
func nothing(context.Context) error { return nil }

// quarter is nil once a quarter of the machines have their tickets.
func (s *site) quarter() error { return s.tickets((len(s.machines) + 3) / 4) }

// first is nil once a machine has its ticket.
func (s *site) first() error { return s.tickets(1) }

// tickets is nil once so many machines have theirs.
func (s *site) tickets(want int) error {
	n := 0
	for _, m := range s.machines {
		if m.did("Ticket") {
			n++
		}
	}
	if n < want {
		return fmt.Errorf("%d machines have a ticket", n)
	}
	return nil
}

// turnedAway is nil once a quarter of the machines were told to come again.
func (s *site) turnedAway() error {
	n := 0
	for _, m := range s.machines {
		if m.wasTurnedAway() {
			n++
		}
	}
	if n*4 < len(s.machines) {
		return fmt.Errorf("%d machines were told to come again", n)
	}
	return nil
}

// forget removes all machines as the operator does, and empties their disks.
func (s *site) forget(t *testing.T) {
	t.Helper()
	for _, m := range s.machines {
		_, err := s.admin.Delete(t.Context(), joinservice.Machine{EKID: m.ID, Name: m.name()}, true)
		must(t, err)
		m.wipe()
	}
}

// checkIdentities holds Nodes, records and names to the policy: each machine is one node, under its own name.
func (s *site) checkIdentities(t *testing.T) {
	t.Helper()
	var nodes corev1.NodeList
	must(t, s.objects.do(t.Context(), "GET", "/api/v1/nodes", nil, &nodes))
	uids := map[types.UID]string{}
	for _, n := range nodes.Items {
		uids[n.UID] = n.Name
	}
	records, err := s.admin.List(t.Context())
	must(t, err)
	byNode := map[hullmark.EKID]joinservice.Machine{}
	for _, r := range records {
		byNode[r.EKID] = r
	}
	for _, m := range s.machines {
		record := byNode[m.ID]
		if m.node.name != m.name() || uids[m.node.uid] != m.name() || record.Name != m.name() || record.Record.Disk != m.Disk.UUID {
			t.Errorf("%s is the node %+v, in the API %q, in its record %+v", m.name(), *m.node, uids[m.node.uid], record)
		}
	}
	if len(nodes.Items) != len(s.machines) || len(uids) != len(s.machines) || len(byNode) != len(s.machines) {
		t.Errorf("%d machines are %d Nodes with %d UIDs and %d records", len(s.machines), len(nodes.Items), len(uids), len(byNode))
	}
}

// checkTokens waits until no token is left, and every record says so.
func (s *site) checkTokens(t *testing.T) {
	t.Helper()
	must(t, eventually(t.Context(), func() error {
		if err := s.beat(t.Context()); err != nil {
			return err
		}
		var secrets corev1.SecretList
		err := s.objects.do(t.Context(), "GET", "/api/v1/namespaces/kube-system/secrets?fieldSelector=type%3Dbootstrap.kubernetes.io/token", nil, &secrets)
		if err == nil && len(secrets.Items) > 0 {
			err = fmt.Errorf("%d tokens are left", len(secrets.Items))
		}
		if err != nil {
			return err
		}
		records, err := s.admin.List(t.Context())
		for _, r := range records {
			if r.Token != "" || r.State != joinservice.MachineReady {
				err = errors.Join(err, fmt.Errorf("%s is %s, token %q", r.Name, r.State, r.Token))
			}
		}
		return err
	}))
}

// beat posts Ready for all kubelets, every 15 seconds: a node that is not heard becomes NotReady.
func (s *site) beat(ctx context.Context) error {
	if time.Since(s.beaten) < 15*time.Second {
		return nil
	}
	var all errgroup.Group
	all.SetLimit(20)
	for _, m := range s.machines {
		all.Go(func() error { return s.objects.postReady(ctx, m.name(), nil) })
	}
	if err := all.Wait(); err != nil {
		return err
	}
	s.beaten = time.Now()
	return nil
}

func testAllAtOnce(t *testing.T, s *site) {
	s.joinAll(t, s.quarter, func(ctx context.Context) error {
		if *profileDir == "" {
			return nil
		}
		var all errgroup.Group
		for _, r := range s.replicas {
			all.Go(func() error { return r.profile(ctx, *profileDir, 8*time.Second) })
		}
		return all.Wait()
	})
}

// pids returns the replicas' process ids.
func (s *site) pids() (all []int) {
	for _, r := range s.replicas {
		all = append(all, r.PID())
	}
	return all
}

func testPolicyPush(t *testing.T, s *site) {
	before := s.pids()
	s.joinAll(t, s.first, func(ctx context.Context) error {
		if err := s.push(ctx, 5, images...); err != nil {
			return err
		}
		policy, err := s.Cluster.OpenPolicy()
		if err != nil {
			return err
		}
		policy.Version = 4
		lower, err := measurements.SignPolicy(s.Cluster.Root.Key, s.Cluster.ID(), policy)
		if err != nil {
			return err
		}
		policy.Version = 6
		good, err := measurements.SignPolicy(s.Cluster.Root.Key, s.Cluster.ID(), policy)
		if err != nil {
			return err
		}
		forged, err := policytest.WithWrongSignature(good)
		if err != nil {
			return err
		}
		unknown, err := policytest.WithUnknownField(s.Cluster.Root.Key, s.Cluster.ID(), policy)
		if err != nil {
			return err
		}
		for _, bad := range []struct {
			envelope []byte
			says     string
		}{
			{lower, "its version is 4, and 5 is in force"},
			{forged, "the signature is not by the root key"},
			{unknown, `unknown field "` + policytest.UnknownField + `"`},
			{good[:len(good)/2], "it was cut off"},
		} {
			if err := s.refused(ctx, bad.envelope, bad.says); err != nil {
				return err
			}
			if err := s.inForce(ctx, 5); err != nil {
				return err
			}
		}
		return s.push(ctx, 7, images...)
	})
	for _, r := range s.replicas {
		if err := r.Alive(); err != nil {
			t.Error(err)
		}
	}
	if !slices.Equal(s.pids(), before) {
		t.Errorf("the replicas are %v, were %v", s.pids(), before)
	}
}

// refused pushes a policy and waits for the event that says why it is not taken.
func (s *site) refused(ctx context.Context, envelope []byte, says string) error {
	if err := s.admin.PushPolicy(ctx, "", registry.AnyVersion, envelope, s.Cluster.Documents); err != nil {
		return err
	}
	return eventually(ctx, func() error {
		var events corev1.EventList
		err := s.objects.do(ctx, "GET", "/api/v1/namespaces/"+registry.Namespace+"/events", nil, &events)
		for _, e := range events.Items {
			if e.Reason == "PolicyRefused" && strings.Contains(e.Message, says) {
				return nil
			}
		}
		return errors.Join(err, fmt.Errorf("%d events, none says %q", len(events.Items), says))
	})
}

// testDocumentRemoved removes the document of half the machines while all join.
func testDocumentRemoved(t *testing.T, s *site) {
	s.forget(t)
	pushed := make(chan error, 1)
	go func() {
		err := testenv.Poll(t.Context(), 5*time.Millisecond, s.first)
		pushed <- errors.Join(err, s.push(t.Context(), 8, "new"))
	}()
	for i, err := range s.wave(t.Context(), s.machines) {
		if m := s.machines[i]; err != nil && (m.image == "new" || !mismatch(err)) {
			t.Errorf("%s, which boots the image %s: %v", m.name(), m.image, err)
		}
	}
	must(t, <-pushed)
	s.forget(t)
	for i, err := range s.wave(t.Context(), s.machines) {
		if m := s.machines[i]; (m.image == "old") != mismatch(err) || m.image == "new" && err != nil {
			t.Errorf("%s, which boots the image %s: %v", m.name(), m.image, err)
		}
	}
	must(t, s.push(t.Context(), 9, images...))
	s.joinAll(t, s.quarter, nothing)
}

func mismatch(err error) bool {
	var c *hullmark.Condition
	return errors.As(err, &c) && c.Code == joinservice.CodeMismatch
}

func testAPIOutage(t *testing.T, s *site) {
	s.joinAll(t, s.first, func(ctx context.Context) error {
		if err := s.StopAPI(); err != nil {
			return err
		}
		time.Sleep(outage)
		return s.StartAPI(ctx)
	})
	s.wantTold(t, joinservice.CodeUnreachable)
}

func testReplicaKilled(t *testing.T, s *site) {
	s.joinAll(t, s.first, func(ctx context.Context) error {
		if err := s.replicas[0].Stop(); err != nil {
			return err
		}
		time.Sleep(3 * time.Second)
		return s.replicas[0].Start(ctx)
	})
	s.wantTold(t, lost)
}

// allWait is nil if each record that there is says that its machine waits for the keeper.
func (s *site) allWait(ctx context.Context) error {
	records, err := s.admin.List(ctx)
	if err == nil && len(records) == 0 {
		err = errors.New("no record says that a machine waits")
	}
	for _, r := range records {
		if r.State != joinservice.MachineWaiting || r.Condition == nil || r.Condition.Root().Code != keys.CodeUnreachable {
			err = errors.Join(err, fmt.Errorf("%s is %s: %v", r.Name, r.State, r.Condition))
		}
	}
	return err
}

// testKeeperOutage restarts the replicas while the keeper that wraps their keyset is away: machines wait, until it is back.
func testKeeperOutage(t *testing.T, s *site) {
	k := newKeeper(t)
	must(t, k.wrap(t.Context(), s.Cluster))
	k.away.Store(true)
	for _, r := range s.replicas {
		must(t, errors.Join(r.Stop(), r.WriteCredentials(s.Cluster), r.Start(t.Context())))
	}
	before := s.pids()
	s.joinAll(t, s.turnedAway, func(ctx context.Context) error {
		defer k.away.Store(false)
		// Of many machines, those that were told to come again may not have been decided on yet.
		if err := testenv.Poll(ctx, time.Second, func() error { return s.allWait(ctx) }); err != nil {
			return err
		}
		for _, m := range s.machines {
			if m.did("Ticket") {
				return fmt.Errorf("%s has a ticket, though nobody could open the keyset", m.name())
			}
		}
		return nil
	})
	if !slices.Equal(s.pids(), before) || k.refused.Load() == 0 || k.opened.Load() == 0 {
		t.Errorf("the replicas are %v, were %v; the keeper refused %d times and opened %d times", s.pids(), before, k.refused.Load(), k.opened.Load())
	}
}
