package statedisk

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/hullmark/hullmark"
)

// Socket is where the helper waits. Each connection is one request, answered
// by one short-lived process that ends with the key in its memory.
const Socket = "/run/hullmark/statedisk.socket"

// maxMessage bounds a request or an answer, in bytes.
const maxMessage = 16 << 10

// keySize is the length of DK, in bytes.
const keySize = 32

// The operations of the helper.
const (
	// OpProbe says what the disk holds and changes nothing.
	OpProbe = "probe"
	// OpOpen formats a blank disk if the grant allows it, opens it, and advances its epoch.
	OpOpen = "open"
)

// Request is one line of JSON; after OpOpen's line follow the 32 bytes of the
// key, which so never pass through an encoder.
type Request struct {
	Op   string                `json:"op"`
	Disk hullmark.DiskSelector `json:"disk"`
	// Grant is set with OpOpen; its key travels apart.
	Grant *Grant `json:"grant,omitempty"`
}

// Grant is hullmark.DiskGrant without its key.
type Grant struct {
	Generation    uint32               `json:"generation"`
	UUID          hullmark.UUID        `json:"uuid"`
	Owner         hullmark.EKID        `json:"owner"`
	FormatAllowed bool                 `json:"formatAllowed"`
	Epoch         hullmark.EpochWindow `json:"epoch"`
}

// Answer is one line of JSON. Exactly one field is set.
type Answer struct {
	Claim  *hullmark.DiskClaim `json:"claim,omitempty"`
	Opened *Opened             `json:"opened,omitempty"`
	Failed *hullmark.Condition `json:"failed,omitempty"`
}

// Opened is what an open disk said of itself.
type Opened struct {
	// Formatted reports that the disk was blank before.
	Formatted bool `json:"formatted"`
	// EpochRead is the counter before it was advanced.
	EpochRead uint64 `json:"epochRead"`
	// Joined reports that the disk holds a finished kubeadm init or join.
	Joined bool `json:"joined"`
	// LastBoot is when the disk was last opened, in RFC 3339 by the node's clock; empty for a new disk.
	LastBoot string `json:"lastBoot,omitempty"`
	// CertificateEnds is when the kubelet's newest client certificate on the disk ends, in Unix time; 0 if there is none.
	CertificateEnds int64 `json:"certificateEnds,omitempty"`
	// Etcd is what a member of etcd has stored on the disk; zero if there is none, or none that can be read.
	Etcd hullmark.EtcdState `json:"etcd,omitzero"`
	// Manifest is that of the manifest which the helper left on the disk: the agent takes no other.
	Manifest MAC `json:"manifest"`
}

// Client asks the helper.
type Client struct {
	// Path is the helper's socket.
	Path string
}

// Probe returns what the selected disk holds.
func (c Client) Probe(ctx context.Context, disk hullmark.DiskSelector) (hullmark.DiskClaim, error) {
	answer, err := c.ask(ctx, Request{Op: OpProbe, Disk: disk}, nil)
	if err != nil {
		return hullmark.DiskClaim{}, fmt.Errorf("probe state disk: %w", err)
	}
	if answer.Claim == nil {
		return hullmark.DiskClaim{}, errors.New("probe state disk: the helper answered something else")
	}
	return *answer.Claim, nil
}

// Open opens the selected disk with the grant, and formats a blank one if the grant allows it.
func (c Client) Open(ctx context.Context, disk hullmark.DiskSelector, g hullmark.DiskGrant) (Opened, error) {
	request := Request{Op: OpOpen, Disk: disk, Grant: &Grant{
		Generation: g.Generation, UUID: g.UUID, Owner: g.Owner, FormatAllowed: g.FormatAllowed, Epoch: g.Epoch,
	}}
	answer, err := c.ask(ctx, request, g.Key.Expose())
	if err != nil {
		return Opened{}, fmt.Errorf("open state disk: %w", err)
	}
	if answer.Opened == nil {
		return Opened{}, errors.New("open state disk: the helper answered something else")
	}
	return *answer.Opened, nil
}

func (c Client) ask(ctx context.Context, r Request, key []byte) (Answer, error) {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "unix", c.Path)
	if err != nil {
		return Answer{}, err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	line, err := json.Marshal(r)
	if err != nil {
		return Answer{}, err
	}
	if _, err := conn.Write(append(line, '\n')); err != nil {
		return Answer{}, err
	}
	// Not even an empty write without a key: the helper may have answered and gone.
	if len(key) > 0 {
		if _, err := conn.Write(key); err != nil {
			return Answer{}, err
		}
	}
	return ReadAnswer(conn)
}

// ReadAnswer reads one answer; the condition of a failed request is the error.
func ReadAnswer(r io.Reader) (Answer, error) {
	var a Answer
	line, err := readLine(bufio.NewReader(r))
	if err != nil {
		return Answer{}, fmt.Errorf("helper's answer: %w (its reason is in the journal of hullmark-statedisk@)", err)
	}
	if err := json.Unmarshal(line, &a); err != nil {
		return Answer{}, fmt.Errorf("helper's answer: %w", err)
	}
	if a.Failed != nil {
		return Answer{}, a.Failed
	}
	return a, nil
}

// ReadRequest reads one request and its key.
func ReadRequest(r io.Reader) (Request, hullmark.Secret, error) {
	var q Request
	in := bufio.NewReader(r)
	line, err := readLine(in)
	if err != nil {
		return Request{}, hullmark.Secret{}, fmt.Errorf("request: %w", err)
	}
	if err := json.Unmarshal(line, &q); err != nil {
		return Request{}, hullmark.Secret{}, fmt.Errorf("request: %w", err)
	}
	if (q.Op == OpOpen) != (q.Grant != nil) || (q.Op != OpOpen && q.Op != OpProbe) {
		return Request{}, hullmark.Secret{}, fmt.Errorf("request: operation %.20q with a grant: %t", q.Op, q.Grant != nil)
	}
	if q.Grant == nil {
		return q, hullmark.Secret{}, nil
	}
	key, err := hullmark.RandomSecret(in, keySize)
	if err != nil {
		return Request{}, hullmark.Secret{}, fmt.Errorf("request: key: %w", err)
	}
	return q, key, nil
}

// WriteAnswer writes one answer.
func WriteAnswer(w io.Writer, a Answer) error {
	line, err := json.Marshal(a)
	if err != nil {
		return fmt.Errorf("answer: %w", err)
	}
	_, err = w.Write(append(line, '\n'))
	return err
}

func readLine(r *bufio.Reader) ([]byte, error) {
	var line []byte
	for len(line) < maxMessage {
		b, err := r.ReadByte()
		if err != nil {
			return nil, err
		}
		if b == '\n' {
			return line, nil
		}
		line = append(line, b)
	}
	return nil, fmt.Errorf("longer than %d bytes", maxMessage)
}
