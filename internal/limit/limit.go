// Package limit bounds what unauthenticated peers cost a server, and shares it out fairly between the sources that they come from.
package limit

import (
	"cmp"
	"context"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
)

const (
	// quantum is how many bytes an unauthenticated peer can send in one turn. They cost the server half a millisecond at most:
	// a handshake, or some sixty frames.
	quantum = 1 << 10
	// interval lies between two turns of those that wait.
	interval = time.Millisecond
	// burst is how many turns can be had without waiting; one more comes every interval.
	burst = 128
	// credit is how many turns a source has before those that have had more: one exchange with a real machine's event log needs fewer.
	credit = 100
	// authenticateTimeout is how long a peer may stay unauthenticated; the limits of the handshake, of Hello and of Proof are
	// less together.
	authenticateTimeout = time.Minute
	// settled is how long a challenged connection keeps its slot: longer than the slowest of TPMs takes to answer.
	settled = 5 * time.Second
	// maxSources bounds the sources that are remembered although they have no connection.
	maxSources = 1024
)

// Listener bounds what unauthenticated peers cost a server, by fair queueing: a source's virtual time is the turns that it has
// had. Unauthenticated connections have so many slots, and take turns at being read. Where no slot is left, the source with the
// most of them loses one: its oldest that was not just challenged, for of a thousand machines that dial at once, each would else take
// the slot of one that is about to show who it is, and none would get through. Of those that wait for a turn, next is the source that
// has had the fewest, and each second time who has waited longest; a source that has had fewer than all of them does not wait. So what
// a flood takes is its own share. A source is an IPv4 address, or an IPv6 network of 64 bits.
type Listener struct {
	net.Listener
	slots int

	mutex sync.Mutex // guards what follows, and what is in all sources and connections
	// accepted counts all connections so far, unauthenticated those whose peers are not known now.
	accepted, unauthenticated int
	sources                   map[netip.Prefix]*source
	// challenged holds the newest challenged connection of each peer, by the name that it gave.
	challenged map[string]*conn
	// active holds the sources that have unauthenticated connections.
	active map[*source]struct{}
	// turns is what the source had that was served last: none that waits has had fewer.
	turns int
	// dispatching says that connections wait, and that a goroutine gives them turns; queued and dispatched count those that had to
	// wait, and those that got a turn by that.
	dispatching        bool
	queued, dispatched int
	// bucket holds the turns that can be had without waiting.
	bucket *rate.Limiter
}

// source is where connections come from.
type source struct {
	// unauthenticated are its connections whose peers are not known, the oldest first; waiting are those that want a turn.
	unauthenticated, waiting []*conn
	// open is how many connections it has, authenticated ones among them.
	open, turns int
}

// conn is a connection that a Listener accepted.
type conn struct {
	net.Conn
	listener *Listener
	source   *source
	number   int
	// queued is its place in the order in which connections began to wait.
	queued int
	// name is what the peer called itself when it was challenged, at that time; it is not proven.
	name       string
	challenged time.Time
	// authenticated says that the peer has shown who it is, called that it began an RPC, closed that the connection has ended.
	authenticated, called, closed bool
	// turn gets the connection's turns, done is closed when it is closed.
	turn, done chan struct{}
	timeout    *time.Timer
}

// NewListener returns a Listener over listener with so many slots for unauthenticated connections.
func NewListener(listener net.Listener, slots int) *Listener {
	return &Listener{
		Listener: listener, slots: slots, sources: map[netip.Prefix]*source{}, active: map[*source]struct{}{}, challenged: map[string]*conn{},
		bucket: rate.NewLimiter(rate.Every(interval), burst),
	}
}

// FirstCall reports whether an RPC is the first one of its connection; if not, it ends the connection.
func FirstCall(ctx context.Context) bool {
	c := connOf(ctx)
	if c == nil || c.beginCall() {
		return true
	}
	_ = c.Close()
	return false
}

// beginCall notes an RPC, and reports whether it is the first.
func (c *conn) beginCall() bool {
	c.listener.mutex.Lock()
	defer c.listener.mutex.Unlock()
	first := !c.called
	c.called = true
	return first
}

// connOf returns the connection of an RPC, or nil if no Listener accepted it.
func connOf(ctx context.Context) *conn {
	if p, ok := peer.FromContext(ctx); ok {
		if from, ok := p.Addr.(address); ok {
			return from.conn
		}
	}
	return nil
}

// Authenticated says that the peer of an RPC has shown who it is: until release is called, its connection takes no slot and has
// no bounds here. It does nothing to a connection that no Listener accepted.
func Authenticated(ctx context.Context) (release func()) {
	c := connOf(ctx)
	if c == nil {
		return func() {}
	}
	c.setAuthenticated(true)
	return func() { c.setAuthenticated(false) }
}

