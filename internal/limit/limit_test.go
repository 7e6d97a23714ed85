package limit

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/peer"
)

// scene is a Listener on loopback, and those who dial it.
type scene struct {
	*testing.T
	listener *Listener
}

func newScene(t *testing.T, places int) *scene {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	return &scene{t, NewListener(listener, places)}
}

// dial dials from an address.
func (s *scene) dial(from string) net.Conn {
	s.Helper()
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	conn, err := dialer.Dial("tcp", s.listener.Addr().String())
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { _ = conn.Close() })
	return conn
}

// accept dials from an address and is accepted.
func (s *scene) accept(from string) (outside net.Conn, inside *conn) {
	s.Helper()
	outside = s.dial(from)
	accepted, err := s.listener.Accept()
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { _ = accepted.Close() })
	return outside, accepted.(*conn)
}

// isOpen fails the test unless the server has, or has not, ended a connection.
func (s *scene) isOpen(conn net.Conn, want bool) {
	s.Helper()
	wait := 10 * time.Second
	if want {
		wait = 50 * time.Millisecond
	}
	_ = conn.SetReadDeadline(time.Now().Add(wait))
	_, err := conn.Read(make([]byte, 1))
	if open := errors.Is(err, os.ErrDeadlineExceeded); open != want {
		s.Errorf("the connection of %v is open: %v, want %v (%v)", conn.LocalAddr(), open, want, err)
	}
}

// refused dials from an address, and fails the test unless the server ends that.
func (s *scene) refused(from string) {
	s.Helper()
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	conn, err := dialer.Dial("tcp", s.listener.Addr().String())
	switch {
	case err == nil:
		defer conn.Close()
		s.isOpen(conn, false)
	case !errors.Is(err, syscall.ECONNRESET):
		s.Error(err)
	}
}

// Who has the most slots loses one to another, and gets no more.
func TestSharesSlots(t *testing.T) {
	s := newScene(t, 3)
	oldest, _ := s.accept("127.0.0.2")
	second, _ := s.accept("127.0.0.2")
	third, _ := s.accept("127.0.0.2")
	refused := s.dial("127.0.0.2")
	other, _ := s.accept("127.0.0.3") // Accept passes over the one that is refused.
	s.isOpen(refused, false)
	s.isOpen(oldest, false)
	for _, conn := range []net.Conn{second, third, other} {
		s.isOpen(conn, true)
	}
	// With a slot each, the oldest of all goes.
	next, _ := s.accept("127.0.0.4")
	s.isOpen(second, false)
	last, _ := s.accept("127.0.0.5")
	s.isOpen(third, false)
	for _, conn := range []net.Conn{other, next, last} {
		s.isOpen(conn, true)
	}
}

// challenge challenges a peer by a name, some time ago.
func (s *scene) challenge(c *conn, name string, ago time.Duration) {
	Challenged(rpc(c), name)
	s.listener.mutex.Lock()
	defer s.listener.mutex.Unlock()
	c.challenged = c.challenged.Add(-ago)
}

// Of many sources that dial at once, those that were challenged keep their slots: they are about to show who they are.
func TestHerdGetsThrough(t *testing.T) {
	s := newScene(t, 3)
	first, inside := s.accept("127.0.0.2")
	second, other := s.accept("127.0.0.3")
	s.challenge(inside, "first", 0)
	s.challenge(other, "second", 0)
	silent, _ := s.accept("127.0.0.4")
	third, last := s.accept("127.0.0.5")
	s.isOpen(silent, false)
	s.challenge(last, "third", 0)
	accepted := make(chan net.Conn, 1)
	go func() {
		if c, err := s.listener.Accept(); err == nil {
			accepted <- c
		}
	}()
	s.refused("127.0.0.6")
	s.refused("127.0.0.2") // a source that has one
	inside.setAuthenticated(true)
	fourth := s.dial("127.0.0.7")
	<-accepted // Accept passed over those that were refused.
	for _, conn := range []net.Conn{first, second, third, fourth} {
		s.isOpen(conn, true)
	}
	s.challenge(other, "second", settled) // It is silent since.
	_, _ = s.accept("127.0.0.8")
	s.isOpen(second, false)
	for _, conn := range []net.Conn{first, third, fourth} {
		s.isOpen(conn, true)
	}
}

// Whoever replays one machine's Hello from many addresses keeps one slot by that.
func TestNameKeepsOneSlot(t *testing.T) {
	s := newScene(t, 2)
	replayed, inside := s.accept("127.0.0.2")
	again, other := s.accept("127.0.0.3")
	s.challenge(inside, "name", 0)
	s.challenge(other, "name", 0)
	_, _ = s.accept("127.0.0.4")
	s.isOpen(replayed, false)
	s.isOpen(again, true)
	s.listener.mutex.Lock()
	s.listener.remove(other)
	s.listener.mutex.Unlock()
	Challenged(rpc(other), "late") // It has lost its slot, and is not closed yet.
	_ = other.Close()
	if len(s.listener.challenged) != 0 {
		t.Errorf("%d names are remembered", len(s.listener.challenged))
	}
}

