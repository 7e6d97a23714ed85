package attest

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
)

const (
	// turnBytes is what a stranger can send in one turn, which costs the server half a millisecond at most: a handshake, or some sixty frames.
	turnBytes = 1 << 10
	// turnPause lies between two turns of those that wait.
	turnPause = time.Millisecond
	// spareTurns is how many turns can be had without waiting; one more comes every turnPause.
	spareTurns = 128
	// turnsAhead is how many turns a source has before those that have had more: one exchange with a real machine's event log needs fewer.
	turnsAhead = 100
	// strangersTime is how long a connection may be a stranger's; the limits of the handshake, of M1 and of M3 are less together.
	strangersTime = time.Minute
	// maxSources bounds the sources that are remembered although they have no connection.
	maxSources = 1024
)

// Door is a listener that bounds what strangers cost a server whose peers have yet to show who they are, and shares it out between those who knock:
// fair queueing, in which a source's virtual time is the turns that it has had.
// Strangers have so many places, and take turns at being read. Where no place is left, the source with the most strangers loses its oldest one; of those
// that wait for a turn, the source is next that has had the fewest, and one that has had fewer than all of them waits for none. So what a flood takes is
// its own share. A source is an IPv4 address, or an IPv6 network of 64 bits.
type Door struct {
	net.Listener
	places int

	mutex sync.Mutex // guards what follows, and what is in all sources and guests
	// came counts the guests, strangers those whose peers are not known.
	came, strangers int
	sources         map[netip.Prefix]*source
	// crowd holds the sources that have strangers.
	crowd map[*source]struct{}
	// turns is what the source had that was called last: none that waits has had fewer.
	turns int
	// calling says that strangers wait, and that a goroutine calls them.
	calling bool
	// spare is when all spare turns will be there again.
	spare time.Time
}

// source is where guests come from.
type source struct {
	// strangers are the guests whose peers are not known, the oldest first; waiting are those that want a turn.
	strangers, waiting []*guest
	turns              int
}

// guest is a connection that came through a door.
type guest struct {
	net.Conn
	door   *Door
	source *source
	number int
	// known says that the peer has shown who it is, called that it began an RPC, closed that the connection has ended.
	known, called, closed bool
	// turn gets the guest's turns, gone is closed when it is closed.
	turn, gone chan struct{}
	patience   *time.Timer
}

// NewDoor returns a door before listener, with so many places for strangers.
func NewDoor(listener net.Listener, places int) *Door {
	return &Door{Listener: listener, places: places, sources: map[netip.Prefix]*source{}, crowd: map[*source]struct{}{}}
}

// FirstCall reports whether an RPC is the first one of its connection; if not, it ends the connection.
func FirstCall(ctx context.Context) bool {
	g := guestOf(ctx)
	if g == nil || g.call() {
		return true
	}
	_ = g.Close()
	return false
}

// call notes an RPC, and reports whether it is the first.
func (g *guest) call() bool {
	g.door.mutex.Lock()
	defer g.door.mutex.Unlock()
	first := !g.called
	g.called = true
	return first
}

// guestOf returns the connection of an RPC, or nil if it came through no door.
func guestOf(ctx context.Context) *guest {
	if p, ok := peer.FromContext(ctx); ok {
		if from, ok := p.Addr.(address); ok {
			return from.guest
		}
	}
	return nil
}

// Welcome says that the peer of an RPC has shown who it is: until farewell, its connection is no stranger's and has no bounds here.
// It does nothing to a connection that came through no door.
func Welcome(ctx context.Context) (farewell func()) {
	g := guestOf(ctx)
	if g == nil {
		return func() {}
	}
	g.become(true)
	return func() { g.become(false) }
}

// ByHandshake are credentials whose handshake shows who the peer is: whoever comes through it is no stranger.
func ByHandshake(c credentials.TransportCredentials) credentials.TransportCredentials {
	return byHandshake{c}
}

type byHandshake struct {
	credentials.TransportCredentials
}

// ServerHandshake welcomes whoever passes it.
func (b byHandshake) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := b.TransportCredentials.ServerHandshake(raw)
	if g, ok := raw.(*guest); ok && err == nil {
		g.become(true)
	}
	return conn, info, err
}

// Clone returns b with a clone of what it wraps.
func (b byHandshake) Clone() credentials.TransportCredentials {
	return byHandshake{b.TransportCredentials.Clone()}
}

// Accept returns the next connection that there is a place for.
func (d *Door) Accept() (net.Conn, error) {
	for {
		conn, err := d.Listener.Accept()
		if err != nil {
			return nil, err
		}
		g := &guest{Conn: conn, door: d, turn: make(chan struct{}, 1), gone: make(chan struct{})}
		loser, ok := d.enter(g)
		if loser != nil {
			_ = loser.Close()
		}
		if ok {
			return g, nil
		}
		if tcp, ok := conn.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0) // Nothing was said on it, so that nothing has to be waited for.
		}
		_ = conn.Close()
	}
}

// enter gives a guest a place, if need be another source's. A source with its share of them gets none of another's.
func (d *Door) enter(g *guest) (loser *guest, ok bool) {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	g.source = d.source(g.Conn.RemoteAddr())
	if d.strangers >= d.places {
		if len(g.source.strangers) >= max(1, d.places/len(d.crowd)) {
			return nil, false
		}
		loser = d.biggest().strangers[0]
		d.leave(loser)
	}
	d.came++
	g.number = d.came
	g.patience = time.AfterFunc(strangersTime, func() { _ = g.Close() })
	d.count(g)
	return loser, true
}