// Challenged says that the peer of an RPC has called itself by the name of one that may be let in, and has to prove that now. Its
// connection keeps its slot for a while, unless another peer was challenged by the same name since: a name costs nothing. It does
// nothing to a connection that no Listener accepted.
func Challenged(ctx context.Context, name string) {
	if c := connOf(ctx); c != nil {
		c.setChallenged(name)
	}
}

func (c *conn) setChallenged(name string) {
	l := c.listener
	l.mutex.Lock()
	defer l.mutex.Unlock()
	if c.closed || c.authenticated {
		return
	}
	if older := l.challenged[name]; older != nil {
		older.challenged = time.Time{}
	}
	c.name, c.challenged = name, time.Now()
	l.challenged[name] = c
}

// AuthenticatedByHandshake are credentials whose handshake shows who the peer is: whoever comes through it is authenticated.
func AuthenticatedByHandshake(c credentials.TransportCredentials) credentials.TransportCredentials {
	return byHandshake{c}
}

type byHandshake struct {
	credentials.TransportCredentials
}

// ServerHandshake notes that whoever passes it is authenticated.
func (b byHandshake) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	secured, info, err := b.TransportCredentials.ServerHandshake(raw)
	if c, ok := raw.(*conn); ok && err == nil {
		c.setAuthenticated(true)
	}
	return secured, info, err
}

// Clone returns b with a clone of what it wraps.
func (b byHandshake) Clone() credentials.TransportCredentials {
	return byHandshake{b.TransportCredentials.Clone()}
}

// Accept returns the next connection that there is a slot for.
func (l *Listener) Accept() (net.Conn, error) {
	for {
		raw, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		c := &conn{Conn: raw, listener: l, turn: make(chan struct{}, 1), done: make(chan struct{})}
		evicted, ok := l.admit(c)
		if evicted != nil {
			_ = evicted.Close()
		}
		if ok {
			return c, nil
		}
		if tcp, ok := raw.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0) // Nothing was said on it, so that nothing has to be waited for.
		}
		_ = raw.Close()
	}
}

// admit gives a connection a slot, if need be another source's. A source with its share of them gets none of another's, and nobody gets
// one of a source that has only the one, while that was just challenged.
func (l *Listener) admit(c *conn) (evicted *conn, ok bool) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	c.source = l.source(c.Conn.RemoteAddr())
	if l.unauthenticated >= l.slots {
		if len(c.source.unauthenticated) >= max(1, l.slots/len(l.active)) {
			return nil, false
		}
		if evicted = l.dispensable(); evicted == nil {
			return nil, false
		}
		l.remove(evicted)
	}
	l.accepted++
	c.number = l.accepted
	c.source.open++
	c.timeout = time.AfterFunc(authenticateTimeout, func() { _ = c.Close() })
	l.add(c)
	return evicted, true
}

// dispensable returns the connection that goes where no slot is left: the oldest that was not just challenged, of the source with the
// most connections that has such a one. Where there is none, it is the newest of the source that has the most, but nobody's only one.
func (l *Listener) dispensable() (c *conn) {
	before := time.Now().Add(-settled)
	for s := range l.active {
		i := slices.IndexFunc(s.unauthenticated, func(c *conn) bool { return !c.challenged.After(before) })
		if i >= 0 && (c == nil || compare(s.unauthenticated[i], c) < 0) {
			c = s.unauthenticated[i]
		}
	}
	if c != nil {
		return c
	}
	for s := range l.active {
		newest := s.unauthenticated[len(s.unauthenticated)-1]
		if len(s.unauthenticated) > 1 && (c == nil || compare(newest, c) < 0) {
			c = newest
		}
	}
	return c
}

// compare orders connections of two sources by who has more, and then by who came first.
func compare(a, b *conn) int {
	return cmp.Or(cmp.Compare(len(b.source.unauthenticated), len(a.source.unauthenticated)), cmp.Compare(a.number, b.number))
}

// source returns where a connection comes from.
func (l *Listener) source(from net.Addr) *source {
	var network netip.Prefix
	if tcp, ok := from.(*net.TCPAddr); ok {
		ip := tcp.AddrPort().Addr().Unmap().WithZone("")
		network = netip.PrefixFrom(ip, min(ip.BitLen(), 64)).Masked()
	}
	s := l.sources[network]
	if s == nil {
		s = &source{turns: l.turns - credit}
		l.sources[network] = s
	}
	if len(l.sources) > maxSources {
		for network, other := range l.sources {
			if other != s && other.open == 0 {
				delete(l.sources, network)
			}
		}
	}
	return s
}