// Machines that share an address lose the one that came last, which is farthest from its proof, and keep the last one of all.
func TestSharedAddressLosesItsNewest(t *testing.T) {
	s := newScene(t, 3)
	older, first := s.accept("127.0.0.2")
	younger, second := s.accept("127.0.0.2")
	_, third := s.accept("127.0.0.3")
	for name, c := range map[string]*conn{"first": first, "second": second, "third": third} {
		s.challenge(c, name, 0)
	}
	_, fourth := s.accept("127.0.0.4")
	s.isOpen(younger, false)
	s.challenge(fourth, "fourth", 0)
	go func() { _, _ = s.listener.Accept() }()
	s.refused("127.0.0.5")
	s.isOpen(older, true)
}

// A connection that had its exchange and has not hung up goes before one of its source that has just come.
func TestEndedExchangeGoesFirst(t *testing.T) {
	s := newScene(t, 2)
	ended, inside := s.accept("127.0.0.2")
	s.challenge(inside, "name", 0)
	inside.setAuthenticated(true)
	young, _ := s.accept("127.0.0.2")
	inside.setAuthenticated(false)
	_, _ = s.accept("127.0.0.3")
	s.isOpen(ended, false)
	s.isOpen(young, true)
}

// A source with an authenticated connection is not forgotten: it would be two, with a share of the slots each.
func TestSourceWithAuthenticatedIsRemembered(t *testing.T) {
	s := newScene(t, 8)
	_, inside := s.accept("127.0.0.2")
	inside.setAuthenticated(true)
	for i := range maxSources + 1 {
		s.listener.source(&net.TCPAddr{IP: net.IPv4(10, 0, byte(i>>8), byte(i))})
	}
	_, other := s.accept("127.0.0.2")
	if inside.source != other.source {
		t.Error("one address is two sources")
	}
	_ = inside.Close()
	_ = other.Close()
	for i := range maxSources + 1 {
		s.listener.source(&net.TCPAddr{IP: net.IPv4(10, 1, byte(i>>8), byte(i))})
	}
	if len(s.listener.sources) > maxSources+1 {
		t.Errorf("%d sources are remembered", len(s.listener.sources))
	}
}

// An IPv6 network of 64 bits is one source.
func TestSources(t *testing.T) {
	l := NewListener(nil, 3)
	at := func(ip string) *source { return l.source(&net.TCPAddr{IP: net.ParseIP(ip)}) }
	if at("2001:db8::1") != at("2001:db8::2:1") || at("2001:db8::1") == at("2001:db8:0:1::1") || at("192.0.2.1") == at("192.0.2.2") || at("192.0.2.1") != at("::ffff:192.0.2.1") {
		t.Error("connections of one source are taken for several, or the other way round")
	}
	for i := range 2 * maxSources {
		at(net.IPv4(10, 0, byte(i>>8), byte(i)).String())
	}
	if len(l.sources) > maxSources+1 {
		t.Errorf("%d sources are remembered", len(l.sources))
	}
}

func rpc(c *conn) context.Context {
	return peer.NewContext(context.Background(), &peer.Peer{Addr: c.RemoteAddr()})
}

// An authenticated peer takes no slot, and waits for no turn.
func TestAuthenticatedHasNoBounds(t *testing.T) {
	s := newScene(t, 1)
	known, inside := s.accept("127.0.0.2")
	release := Authenticated(rpc(inside))
	other, _ := s.accept("127.0.0.2")
	s.isOpen(known, true)
	s.isOpen(other, true)
	s.listener.bucket = rate.NewLimiter(0, 0)
	s.listener.dispatching = true // by nobody
	if inside.mustWait() {
		t.Error("an authenticated peer waits")
	}
	release()
	if !inside.mustWait() {
		t.Error("a peer does not wait after its release")
	}
	s.accept("127.0.0.3")
	s.isOpen(known, false) // It is the older one.
	s.isOpen(other, true)
	Authenticated(context.Background())() // no Listener accepted it
}

// A connection is good for one call.
func TestFirstCall(t *testing.T) {
	s := newScene(t, 1)
	conn, inside := s.accept("127.0.0.2")
	if !FirstCall(rpc(inside)) {
		t.Error("the first call is refused")
	}
	s.isOpen(conn, true)
	if FirstCall(rpc(inside)) {
		t.Error("the second call is taken")
	}
	s.isOpen(conn, false)
	if !FirstCall(context.Background()) {
		t.Error("a call that came through no Listener is refused")
	}
}

