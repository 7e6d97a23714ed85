package flood

import (
	"bytes"
	"crypto/rand"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/protobuf/proto"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest/channel"
	"github.com/hullmark/hullmark/attest/wire"
)

// attack is one attempt of one attacker.
type attack func(w *weapons)

var kinds = map[string]attack{
	"silent connections":    onConnection(silent),
	"half-open handshakes":  onConnection(halfOpen),
	"handshakes":            onConnection(handshakes),
	"slow writers":          onConnection(slowWriter),
	"slow readers":          frames(false, ping),
	"garbage":               onConnection(garbage),
	"garbage in TLS":        garbageInTLS,
	"evidence of no member": inHTTP2(nobodysEvidence),
	"replayed evidence":     inHTTP2(replayedEvidence),
	"huge messages":         inHTTP2(hugeMessages),
	"streams":               frames(true, stream),
	"rapid reset":           frames(true, streamAndReset),
	"huge headers":          frames(true, streamOfHeaders),
	"pings":                 frames(true, ping),
	"settings":              frames(true, setting),
}

// onConnection connects first, and ends the connection.
func onConnection(do func(*weapons, net.Conn)) attack {
	return func(w *weapons) {
		if conn, err := w.dial(); err == nil {
			defer conn.Close()
			do(w, conn)
		}
	}
}

// inHTTP2 begins HTTP/2 first, and ends its connection.
func inHTTP2(do func(*weapons, *peer)) attack {
	return func(w *weapons) {
		if p, err := w.open(); err == nil {
			defer p.Close()
			do(w, p)
		}
	}
}

// Kinds names all kinds of floods.
func Kinds() []string {
	var names []string
	for name := range kinds {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// Handshakes names those that do not get past the handshake, of a server that wants a certificate in it.
func Handshakes() []string {
	return []string{"garbage", "garbage in TLS", "half-open handshakes", "handshakes", "silent connections", "slow readers", "slow writers"}
}

// patience is how long an attacker keeps what costs the server something by lasting.
const patience = 20 * time.Second

// clientHello is what a node says first.
func clientHello(root hullmark.ClusterRoot) []byte {
	near, far := net.Pipe()
	go func() {
		_ = tls.Client(near, channel.JoinTLS(root)).Handshake()
	}()
	defer near.Close()
	hello := make([]byte, 16<<10)
	n, _ := far.Read(hello)
	return hello[:n]
}

// stay holds a connection until the server ends it.
func (w *weapons) stay(conn net.Conn) {
	_, _ = io.Copy(io.Discard, conn)
}

// silent connects and says nothing.
func silent(w *weapons, conn net.Conn) {
	w.stay(conn)
}

// halfOpen says a ClientHello, and nothing after it.
func halfOpen(w *weapons, conn net.Conn) {
	if _, err := conn.Write(w.hello); err != nil {
		return
	}
	if _, err := conn.Read(make([]byte, 1)); err != nil {
		return
	}
	w.answered.Add(1)
	w.stay(conn)
}

// handshakes wants ServerHellos, one after the other: a signature each.
func handshakes(w *weapons, conn net.Conn) {
	if _, err := conn.Write(w.hello); err != nil {
		return
	}
	if _, err := conn.Read(make([]byte, 1)); err == nil {
		w.answered.Add(1)
	}
}

// slowWriter sends a ClientHello byte by byte.
func slowWriter(w *weapons, conn net.Conn) {
	for i := range w.hello {
		if _, err := conn.Write(w.hello[i : i+1]); err != nil {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	w.stay(conn)
}

// garbage sends what is no TLS.
func garbage(w *weapons, conn net.Conn) {
	noise := make([]byte, 64<<10)
	_, _ = rand.Read(noise)
	for range 16 {
		if _, err := conn.Write(noise); err != nil {
			return
		}
	}
}

// shake makes a TLS connection.
func (w *weapons) shake() (*tls.Conn, error) {
	raw, err := w.dial()
	if err != nil {
		return nil, err
	}
	config := channel.JoinTLS(w.Root)
	config.VerifyConnection = nil // An attacker takes any answer, and has more important things to compute.
	config.NextProtos = []string{"h2"}
	conn := tls.Client(raw, config)
	if err := conn.HandshakeContext(w.ctx); err != nil {
		_ = raw.Close()
		return nil, err
	}
	return conn, nil
}

// garbageInTLS sends what is no HTTP/2.
func garbageInTLS(w *weapons) {
	conn, err := w.shake()
	if err != nil {
		return
	}
	defer conn.Close()
	noise := make([]byte, 16<<10)
	_, _ = rand.Read(noise)
	for range 64 {
		if _, err := conn.Write(noise); err != nil {
			return
		}
	}
	w.answered.Add(1)
}

// peer is an HTTP/2 connection whose frames are the attacker's own.
type peer struct {
	*tls.Conn
	*http2.Framer
	w *weapons
	// out is what was not sent yet; sending is held by who adds to it, where that is not one alone.
	out     bytes.Buffer
	sending sync.Mutex
	encoder *hpack.Encoder
	headers bytes.Buffer
}

// open begins HTTP/2.
func (w *weapons) open() (*peer, error) {
	conn, err := w.shake()
	if err != nil {
		return nil, err
	}
	p := &peer{Conn: conn, w: w}
	p.Framer, p.encoder = http2.NewFramer(&p.out, conn), hpack.NewEncoder(&p.headers)
	p.out.WriteString(http2.ClientPreface)
	_ = p.WriteSettings()
	if err := p.flush(); err != nil {
		_ = conn.Close()
		return nil, err
	}
	return p, nil
}

func (p *peer) flush() error {
	_, err := p.out.WriteTo(p.Conn)
	return err
}

// request writes the headers of a call, with more of them.
func (p *peer) request(stream uint32, more ...string) {
	p.headers.Reset()
	for _, h := range []hpack.HeaderField{
		{Name: ":method", Value: "POST"},
		{Name: ":scheme", Value: "https"},
		{Name: ":path", Value: wire.JoinService_Exchange_FullMethodName},
		{Name: ":authority", Value: "join-service"},
		{Name: "content-type", Value: "application/grpc"},
		{Name: "te", Value: "trailers"},
	} {
		_ = p.encoder.WriteField(h)
	}
	for i := 0; i+1 < len(more); i += 2 {
		_ = p.encoder.WriteField(hpack.HeaderField{Name: more[i], Value: more[i+1], Sensitive: true})
	}
	rest, first := p.headers.Bytes(), true
	for first || len(rest) > 0 {
		part := rest[:min(len(rest), 16<<10)]
		if rest = rest[len(part):]; first {
			_ = p.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: part, EndHeaders: len(rest) == 0})
		} else {
			_ = p.WriteContinuation(stream, len(rest) == 0, part)
		}
		first = false
	}
}

// message writes a gRPC message, in frames that are as large as can be. Whether there is room for it is the server's to see.
func (p *peer) message(stream uint32, content []byte) {
	content = append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(content))), content...)
	for len(content) > 0 {
		part := content[:min(len(content), 16<<10)]
		content = content[len(part):]
		_ = p.WriteData(stream, false, part)
	}
}

