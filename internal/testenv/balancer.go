package testenv

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/client-go/rest"
)

const (
	// checkPause lies between two questions whether a server is ready. After checksDown answers that it is not, or none, it gets no
	// connection and loses those that it has; after checksUp that it is, it gets some again. These are HAProxy's defaults.
	checkPause = 2 * time.Second
	checksDown = 3
	checksUp   = 2
)

// Balancer plays what stands before API servers (docs/operate.md): it passes connections on, each to the next server that is ready, and
// to another one where it is refused. It sees nothing of what is in them.
type Balancer struct {
	net.Listener
	client atomic.Pointer[http.Client]

	mutex   sync.Mutex // guards what follows
	servers []*server
	turn    int
}

// server is one that connections are passed on to.
type server struct {
	address string
	ready   bool
	// same counts the answers in a row that say otherwise.
	same int
	open map[net.Conn]bool
}

// NewBalancer listens at a loopback address until it is closed. It has no servers yet.
func NewBalancer() (*Balancer, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("testenv: %w", err)
	}
	return &Balancer{Listener: l}, nil
}

// Serve passes connections on to the servers at these addresses, whose certificates config holds to the CA, until ctx ends.
func (b *Balancer) Serve(ctx context.Context, config *rest.Config, addresses []string) error {
	if err := b.Trust(config); err != nil {
		return err
	}
	for _, address := range addresses {
		s := &server{address: address, ready: true, open: map[net.Conn]bool{}}
		b.servers = append(b.servers, s)
		go b.check(ctx, s)
	}
	go func() {
		for {
			c, err := b.Accept()
			if err != nil {
				return
			}
			go b.pass(c)
		}
	}()
	return nil
}

// Trust holds servers' certificates to the CA of config from now on.
func (b *Balancer) Trust(config *rest.Config) error {
	config = rest.CopyConfig(config)
	config.Timeout = checkPause
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return fmt.Errorf("testenv: %w", err)
	}
	b.client.Store(client)
	return nil
}

// check looks whether a server is ready, as everybody may.
func (b *Balancer) check(ctx context.Context, s *server) {
	for ctx.Err() == nil {
		answer, err := b.client.Load().Get("https://" + s.address + "/readyz")
		if err == nil {
			_ = answer.Body.Close()
		}
		b.saw(s, err == nil && answer.StatusCode == http.StatusOK)
		select {
		case <-ctx.Done():
		case <-time.After(checkPause):
		}
	}
}

func (b *Balancer) saw(s *server, ready bool) {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	if ready == s.ready {
		s.same = 0
		return
	}
	if s.same++; s.same < checksDown && !ready || s.same < checksUp && ready {
		return
	}
	s.ready, s.same = ready, 0
	for c := range s.open {
		if !ready {
			_ = c.Close()
		}
	}
}

// pass passes one connection on.
func (b *Balancer) pass(from net.Conn) {
	defer from.Close()
	s, to := b.connect()
	if to == nil {
		return
	}
	defer func() {
		b.mutex.Lock()
		defer b.mutex.Unlock()
		delete(s.open, to)
		_ = to.Close()
	}()
	done := make(chan struct{}, 2)
	for _, way := range [][2]net.Conn{{from, to}, {to, from}} {
		go func() {
			_, _ = io.Copy(way[1], way[0])
			done <- struct{}{}
		}()
	}
	<-done
}

// connect connects to the next server, or, where that refuses, to one after it.
func (b *Balancer) connect() (*server, net.Conn) {
	b.mutex.Lock()
	first := b.turn
	b.turn++
	b.mutex.Unlock()
	for i := range b.servers {
		s := b.servers[(first+i)%len(b.servers)]
		b.mutex.Lock()
		ready := s.ready
		b.mutex.Unlock()
		if !ready {
			continue
		}
		to, err := net.DialTimeout("tcp", s.address, checkPause)
		if err != nil {
			continue
		}
		b.mutex.Lock()
		defer b.mutex.Unlock()
		s.open[to] = true
		return s, to
	}
	return nil, nil
}
