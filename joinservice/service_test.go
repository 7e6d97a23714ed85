package joinservice_test

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest"
	"github.com/hullmark/hullmark/attest/channel"
	"github.com/hullmark/hullmark/attest/wire"
	"github.com/hullmark/hullmark/internal/memrecords"
	"github.com/hullmark/hullmark/internal/nodetest"
	"github.com/hullmark/hullmark/joinservice"
	"github.com/hullmark/hullmark/joinservice/keys"
	"github.com/hullmark/hullmark/measurements"
)

func TestWorkerJoinsAndComesBack(t *testing.T) {
	s := newSite(t)
	m := s.join(t)
	want := joinservice.Machine{
		EKID: s.node.ID, Name: "worker-1", Role: hullmark.Worker, Platform: hullmark.PlatformClaims{Trust: hullmark.TrustTPM, Platform: hullmark.PlatformTPM}, Document: s.policy.Policy().Documents[0].Document,
		Record: joinservice.Record{Disk: hullmark.UUID{7}, Committed: 1, Issued: 1}, State: joinservice.MachineReady,
	}
	if m.Addresses[0] != netip.MustParseAddr("192.0.2.7") || m.Seen.IsZero() {
		t.Errorf("addresses %v, seen %v", m.Addresses, m.Seen)
	}
	if !equalMachines(m, want) {
		t.Errorf("got  %+v\nwant %+v", m, want)
	}
	first, brought := *s.node.Ticket(), s.node.Proceed()
	if first.Kind != hullmark.Join || !first.Disk.FormatAllowed || brought.GetNodeName() != "worker-1" || brought.GetRole() != "worker" {
		t.Errorf("the ticket is %+v, Proceed for %s %s", first, brought.GetRole(), brought.GetNodeName())
	}
	if !strings.Contains(string(brought.GetKubeadmDocuments()), "tlsBootstrapToken: 000001.") || len(brought.GetFiles()) != 1 {
		t.Error("Proceed does not bring the token, or not one file")
	}
	s.onTime(t)
	if len(s.records.Tokens()) != 0 {
		t.Error("the token outlived the join")
	}

	s.reboot()
	m = s.join(t)
	again := s.node.Ticket()
	if again.Kind != hullmark.Rejoin || again.Disk.FormatAllowed || !again.Disk.Key.Equal(first.Disk.Key) || m.Record.Committed != 2 {
		t.Errorf("the second ticket is %+v, the record %+v", again, m.Record)
	}
	if p := s.node.Proceed(); len(p.GetKubeadmDocuments()) != 0 || len(p.GetFiles()) != 0 || s.records.Issued() != 1 {
		t.Error("a node that has joined was brought join material again")
	}
}

func equalMachines(a, b joinservice.Machine) bool {
	a.Addresses, b.Addresses = nil, nil
	return a.EKID == b.EKID && a.Name == b.Name && a.Role == b.Role && a.Platform == b.Platform && a.Document == b.Document && a.Record == b.Record &&
		a.Token == b.Token && a.State == b.State && a.Phase == b.Phase && a.Condition == b.Condition
}

// Another replica answers the same machine between this one's look at its record and its write: exactly one write loses, and
// its authorizer decides anew.
func TestTwoReplicasRaceForOneRecord(t *testing.T) {
	s := newSite(t)
	s.join(t)
	s.reboot()
	s.records.BeforeStore = func(joinservice.Machine) {
		s.records.BeforeStore = nil
		s.store(t, func(m *joinservice.Machine) { m.Record.Issued++ })
	}
	m := s.join(t)
	if s.records.Conflicts() != 1 || m.Record.Issued != 3 || s.node.Ticket().Disk.Epoch != (hullmark.EpochWindow{Committed: 1, Issued: 3}) {
		t.Errorf("%d conflicts, record %+v, ticket for %+v", s.records.Conflicts(), m.Record, s.node.Ticket().Disk.Epoch)
	}
}

// A record that changes again and again ends the exchange instead of occupying the service.
func TestContendedRecord(t *testing.T) {
	s := newSite(t)
	s.join(t)
	s.reboot()
	var busy bool
	s.records.BeforeStore = func(joinservice.Machine) {
		if !busy {
			busy = true
			s.store(t, func(m *joinservice.Machine) { m.Record.Issued++ })
			busy = false
		}
	}
	s.denied(t, "record-contended", true, "the machine's record was changed by others again and again")
	s.records.BeforeStore = nil
	if s.journal.says("refusal not recorded") {
		t.Error("a contended record was asked to keep that it is")
	}
	s.join(t)
}