// await reads until the n-th message of the server began, or the connection ends.
func (p *peer) await(n int) bool {
	for {
		frame, err := p.ReadFrame()
		if err != nil {
			return false
		}
		switch f := frame.(type) {
		case *http2.DataFrame:
			if n--; n == 0 {
				return true
			}
		case *http2.SettingsFrame:
			if !f.IsAck() && p.send(p.WriteSettingsAck) != nil {
				return false
			}
		case *http2.PingFrame:
			if p.send(func() error { return p.WritePing(true, f.Data) }) != nil {
				return false
			}
		case *http2.GoAwayFrame, *http2.RSTStreamFrame:
			return false
		}
	}
}

// send sends what write writes, while others may.
func (p *peer) send(write func() error) error {
	p.sending.Lock()
	defer p.sending.Unlock()
	return errors.Join(write(), p.flush())
}

// call begins the connection's first call with Hello, and reports whether the server answered.
func (p *peer) call(hello []byte) bool {
	p.request(1)
	p.message(1, hello)
	return p.flush() == nil && p.await(1)
}

// nobodysEvidence is a machine that no rule admits, with everything else in order.
func nobodysEvidence(w *weapons, p *peer) {
	var hello wire.Hello
	first := &wire.FromNode{}
	if proto.Unmarshal(w.Hello, first) != nil || proto.Unmarshal(first.GetHello(), &hello) != nil {
		panic("the flood has no Hello")
	}
	_, _ = rand.Read(hello.EkPublic[len(hello.EkPublic)-200:]) // another modulus
	hello.EkPublic[len(hello.EkPublic)-1] |= 1
	raw, err := wire.EncodeHello(&hello)
	if err != nil {
		panic(err)
	}
	message, err := proto.Marshal(&wire.FromNode{Message: &wire.FromNode_Hello{Hello: raw}})
	if err != nil {
		panic(err)
	}
	if p.call(message) {
		w.answered.Add(1)
	}
}

// replayedEvidence is a member's own Hello and Proof, of another exchange.
func replayedEvidence(w *weapons, p *peer) {
	if !p.call(w.Hello) {
		return
	}
	if p.message(1, w.Proof); p.flush() == nil && p.await(1) {
		w.answered.Add(1)
	}
}

// hugeMessages are a member's Hello, and after it all but the last byte of the largest Proof that there is, on a connection that stays.
func hugeMessages(w *weapons, p *peer) {
	if !p.call(w.Hello) {
		return
	}
	w.answered.Add(1)
	go p.await(1 << 30) // Whoever does not read is let down soon.
	content := make([]byte, wire.MaxFromNode)
	content = append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(content))), content...)
	content = content[:len(content)-1]
	for len(content) > 0 {
		part := content[:min(len(content), 16<<10)]
		content = content[len(part):]
		w.tried.Add(1)
		if p.send(func() error { return p.WriteData(1, false, part) }) != nil {
			return
		}
	}
	time.Sleep(time.Until(w.limit()))
}

// frames sends what write writes again and again, until the server ends it.
func frames(reads bool, write func(p *peer, n uint32)) attack {
	return inHTTP2(func(w *weapons, p *peer) {
		w.answered.Add(1)
		if reads {
			go func() { _, _ = io.Copy(io.Discard, p.Conn) }()
		}
		for n := uint32(1); w.ctx.Err() == nil; n++ {
			write(p, n)
			w.tried.Add(1)
			if p.out.Len() > 12<<10 && p.flush() != nil {
				return
			}
		}
	})
}

func ping(p *peer, _ uint32) { _ = p.WritePing(false, [8]byte{1}) }

func stream(p *peer, n uint32) { p.request(2*n - 1) }

func streamAndReset(p *peer, n uint32) {
	stream(p, n)
	_ = p.WriteRSTStream(2*n-1, http2.ErrCodeCancel)
}

// huge is a header's value that is longer than a server takes in all.
var huge = strings.Repeat("x", 60<<10)

func streamOfHeaders(p *peer, n uint32) { p.request(2*n-1, "x-1", huge, "x-2", huge, "x-3", huge) }

func setting(p *peer, n uint32) {
	_ = p.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: n % (1 << 30)})
}
