package journal

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/binary"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hullmark/hullmark"
)

// authority signs certificates.
type authority struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority"}, NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return authority{certificate, key}
}

func (a authority) pem() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.certificate.Raw})
}

// issue makes a certificate for a DNS name, and its key, in PEM.
func (a authority) issue(t *testing.T, name string) (certificate, key []byte) {
	t.Helper()
	own, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(2), DNSNames: []string{name}, NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.certificate, own.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	encoded, err := x509.MarshalPKCS8PrivateKey(own)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: encoded})
}

// receiver is a collector.
type receiver struct {
	listener net.Listener
	mutex    sync.Mutex
	messages []string
	silent   bool
}

// receive starts a collector with a certificate for a name, which wants one of clients if an authority for them is given.
func receive(t *testing.T, by authority, name string, clients *authority) *receiver {
	t.Helper()
	certificate, key := by.issue(t, name)
	pair, err := tls.X509KeyPair(certificate, key)
	if err != nil {
		t.Fatal(err)
	}
	config := &tls.Config{Certificates: []tls.Certificate{pair}}
	if clients != nil {
		config.ClientAuth, config.ClientCAs = tls.RequireAndVerifyClientCert, x509.NewCertPool()
		config.ClientCAs.AddCert(clients.certificate)
	}
	r := &receiver{}
	if r.listener, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.listener.Close() })
	go func() {
		for {
			conn, err := r.listener.Accept()
			if err != nil {
				return
			}
			go r.serve(tls.Server(conn, config))
		}
	}()
	return r
}

func (r *receiver) serve(conn *tls.Conn) {
	defer conn.Close()
	if conn.Handshake() != nil {
		return
	}
	if r.silent {
		time.Sleep(time.Minute)
		return
	}
	in := bufio.NewReader(conn)
	for {
		length, err := in.ReadString(' ')
		if err != nil {
			return
		}
		n, err := strconv.Atoi(strings.TrimSuffix(length, " "))
		if err != nil || n > maxMessage {
			r.add(fmt.Sprintf("no frame: %q", length))
			return
		}
		message := make([]byte, n)
		if _, err := io.ReadFull(in, message); err != nil {
			return
		}
		r.add(string(message))
	}
}

func (r *receiver) add(message string) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	r.messages = append(r.messages, message)
}

func (r *receiver) all() []string {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	return slices.Clone(r.messages)
}

// texts are what messages say, behind their headers.
func (r *receiver) texts() (texts []string) {
	for _, m := range r.all() {
		_, text, _ := strings.Cut(m, "] ")
		texts = append(texts, text)
	}
	return texts
}

// logged is a journal: entries by number, of which it has those from the first to the last.
type logged struct {
	mutex       sync.Mutex
	first, last int
	// pad makes entries long.
	pad string
}

func (l *logged) read(ctx context.Context, cursor string) (io.ReadCloser, error) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	after := 0
	if cursor != "" {
		if _, err := fmt.Sscanf(cursor, "c=%d", &after); err != nil {
			return nil, err
		}
	}
	from, to := io.Pipe()
	context.AfterFunc(ctx, func() { _ = to.CloseWithError(io.EOF) })
	begin, last, pad := max(l.first, after+1), l.last, l.pad
	go func() {
		for i := begin; i <= last; i++ {
			if _, err := io.WriteString(to, exportOf(i, fmt.Sprintf("line %d%s", i, pad))); err != nil {
				return
			}
		}
	}()
	return from, nil
}

func exportOf(number int, message string) string {
	return fmt.Sprintf("__CURSOR=c=%d\n__REALTIME_TIMESTAMP=1700000000123456\n__SEQNUM=%d\n__SEQNUM_ID=aa\nPRIORITY=3\nSYSLOG_IDENTIFIER=kubelet\n_PID=12\nMESSAGE=%s\n\n", number, number, message)
}

// node is a forwarder and what it is given.
type node struct {
	*Forwarder
	stop context.CancelFunc
	done chan error
}

func newNode(t *testing.T, to *receiver, ca authority, name string, l *logged) *node {
	t.Helper()
	dir := t.TempDir()
	n := &node{Forwarder: &Forwarder{
		Settings: filepath.Join(dir, "settings"), State: filepath.Join(dir, "state"), Status: filepath.Join(dir, "forward.json"), Node: "node-1", Read: l.read,
		Timing: Timing{Dial: 5 * time.Second, Write: 200 * time.Millisecond, Refusal: 50 * time.Millisecond, Pause: 5 * time.Millisecond, LongestPause: 20 * time.Millisecond, Keep: 5 * time.Millisecond},
	}}
	settings, err := json.Marshal(hullmark.Collector{Endpoint: to.listener.Addr().String(), Name: name})
	err = errors.Join(err, os.Mkdir(n.Settings, 0o700), os.Mkdir(n.State, 0o700))
	if err != nil {
		t.Fatal(err)
	}
	n.give(t, hullmark.CollectorFile, settings)
	n.give(t, hullmark.CollectorCA, ca.pem())
	n.give(t, hullmark.CollectorCertificate, []byte(absent))
	n.give(t, hullmark.CollectorKey, nil)
	return n
}

