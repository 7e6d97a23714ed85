//go:build long

package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/internal/nodetest"
	"github.com/hullmark/hullmark/internal/testenv"
	"github.com/hullmark/hullmark/internal/upgradetest"
	"github.com/hullmark/hullmark/joinservice/registry"
	"github.com/hullmark/hullmark/measurements"
	"github.com/hullmark/hullmark/upgrade"
	"github.com/hullmark/hullmark/upgrade/kube"
)

// upgradePage follows docs/upgrade.md: its commands run as they stand, in its order. One control plane, which has to be recovered for real
// by its operator, and two workers are played; the API is a real one, and so is the engine.
type upgradePage struct {
	site
	env  *testenv.Environment
	live *upgradetest.Live
	// front is where the control plane answers its operator: only while it boots, until it has another ticket than the one before.
	front  string
	open   atomic.Bool
	before *hullmark.Ticket
}

func TestUpgradePage(t *testing.T) {
	p := &upgradePage{site: *newSite(t)}
	if code, output := p.init(t); code != 0 {
		t.Fatal(output)
	}
	root := t.TempDir()
	if err := os.Rename(p.dir, filepath.Join(root, "out")); err != nil {
		t.Fatal(err)
	}
	p.dir = filepath.Join(root, "out")
	linkProgram(t, root)
	p.play(t)
	for _, line := range commandsOf(t, "upgrade.md") {
		said := p.shell(t, root, line)
		p.check(t, line, said)
	}
}

// shell runs one line of the page.
func (p *upgradePage) shell(t *testing.T, root, line string) string {
	t.Helper()
	text := strings.NewReplacer("192.0.2.7:6443", p.env.Address, "--node 192.0.2.7", "--node "+p.front).Replace(line)
	args := []string{"bash", "-eu", "-o", "pipefail", "-c", text}
	if strings.Contains(line, " attend ") { // It asks on a terminal.
		args = []string{"script", "--quiet", "--return", "--command", text, "/dev/null"}
	}
	cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
	cmd.Dir, cmd.Stdin = root, strings.NewReader("yes\n")
	began := time.Now()
	out, err := cmd.CombinedOutput()
	t.Logf("$ %s   # %v\n%s", line, time.Since(began).Round(100*time.Millisecond), out)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// play switches the machines, the API and the engine on.
func (p *upgradePage) play(t *testing.T) {
	t.Helper()
	p.cluster = p.site.open(t)
	var err error
	if p.env, err = testenv.StartFor(t.Context(), t.TempDir(), p.cluster); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.env.Stop(); err != nil {
			t.Error(err)
		}
	})
	if err := p.env.Apply(t.Context(), registry.Manifest()); err != nil {
		t.Fatal(err)
	}
	config, err := p.env.Config("testenv", "system:masters")
	if err != nil {
		t.Fatal(err)
	}
	if p.live, err = upgradetest.NewLive(config); err != nil {
		t.Fatal(err)
	}
	document, next := nodetest.Document(t, "image"), nodetest.Document(t, "next")
	encoded, err := next.Encode()
	if err != nil {
		t.Fatal(err)
	}
	p.write(t, "next.json", encoded)
	releases := map[hullmark.DocumentID]hullmark.RootHash{upgradetest.ID(document): upgradetest.RootHash(document), upgradetest.ID(next): upgradetest.RootHash(next)}
	for name, role := range map[string]hullmark.Role{"control-plane-1": hullmark.ControlPlane, "worker-1": hullmark.Worker, "worker-2": hullmark.Worker} {
		m := upgradetest.NewMachine(name, role, upgradetest.ID(document), releases)
		if role == hullmark.ControlPlane {
			m.EKID, m.Held = p.node.ID, p.boots(t)
		}
		if err := p.live.Add(t.Context(), m, "127.0.0.1"); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { p.live.Run(ctx); ended <- struct{}{} }()
	go func() { p.engine(t, ctx); ended <- struct{}{} }()
	t.Cleanup(func() { cancel(); <-ended; <-ended })
}

// boots returns what holds the control plane while it boots: it is in the release that is tried, and waits for its operator.
func (p *upgradePage) boots(t *testing.T) func() bool {
	p.before = p.node.Ticket()
	grant := p.before.Disk
	p.node.Disk = hullmark.DiskClaim{State: hullmark.DiskReady, UUID: grant.UUID, Generation: grant.Generation, Owner: grant.Owner}
	p.node.LastBoot = "2026-11-20T04:05:06Z"
	p.node.Reboot(t, "next")
	p.address = p.node.Serve(t, p.cluster.ID())
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p.front = listener.Addr().String()
	t.Cleanup(func() { listener.Close() })
	go p.forward(listener)
	return func() bool {
		held := p.node.Ticket() == p.before
		p.open.Store(held)
		return held
	}
}

