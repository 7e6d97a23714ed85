//go:build long

package firstboot

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"os"
	"testing"
	"time"

	"github.com/google/go-tpm/tpm2/transport"
	"google.golang.org/grpc"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest/channel"
	"github.com/hullmark/hullmark/attest/wire"
	"github.com/hullmark/hullmark/firstboot/config"
	"github.com/hullmark/hullmark/internal/agenttest"
	"github.com/hullmark/hullmark/internal/flood"
	"github.com/hullmark/hullmark/internal/testenv"
	"github.com/hullmark/hullmark/internal/tpmtest"
)

const (
	// floodedVariable makes of a test's program the agent that its content describes.
	floodedVariable = "HULLMARK_TEST_FLOODED_NODE"
	// mostMemory is what the agent may have during a flood: half of what its unit allows.
	mostMemory = 128 << 20
	// callers are operators who call the node again and again, each from an address of his own.
	callers = 2
)

// floodedNode is what the agent's process needs to know.
type floodedNode struct{ Listen, Dir, StateDir, TPM string }

// TestMain makes of this program the agent, or what floods it, if the environment says so.
func TestMain(m *testing.M) {
	flood.Main()
	text, ok := os.LookupEnv(floodedVariable)
	if !ok {
		os.Exit(m.Run())
	}
	var n floodedNode
	err := json.Unmarshal([]byte(text), &n)
	if err == nil {
		err = n.run(context.Background())
	}
	if err != nil {
		panic(err)
	}
}

// run is the agent on a machine with a TPM emulator.
func (n floodedNode) run(ctx context.Context) error {
	conn, err := net.Dial("unix", n.TPM)
	if err != nil {
		return err
	}
	tpm := transport.FromReadWriteCloser(conn)
	a := &Agent{
		OpenTPM: func() (transport.TPMCloser, error) { return unclosed{tpm}, nil },
		Config:  config.Source{File: n.Dir + "/fw", Cache: n.Dir + "/config.json"},
		Disk:    &agenttest.Disk{StateDir: n.StateDir, Claim: hullmark.DiskClaim{State: hullmark.DiskBlank}}, Machine: &agenttest.System{},
		Cluster: &agenttest.Cluster{StateDir: n.StateDir}, StateDir: n.StateDir, RunDir: n.Dir, Listen: n.Listen, Timing: DefaultTiming(),
		Status: &Status{File: n.Dir + "/status.json", Console: os.Stderr, Log: os.Stderr, Notify: func(string) {}},
	}
	return a.Run(ctx)
}

// flooded is the agent as a process, and its operators.
type flooded struct {
	*stage
	node *testenv.Process
	at   string
	each []func() error
}

func newFlooded(t *testing.T) *flooded {
	t.Helper()
	if err := flood.StepAside(); err != nil {
		t.Fatal(err)
	}
	s := &flooded{stage: newStage(t)}
	var err error
	if s.at, err = testenv.FreeAddress(); err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(floodedNode{
		Listen: s.at, Dir: s.agent.RunDir, StateDir: s.agent.StateDir, TPM: tpmtest.NewShared(t, func(*tpmtest.TPM) {}),
	})
	if err != nil {
		t.Fatal(err)
	}
	if s.node, err = flood.Server(t.Context(), t.TempDir(), s.at, []string{floodedVariable + "=" + string(text)}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.node.Stop(); err != nil {
			t.Error(err)
		}
	})
	for i := range callers {
		s.each = append(s.each, func() error { return s.look(t, flood.Dialer(1, i)) })
	}
	return s
}

// look takes the node's evidence as hullmark init --dry-run does: a connection, the call, Hello to Proof, and a denial that leaves
// the node as it was.
func (s *flooded) look(t *testing.T, from *net.Dialer) error {
	certificate, err := channel.NewOperator(s.root, s.rootKey, channel.Scope{Verb: channel.VerbInit})
	if err != nil {
		return err
	}
	client, err := grpc.NewClient("passthrough:///"+s.at, grpc.WithTransportCredentials(channel.OperatorCredentials(certificate)),
		grpc.WithContextDialer(func(ctx context.Context, to string) (net.Conn, error) { return from.DialContext(ctx, "tcp", to) }))
	if err != nil {
		return err
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	stream, err := wire.NewNodeClient(client).Exchange(ctx)
	if err != nil {
		return err
	}
	if err := stream.Send(&wire.FromVerifier{Message: &wire.FromVerifier_Call{Call: &wire.Call{Kind: string(hullmark.Init)}}}); err != nil {
		return err
	}
	hello, err := stream.Recv()
	if err != nil {
		return err
	}
	if hello.GetHello() == nil {
		return errors.New("the node sent no Hello")
	}
	if err := stream.Send(&wire.FromVerifier{Message: &wire.FromVerifier_Denied{Denied: &wire.Condition{Code: "dry-run", Step: StepAttest, Title: "t", Next: "n"}}}); err != nil {
		return err
	}
	_, _ = stream.Recv() // the end
	return nil
}

// Strangers do all that they can at the node's port; its operators get through at their first attempt, and the agent has no
// more memory than it may.
func TestFloodOfTheNode(t *testing.T) {
	s := newFlooded(t)
	f := flood.Flood{Address: s.at, Root: hullmark.ClusterRootOf(s.root.RawSubjectPublicKeyInfo)}
	flood.Floods{
		Server: s.node, Each: s.each, Flood: f, Kinds: flood.Handshakes(), Memory: mostMemory,
	}.Run(t, "init server")
}
