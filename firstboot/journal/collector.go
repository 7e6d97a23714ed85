package journal

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hullmark/hullmark"
)

// collector is who is sent the journal, and by what it is known.
type collector struct {
	hullmark.Collector
	config *tls.Config
}

// absent is what systemd hands over in the place of a file that is not there (systemd/system/hullmark-journal.service).
const absent = "none"

// readCollector reads the files of hullmark.PoolFolder, as systemd hands them over. Without a client's certificate none is shown.
func readCollector(folder string) (collector, error) {
	read := func(path string) ([]byte, error) { return os.ReadFile(filepath.Join(folder, filepath.Base(path))) }
	settings, err := read(hullmark.CollectorFile)
	if err != nil {
		return collector{}, err
	}
	c := collector{}
	if c.Collector, err = hullmark.ParseCollector(settings); err != nil {
		return c, err
	}
	authorities, err := read(hullmark.CollectorCA)
	if err != nil {
		return c, err
	}
	c.config = &tls.Config{MinVersion: tls.VersionTLS12, ServerName: c.Name, RootCAs: x509.NewCertPool()}
	if !c.config.RootCAs.AppendCertsFromPEM(authorities) {
		return c, errors.New("journal's collector: there is no certificate in its ca")
	}
	certificate, err := read(hullmark.CollectorCertificate)
	if err != nil || string(certificate) == absent {
		return c, err
	}
	key, err := read(hullmark.CollectorKey)
	if err != nil {
		return c, err
	}
	defer clear(key)
	pair, err := tls.X509KeyPair(certificate, key)
	if err != nil {
		return c, fmt.Errorf("journal's collector: what is shown to it: %w", err)
	}
	c.config.Certificates = []tls.Certificate{pair}
	return c, nil
}

// connection is one to a collector that has shown who it is.
type connection struct {
	*tls.Conn
	counted *counted
	// gone gets why the collector ended it.
	gone chan error
}

// dial connects. An error of the other side's certificate is a *refusal: nothing was sent then.
func (c collector) dial(ctx context.Context, timing Timing) (*connection, error) {
	ctx, cancel := context.WithTimeout(ctx, timing.Dial)
	defer cancel()
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", c.Endpoint)
	if err != nil {
		return nil, err
	}
	counted := &counted{Conn: conn}
	secured := tls.Client(counted, c.config)
	if err := secured.HandshakeContext(ctx); err != nil {
		_ = conn.Close()
		return nil, asRefusal(err)
	}
	to := &connection{Conn: secured, counted: counted, gone: make(chan error, 1)}
	go to.listen()
	// By TLS 1.3 a collector refuses a client's certificate after the handshake has ended here.
	select {
	case err := <-to.gone:
		_ = conn.Close()
		return nil, asRefusal(err)
	case <-time.After(timing.Refusal):
		return to, nil
	case <-ctx.Done():
		_ = conn.Close()
		return nil, ctx.Err()
	}
}

// listen waits for the collector to end the connection. It has nothing to say on it (RFC 5425, 4.3).
func (c *connection) listen() {
	_, err := io.Copy(io.Discard, c.Conn)
	if err == nil {
		err = io.EOF
	}
	c.gone <- err
}

// refusal is an error of a handshake: one of the two is not whom the other expects.
type refusal struct{ error }

func (r *refusal) Unwrap() error { return r.error }

func asRefusal(err error) error {
	var certificate *tls.CertificateVerificationError
	var alert tls.AlertError
	var header tls.RecordHeaderError
	if remote := (*net.OpError)(nil); errors.As(err, &certificate) || errors.As(err, &alert) || errors.As(err, &header) ||
		errors.As(err, &remote) && remote.Op == "remote error" {
		return &refusal{err}
	}
	return err
}

// counted counts what was written to a TCP connection.
type counted struct {
	net.Conn
	written atomic.Int64
}

func (c *counted) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	c.written.Add(int64(n))
	return n, err
}

// acknowledged returns how much of what was written the other machine has acknowledged (tcp(7), SIOCOUTQ).
func (c *counted) acknowledged() (int64, error) {
	conn, ok := c.Conn.(*net.TCPConn)
	if !ok {
		return 0, errors.New("no TCP connection")
	}
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0, err
	}
	written, queued := c.written.Load(), 0
	var asked error
	if err := raw.Control(func(fd uintptr) { queued, asked = unix.IoctlGetInt(int(fd), unix.SIOCOUTQ) }); err != nil {
		return 0, err
	}
	return written - int64(queued), asked
}
