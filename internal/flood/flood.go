// Package flood is what unauthenticated peers can do to a server of the exchange: a program of its own that sends as much of it as it can,
// on a processor that the server does not have, while others measure what is left for those whom the server is for.
package flood

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/internal/testenv"
)

// Variable makes of a test's program the flooder that its content describes; see Main.
const Variable = "HULLMARK_TEST_FLOOD"

// Flood describes one flood.
type Flood struct {
	// Kind is the name of one of Kinds.
	Kind string
	// Address is the server's.
	Address string
	// Root is its cluster's.
	Root hullmark.ClusterRoot
	// Hello and Proof are Hello and Proof that a member's machine sent once, as FromNode; Proof was for another channel.
	Hello, Proof []byte
	// Attackers try at once, from so many addresses. Together they make so many connections a second at most; 0 is as many as they can.
	Attackers, Sources, Rate int
	// For is how long they do, and longer if they have not tried Least times by then.
	For   time.Duration
	Least int64
	// Behind lets them have of their processor only what nobody else wants.
	Behind bool
}

// longest is how much longer than it should a flood may take.
const longest = 2 * time.Minute

// Sent is what a flood was.
type Sent struct {
	// Tried counts what was begun: connections, or frames where a connection sends many.
	Tried int64
	// Answered counts what the server has dealt with: handshakes, or evidence that was refused by a message.
	Answered int64
	// Took is how long all that took.
	Took time.Duration
}

// Rate is what was begun in a second.
func (s Sent) Rate() float64 { return float64(s.Tried) / s.Took.Seconds() }

// Served is what was answered in a second.
func (s Sent) Served() float64 { return float64(s.Answered) / s.Took.Seconds() }

// Main is the flooder: it ends the process. It returns at once in any other.
func Main() {
	text, ok := os.LookupEnv(Variable)
	if !ok {
		return
	}
	if err := flood(text, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "flood:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

func flood(text string, out io.Writer) error {
	var f Flood
	if err := json.Unmarshal([]byte(text), &f); err != nil {
		return err
	}
	attack, ok := kinds[f.Kind]
	if !ok {
		return fmt.Errorf("there is no kind %q", f.Kind)
	}
	ctx, cancel := context.WithTimeout(context.Background(), f.For+longest)
	defer cancel()
	w := &weapons{Flood: f, ctx: ctx, hello: clientHello(f.Root)}
	w.began = time.Now()
	for range f.Attackers {
		go func() {
			for ctx.Err() == nil {
				attack(w)
			}
		}()
	}
	time.Sleep(f.For)
	for w.tried.Load() < f.Least && ctx.Err() == nil {
		time.Sleep(100 * time.Millisecond)
	}
	took := time.Since(w.began)
	sent := Sent{w.tried.Load(), w.answered.Load(), took}
	cancel()
	return json.NewEncoder(out).Encode(sent) // The attackers end with the process.
}

// Run starts this program anew as the flooder, on the last processor, and returns once it has ended.
func (f Flood) Run(ctx context.Context) (sent Sent, err error) {
	text, err := json.Marshal(f)
	if err != nil {
		return sent, err
	}
	program, err := os.Executable()
	if err != nil {
		return sent, err
	}
	line := []string{"-c", theirs(), program}
	if f.Behind {
		line = []string{"-c", theirs(), "chrt", "--idle", "0", program}
	}
	cmd := exec.CommandContext(ctx, "taskset", line...)
	cmd.Env = append(os.Environ(), Variable+"="+string(text))
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err == nil {
		err = json.Unmarshal(out, &sent)
	}
	if err != nil {
		return sent, fmt.Errorf("flood of %s: %w (taskset and chrt: apt-get install util-linux)", f.Kind, err)
	}
	return sent, nil
}

// Server starts this program anew as the server that env makes of it, alone on the first processor, and returns when something
// listens at address.
func Server(ctx context.Context, dir, address string, env []string, args ...string) (*testenv.Process, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	taskset, err := exec.LookPath("taskset")
	if err != nil {
		return nil, fmt.Errorf("%w: apt-get install util-linux", err)
	}
	cmd := exec.Command(taskset, append([]string{"-c", "0", program}, args...)...)
	cmd.Env = append(append(os.Environ(), "GOMAXPROCS=1"), env...)
	p, err := testenv.Launch(dir, cmd)
	if err != nil {
		return nil, err
	}
	return p, p.Await(ctx, func() error {
		conn, err := net.Dial("tcp", address)
		if err != nil {
			return err
		}
		return conn.Close()
	})
}

// theirs is the processor of everybody but the server.
func theirs() string { return strconv.Itoa(runtime.NumCPU() - 1) }

// StepAside lets this process, and all that it starts from now on, use only the processor that the server does not have.
func StepAside() error {
	out, err := exec.Command("taskset", "-a", "-p", "-c", theirs(), strconv.Itoa(os.Getpid())).CombinedOutput()
	if err != nil {
		return fmt.Errorf("taskset: %w: %s (apt-get install util-linux)", err, out)
	}
	return nil
}

// weapons are what the attackers of one flood share.
type weapons struct {
	Flood
	ctx context.Context
	// hello is a TLS ClientHello.
	hello                    []byte
	tried, answered, dialled atomic.Int64
	began                    time.Time
}

// limit is until when an attacker waits for anything.
func (w *weapons) limit() time.Time {
	end, _ := w.ctx.Deadline()
	if soon := time.Now().Add(patience); soon.Before(end) {
		return soon
	}
	return end
}

// Dialer dials from the n-th loopback address of a network, 127.NETWORK.0.1 being the first.
func Dialer(network byte, n int) *net.Dialer {
	return &net.Dialer{Timeout: 5 * time.Second, LocalAddr: &net.TCPAddr{IP: net.IPv4(127, network, byte(n>>8), byte(n)+1)}}
}

// dial connects from the next of the addresses. Attempts end when the flood does.
func (w *weapons) dial() (net.Conn, error) {
	number := w.dialled.Add(1)
	if w.Rate > 0 {
		time.Sleep(time.Until(w.began.Add(time.Duration(number) * time.Second / time.Duration(w.Rate))))
	}
	conn, err := Dialer(7, int(number)%w.Sources).DialContext(w.ctx, "tcp", w.Address)
	// The server resets most; whatever else fails, for want of a file or a port, never came to it.
	if err == nil || errors.Is(err, syscall.ECONNRESET) || os.IsTimeout(err) {
		w.tried.Add(1)
	}
	if err != nil {
		return nil, err
	}
	return conn, conn.SetDeadline(w.limit())
}