// A control plane whose trial fails is recovered twice: in the release that it tries, and in the one from before.
func TestAttendOfANodeThatFallsBack(t *testing.T) {
	p := &upgradePage{site: *newSite(t)}
	if code, output := p.init(t); code != 0 {
		t.Fatal(output)
	}
	p.play(t)
	p.node.Fail = &hullmark.Condition{Code: "step-failed", Step: "KUBEADM", Title: "the new kubelet does not start", Next: "look at it"}
	again := false
	p.live.Change("control-plane-1", func(m *upgradetest.Machine) {
		m.Manner = upgradetest.FallsBack
		m.Held = func() bool {
			p.open.Store(true)
			if p.node.Ticket() == p.before {
				return true
			}
			if !again { // The trial has failed: the machine boots the release from before.
				time.Sleep(2 * time.Second)
				again, p.node.Fail = true, nil
				p.node.Reboot(t, "image")
				p.before = p.node.Ticket()
				return true
			}
			return false
		}
	})
	flags := []string{"--cluster", p.path("cluster"), "--passphrase-file", p.path("passphrase"), "--server", p.env.Address}
	for _, file := range []string{"document.json", "next.json"} {
		code, output := hullmarkCLI(t, append([]string{"policy", "add", "document", p.path(file)}, flags[:4]...)...)
		if wantExit(t, code, 0, output); code != 0 && file == "next.json" {
			t.FailNow()
		}
	}
	for _, verb := range [][]string{{"policy", "push"}, {"upgrade", "apply", p.path("next.json"), "--from", "https://releases.example.com/next"}} {
		code, output := hullmarkCLI(t, append(verb, flags...)...)
		wantExit(t, code, 0, output)
	}
	code, output := hullmarkCLI(t, append([]string{"upgrade", "attend", "control-plane-1", "--node", p.front, "--yes"}, flags...)...)
	wantExit(t, code, exitDenied, output, "the new kubelet does not start", "control-plane-1 is Ready", "trial-failed")
	code, output = hullmarkCLI(t, append([]string{"upgrade", "status"}, flags...)...)
	wantExit(t, code, 0, output, "stopped: trial-failed", "control-plane-1")
	code, output = hullmarkCLI(t, append([]string{"upgrade", "attend", "control-plane-1", "--node", p.front, "--yes"}, flags...)...)
	wantExit(t, code, exitDenied, output, "nothing to do with control-plane-1")
}

// forward lets the operator through to the machine while it boots.
func (p *upgradePage) forward(listener net.Listener) {
	for {
		operator, err := listener.Accept()
		if err != nil {
			return
		}
		node, err := net.Dial("tcp", p.address)
		if err != nil || !p.open.Load() || p.node.Ticket() != p.before {
			operator.Close()
			continue
		}
		for _, way := range [][2]net.Conn{{operator, node}, {node, operator}} {
			go func() {
				_, _ = io.Copy(way[0], way[1])
				way[0].Close()
			}()
		}
	}
}

// engine turns as one on the control plane does, more often.
func (p *upgradePage) engine(t *testing.T, ctx context.Context) {
	config, err := p.env.Config(registry.UpgradeUser)
	if err != nil {
		t.Error(err)
		return
	}
	c, err := kube.New(config)
	if err != nil {
		t.Error(err)
		return
	}
	e := &upgrade.Engine{Cluster: c, Name: rand.Text(), Now: time.Now, Log: slog.New(slog.NewTextHandler(t.Output(), nil))}
	for ctx.Err() == nil {
		_, _ = e.Turn(ctx)
		time.Sleep(300 * time.Millisecond)
	}
}

