// Package seam is where product code that the explorer edited meets the explorer's world: each function that an edit puts in
// the place of a device, a channel or the TPM's cryptography calls World. No product code imports it unedited.
package seam

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"os"

	"google.golang.org/grpc/credentials"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest/wire"
)

// World is the explorer's, set before anything edited runs.
var World interface {
	// Registers, Extend, Keys and Unwrap are the TPM of the machine whose process runs.
	Registers() [16][32]byte
	Extend(pcr int, data []byte) error
	Keys() (ekPublic, akPublic []byte)
	Unwrap(secret, node []byte) (hullmark.Secret, error)

	// Dial opens an exchange with a replica of the join service.
	Dial() (wire.JoinService_ExchangeClient, error)
	// DialEpoch begins a call for the next number, and Channel is the real channel that it is bound to.
	DialEpoch() (wire.JoinService_EpochClient, error)
	Channel() credentials.AuthInfo
	// Advances lets the agent of a node that is Ready ask for the next number, and returns once it may ask no more.
	Advances(ready bool, advance func() error)
	// Pause is the time between two rounds of dialling; it returns when ctx ends.
	Pause(ctx context.Context, kept, ready bool)
	// Watch hands an exchange of the service what is closed when a later one of its machine begins; its Recv then returns ErrOver.
	Watch(ctx context.Context, over <-chan struct{})

	// Probe is statedisk.Probe, Write a write that is stored when it returns.
	Probe(disk io.ReaderAt, size int64) (hullmark.DiskClaim, error)
	Write(disk *os.File, b []byte, offset int64) error
	// Format makes a LUKS header in a file and an empty file system, Activate opens it, and Mounted calls do with where it is.
	Format(header, uuid string, key []byte) error
	Activate(key []byte) error
	Mounted(do func(*os.Root) error) error
	// Storing comes before the manifest is replaced, Stored once it is, with its epoch and what it notes of kubeadm; Sync in
	// the place of syncfs(2).
	Storing(epoch uint64, intent string)
	Stored(epoch uint64, intent string)
	Sync()
	// Random fills b for a disk's UUID.
	Random(b []byte)
}

// ErrOver is what Recv returns when the machine has begun a later exchange.
var ErrOver = errors.New("another exchange began")

// Reach is a connection that nobody uses: see World.Dial.
func Reach() (net.Conn, credentials.AuthInfo, *hullmark.Condition) {
	ours, theirs := net.Pipe()
	_ = theirs.Close()
	return ours, World.Channel(), nil
}

// Client is one of nobody: see World.Dial.
type Client struct{}

// Close does nothing.
func (Client) Close() error { return nil }

// Over returns a Client.
func Over(net.Conn, credentials.AuthInfo) (Client, error) { return Client{}, nil }

// Listen is a listener to which nobody connects: operators are not explored.
func Listen() (net.Listener, error) { return &silent{closed: make(chan struct{})}, nil }

// NoTLS is what a listener needs that nobody connects to.
func NoTLS() (*tls.Config, error) { return &tls.Config{MinVersion: tls.VersionTLS13}, nil }

type silent struct{ closed chan struct{} }

func (s *silent) Accept() (net.Conn, error) {
	<-s.closed
	return nil, net.ErrClosed
}

func (s *silent) Close() error {
	select {
	case <-s.closed:
	default:
		close(s.closed)
	}
	return nil
}

func (s *silent) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)} }

// Read is crypto/rand's, where it makes a UUID.
func Read(b []byte) (int, error) {
	World.Random(b)
	return len(b), nil
}