// add counts a connection as unauthenticated. The mutex is held, here and in remove.
func (l *Listener) add(c *conn) {
	l.unauthenticated++
	i, _ := slices.BinarySearchFunc(c.source.unauthenticated, c, func(a, b *conn) int { return cmp.Compare(a.number, b.number) })
	c.source.unauthenticated = slices.Insert(c.source.unauthenticated, i, c)
	l.active[c.source] = struct{}{}
}

// remove counts a connection as unauthenticated no longer, if it was counted.
func (l *Listener) remove(c *conn) {
	s := c.source
	s.waiting = slices.DeleteFunc(s.waiting, func(w *conn) bool { return w == c })
	if l.challenged[c.name] == c { // also of one that was challenged after it had lost its slot
		delete(l.challenged, c.name)
	}
	i := slices.Index(s.unauthenticated, c)
	if i < 0 {
		return
	}
	l.unauthenticated--
	s.unauthenticated = slices.Delete(s.unauthenticated, i, i+1)
	if len(s.unauthenticated) == 0 {
		delete(l.active, s)
	}
	c.timeout.Stop()
	c.wake() // It may wait.
}

// wake gives a connection a turn, unless it has one.
func (c *conn) wake() {
	select {
	case c.turn <- struct{}{}:
	default:
	}
}

// setAuthenticated says whether the connection's peer is known from now on.
func (c *conn) setAuthenticated(is bool) {
	c.listener.mutex.Lock()
	defer c.listener.mutex.Unlock()
	if c.closed || c.authenticated == is {
		return
	}
	c.authenticated = is
	if is {
		c.source.turns = c.listener.turns - credit // What this one needed is not held against the next one from there.
		c.listener.remove(c)
		c.challenged = time.Time{}
		return
	}
	c.listener.add(c)
	c.timeout.Reset(authenticateTimeout)
}

// Read reads what there is; an unauthenticated peer's bytes are handed on when it is its turn.
func (c *conn) Read(b []byte) (int, error) {
	if !c.isAuthenticated() {
		b = b[:min(len(b), quantum)]
	}
	n, err := c.Conn.Read(b)
	if n > 0 && c.mustWait() {
		select {
		case <-c.turn:
		case <-c.done:
			return 0, net.ErrClosed
		}
	}
	return n, err
}

func (c *conn) isAuthenticated() bool {
	c.listener.mutex.Lock()
	defer c.listener.mutex.Unlock()
	return c.authenticated
}

// mustWait reports whether the connection has to wait for its turn, and queues it if so.
func (c *conn) mustWait() bool {
	l := c.listener
	l.mutex.Lock()
	defer l.mutex.Unlock()
	if c.authenticated || c.closed {
		return false
	}
	// Turns that it had while nobody waited are not held against it either: they took nothing from anyone.
	c.source.turns = min(max(c.source.turns, l.turns-credit), l.turns+credit)
	if first := !l.dispatching || c.source.turns < l.turns; first && l.bucket.Allow() {
		c.source.turns++
		return false
	}
	select {
	case <-c.turn: // left over from when it was authenticated
	default:
	}
	l.queued++
	c.queued = l.queued
	c.source.waiting = append(c.source.waiting, c)
	if !l.dispatching {
		l.dispatching = true
		go l.dispatch()
	}
	return true
}

// dispatch gives one turn after another, until nobody waits. What a busy machine makes late is not made up for.
func (l *Listener) dispatch() {
	for {
		time.Sleep(interval)
		if !l.dispatchNext() {
			return
		}
	}
}

// dispatchNext gives a turn: to the source that has had the fewest, and each second time to who has waited longest. Or else sources that
// are new all the time, which have had none, would keep one from ever getting its next.
func (l *Listener) dispatchNext() (dispatched bool) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	l.dispatched++
	fair := l.dispatched%2 == 1
	var next *source
	for s := range l.active {
		if len(s.waiting) == 0 {
			continue
		}
		if next == nil || fair && s.turns < next.turns || !fair && s.waiting[0].queued < next.waiting[0].queued {
			next = s
		}
	}
	if l.dispatching = next != nil; !l.dispatching {
		return false
	}
	if fair {
		l.turns = max(l.turns, next.turns)
	}
	next.turns++
	next.waiting[0].wake()
	next.waiting = slices.Delete(next.waiting, 0, 1)
	return true
}

// Close ends the connection and gives its slot free.
func (c *conn) Close() error {
	c.listener.mutex.Lock()
	if !c.closed {
		c.closed = true
		c.source.open--
		close(c.done)
		c.listener.remove(c)
		c.timeout.Stop()
	}
	c.listener.mutex.Unlock()
	return c.Conn.Close()
}

// RemoteAddr returns an address by which Authenticated finds the connection.
func (c *conn) RemoteAddr() net.Addr { return address{c.Conn.RemoteAddr(), c} }

// address is that of a connection.
type address struct {
	net.Addr
	conn *conn
}