// check wants each command to have said, and done, what the page tells.
func (p *upgradePage) check(t *testing.T, line, said string) {
	t.Helper()
	for verb, want := range map[string][]string{
		" plan ":                {"release 1, root hash", "control-plane-1", "hullmark upgrade attend control-plane-1", "worker-2", "not known"},
		" apply out/next.json ": {"is begun by the cluster"},
		" pause ":               {"no further one"},
		" attend ":              {"Go on with this disk?", "control-plane-1 is upgraded"},
		" --follow ":            {"worker-1", "was away for", "is done"},
		" apply --restart ":     {"restart: certificates", "the last time"},
		" abort ":               {"none stays cordoned"},
	} {
		if !strings.Contains(line, verb) {
			continue
		}
		for _, text := range want {
			if !strings.Contains(said, text) {
				t.Errorf("it does not say %q", text)
			}
		}
	}
	if !strings.Contains(line, " --follow ") {
		return
	}
	next := upgradetest.RootHash(nodetest.Document(t, "next"))
	for _, name := range []string{"control-plane-1", "worker-1", "worker-2"} {
		p.live.Change(name, func(m *upgradetest.Machine) {
			if m.Release() != next || !m.Committed() || m.Boots != 2 {
				t.Errorf("%s runs %s in its boot %d", name, m.Release(), m.Boots)
			}
		})
	}
}

// The verbs, where things are not as they should be.
func TestUpgradeOfARealAPI(t *testing.T) {
	s := newAPISite(t)
	present, next := nodetest.Document(t, "image"), nodetest.Document(t, "next")
	for name, document := range map[string]measurements.Document{"image.json": present, "next.json": next} {
		encoded, err := document.Encode()
		if err != nil {
			t.Fatal(err)
		}
		s.write(t, name, encoded)
	}
	release := s.path("next.json") + " --from https://releases.example.com/next"
	s.run(t, exitFailed, "upgrade status", "never upgraded")
	s.run(t, exitDenied, "upgrade pause", "no upgrade is under way")
	s.run(t, exitUsage, "upgrade plan", "documents of a release, or --restart")
	s.run(t, exitUsage, "upgrade plan "+s.path("next.json"), "sources")
	s.run(t, exitUsage, "upgrade plan --restart x --pool a", "NAME=NUMBER")
	s.run(t, exitUsage, "upgrade plan "+release+" "+s.path("image.json"), "several images")
	s.run(t, 0, "policy add document "+s.path("image.json"))
	s.run(t, 0, "policy push")
	config, err := s.env.Config("testenv", "system:masters")
	if err != nil {
		t.Fatal(err)
	}
	live, err := upgradetest.NewLive(config)
	if err != nil {
		t.Fatal(err)
	}
	releases := map[hullmark.DocumentID]hullmark.RootHash{upgradetest.ID(present): upgradetest.RootHash(present), upgradetest.ID(next): upgradetest.RootHash(next)}
	for _, name := range []string{"worker-1", "worker-2"} {
		if err := live.Add(t.Context(), upgradetest.NewMachine(name, hullmark.Worker, upgradetest.ID(present), releases), "192.0.2.8"); err != nil {
			t.Fatal(err)
		}
	}
	output := s.run(t, exitDenied, "upgrade plan "+release+" -o json")
	var plan upgrade.Plan
	if err := json.NewDecoder(strings.NewReader(output)).Decode(&plan); err != nil || len(plan.Against) == 0 || plan.Against[0].Code != "document-not-accepted" || len(plan.Steps) != 2 {
		t.Errorf("%v: %s", err, output)
	}
	s.run(t, exitDenied, "upgrade apply "+release, "against it: document-not-accepted", "policy add document")
	s.run(t, exitFailed, "upgrade status", "never upgraded")
	s.run(t, 0, "policy add document "+s.path("next.json"))
	s.run(t, 0, "policy push")
	s.run(t, 0, "upgrade plan "+release+" --except worker-2 --pool a=2", "worker-1")
	s.run(t, 0, "upgrade apply "+release, "is begun by the cluster")
	s.run(t, 0, "upgrade status", "no control plane has begun with it yet")
	s.run(t, exitDenied, "upgrade apply "+release, "upgrade-under-way", "hullmark upgrade abort")
	s.run(t, 0, "upgrade pause")
	s.run(t, 0, "upgrade resume")
	s.run(t, 0, "upgrade abort", "none stays cordoned")
	status := s.run(t, 0, "upgrade status -o json")
	var shown struct{ Request upgrade.Request }
	if err := json.Unmarshal([]byte(status), &shown); err != nil || !shown.Request.Aborted {
		t.Errorf("%v: %s", err, status)
	}
	if err := s.env.StopAPI(); err != nil {
		t.Fatal(err)
	}
	for _, verb := range []string{"upgrade plan " + release, "upgrade apply " + release, "upgrade status", "upgrade abort"} {
		s.run(t, exitUnreachable, verb+" --wait 1s", "api-unreachable")
	}
	if err := s.env.StartAPI(t.Context()); err != nil {
		t.Fatal(err)
	}
}
