package attest

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/peer"
)

// street is a door on loopback, and those who knock at it.
type street struct {
	*testing.T
	door *Door
}

func newStreet(t *testing.T, places int) *street {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	return &street{t, NewDoor(listener, places)}
}

// knock connects from an address.
func (s *street) knock(from string) net.Conn {
	s.Helper()
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	conn, err := dialer.Dial("tcp", s.door.Addr().String())
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { _ = conn.Close() })
	return conn
}

// enter connects from an address and is let in.
func (s *street) enter(from string) (outside net.Conn, inside *guest) {
	s.Helper()
	outside = s.knock(from)
	conn, err := s.door.Accept()
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { _ = conn.Close() })
	return outside, conn.(*guest)
}

// isOpen fails the test unless the server has, or has not, ended a connection.
func (s *street) isOpen(conn net.Conn, want bool) {
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

// Who has the most places loses one to another, and gets no more.
func TestDoorSharesPlaces(t *testing.T) {
	s := newStreet(t, 3)
	oldest, _ := s.enter("127.0.0.2")
	second, _ := s.enter("127.0.0.2")
	third, _ := s.enter("127.0.0.2")
	refused := s.knock("127.0.0.2")
	other, _ := s.enter("127.0.0.3") // Accept passes over the one that is refused.
	s.isOpen(refused, false)
	s.isOpen(oldest, false)
	for _, conn := range []net.Conn{second, third, other} {
		s.isOpen(conn, true)
	}
	// With a place each, the oldest of all goes.
	next, _ := s.enter("127.0.0.4")
	s.isOpen(second, false)
	last, _ := s.enter("127.0.0.5")
	s.isOpen(third, false)
	for _, conn := range []net.Conn{other, next, last} {
		s.isOpen(conn, true)
	}
}

// An IPv6 network of 64 bits is one source.
func TestDoorSources(t *testing.T) {
	d := NewDoor(nil, 3)
	at := func(ip string) *source { return d.source(&net.TCPAddr{IP: net.ParseIP(ip)}) }
	if at("2001:db8::1") != at("2001:db8::2:1") || at("2001:db8::1") == at("2001:db8:0:1::1") || at("192.0.2.1") == at("192.0.2.2") || at("192.0.2.1") != at("::ffff:192.0.2.1") {
		t.Error("connections of one source are taken for several, or the other way round")
	}
	for i := range 2 * maxSources {
		at(net.IPv4(10, 0, byte(i>>8), byte(i)).String())
	}
	if len(d.sources) > maxSources+1 {
		t.Errorf("%d sources are remembered", len(d.sources))
	}
}

func rpc(g *guest) context.Context {
	return peer.NewContext(context.Background(), &peer.Peer{Addr: g.RemoteAddr()})
}

// Whoever has shown who it is takes no place, and waits for no turn.
func TestDoorWelcomes(t *testing.T) {
	s := newStreet(t, 1)
	known, inside := s.enter("127.0.0.2")
	farewell := Welcome(rpc(inside))
	stranger, _ := s.enter("127.0.0.2")
	s.isOpen(known, true)
	s.isOpen(stranger, true)
	s.door.spare = time.Now().Add(time.Hour)
	s.door.calling = true // by nobody
	if inside.waits() {
		t.Error("a welcome guest waits")
	}
	farewell()
	if !inside.waits() {
		t.Error("a guest does not wait after its farewell")
	}
	s.enter("127.0.0.3")
	s.isOpen(stranger, false)
	Welcome(context.Background())() // came through no door
}

// A connection is good for one call.
func TestDoorFirstCall(t *testing.T) {
	s := newStreet(t, 1)
	conn, inside := s.enter("127.0.0.2")
	if !FirstCall(rpc(inside)) {
		t.Error("the first call is refused")
	}
	s.isOpen(conn, true)
	if FirstCall(rpc(inside)) {
		t.Error("the second call is taken")
	}
	s.isOpen(conn, false)
	if !FirstCall(context.Background()) {
		t.Error("a call that came through no door is refused")
	}
}

// A source that was read less than others goes first, without waiting while there are spare turns.
func TestDoorTurns(t *testing.T) {
	s := newStreet(t, 8)
	s.door.calling = true // by this test
	var flood []*guest
	for range 3 {
		_, g := s.enter("127.0.0.2")
		flood = append(flood, g)
	}
	s.door.spare = time.Now().Add(time.Hour)
	for i := range 2 * turnsAhead {
		if g := flood[i%3]; !g.waits() || !s.door.callNext() {
			t.Fatal("a guest got a turn that nobody spared")
		}
		<-flood[i%3].turn
		s.door.calling = true
	}
	if !flood[0].waits() {
		t.Fatal("a guest got a turn that nobody spared")
	}
	_, late := s.enter("127.0.0.3")
	if !late.waits() {
		t.Fatal("a guest got a turn that nobody spared")
	}
	s.door.callNext()
	if len(late.turn) != 1 {
		t.Error("one that came late was not called before a flood")
	}
	<-late.turn
	s.door.spare = time.Time{}
	if late.waits() || !flood[1].waits() {
		t.Error("a spare turn is not the one's that had fewer")
	}
	for s.door.callNext() {
	}
	if s.door.calling {
		t.Error("the door calls, and nobody waits")
	}
}

// Whoever passes the handshake of a real server is no stranger: gRPC hands the credentials the very connection that came through the door.
func TestDoorByHandshake(t *testing.T) {
	s := newStreet(t, 2)
	server := grpc.NewServer(grpc.Creds(ByHandshake(insecure.NewCredentials())))
	go func() { _ = server.Serve(s.door) }()
	t.Cleanup(server.Stop)
	client, err := grpc.NewClient("passthrough:///"+s.door.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	client.Connect()
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		s.door.mutex.Lock()
		came, strangers := s.door.came, s.door.strangers
		s.door.mutex.Unlock()
		if came > 0 && strangers == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d came, and %d of them are strangers", came, strangers)
		}
	}
}

