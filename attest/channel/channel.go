// Package channel is how the two ends of the exchange know each other: TLS 1.3, whose keying material binds evidence to
// one connection, and the certificates of roots, online CAs, operators and join services, with what succeeds a root.
// docs/protocol.md is the specification.
package channel

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest"
)

// exporterLabel names the keying material that binds evidence to a channel (RFC 8446 §7.5).
const exporterLabel = "EXPORTER-hullmark-attest-v1"

// OperatorTLS returns the TLS configuration with which an operator dials a
// node. The node's certificate is ephemeral and proves nothing: what makes the
// peer the right machine is its quote, which covers this channel's exporter.
func OperatorTLS(operator tls.Certificate) *tls.Config {
	config := baseConfig(operator)
	// Nothing in the node's certificate is checked, by design: see above.
	config.InsecureSkipVerify = true
	config.ServerName = "node.hullmark.invalid"
	return config
}

// OperatorCredentials returns OperatorTLS's channel for gRPC. Its handshake
// ends when the node has said its first byte: in TLS 1.3 a client is done before
// the server has looked at its certificate (RFC 8446 §4.4.2), and what it wrote
// by then would hide the alert that refuses it behind a broken pipe.
func OperatorCredentials(operator tls.Certificate) credentials.TransportCredentials {
	return firstByte{credentials.NewTLS(OperatorTLS(operator))}
}

// firstByte waits after its handshake for the server's first byte.
type firstByte struct {
	credentials.TransportCredentials
}

// ClientHandshake ends with an error that is or wraps the server's alert when it refuses the client.
func (s firstByte) ClientHandshake(ctx context.Context, authority string, raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := s.TransportCredentials.ClientHandshake(ctx, authority, raw)
	if err != nil {
		return nil, nil, err
	}
	// gRPC's own deadline for the handshake comes as ctx: the byte is read under it.
	stop := context.AfterFunc(ctx, func() { _ = raw.Close() })
	defer stop()
	first := make([]byte, 1)
	if _, err := conn.Read(first); err != nil {
		_ = conn.Close() // the server has ended it, or nobody waits any more
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return nil, nil, fmt.Errorf("wait for the server to accept the handshake: %w", err)
	}
	return &unread{Conn: conn, first: first}, info, nil
}

// Clone returns s, which has no state.
func (s firstByte) Clone() credentials.TransportCredentials {
	return firstByte{s.TransportCredentials.Clone()}
}

// unread gives back the first byte that was read ahead.
type unread struct {
	net.Conn
	first []byte
}

func (u *unread) Read(b []byte) (int, error) {
	if len(u.first) == 0 {
		return u.Conn.Read(b)
	}
	n := copy(b, u.first)
	u.first = u.first[n:]
	return n, nil
}

// NodeTLS returns the TLS configuration with which a node waits for the
// operator of the cluster that root names. The node's key lives as long as the
// configuration. A caller without a certificate that the root key itself
// signed for an operator, or the key of a root to which it has handed over, does not get past the handshake.
func NodeTLS(root hullmark.ClusterRoot) (*tls.Config, error) {
	certificate, err := ephemeralCertificate()
	if err != nil {
		return nil, err
	}
	config := baseConfig(certificate)
	config.ClientAuth = tls.RequireAnyClientCert
	config.VerifyConnection = func(state tls.ConnectionState) error {
		return CheckOperator(state.PeerCertificates, root)
	}
	return config, nil
}

// ServiceTLS returns the TLS configuration of a join service; chain holds
// its leaf, the online CA, the root and the cross-certificates that lead to it. It asks for no client certificate.
func ServiceTLS(chain tls.Certificate) *tls.Config { return baseConfig(chain) }

// JoinTLS returns the TLS configuration with which a node dials a join
// service of the cluster that root names. Names and times are ignored: the
// node's clock and its resolver are the host's.
func JoinTLS(root hullmark.ClusterRoot) *tls.Config {
	config := baseConfig()
	config.InsecureSkipVerify = true // VerifyConnection does what can be done without a clock.
	config.ServerName = "join.hullmark.invalid"
	config.VerifyConnection = func(state tls.ConnectionState) error {
		return CheckService(state.PeerCertificates, root)
	}
	return config
}