func (n *node) give(t *testing.T, file string, content []byte) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(n.Settings, filepath.Base(file)), content, 0o600); err != nil {
		t.Fatal(err)
	}
}

func (n *node) start(t *testing.T) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	n.stop, n.done = stop, make(chan error, 1)
	go func() { n.done <- n.Run(ctx) }()
	t.Cleanup(stop)
}

func (n *node) end(t *testing.T) {
	t.Helper()
	n.stop()
	if err := <-n.done; err != nil {
		t.Error(err)
	}
}

// status waits until what the forwarder says of itself is right.
func (n *node) status(t *testing.T, right func(hullmark.Forward) bool) hullmark.Forward {
	t.Helper()
	var last hullmark.Forward
	for range 1000 {
		if encoded, err := os.ReadFile(n.Status); err == nil {
			if last, err = hullmark.ParseForward(encoded); err != nil {
				t.Fatal(err)
			}
			if right(last) {
				return last
			}
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("the forwarder says %+v, %v", last, last.Condition)
	return last
}

func code(c *hullmark.Condition) string {
	if c == nil {
		return ""
	}
	return c.Code
}

func TestForwards(t *testing.T) {
	ca := newAuthority(t)
	to := receive(t, ca, "logs.example", nil)
	l := &logged{first: 1, last: 3}
	n := newNode(t, to, ca, "logs.example", l)
	n.start(t)
	n.status(t, func(f hullmark.Forward) bool { return f.Sent == 3 && f.Condition == nil && f.Newest == 1700000000 })
	n.end(t)
	want := `<27>1 2023-11-14T22:13:20.123456Z node-1 kubelet 12 - [meta sequenceId="1"] line 1`
	if got := to.all(); len(got) != 3 || got[0] != want {
		t.Errorf("got %q, the first is to be %q", got, want)
	}
	// Another run, perhaps of another boot, goes on behind what was acknowledged.
	l.last = 5
	again := &node{Forwarder: &Forwarder{Settings: n.Settings, State: n.State, Status: n.Status, Node: n.Node, Read: n.Read, Timing: n.Timing}}
	again.start(t)
	again.status(t, func(f hullmark.Forward) bool { return f.Sent == 2 })
	again.end(t)
	if got := strings.Join(to.texts(), ", "); got != "line 1, line 2, line 3, line 4, line 5" {
		t.Errorf("got %s", got)
	}
}

// Whatever is wrong with the other side's certificate, it is told nothing of the journal.
func TestSomebodyElseIsSentNothing(t *testing.T) {
	ca, other := newAuthority(t), newAuthority(t)
	for name, to := range map[string]*receiver{
		"another authority":         receive(t, other, "logs.example", nil),
		"another name":              receive(t, ca, "other.example", nil),
		"it wants to know the node": receive(t, ca, "logs.example", &other),
	} {
		n := newNode(t, to, ca, "logs.example", &logged{first: 1, last: 3})
		n.start(t)
		f := n.status(t, func(f hullmark.Forward) bool { return f.Condition != nil })
		n.end(t)
		if code(f.Condition) != "journal-refused" || f.Sent != 0 || len(to.texts()) != 0 {
			t.Errorf("%s: %+v, %v; it got %q", name, f, f.Condition, to.texts())
		}
	}
}

func TestShowsItsCertificate(t *testing.T) {
	ca, clients := newAuthority(t), newAuthority(t)
	to := receive(t, ca, "logs.example", &clients)
	n := newNode(t, to, ca, "logs.example", &logged{first: 1, last: 2})
	certificate, key := clients.issue(t, "node")
	n.give(t, hullmark.CollectorCertificate, certificate)
	n.give(t, hullmark.CollectorKey, key)
	n.start(t)
	n.status(t, func(f hullmark.Forward) bool { return f.Sent == 2 })
	n.end(t)
}

func TestCollectorThatIsAway(t *testing.T) {
	ca := newAuthority(t)
	to := receive(t, ca, "logs.example", nil)
	address := to.listener.Addr().String()
	_ = to.listener.Close()
	l := &logged{first: 1, last: 10}
	n := newNode(t, to, ca, "logs.example", l)
	n.Forwarder.now = position{}
	encoded, err := json.Marshal(position{Cursor: "c=2", Source: "aa", Number: 2})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(n.State, positionFile), encoded, 0o600); err != nil {
		t.Fatal(err)
	}
	// Meanwhile the journal gives its oldest entries up.
	l.first = 6
	n.start(t)
	if f := n.status(t, func(f hullmark.Forward) bool { return f.Condition != nil }); code(f.Condition) != "journal-not-sent" || !f.Condition.Retry {
		t.Errorf("%v", f.Condition)
	}
	// It comes back at the same address.
	certificate, key := ca.issue(t, "logs.example")
	pair, err := tls.X509KeyPair(certificate, key)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go to.serve(tls.Server(conn, &tls.Config{Certificates: []tls.Certificate{pair}}))
		}
	}()
	n.status(t, func(f hullmark.Forward) bool { return f.Sent == 5 && f.Dropped == 3 && f.Condition == nil })
	n.end(t)
	if got := to.texts(); len(got) != 6 || got[0] != "3 entries of the journal were given up before they could be sent" || got[1] != "line 6" {
		t.Errorf("got %q", got)
	}
}