// The machine is reset while one replica is about to commit its ticket, and given a later one by another, which alone is good.
func TestStaleTicketIsNotCommitted(t *testing.T) {
	s := newSite(t)
	_, _, other := s.replica(t)
	late, overtaken := make(chan struct{}), make(chan struct{})
	var first atomic.Bool
	s.records.BeforeStore = func(m joinservice.Machine) {
		if m.State == joinservice.MachineJoining && !first.Swap(true) {
			close(late)
			<-overtaken
		}
	}
	stale := make(chan error, 1)
	go func() { stale <- s.dial(t) }()
	<-late
	s.reopen()
	again := s.node.Again()
	again.Unjoined, again.Hold = true, make(chan struct{})
	joined := make(chan error, 1)
	go func() { joined <- again.Dial(t.Context(), other, s.cluster.ID()) }()
	waitFor(t, func() bool { return again.Proceed() != nil })
	close(overtaken)
	if err := <-stale; err != nil {
		t.Fatal(err)
	}
	disk := "disk " + s.node.Disk.UUID.String()
	s.told(t, "ticket-stale", true, "the machine was given a later ticket, or one for another disk, since this one", disk+", epoch 2", disk+", epoch 1")
	if m := s.machine(t); m.State != joinservice.MachineJoining || m.Condition != nil || m.Record.Committed != 2 || s.records.Tokens()[m.Token] != s.node.ID {
		t.Errorf("while the later ticket's node joins, the record is %+v, the tokens are %v", m, s.records.Tokens())
	}
	close(again.Hold)
	if err := <-joined; err != nil || again.Denied() != nil {
		t.Fatal(err, again.Denied())
	}
	if m := s.machine(t); m.State != joinservice.MachineReady || m.Record.Committed != 2 || m.Token != "" || len(s.records.Tokens()) != 0 {
		t.Errorf("the later ticket's record is %+v, the tokens are %v", m, s.records.Tokens())
	}
}

func TestRecordsDownAndUp(t *testing.T) {
	s := newSite(t)
	s.records.SetDown(true)
	s.denied(t, "api-unreachable", true, "the records are down")
	if s.journal.says("refusal not recorded") {
		t.Error("records that are down were asked to keep that they are")
	}
	s.records.SetDown(false)
	s.join(t)
}

// failingKeeper is an external keeper that does not answer.
type failingKeeper struct{ keys.Keyset }

func (failingKeeper) DiskKey(uint32, hullmark.ClusterRoot, hullmark.EKID, hullmark.UUID) (hullmark.Secret, error) {
	return hullmark.Secret{}, &hullmark.Condition{Code: keys.CodeUnreachable, Title: "the key keeper does not answer", Next: "wait", Retry: true}
}

// A machine waits for the keeper: at its first ticket, and when it comes back. Meanwhile its record says so.
func TestKeyKeeperDownAndUp(t *testing.T) {
	s := newSite(t)
	for _, was := range []joinservice.Machine{{}, {Record: joinservice.Record{Disk: hullmark.UUID{7}, Committed: 1, Issued: 1}}} {
		s.service.Keys = failingKeeper{s.cluster.Keys}
		s.denied(t, keys.CodeUnreachable, true, "the key keeper does not answer")
		m := s.machine(t)
		if m.State != joinservice.MachineWaiting || m.Condition == nil || *m.Condition != *s.node.Denied() || m.Name != "worker-1" || m.Role != hullmark.Worker || m.Record != was.Record {
			t.Errorf("the node was told %v, which was recorded as %+v", s.node.Denied(), m)
		}
		s.service.Keys = s.cluster.Keys
		if m := s.join(t); m.Condition != nil {
			t.Errorf("after it came in, its record says %v", m.Condition)
		}
		s.reboot()
	}
}

// slowKeeper says that it was asked for a key, and gives it once it may.
type slowKeeper struct {
	keys.Keyset
	asked, may chan struct{}
}

