package channel_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest"
	"github.com/hullmark/hullmark/attest/channel"
)

// authority is a cluster's root and online CA.
type authority struct {
	root, online       *x509.Certificate
	rootKey, onlineKey *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{rootKey: newKey(t), onlineKey: newKey(t)}
	var err error
	if a.root, err = channel.NewRoot(a.rootKey); err != nil {
		t.Fatal(err)
	}
	if a.online, err = channel.NewOnlineCA(a.root, a.rootKey, a.onlineKey.Public()); err != nil {
		t.Fatal(err)
	}
	return a
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func (a *authority) id() hullmark.ClusterRoot {
	return hullmark.ClusterRootOf(a.root.RawSubjectPublicKeyInfo)
}

func (a *authority) operator(t *testing.T) tls.Certificate {
	t.Helper()
	certificate, err := channel.NewOperator(a.root, a.rootKey, channel.Scope{Verb: channel.VerbInit})
	if err != nil {
		t.Fatal(err)
	}
	return certificate
}

func (a *authority) service(t *testing.T) tls.Certificate {
	t.Helper()
	certificate, err := channel.NewService(a.root, a.online, a.onlineKey)
	if err != nil {
		t.Fatal(err)
	}
	return certificate
}

// handshake connects both ends and returns the channel key and the error of each.
func handshake(t *testing.T, client, server *tls.Config) (keys [2][]byte, errs [2]error) {
	t.Helper()
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	done := make(chan struct{})
	go func() {
		defer close(done)
		keys[1], errs[1] = finish(tls.Server(b, server), true)
		_ = b.Close()
	}()
	keys[0], errs[0] = finish(tls.Client(a, client), false)
	_ = a.Close()
	<-done
	return keys, errs
}

// finish completes a handshake; the server's first byte tells the client that it was accepted.
func finish(connection *tls.Conn, first bool) ([]byte, error) {
	if err := connection.Handshake(); err != nil {
		return nil, err
	}
	var err error
	if first {
		_, err = connection.Write([]byte{1})
	} else {
		_, err = connection.Read(make([]byte, 1))
	}
	if err != nil {
		return nil, err
	}
	return channel.Key(&peer.Peer{AuthInfo: credentials.TLSInfo{State: connection.ConnectionState()}})
}

func TestOperatorReachesItsNode(t *testing.T) {
	a := newAuthority(t)
	node, err := channel.NodeTLS(a.id())
	if err != nil {
		t.Fatal(err)
	}
	keys, errs := handshake(t, channel.OperatorTLS(a.operator(t)), node)
	if errs[0] != nil || errs[1] != nil {
		t.Fatal(errs)
	}
	if len(keys[0]) != attest.ChannelKeySize || string(keys[0]) != string(keys[1]) {
		t.Error("the two ends of one channel export different keys")
	}
	again, _ := handshake(t, channel.OperatorTLS(a.operator(t)), node)
	if string(again[0]) == string(keys[0]) {
		t.Error("two channels export the same key")
	}
}

func TestNodeRefuses(t *testing.T) {
	a, stranger := newAuthority(t), newAuthority(t)
	node, err := channel.NodeTLS(a.id())
	if err != nil {
		t.Fatal(err)
	}
	// The stranger's own leaf under a copy of the true root: the root's certificate is public.
	borrowed := stranger.operator(t)
	borrowed.Certificate = [][]byte{borrowed.Certificate[0], a.root.Raw}
	leafOnly := a.operator(t)
	leafOnly.Certificate = leafOnly.Certificate[:1]
	long := a.operator(t)
	long.Certificate = append(long.Certificate, a.root.Raw)
	for name, certificate := range map[string]tls.Certificate{
		"another cluster's operator": stranger.operator(t),
		"a leaf of another root":     borrowed,
		"a leaf without its root":    leafOnly,
		"a chain of three":           long,
		"a join service":             a.service(t),
		"the root itself":            {Certificate: [][]byte{a.root.Raw, a.root.Raw}, PrivateKey: a.rootKey},
		"no certificate":             {},
	} {
		if _, errs := handshake(t, channel.OperatorTLS(certificate), node); errs[1] == nil {
			t.Errorf("%s: got past the handshake", name)
		}
	}
}

// A refused operator shall read why, however the node's alert and the end of
// the connection race with what the operator writes.
func TestUnauthenticatedPeerIsTold(t *testing.T) {
	node, err := channel.NodeTLS(newAuthority(t).id())
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(grpc.Creds(credentials.NewTLS(node)))
	go func() { _ = server.Serve(listener) }()
	defer server.Stop()
	stranger := newAuthority(t).operator(t)
	for range 50 {
		connection, err := grpc.NewClient("passthrough:///"+listener.Addr().String(), grpc.WithTransportCredentials(channel.OperatorCredentials(stranger)))
		if err != nil {
			t.Fatal(err)
		}
		err = connection.Invoke(t.Context(), "/none/None", &emptypb.Empty{}, &emptypb.Empty{})
		if err == nil || !strings.Contains(err.Error(), "remote error: tls: bad certificate") {
			t.Fatalf("got %v, want the node's alert", err)
		}
		_ = connection.Close()
	}
}

// dialled is a connection to a node that accepts the operator and then does what it is told.
func dialled(t *testing.T, root hullmark.ClusterRoot, accepted func(net.Conn)) net.Conn {
	t.Helper()
	node, err := channel.NodeTLS(root)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		raw, err := listener.Accept()
		if err != nil {
			return
		}
		conn, _, err := credentials.NewTLS(node).ServerHandshake(raw)
		if err != nil {
			t.Errorf("the node did not accept: %v", err)
			return
		}
		accepted(conn)
	}()
	near, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return near
}