// baseConfig is TLS 1.3 without resumption, which would carry one channel's keys into the next.
func baseConfig(certificates ...tls.Certificate) *tls.Config {
	return &tls.Config{
		MinVersion:             tls.VersionTLS13,
		SessionTicketsDisabled: true,
		Certificates:           certificates,
	}
}

// Key returns EKM, the keying material of the gRPC channel that p
// describes. p is what peer.FromContext finds in a stream's context: on the
// serving side at once, on the dialling side after the first message arrived.
func Key(p *peer.Peer) ([]byte, error) {
	info, ok := p.AuthInfo.(credentials.TLSInfo)
	if !ok {
		return nil, errors.New("channel key: the channel is not TLS")
	}
	if info.State.Version != tls.VersionTLS13 || info.State.DidResume {
		return nil, errors.New("channel key: the channel is not a fresh TLS 1.3 connection")
	}
	key, err := info.State.ExportKeyingMaterial(exporterLabel, nil, attest.ChannelKeySize)
	if err != nil {
		return nil, fmt.Errorf("channel key: %w", err)
	}
	return key, nil
}

// CheckOperator accepts a chain of leaf, root and the cross-certificates that lead to it: the root's key is the cluster's, or one to
// which the cluster's has handed over, and signed the leaf itself, for an operator's Scope as a client, or for a Named. Whether that is
// what is asked, the node looks at each call. Without anything else amiss, another root is an *OtherRoot.
func CheckOperator(chain []*x509.Certificate, root hullmark.ClusterRoot) error {
	if err := checkOperator(chain, root); err != nil {
		return fmt.Errorf("operator's certificate: %w", err)
	}
	return nil
}

func checkOperator(chain []*x509.Certificate, root hullmark.ClusterRoot) error {
	if err := checkShape(chain, 2, "leaf and root"); err != nil {
		return err
	}
	leaf, anchor := chain[0], chain[1]
	if err := leaf.CheckSignatureFrom(anchor); err != nil {
		return fmt.Errorf("signature by the cluster root: %w", err)
	}
	if err := checkLeaf(leaf, x509.ExtKeyUsageClientAuth); err != nil {
		return err
	}
	_, named, err := LeafNamed(leaf)
	if err == nil && !named {
		_, err = scopeOf(leaf)
	}
	if err != nil {
		return err
	}
	return checkRoots(chain[1:], root)
}

// CheckService accepts a chain of leaf, online CA, root and the cross-certificates that
// lead to it: the root's key is the cluster's, or one to which the cluster's has
// handed over, the CA may sign leaves only, and the leaf is a join service's.
// Without anything else amiss, another root is an *OtherRoot.
func CheckService(chain []*x509.Certificate, root hullmark.ClusterRoot) error {
	if err := checkService(chain, root); err != nil {
		return fmt.Errorf("join service's certificate: %w", err)
	}
	return nil
}

func checkService(chain []*x509.Certificate, root hullmark.ClusterRoot) error {
	if err := checkShape(chain, 3, "leaf, online CA and root"); err != nil {
		return err
	}
	leaf, online, anchor := chain[0], chain[1], chain[2]
	if !online.IsCA || online.MaxPathLen != 0 || !online.MaxPathLenZero {
		return errors.New("its issuer is no CA of path length 0")
	}
	if err := online.CheckSignatureFrom(anchor); err != nil {
		return fmt.Errorf("online CA: %w", err)
	}
	if err := leaf.CheckSignatureFrom(online); err != nil {
		return err
	}
	if err := checkLeaf(leaf, x509.ExtKeyUsageServerAuth); err != nil {
		return err
	}
	if len(leaf.URIs) != 1 || leaf.URIs[0].String() != serviceURI {
		return fmt.Errorf("the leaf is not named %s", serviceURI)
	}
	return checkRoots(chain[2:], root)
}

// checkLeaf holds a leaf to one purpose: not a CA, one key usage. Its one name is the caller's to check.
func checkLeaf(leaf *x509.Certificate, usage x509.ExtKeyUsage) error {
	if leaf.IsCA {
		return errors.New("the leaf is a CA")
	}
	if len(leaf.UnhandledCriticalExtensions) > 0 {
		return fmt.Errorf("unknown critical extension %s", leaf.UnhandledCriticalExtensions[0])
	}
	if len(leaf.ExtKeyUsage) != 1 || leaf.ExtKeyUsage[0] != usage || len(leaf.UnknownExtKeyUsage) != 0 {
		return errors.New("the leaf is for another purpose")
	}
	return nil
}
