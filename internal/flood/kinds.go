package flood

import (
	"bytes"
	"crypto/rand"
	"crypto/tls"
	"encoding/binary"
	"io"
	"net"
	"slices"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/protobuf/proto"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest"
	"github.com/hullmark/hullmark/attest/wire"
)

// attack is one attempt of one attacker.
type attack func(w *weapons)

var kinds = map[string]attack{
	"silent connections":   silent,
	"half-open handshakes": halfOpen,
	"handshakes":           handshakes,
	"slow writers":         slowWriter,
	"slow readers":         slowReader,
	"garbage":              garbage,
	"garbage in TLS":       garbageInTLS,
	"strangers' evidence":  strangersEvidence,
	"replayed evidence":    replayedEvidence,
	"huge messages":        hugeMessages,
	"streams":              streams,
	"rapid reset":          rapidReset,
	"huge headers":         hugeHeaders,
	"pings":                pings,
	"settings":             settings,
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
		_ = tls.Client(near, attest.JoinConfig(root)).Handshake()
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
func silent(w *weapons) {
	if conn, err := w.dial(); err == nil {
		defer conn.Close()
		w.stay(conn)
	}
}

// halfOpen says a ClientHello, and nothing after it.
func halfOpen(w *weapons) {
	conn, err := w.dial()
	if err != nil {
		return
	}
	defer conn.Close()
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
func handshakes(w *weapons) {
	conn, err := w.dial()
	if err != nil {
		return
	}
	defer conn.Close()
	if _, err := conn.Write(w.hello); err != nil {
		return
	}
	if _, err := conn.Read(make([]byte, 1)); err == nil {
		w.answered.Add(1)
	}
}

// slowWriter sends a ClientHello byte by byte.
func slowWriter(w *weapons) {
	conn, err := w.dial()
	if err != nil {
		return
	}
	defer conn.Close()
	for i := range w.hello {
		if _, err := conn.Write(w.hello[i : i+1]); err != nil {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	w.stay(conn)
}

// garbage sends what is no TLS.
func garbage(w *weapons) {
	conn, err := w.dial()
	if err != nil {
		return
	}
	defer conn.Close()
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
	config := attest.JoinConfig(w.Root)
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
	// out is what was not sent yet.
	out     bytes.Buffer
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
	return p, p.flush()
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
		{Name: ":path", Value: wire.JoinService_Release_FullMethodName},
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
			if !f.IsAck() {
				_ = p.WriteSettingsAck()
			}
		case *http2.PingFrame:
			_ = p.WritePing(true, f.Data)
		case *http2.GoAwayFrame, *http2.RSTStreamFrame:
			return false
		}
		if p.flush() != nil {
			return false
		}
	}
}

// strangersEvidence is a machine that no rule admits, with everything else in order.
func strangersEvidence(w *weapons) {
	p, err := w.open()
	if err != nil {
		return
	}
	defer p.Close()
	var hello wire.Hello
	first := &wire.FromNode{}
	if proto.Unmarshal(w.Hello, first) != nil || proto.Unmarshal(first.GetHello(), &hello) != nil {
		panic("the flood has no M1")
	}
	_, _ = rand.Read(hello.EkPublic[len(hello.EkPublic)-200:]) // another modulus
	hello.EkPublic[len(hello.EkPublic)-1] |= 1
	raw, err := wire.EncodeHello(&hello)
	if err != nil {
		panic(err)
	}
	p.request(1)
	message, err := proto.Marshal(&wire.FromNode{Message: &wire.FromNode_Hello{Hello: raw}})
	if err != nil {
		panic(err)
	}
	p.message(1, message)
	if p.flush() == nil && p.await(1) {
		w.answered.Add(1)
	}
}

// replayedEvidence is a member's own M1 and M3, of another exchange.
func replayedEvidence(w *weapons) {
	p, err := w.open()
	if err != nil {
		return
	}
	defer p.Close()
	p.request(1)
	if p.message(1, w.Hello); p.flush() != nil || !p.await(1) {
		return
	}
	if p.message(1, w.Proof); p.flush() == nil && p.await(1) {
		w.answered.Add(1)
	}
}

// hugeMessages are a member's M1, and after it all but the last byte of the largest M3 that there is, on a connection that stays.
func hugeMessages(w *weapons) {
	p, err := w.open()
	if err != nil {
		return
	}
	defer p.Close()
	p.request(1)
	if p.message(1, w.Hello); p.flush() != nil || !p.await(1) {
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
		if p.WriteData(1, false, part) != nil || p.flush() != nil {
			return
		}
	}
	time.Sleep(time.Until(w.limit()))
}

// frames sends what write writes again and again, until the server ends it.
func (w *weapons) frames(reads bool, write func(p *peer, n uint32)) {
	p, err := w.open()
	if err != nil {
		return
	}
	defer p.Close()
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
}

// slowReader wants answers that it does not read.
func slowReader(w *weapons) {
	w.frames(false, func(p *peer, _ uint32) { _ = p.WritePing(false, [8]byte{1}) })
}

func streams(w *weapons) {
	w.frames(true, func(p *peer, n uint32) { p.request(2*n - 1) })
}

func rapidReset(w *weapons) {
	w.frames(true, func(p *peer, n uint32) {
		p.request(2*n - 1)
		_ = p.WriteRSTStream(2*n-1, http2.ErrCodeCancel)
	})
}

func hugeHeaders(w *weapons) {
	value := string(bytes.Repeat([]byte{'x'}, 60<<10))
	w.frames(true, func(p *peer, n uint32) { p.request(2*n-1, "x-1", value, "x-2", value, "x-3", value) })
}

func pings(w *weapons) {
	w.frames(true, func(p *peer, _ uint32) { _ = p.WritePing(false, [8]byte{1}) })
}

func settings(w *weapons) {
	w.frames(true, func(p *peer, n uint32) {
		_ = p.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: n % (1 << 30)})
	})
}