// What a source took while nobody waited is not held against it for long.
func TestDoorForgetsPeace(t *testing.T) {
	s := newStreet(t, 8)
	_, old := s.enter("127.0.0.2")
	for range 100 * turnsAhead {
		s.door.spare = time.Time{}
		if old.waits() {
			t.Fatal("a guest waits beside nobody")
		}
	}
	_, flood := s.enter("127.0.0.3")
	s.door.calling, s.door.spare = true, time.Now().Add(time.Hour)
	if !old.waits() {
		t.Fatal("a guest got a turn that nobody spared")
	}
	for range 3 * turnsAhead {
		if !flood.waits() {
			t.Fatal("a guest got a turn that nobody spared")
		}
		s.door.callNext()
		s.door.calling = true
		if len(old.turn) == 1 {
			return
		}
		<-flood.turn
	}
	t.Error("a flood goes before one that was there long")
}

// A stranger is read piece by piece, and no longer once its connection has ended.
func TestDoorReads(t *testing.T) {
	s := newStreet(t, 2)
	first, reader := s.enter("127.0.0.2")
	content := make([]byte, 10*turnBytes)
	go func() {
		_, _ = first.Write(content)
		_ = first.Close()
	}()
	if n, err := reader.Read(make([]byte, len(content))); err != nil || n > turnBytes {
		t.Errorf("read %d bytes in one turn: %v", n, err)
	}
	if rest, err := io.ReadAll(reader); err != nil || len(rest) < 9*turnBytes {
		t.Errorf("read %d more: %v", len(rest), err)
	}
	_ = reader.Close()
	outside, inside := s.enter("127.0.0.2")
	s.door.calling, s.door.spare = true, time.Now().Add(time.Hour)
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
	s.door.mutex.Lock()
	defer s.door.mutex.Unlock()
	if s.door.strangers != 0 || len(s.door.crowd) != 0 {
		t.Errorf("%d strangers are left, of %d sources", s.door.strangers, len(s.door.crowd))
	}
}