func (k slowKeeper) DiskKey(generation uint32, root hullmark.ClusterRoot, node hullmark.EKID, disk hullmark.UUID) (hullmark.Secret, error) {
	k.asked <- struct{}{}
	<-k.may
	return k.Keyset.DiskKey(generation, root, node, disk)
}

// While as many tickets are decided as may be at once, another worker waits for a moment and is then told to come again, and a control plane
// goes on.
func TestDecisionsAreBounded(t *testing.T) {
	s := newSite(t)
	ek, err := new(nodetest.SoftwareKeys).Next() // A TPM emulator would take a second for each.
	if err != nil {
		t.Fatal(err)
	}
	if s.node, err = nodetest.NewWithSoftware(ek, s.cluster.ID(), "image", 0); err != nil {
		t.Fatal(err)
	}
	s.accept(t, func(p *measurements.Policy) { p.Members[0].EKID = s.node.ID }, "image")
	slow := slowKeeper{s.cluster.Keys, make(chan struct{}), make(chan struct{})}
	s.service.Keys = slow
	ended := make(chan error)
	dial := func() {
		node := s.node.Again()
		go func() { ended <- node.Dial(t.Context(), s.address, s.cluster.ID()) }()
		<-slow.asked
	}
	for range joinservice.MaxDecisions {
		dial()
	}
	writes := s.records.Writes()
	s.denied(t, "busy", true, "decides as many tickets at once")
	if s.records.Writes() != writes {
		t.Error("records that are busy were asked to keep that they are")
	}
	s.controlPlanes(t)
	dial()
	go func() {
		for range slow.asked { // Those who lost the race for the record ask again.
		}
	}()
	close(slow.may)
	for range joinservice.MaxDecisions + 1 {
		if err := <-ended; err != nil && !errors.Is(err, io.EOF) { // Those that a later exchange of the machine ended are told nothing.
			t.Error(err)
		}
	}
	close(slow.asked)
	if writes == s.records.Writes() {
		t.Error("nobody got through")
	}
}

// A machine that waits asks each few seconds; the API is not written to as often, unless there is something new.
func TestWaitingIsRarelyRecorded(t *testing.T) {
	s := newSite(t)
	wait := func(seen time.Time) int {
		s.store(t, func(m *joinservice.Machine) { m.Seen = seen })
		before := s.records.Writes()
		s.denied(t, keys.CodeUnreachable, true, "the key keeper does not answer")
		return s.records.Writes() - before
	}
	s.service.Keys = failingKeeper{s.cluster.Keys}
	s.denied(t, keys.CodeUnreachable, true, "the key keeper does not answer")
	if writes := wait(time.Now().Add(time.Hour)); writes != 0 {
		t.Errorf("%d writes while the record says it all", writes)
	}
	if writes := wait(time.Now().Add(-time.Hour)); writes != 1 {
		t.Errorf("%d writes an hour later", writes)
	}
	s.store(t, func(m *joinservice.Machine) { m.State = joinservice.MachineReady })
	if writes := wait(time.Now().Add(time.Hour)); writes != 1 {
		t.Errorf("%d writes for a machine that was Ready", writes)
	}
	s.store(t, func(m *joinservice.Machine) { m.Condition = &hullmark.Condition{Code: "busy"} })
	if writes := wait(time.Now().Add(time.Hour)); writes != 1 {
		t.Errorf("%d writes for another reason", writes)
	}
}

// failingTokens makes none.
type failingTokens struct{ joinservice.Tokens }

func (failingTokens) Issue(context.Context, joinservice.Machine, func(string) error) (hullmark.Secret, error) {
	return hullmark.Secret{}, &hullmark.Condition{Code: "api-unreachable", Title: "no token was made", Next: "wait", Retry: true}
}

func TestTokenMakerDownAndUp(t *testing.T) {
	s := newSite(t)
	s.service.Tokens = failingTokens{s.records}
	if err := s.dial(t); err != nil {
		t.Fatal(err)
	}
	s.told(t, "api-unreachable", true, "no token was made")
	s.service.Tokens = s.records
	s.reopen()
	s.join(t)
}

// reopen shows the disk that a ticket formatted but no kubeadm finished on; the epoch stays what it was.
func (s *site) reopen() {
	s.reboot()
	s.node.Unjoined = true
}