// A source that was read less than others goes first, without waiting while there are spare turns.
func TestTurns(t *testing.T) {
	s := newScene(t, 8)
	s.listener.dispatching = true // by this test
	var flood []*conn
	for range 3 {
		_, g := s.accept("127.0.0.2")
		flood = append(flood, g)
	}
	s.listener.bucket = rate.NewLimiter(0, 0)
	for i := range 2 * credit {
		if g := flood[i%3]; !g.mustWait() || !s.listener.dispatchNext() {
			t.Fatal("a connection got a turn that nobody spared")
		}
		<-flood[i%3].turn
		s.listener.dispatching = true
	}
	if !flood[0].mustWait() {
		t.Fatal("a connection got a turn that nobody spared")
	}
	_, late := s.accept("127.0.0.3")
	if !late.mustWait() {
		t.Fatal("a connection got a turn that nobody spared")
	}
	s.listener.dispatchNext()
	if len(late.turn) != 1 {
		t.Error("one that came late was not served before a flood")
	}
	<-late.turn
	s.listener.bucket = rate.NewLimiter(rate.Inf, 0)
	if late.mustWait() || !flood[1].mustWait() {
		t.Error("a spare turn is not the one's that had fewer")
	}
	for s.listener.dispatchNext() {
	}
	if s.listener.dispatching {
		t.Error("turns are given, and nobody waits")
	}
}

// Sources that are new all the time do not keep one from its turns that has had some.
func TestNewSourcesStarveNobody(t *testing.T) {
	s := newScene(t, 8)
	s.listener.dispatching, s.listener.bucket = true, rate.NewLimiter(0, 0) // by this test
	turn := func(c *conn) {
		if !c.mustWait() || !s.listener.dispatchNext() {
			t.Fatal("no turn")
		}
	}
	_, old := s.accept("127.0.0.2")
	for range credit / 2 {
		turn(old)
		<-old.turn
	}
	if !old.mustWait() {
		t.Fatal("a connection got a turn that nobody spared")
	}
	for i := range 10 {
		outside, fresh := s.accept(net.IPv4(127, 0, 1, byte(i+1)).String())
		for range 10 {
			turn(fresh)
			if len(old.turn) == 1 {
				return
			}
			select {
			case <-fresh.turn:
			default:
				t.Fatal("nobody had the turn")
			}
		}
		_ = fresh.Close()
		_ = outside.Close()
	}
	t.Error("a machine got no turn while new sources had 100")
}

// Whoever passes the handshake of a real server is authenticated: gRPC hands the credentials the very connection that the
// Listener accepted.
func TestAuthenticatedByHandshake(t *testing.T) {
	s := newScene(t, 2)
	server := grpc.NewServer(grpc.Creds(AuthenticatedByHandshake(insecure.NewCredentials())))
	go func() { _ = server.Serve(s.listener) }()
	t.Cleanup(server.Stop)
	client, err := grpc.NewClient("passthrough:///"+s.listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	client.Connect()
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		s.listener.mutex.Lock()
		accepted, unauthenticated := s.listener.accepted, s.listener.unauthenticated
		s.listener.mutex.Unlock()
		if accepted > 0 && unauthenticated == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d came, and %d of them are unauthenticated", accepted, unauthenticated)
		}
	}
}

// What a source took while nobody waited is not held against it for long.
func TestForgetsTurnsThatNobodyWaitedFor(t *testing.T) {
	s := newScene(t, 8)
	_, old := s.accept("127.0.0.2")
	for range 100 * credit {
		s.listener.bucket = rate.NewLimiter(rate.Inf, 0)
		if old.mustWait() {
			t.Fatal("a connection waits beside nobody")
		}
	}
	_, flood := s.accept("127.0.0.3")
	s.listener.dispatching, s.listener.bucket = true, rate.NewLimiter(0, 0)
	if !old.mustWait() {
		t.Fatal("a connection got a turn that nobody spared")
	}
	for range 3 * credit {
		if !flood.mustWait() {
			t.Fatal("a connection got a turn that nobody spared")
		}
		s.listener.dispatchNext()
		s.listener.dispatching = true
		if len(old.turn) == 1 {
			return
		}
		<-flood.turn
	}
	t.Error("a flood goes before one that was there long")
}

// An unauthenticated peer is read piece by piece, and no longer once its connection has ended.
func TestReads(t *testing.T) {
	s := newScene(t, 2)
	first, reader := s.accept("127.0.0.2")
	content := make([]byte, 10*quantum)
	go func() {
		_, _ = first.Write(content)
		_ = first.Close()
	}()
	if n, err := reader.Read(make([]byte, len(content))); err != nil || n > quantum {
		t.Errorf("read %d bytes in one turn: %v", n, err)
	}
	if rest, err := io.ReadAll(reader); err != nil || len(rest) < 9*quantum {
		t.Errorf("read %d more: %v", len(rest), err)
	}
	_ = reader.Close()
	outside, inside := s.accept("127.0.0.2")
	s.listener.dispatching, s.listener.bucket = true, rate.NewLimiter(0, 0)
	ended := make(chan error, 1)
	go func() {
		_, err := inside.Read(make([]byte, 1))
		ended <- err
	}()
	if _, err := outside.Write([]byte{1}); err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(50*time.Millisecond, func() { _ = inside.Close() })
	if err := <-ended; !errors.Is(err, net.ErrClosed) {
		t.Errorf("the read ended with %v", err)
	}
	s.listener.mutex.Lock()
	defer s.listener.mutex.Unlock()
	if s.listener.unauthenticated != 0 || len(s.listener.active) != 0 {
		t.Errorf("%d unauthenticated connections are left, of %d sources", s.listener.unauthenticated, len(s.listener.active))
	}
}
