package backup

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

// Limits of the talk with a member.
const (
	// callTimeout bounds the calls before the snapshot; without a quorum a member does not answer the second.
	callTimeout = 15 * time.Second
	// aliveEvery and aliveTimeout find a connection that is dead while the snapshot is streamed.
	aliveEvery, aliveTimeout = 20 * time.Second, 20 * time.Second
)

// Source is one member of a cluster's etcd.
type Source struct {
	// Endpoint is the URL at which it serves clients.
	Endpoint string
	// TLS holds it to the etcd CA, and brings a client certificate of it.
	TLS *tls.Config
	// WithoutQuorum lets a member give what it holds although it finds no quorum: for when the others are lost for good.
	WithoutQuorum bool
}

// ErrUnreachable says that a member does not answer at all.
var ErrUnreachable = errors.New("the member does not answer")

// Taken says what a backup holds.
type Taken struct {
	// Revision is etcd's when the backup began: it holds all changes up to this one, and maybe later ones.
	Revision int64
	// Size is the backup's, in bytes.
	Size int64
	// Quorum reports whether the member found one. If it did not, what others have decided without it is missing, and Voters is how many
	// members vote, by what it knows.
	Quorum bool
	Voters int
}

// reach makes one connection and ends it: of one that fails clientv3 says only, after a while, that time is up.
func (s Source) reach(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	dialer := tls.Dialer{Config: s.TLS}
	connection, err := dialer.DialContext(ctx, "tcp", strings.TrimPrefix(s.Endpoint, "https://"))
	if err != nil {
		return err
	}
	return connection.Close()
}

// unreachable adds to why a member does not answer what to do.
func unreachable(err error) error {
	return fmt.Errorf("%w: %w; start it, check the way to it and that its certificate is for this name (it is for the node's name and address), or take another control plane's", ErrUnreachable, err)
}

// Take writes the member's snapshot to w and checks it. What w was given is a
// backup only if there is no error. A member that has lost its quorum is refused,
// unless the source says that it is not: it could lack what the others have stored since. The error, ErrUnreachable among them, says
// which of the member, the quorum, the stream and w failed, and what to do.
func (s Source) Take(ctx context.Context, w io.Writer) (Taken, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if err := s.reach(ctx); err != nil {
		return Taken{}, fmt.Errorf("back up etcd at %s: %w", s.Endpoint, unreachable(err))
	}
	client, err := clientv3.New(clientv3.Config{
		Context: ctx, Endpoints: []string{s.Endpoint}, TLS: s.TLS, DialTimeout: callTimeout,
		DialKeepAliveTime: aliveEvery, DialKeepAliveTimeout: aliveTimeout, Logger: zap.NewNop(),
	})
	if err != nil {
		return Taken{}, fmt.Errorf("back up etcd at %s: %w", s.Endpoint, err)
	}
	defer client.Close()
	taken, err := s.ask(ctx, client)
	if err == nil {
		taken.Size, err = stream(ctx, client, w)
	}
	if err != nil {
		return Taken{}, fmt.Errorf("back up etcd at %s: %w", s.Endpoint, err)
	}
	return taken, nil
}

// ask learns etcd's revision, as a quorum of the members knows it, or as this member does where there is none and none is asked for.
func (s Source) ask(ctx context.Context, client *clientv3.Client) (taken Taken, err error) {
	led := false
	status := func(ctx context.Context) error {
		answer, err := client.Status(ctx, s.Endpoint)
		led = err == nil && answer.Leader != 0
		return err
	}
	if err := call(ctx, status); err != nil {
		return taken, unreachable(err)
	}
	read := func(options ...clientv3.OpOption) error {
		return call(ctx, func(ctx context.Context) error {
			answer, err := client.Get(ctx, "/", append(options, clientv3.WithCountOnly())...) // Any key does.
			if err == nil {
				taken.Revision = answer.Header.GetRevision()
			}
			return err
		})
	}
	err = read() // That the read is linearizable is what needs the quorum.
	switch {
	case err == nil:
		taken.Quorum = true
		return taken, nil
	case !s.WithoutQuorum:
		return taken, fmt.Errorf("the member answers, but finds no quorum: %w; start the control planes that are down, or take another's", err)
	}
	err = call(ctx, func(ctx context.Context) error {
		if err := status(ctx); err != nil || led {
			return cmp.Or(err, errLed) // Others run, and may decide what this one is slow to hear.
		}
		list, err := client.MemberList(ctx, clientv3.WithSerializable())
		if err == nil {
			taken.Voters = voters(list.Members)
		}
		return err
	})
	if err == nil {
		err = read(clientv3.WithSerializable())
	}
	if err != nil {
		return taken, fmt.Errorf("what the member holds without a quorum: %w; try again", err)
	}
	return taken, nil
}

// errLed says that a member knows a leader, so that there is a quorum.
var errLed = errors.New("it knows a leader, so there is one")

func voters(members []*etcdserverpb.Member) (n int) {
	for _, each := range members {
		if !each.GetIsLearner() {
			n++
		}
	}
	return n
}

// call makes a call under its deadline.
func call(ctx context.Context, do func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return do(ctx)
}

// stream writes the snapshot to w and returns its size, in bytes.
func stream(ctx context.Context, client *clientv3.Client, w io.Writer) (int64, error) {
	snapshot, err := client.Snapshot(ctx)
	if err != nil {
		return 0, broke(err)
	}
	defer snapshot.Close()
	check, to := newTrailer(), &output{to: w}
	switch _, err := io.Copy(io.MultiWriter(check, to), snapshot); {
	case to.err != nil:
		return 0, fmt.Errorf("write the backup: %w", to.err)
	case errors.Is(err, errTooLarge):
		return 0, err
	case err != nil:
		return 0, broke(err)
	}
	if err := check.check(); err != nil {
		return 0, broke(err)
	}
	return check.size, nil
}

func broke(err error) error {
	return fmt.Errorf("the snapshot broke off: %w; take it again", err)
}

// output tells errors of a writer from those of what is written to it.
type output struct {
	to  io.Writer
	err error
}

// Write hands on to the writer.
func (o *output) Write(p []byte) (n int, err error) {
	n, o.err = o.to.Write(p)
	return n, o.err
}