// The service ends between Opened and Proceed; the next process finds what the first recorded, and the node its disk.
func TestRestartBetweenTicketAndProceed(t *testing.T) {
	s := newSite(t)
	var once sync.Once
	s.records.BeforeStore = func(m joinservice.Machine) {
		if m.State == joinservice.MachineJoining {
			once.Do(func() { go s.server.Stop(); time.Sleep(50 * time.Millisecond) })
		}
	}
	if err := s.dial(t); err == nil {
		t.Fatal("the exchange came to its end although the service was stopped")
	}
	waitFor(t, func() bool { return s.outcome() != "" }) // A process that has ended does nothing more.
	s.start(t)
	s.reopen()
	if m := s.join(t); s.node.Epoch != 2 || m.Record.Committed != 2 {
		t.Errorf("the disk's epoch is %d, the record %+v", s.node.Epoch, m.Record)
	}
	if len(s.records.Tokens()) != 0 {
		t.Errorf("tokens are left: %v", s.records.Tokens())
	}
}

// An exchange whose machine begins another one commits late: after the newer ticket was recorded, or after that one's join. Its
// token is nobody's then.
func TestTokenOfAnOvertakenExchange(t *testing.T) {
	for name, until := range map[string]string{"before the newer one commits": "Ticket", "after the newer one was heard to its end": ""} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			s.node.Silent = true // in the exchange that is overtaken
			late, overtaken := make(chan struct{}), make(chan struct{})
			var first atomic.Bool
			s.records.BeforeStore = func(m joinservice.Machine) {
				if m.State == joinservice.MachineJoining && !first.Swap(true) {
					close(late)
					<-overtaken
				}
			}
			go func() { _ = s.dial(t) }()
			<-late
			s.reopen()
			again := s.node.Again()
			again.Unjoined = true
			again.Observe = func(message string) {
				if message == until {
					close(overtaken)
					waitFor(t, func() bool { return s.machine(t).Token != "" })
				}
			}
			if err := again.Dial(t.Context(), s.address, s.cluster.ID()); err != nil || again.Denied() != nil {
				t.Fatal(err, again.Denied())
			}
			if until == "" {
				close(overtaken)
			}
			s.server.GracefulStop() // until both have ended
			if m := s.machine(t); m.Token != "" || m.State != joinservice.MachineReady || m.Record.Committed != 2 {
				t.Errorf("the record is %+v", m)
			}
			if len(s.records.Tokens()) != 0 || s.records.Issued() != 2 {
				t.Errorf("of %d tokens %v are left", s.records.Issued(), s.records.Tokens())
			}
		})
	}
}

func TestNodeThatFailsLosesItsToken(t *testing.T) {
	s := newSite(t)
	s.node.Fail = &hullmark.Condition{Code: "kubeadm-failed", Step: "KUBEADM", Title: strings.Repeat("x", 4000), Next: "look"}
	if err := s.dial(t); err != nil {
		t.Fatal(err)
	}
	m := s.machine(t)
	if s.outcome() != joinservice.OutcomeNodeFailed || m.State != joinservice.MachineFailed || m.Condition.Code != "kubeadm-failed" || len(m.Condition.Title) > 512 {
		t.Errorf("outcome %s, recorded %+v", s.outcome(), m)
	}
	if m.Token != "" || len(s.records.Tokens()) != 0 {
		t.Error("the failed node's token is still good")
	}
	s.node.Fail = nil
	s.reopen()
	s.join(t)
}

// killable are tokens of a service that may be killed at any moment.
type killable struct {
	*memrecords.Store
	noted func(id string)
}

func (k killable) Issue(ctx context.Context, m joinservice.Machine, note func(string) error) (hullmark.Secret, error) {
	return k.Store.Issue(ctx, m, func(id string) error {
		err := note(id)
		k.noted(id)
		return err
	})
}

// At every moment each token that exists is named by its machine's record, so that whoever is left can end it.
func TestNoTokenIsWithoutARecord(t *testing.T) {
	s := newSite(t)
	noted := 0
	s.service.Tokens = killable{s.records, func(id string) {
		noted++
		if m := s.machine(t); m.Token != id || len(s.records.Tokens()) != 0 {
			t.Errorf("before token %s is made, the record names %q, and there are %v", id, m.Token, s.records.Tokens())
		}
	}}
	s.node.Silent = true
	if err := s.dial(t); err == nil {
		t.Fatal("a silent node's exchange came to an end")
	}
	waitFor(t, func() bool { return s.outcome() == joinservice.OutcomeEnded })
	s.records.BeforeStore = func(m joinservice.Machine) {
		if tokens := s.records.Tokens(); m.Token == "" && len(tokens) != 0 {
			t.Errorf("the record forgets its token while there are %v", tokens)
		}
	}
	s.node.Silent = false
	s.reopen()
	s.join(t)
	if noted != 2 || len(s.records.Tokens()) != 0 {
		t.Errorf("%d tokens were noted, %v are left", noted, s.records.Tokens())
	}
}