// A collector that takes nothing costs what the connection's buffers hold, and its time is bounded.
func TestCollectorThatIsSlow(t *testing.T) {
	ca := newAuthority(t)
	to := receive(t, ca, "logs.example", nil)
	to.silent = true
	n := newNode(t, to, ca, "logs.example", &logged{first: 1, last: 1 << 20, pad: strings.Repeat("x", 4000)})
	n.start(t)
	f := n.status(t, func(f hullmark.Forward) bool { return f.Condition != nil })
	if code(f.Condition) != "journal-not-sent" || !strings.Contains(f.Condition.Got, "timeout") {
		t.Errorf("%v", f.Condition)
	}
	n.end(t)
}

func TestExported(t *testing.T) {
	long := strings.Repeat("y", 100<<10)
	var length [8]byte
	binary.LittleEndian.PutUint64(length[:], 5)
	stream := "__CURSOR=a\n__REALTIME_TIMESTAMP=1\nMESSAGE\n" + string(length[:]) + "a\nb=c\n\n" +
		"\n__CURSOR=b\n__REALTIME_TIMESTAMP=2\nMESSAGE=" + long + "\nPRIORITY=x\n\n"
	e := newExported(strings.NewReader(stream))
	one, err := e.next()
	if err != nil || one.cursor != "a" || one.fields["MESSAGE"] != "a\nb=c" {
		t.Errorf("%+v, %v", one, err)
	}
	two, err := e.next()
	if err != nil || two.cursor != "b" || !strings.HasPrefix(two.fields["MESSAGE"], "yyy") || len(two.fields["MESSAGE"]) > maxField {
		t.Errorf("%+v, %v", two.cursor, err)
	}
	if m := two.message("n", 1); len(m) > maxMessage+8 || !bytes.HasSuffix(m, []byte("y [cut]")) || !bytes.HasPrefix(m, []byte("8192 <30>1 1970-01-01T00:00:00.000002Z n - - - [meta ")) {
		t.Errorf("%d bytes: %.100q", len(m), m)
	}
	if _, err := e.next(); !errors.Is(err, io.EOF) {
		t.Errorf("at the end: %v", err)
	}
	// journald takes an entry with this many, and this program must not stop at it for ever.
	most := "__CURSOR=a\n__REALTIME_TIMESTAMP=1\n" + strings.Repeat("MESSAGE=x\n", 1024) + "_PID=1\n_COMM=c\n\n"
	if e, err := newExported(strings.NewReader(most)).next(); err != nil || e.cursor != "a" || e.fields["_COMM"] != "c" {
		t.Errorf("an entry of as many fields as journald takes: %+v, %v", e, err)
	}
	for _, bad := range []string{"MESSAGE=x\n\n", "__CURSOR=a\n__REALTIME_TIMESTAMP=z\n\n", "=x\n\n", "__CURSOR=a", "A\n\xff\xff\xff\xff\xff\xff\xff\xff", strings.Repeat("A=1\n", 5000)} {
		if e, err := newExported(strings.NewReader(bad)).next(); err == nil || errors.Is(err, io.EOF) && len(e.fields) > 0 {
			t.Errorf("%.40q: %+v, %v", bad, e, err)
		}
	}
}

// Whatever the journal holds, a message is one frame of one line's header, and no longer than a receiver takes.
func FuzzExported(f *testing.F) {
	f.Add([]byte(exportOf(1, "a")))
	f.Add([]byte("__CURSOR=a\n__REALTIME_TIMESTAMP=1\nMESSAGE\n\x01\x00\x00\x00\x00\x00\x00\x00\xff\nSYSLOG_IDENTIFIER=a b] \"\n\n"))
	f.Fuzz(func(t *testing.T, stream []byte) {
		e := newExported(bytes.NewReader(stream))
		for range 100 {
			found, err := e.next()
			if err != nil {
				return
			}
			message := found.message("node-1", 1)
			length, rest, ok := bytes.Cut(message, []byte(" "))
			if n, err := strconv.Atoi(string(length)); !ok || err != nil || n != len(rest) || n > maxMessage {
				t.Fatalf("frame %q of %d bytes", length, len(rest))
			}
			if words := strings.SplitN(string(rest), " ", 8); len(words) != 8 || words[2] != "node-1" || words[6] != "[meta" || !strings.HasPrefix(words[7], "sequenceId=\"1\"] ") {
				t.Fatalf("%q", rest)
			}
		}
	})
}