// A node that goes silent after the handshake does not hold the operator longer than the dial's own deadline.
func TestOperatorDoesNotWaitForASilentNode(t *testing.T) {
	a := newAuthority(t)
	near := dialled(t, a.id(), func(net.Conn) {})
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if _, _, err := channel.OperatorCredentials(a.operator(t)).ClientHandshake(ctx, "node", near); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want the deadline", err)
	}
}

// What was read ahead is read again, whatever the size of the buffer.
func TestChannelLosesNoByte(t *testing.T) {
	a := newAuthority(t)
	near := dialled(t, a.id(), func(conn net.Conn) {
		_, _ = conn.Write([]byte("hello"))
		_ = conn.Close()
	})
	conn, info, err := channel.OperatorCredentials(a.operator(t)).ClientHandshake(t.Context(), "node", near)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := channel.Key(&peer.Peer{AuthInfo: info}); err != nil {
		t.Error(err)
	}
	got, err := io.ReadAll(iotest.OneByteReader(conn))
	if err != nil || string(got) != "hello" {
		t.Errorf("read %q, %v", got, err)
	}
}

func TestNodeReachesItsService(t *testing.T) {
	a, stranger := newAuthority(t), newAuthority(t)
	if _, errs := handshake(t, channel.JoinTLS(a.id()), channel.ServiceTLS(a.service(t))); errs[0] != nil {
		t.Fatal(errs)
	}
	direct := a.operator(t)
	mixed := stranger.service(t)
	mixed.Certificate = append(mixed.Certificate[:2:2], a.root.Raw)
	wide, err := channel.NewRoot(a.onlineKey) // a CA without a path length
	if err != nil {
		t.Fatal(err)
	}
	widened := a.service(t)
	widened.Certificate = [][]byte{widened.Certificate[0], wide.Raw, a.root.Raw}
	for name, certificate := range map[string]tls.Certificate{
		"another cluster's service":        stranger.service(t),
		"an operator":                      direct,
		"another's online CA, our root":    mixed,
		"an online CA without path length": widened,
	} {
		if _, errs := handshake(t, channel.JoinTLS(a.id()), channel.ServiceTLS(certificate)); errs[0] == nil {
			t.Errorf("%s: was taken for a join service", name)
		}
	}
}

func TestOlderTLSIsRefused(t *testing.T) {
	a := newAuthority(t)
	old := channel.ServiceTLS(a.service(t))
	old.MinVersion, old.MaxVersion = tls.VersionTLS12, tls.VersionTLS12
	if _, errs := handshake(t, channel.JoinTLS(a.id()), old); errs[0] == nil {
		t.Error("TLS 1.2 was accepted")
	}
	if _, err := channel.Key(&peer.Peer{}); err == nil {
		t.Error("a channel without TLS has a key")
	}
}