// While a node joins, its token is the one that its record names, and for nobody else; the next ticket ends it.
func TestTokenIsOneMachines(t *testing.T) {
	s := newSite(t)
	s.node.Silent = true // it goes on by itself
	if err := s.dial(t); err == nil {
		t.Fatal("a silent node's exchange came to an end")
	}
	waitFor(t, func() bool { return s.outcome() == joinservice.OutcomeEnded })
	m, tokens := s.machine(t), s.records.Tokens()
	if len(tokens) != 1 || tokens[m.Token] != s.node.ID || m.State != joinservice.MachineFailed {
		t.Fatalf("recorded %+v, tokens %v", m, tokens)
	}
	s.node.Silent = false
	s.reopen()
	s.join(t)
	if len(s.records.Tokens()) != 0 || s.records.Issued() != 2 {
		t.Errorf("tokens %v of %d", s.records.Tokens(), s.records.Issued())
	}
}

func waitFor(t *testing.T, done func() bool) {
	t.Helper()
	for range 6000 { // A minute: the machine may be busy.
		if done() {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatal("waited in vain")
}

// A chatty node does not write to etcd with each line.
func TestProgressIsRarelyRecorded(t *testing.T) {
	s := newSite(t)
	for i := range 200 {
		s.node.Phases = append(s.node.Phases, "phase "+string(rune('a'+i%26)))
	}
	s.join(t)
	if writes := s.records.Writes(); writes > 6 { // admitted, its addresses, joining, one phase, ready, and its certificate
		t.Errorf("%d writes for one join", writes)
	}
}

// Strangers fill the places for those who proved nothing; a node is told to come again.
func TestBusyService(t *testing.T) {
	s := newSite(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for range joinservice.MaxUnauthenticated {
		connection, err := grpc.NewClient("passthrough:///"+s.address, grpc.WithTransportCredentials(credentials.NewTLS(channel.JoinTLS(s.cluster.ID()))))
		if err != nil {
			t.Fatal(err)
		}
		defer connection.Close()
		if _, err := wire.NewJoinServiceClient(connection).Exchange(ctx); err != nil {
			t.Fatal(err)
		}
	}
	waitFor(t, func() bool { return s.service.InFlight() == joinservice.MaxUnauthenticated })
	s.denied(t, "busy", true, "the join service has as many exchanges under way as it takes")
	cancel()
	waitFor(t, func() bool { return s.service.InFlight() == 0 })
	s.join(t)
}

// A node that was reset dials again while its old stream seems alive: the old one ends, and changes nothing.
func TestNewerExchangeEndsTheOlder(t *testing.T) {
	s := newSite(t)
	s.node.Hold = make(chan struct{})
	held := make(chan error, 1)
	old := s.node
	go func() { held <- old.Dial(t.Context(), s.address, s.cluster.ID()) }()
	waitFor(t, func() bool { return old.Proceed() != nil })
	s.node = old.Again()
	s.reopen()
	m := s.join(t)
	close(old.Hold)
	<-held // Whether its last words still went out before it heard of the stream's end is chance.
	s.mutex.Lock()
	superseded := slices.Contains(s.outcomes, joinservice.OutcomeSuperseded)
	s.mutex.Unlock()
	if now := s.machine(t); !superseded || !equalMachines(now, m) || len(s.records.Tokens()) != 0 {
		t.Errorf("superseded %v, the record is %+v, was %+v", superseded, now, m)
	}
}

func TestRogueServiceIsNotDialled(t *testing.T) {
	s := newSite(t)
	rogue := newCluster(t)
	leaf, err := channel.NewService(rogue.Root.Certificate, rogue.Online.Certificate, rogue.Online.Key)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := tls.Listen("tcp", "127.0.0.1:0", channel.ServiceTLS(leaf))
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	go func() {
		if c, err := listener.Accept(); err == nil {
			_ = c.(*tls.Conn).Handshake()
			_ = c.Close()
		}
	}()
	if err := s.node.Dial(t.Context(), listener.Addr().String(), s.cluster.ID()); err == nil {
		t.Error("a rogue service was dialled")
	}
	s.join(t)
}

func TestSignedResetIsSpentByANewDisk(t *testing.T) {
	authorizer := newAuthorizer(t)
	record := &joinservice.Record{Disk: disk, Committed: 4, Issued: 5, Serial: 3}
	authorizer.Policy.Resets = []measurements.Reset{{EKID: machine, OldUUID: disk}}
	other := hullmark.DiskClaim{State: hullmark.DiskBlank, UUID: hullmark.UUID{9}}
	admission, err := authorizer.Admit(hullmark.Join, withRole(t, authorizer, other), record)
	if err != nil || !admission.Ticket.Disk.FormatAllowed || admission.Record != (joinservice.Record{Disk: other.UUID, Issued: 7, Floor: 6, Serial: 3}) {
		t.Fatalf("got %+v, %v", admission.Record, err)
	}
	committed, err := admission.Record.Commit(other.UUID, 7)
	if err != nil {
		t.Fatal(err)
	}
	for name, claim := range map[string]hullmark.DiskClaim{
		"again":                       {State: hullmark.DiskBlank, UUID: hullmark.UUID{10}},
		"with the disk that was lost": {State: hullmark.DiskFormatting, UUID: disk},
	} {
		if _, err := authorizer.Admit(hullmark.Join, withRole(t, authorizer, claim), &committed); code(err) != "disk-replaced" {
			t.Errorf("the reset was used %s: %v", name, err)
		}
	}
	if _, err := authorizer.Admit(hullmark.Join, withRole(t, authorizer, hullmark.DiskClaim{State: hullmark.DiskFormatting, UUID: disk}), record); code(err) != "disk-replaced" {
		t.Errorf("a reset formatted the same disk, and would never be spent: %v", err)
	}
}

func TestSignedOverrideIsUsedOnce(t *testing.T) {
	authorizer := newAuthorizer(t)
	authorizer.Policy.Overrides = []measurements.Override{
		{Serial: 1, EKID: machine, UUID: disk, Epoch: 2},
		{Serial: 2, EKID: hullmark.EKID{9}, UUID: disk, Epoch: 9},
		{Serial: 3, EKID: machine, UUID: disk, Epoch: 3},
	}
	ready := ready()
	for name, record := range map[string]*joinservice.Record{
		"after a rollback": {Disk: disk, Committed: 7, Issued: 8}, "without a record": nil, "of an earlier disk": {Disk: hullmark.UUID{9}, Committed: 1, Issued: 1},
	} {
		admission, err := authorizer.Admit(hullmark.Rejoin, withRole(t, authorizer, ready), record)
		if err != nil || admission.Record != (joinservice.Record{Disk: disk, Committed: 3, Issued: 4, Serial: 3}) {
			t.Errorf("%s: got %+v, %v", name, admission.Record, err)
		}
	}
	used := &joinservice.Record{Disk: disk, Committed: 7, Issued: 8, Serial: 3}
	if admission, err := authorizer.Admit(hullmark.Rejoin, withRole(t, authorizer, ready), used); err != nil || admission.Record.Committed != 7 {
		t.Errorf("a used override was used again: %+v, %v", admission.Record, err)
	}
	// After another disk in between, the first one comes back: its override stays used.
	between := &joinservice.Record{Disk: hullmark.UUID{9}, Issued: 1, Serial: 3}
	if _, err := authorizer.Admit(hullmark.Rejoin, withRole(t, authorizer, ready), between); code(err) != "record-missing" {
		t.Errorf("got %v", err)
	}
}

// withRole makes the authorizer's machine a worker and returns its claims.
func withRole(t *testing.T, authorizer *joinservice.Authorizer, claim hullmark.DiskClaim) attest.Claims {
	t.Helper()
	authorizer.Policy.Members = []measurements.Member{worker(machine)}
	return claims(t, "image", claim)
}

func code(err error) string {
	var condition *hullmark.Condition
	if !errors.As(err, &condition) {
		return ""
	}
	return condition.Code
}
