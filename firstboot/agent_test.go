package firstboot

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-tpm/tpm2/transport"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest"
	"github.com/hullmark/hullmark/attest/channel"
	"github.com/hullmark/hullmark/attest/prover"
	"github.com/hullmark/hullmark/attest/wire"
	"github.com/hullmark/hullmark/firstboot/statedisk"
)

func (s *stage) registers(t *testing.T) attest.Registers {
	t.Helper()
	r, err := prover.ReadRegisters(s.tpm)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func (s *stage) document(t *testing.T) Document {
	t.Helper()
	text, err := os.ReadFile(s.agent.Status.File)
	if err != nil {
		t.Fatal(err)
	}
	var d Document
	if err := json.Unmarshal(text, &d); err != nil {
		t.Fatal(err)
	}
	return d
}

func TestFromPowerOnToReady(t *testing.T) {
	s := newStage(t)
	address, _ := s.serve(t)
	client := operator(t, address, s.root, s.rootKey)
	c := dial(t, client)
	claims := c.admit(s)
	if claims.Disk.State != hullmark.DiskBlank || claims.Disk.UUID == (hullmark.UUID{}) {
		t.Errorf("claim = %+v, want a blank disk with a fresh uuid", claims.Disk)
	}
	c.ticket(claims)
	if opened := c.receive().GetOpened(); opened.GetIssued() != 1 {
		t.Errorf("opened = %v, want epoch 1", opened)
	}
	if r := s.registers(t); r[attest.FuseRegister] != [32]byte{} {
		t.Error("the fuse was blown before permission to proceed")
	}
	c.proceed()
	phases, last := c.rest()
	if !last.GetReady() || !slices.Contains(phases, "certs") {
		t.Fatalf("phases %v, last %v; want kubeadm's phases and Ready", phases, last)
	}
	s.checkReady(t)
	checkServing(t, client)
	if _, err := dial(t, client).stream.Recv(); err == nil || !strings.Contains(err.Error(), "already has its ticket") {
		t.Errorf("a second exchange: %v", err)
	}
}

// checkReady looks at what the journey left behind.
func (s *stage) checkReady(t *testing.T) {
	t.Helper()
	if string(s.disk.Key) != ticketKey || s.disk.Grants[0].Key.Equal(hullmark.NewSecret([]byte(ticketKey))) {
		t.Error("the disk got another key, or the agent kept it")
	}
	if r := s.registers(t); r[attest.FuseRegister] != attest.Extended(hullmark.ClusterEvent(s.agent.config.ClusterRoot)) {
		t.Errorf("PCR 15 = %x, want the fuse's value", r[attest.FuseRegister])
	}
	for name, mode := range map[string]os.FileMode{
		filepath.Join(s.agent.StateDir, "etc-kubernetes/pki/sa.key"): 0o600, filepath.Join(s.agent.RunDir, shownDir, "policy.json"): 0o644,
	} {
		if info, err := os.Stat(name); err != nil || info.Mode().Perm() != mode {
			t.Errorf("%s: %v, %v; want mode %o", name, info, err, mode)
		}
	}
	if got := string(s.cluster.Works[0].Addons); got != "---\na: 1\n---\nb: 2\n" || s.cluster.Works[0].Retry {
		t.Errorf("addons = %q", got)
	}
	if intent, err := s.agent.intent(); err != nil || intent != statedisk.IntentDone || s.cluster.Intents[0] != statedisk.IntentStarted {
		t.Errorf("intent = %q after %q, %v", intent, s.cluster.Intents, err)
	}
	if d := s.document(t); !d.Ready || d.Step != StepReady || d.EKID == nil {
		t.Errorf("status = %+v, want Ready", d)
	}
	if !s.machine.Has("start "+stateUnit) || !s.machine.Has("restart "+hostnameUnit) {
		t.Errorf("machine did %q", s.machine.Did())
	}
}

func checkServing(t *testing.T, client wire.NodeClient) {
	t.Helper()
	reply, err := client.Status(t.Context(), &wire.StatusRequest{})
	if err != nil || !strings.Contains(string(reply.GetJson()), `"ready": true`) {
		t.Errorf("Status = %s, %v", reply.GetJson(), err)
	}
	stream, err := client.Journal(t.Context(), &wire.JournalRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if chunk, err := stream.Recv(); err != nil || string(chunk.GetText()) != "the log" {
		t.Errorf("Journal = %q, %v", chunk.GetText(), err)
	}
}

// A disk that holds a finished node starts what it holds; kubeadm does not run again.
func TestComesBackAfterPowerOff(t *testing.T) {
	s := newStage(t)
	s.disk.Claim = hullmark.DiskClaim{State: hullmark.DiskReady, UUID: hullmark.UUID{1}, Generation: 1, Owner: hullmark.EKID{2}}
	s.disk.Opened = statedisk.Opened{EpochRead: 1, Joined: true}
	s.keep(statedisk.IntentFile, statedisk.IntentDone)
	if err := os.WriteFile(filepath.Join(s.agent.StateDir, "etc-kubernetes/admin.conf"), []byte("kubeconfig"), 0o600); err != nil {
		t.Fatal(err)
	}
	address, _ := s.serve(t)
	c := dial(t, operator(t, address, s.root, s.rootKey))
	c.ticket(c.admit(s))
	c.receive()
	c.proceed()
	if _, last := c.rest(); !last.GetReady() {
		t.Fatalf("last = %v, want Ready", last)
	}
	if len(s.cluster.Works) != 0 || !s.machine.Has("start "+kubeletUnit) {
		t.Errorf("kubeadm ran %d times, machine did %q", len(s.cluster.Works), s.machine.Did())
	}
}

// A failure before the fuse leaves the node waiting, for another attempt in the same boot.
func TestFailuresBeforeTheFuse(t *testing.T) {
	foreign := func(s *stage) { s.disk.Claim.State = hullmark.DiskForeign }
	broken := func(s *stage) { s.disk.Err = &hullmark.Condition{Code: "disk-tampered", Step: StepDisk} }
	refused := func(s *stage) { s.cluster.Refuse = errors.New("unknown field") }
	for code, spoil := range map[string]func(*stage){"disk-foreign": foreign, "disk-tampered": broken, "kubeadm-refused": refused} {
		s := newStage(t)
		spoil(s)
		address, _ := s.serve(t)
		client := operator(t, address, s.root, s.rootKey)
		c := dial(t, client)
		var last *wire.Progress
		if code == "disk-foreign" {
			c.send(&wire.FromVerifier{Message: &wire.FromVerifier_Call{Call: &wire.Call{Kind: "init"}}})
		} else {
			c.ticket(c.admit(s))
		}
		if code == "kubeadm-refused" {
			c.receive()
			c.proceed()
		}
		if _, last = c.rest(); last.GetFailed().GetCode() != code {
			t.Errorf("%s: last message %v", code, last)
		}
		if r := s.registers(t); r[attest.FuseRegister] != [32]byte{} || s.machine.Has("reboot") || s.machine.Has("start "+stateUnit) {
			t.Errorf("%s: something was changed", code)
		}
		if !strings.Contains(s.console.String(), code) {
			t.Errorf("%s: the console says %q", code, s.console)
		}
		s.disk.Err, s.cluster.Refuse, s.disk.Claim = nil, nil, hullmark.DiskClaim{State: hullmark.DiskBlank}
		again := dial(t, client)
		again.ticket(again.admit(s))
		again.receive()
		again.proceed()
		if _, last := again.rest(); !last.GetReady() {
			t.Errorf("%s: the next attempt ended with %v", code, last)
		}
	}
}

// From the fuse on, this boot is over.
func TestFailureAfterTheFuseRestartsTheMachine(t *testing.T) {
	s := newStage(t)
	s.machine.Fail = "start " + stateUnit
	address, ended := s.serve(t)
	c := dial(t, operator(t, address, s.root, s.rootKey))
	c.ticket(c.admit(s))
	c.receive()
	c.proceed()
	if _, last := c.rest(); last.GetFailed().GetStep() != StepKubeadm {
		t.Errorf("last = %v, want a failure in KUBEADM", last)
	}
	if err := <-ended; !errors.Is(err, errReboot) {
		t.Errorf("serve ended with %v, want a restart", err)
	}
	if err := (setup{s.agent}).run(t.Context()); !errors.Is(err, errReboot) {
		t.Errorf("prepare with a blown fuse: %v, want a restart", err)
	}
}

func TestUnauthenticatedPeersGetNothing(t *testing.T) {
	s := newStage(t)
	address, _ := s.serve(t)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	root, err := channel.NewRoot(key)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := operator(t, address, root, key).Status(t.Context(), &wire.StatusRequest{}); err == nil || !strings.Contains(err.Error(), "remote error: tls: bad certificate") {
		t.Errorf("an operator of another cluster: %v", err)
	}
	if _, err := operator(t, address, s.root, s.rootKey).Status(t.Context(), &wire.StatusRequest{}); err != nil {
		t.Errorf("the positive control: %v", err)
	}
}

func TestOperatorCanLookOnly(t *testing.T) {
	s := newStage(t)
	address, _ := s.serve(t)
	c := dial(t, operator(t, address, s.root, s.rootKey))
	c.admit(s)
	c.send(&wire.FromVerifier{Message: &wire.FromVerifier_Denied{Denied: &wire.Condition{Code: "dry-run", Title: "t", Step: "ATTEST", Next: "n"}}})
	if _, last := c.rest(); last.GetFailed() != nil {
		t.Errorf("last = %v", last)
	}
	if d := s.document(t); d.Condition != nil {
		t.Errorf("status = %+v, want no condition", d)
	}
}

func TestConfigIsMeasuredOnce(t *testing.T) {
	s := newStage(t)
	data, err := os.ReadFile(s.agent.Config.File)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // the agent was restarted in between
		if err := (setup{s.agent}).measureConfig(t.Context()); err != nil {
			t.Fatal(err)
		}
		if r := s.registers(t); r[attest.ConfigRegister] != attest.Extended(hullmark.ConfigEvent(data)) {
			t.Fatalf("PCR 8 = %x", r[attest.ConfigRegister])
		}
	}
	s.tpm.Extend(t, attest.ConfigRegister, []byte("something else"))
	if err := (setup{s.agent}).measureConfig(t.Context()); !errors.Is(err, errReboot) {
		t.Errorf("another value in PCR 8: %v, want a restart", err)
	}
}

func TestConfigConditions(t *testing.T) {
	for content, code := range map[string]string{`{"version":1,"shell":true}`: "config-invalid", "": "config-missing"} {
		s := newStage(t)
		if err := os.Remove(s.agent.Config.File); err != nil {
			t.Fatal(err)
		}
		if content != "" {
			if err := os.WriteFile(s.agent.Config.File, []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		s.agent.Status.Notify = func(line string) {
			if strings.Contains(line, code) {
				cancel()
			}
		}
		if err := (setup{s.agent}).run(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("prepare = %v, want to be waiting", err)
		}
		if d := s.document(t); d.Condition == nil || d.Condition.Code != code {
			t.Errorf("status = %+v, want %s", d, code)
		}
	}
}

func TestWithoutTPM(t *testing.T) {
	s := newStage(t)
	s.agent.OpenTPM = func() (transport.TPMCloser, error) { return nil, os.ErrNotExist }
	var c *hullmark.Condition
	if err := (setup{s.agent}).checkTPM(t.Context()); !errors.As(err, &c) || c.Code != "no-tpm" {
		t.Errorf("error %v, want no-tpm", err)
	}
}

func TestWaitsForTheNetwork(t *testing.T) {
	s := newStage(t)
	s.machine.Offline, s.agent.Timing.Network = 3, 0
	if err := (setup{s.agent}).run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(s.console.String(), "no-network") {
		t.Errorf("the console says %q", s.console)
	}
	if d := s.document(t); d.Condition != nil {
		t.Errorf("status = %+v, want no condition any more", d)
	}
}

func TestFilesStayInside(t *testing.T) {
	for _, name := range []string{
		"/etc/passwd", "/etc/kubernetes", "/etc/kubernetes/", "/etc/kubernetes/../shadow", "etc/kubernetes/x", "/var/lib/hullmark/./x", "/var/lib/kubelet/x", "",
	} {
		if where, err := place(name); err == nil {
			t.Errorf("%q would be written to %q", name, where)
		}
	}
	dir := t.TempDir()
	if err := os.Symlink(t.TempDir(), filepath.Join(dir, "etc-kubernetes")); err != nil {
		t.Fatal(err)
	}
	if err := writeFiles(dir, []*wire.File{{Path: "/etc/kubernetes/x", Mode: 0o600}}); err == nil {
		t.Error("a file was written through a link that leads outside")
	}
}

func TestBlockIsOnePieceOfText(t *testing.T) {
	got := Block(&hullmark.Condition{
		Code: "a", Step: "DISK", Title: "outer", Next: "n",
		Because: &hullmark.Condition{Code: "b", Step: "DISK", Title: "inner\n\x1b[2J", Expected: "x", Got: "y", Next: "do"},
	})
	want := "\nHULLMARK: inner  [2J\n  code:     b\n  step:     DISK\n  expected: x\n  got:      y\n  next:     do\n  prevents: outer\n"
	if got != want {
		t.Errorf("block = %q, want %q", got, want)
	}
}