// source returns where a connection comes from.
func (d *Door) source(from net.Addr) *source {
	var network netip.Prefix
	if tcp, ok := from.(*net.TCPAddr); ok {
		ip := tcp.AddrPort().Addr().Unmap().WithZone("")
		network = netip.PrefixFrom(ip, min(ip.BitLen(), 64)).Masked()
	}
	s := d.sources[network]
	if s == nil {
		s = &source{turns: d.turns - turnsAhead}
		d.sources[network] = s
	}
	if len(d.sources) > maxSources {
		for network, other := range d.sources {
			if other != s && len(other.strangers) == 0 {
				delete(d.sources, network)
			}
		}
	}
	return s
}

// biggest returns the source with the most strangers; of several, the one whose oldest came first.
func (d *Door) biggest() (most *source) {
	for s := range d.crowd {
		if most == nil || len(s.strangers) > len(most.strangers) ||
			len(s.strangers) == len(most.strangers) && s.strangers[0].number < most.strangers[0].number {
			most = s
		}
	}
	return most
}

// count makes a guest a stranger. The mutex is held, here and in leave.
func (d *Door) count(g *guest) {
	d.strangers++
	g.source.strangers = append(g.source.strangers, g)
	d.crowd[g.source] = struct{}{}
}

// leave makes a guest no stranger, if it was one.
func (d *Door) leave(g *guest) {
	s := g.source
	s.waiting = slices.DeleteFunc(s.waiting, func(w *guest) bool { return w == g })
	i := slices.Index(s.strangers, g)
	if i < 0 {
		return
	}
	d.strangers--
	s.strangers = slices.Delete(s.strangers, i, i+1)
	if len(s.strangers) == 0 {
		delete(d.crowd, s)
	}
	g.patience.Stop()
	g.goOn() // It may wait.
}

// goOn gives a guest a turn, unless it has one.
func (g *guest) goOn() {
	select {
	case g.turn <- struct{}{}:
	default:
	}
}

// become says whether the guest's peer is known from now on.
func (g *guest) become(known bool) {
	g.door.mutex.Lock()
	defer g.door.mutex.Unlock()
	if g.closed || g.known == known {
		return
	}
	g.known = known
	if known {
		g.source.turns = g.door.turns - turnsAhead // What this one needed is not held against the next one from there.
		g.door.leave(g)
		return
	}
	g.door.count(g)
	g.patience.Reset(strangersTime)
}

// Read reads what there is; a stranger's is handed on when it is its turn.
func (g *guest) Read(b []byte) (int, error) {
	if !g.isKnown() {
		b = b[:min(len(b), turnBytes)]
	}
	n, err := g.Conn.Read(b)
	if n > 0 && g.waits() {
		select {
		case <-g.turn:
		case <-g.gone:
			return 0, net.ErrClosed
		}
	}
	return n, err
}

func (g *guest) isKnown() bool {
	g.door.mutex.Lock()
	defer g.door.mutex.Unlock()
	return g.known
}

// waits reports whether the guest has to wait for its turn.
func (g *guest) waits() bool {
	d, now := g.door, time.Now()
	d.mutex.Lock()
	defer d.mutex.Unlock()
	if g.known || g.closed {
		return false
	}
	// Nor are turns that it had while nobody waited: they took nothing from anyone.
	g.source.turns = min(max(g.source.turns, d.turns-turnsAhead), d.turns+turnsAhead)
	if first := !d.calling || g.source.turns < d.turns; first && d.take(now) {
		g.source.turns++
		return false
	}
	select {
	case <-g.turn: // left over from when it was known
	default:
	}
	g.source.waiting = append(g.source.waiting, g)
	if !d.calling {
		d.calling = true
		go d.call()
	}
	return true
}

// take takes one of the spare turns, if there is one.
func (d *Door) take(now time.Time) bool {
	if d.spare.Before(now) {
		d.spare = now
	}
	if d.spare.Sub(now) >= spareTurns*turnPause {
		return false
	}
	d.spare = d.spare.Add(turnPause)
	return true
}

// call gives one turn after another, until nobody waits. What a busy machine makes late is not made up for.
func (d *Door) call() {
	for {
		time.Sleep(turnPause)
		if !d.callNext() {
			return
		}
	}
}

func (d *Door) callNext() (called bool) {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	var next *source
	for s := range d.crowd {
		if len(s.waiting) > 0 && (next == nil || s.turns < next.turns) {
			next = s
		}
	}
	if d.calling = next != nil; !d.calling {
		return false
	}
	d.turns = max(d.turns, next.turns)
	next.turns++
	next.waiting[0].goOn()
	next.waiting = slices.Delete(next.waiting, 0, 1)
	return true
}

// Close ends the connection and gives its place free.
func (g *guest) Close() error {
	g.door.mutex.Lock()
	if !g.closed {
		g.closed = true
		close(g.gone)
		g.door.leave(g)
		g.patience.Stop()
	}
	g.door.mutex.Unlock()
	return g.Conn.Close()
}

// RemoteAddr returns an address by which Welcome finds the guest.
func (g *guest) RemoteAddr() net.Addr { return address{g.Conn.RemoteAddr(), g} }

// address is that of a guest.
type address struct {
	net.Addr
	guest *guest
}
