//go:build long

package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/internal/testenv"
	"github.com/hullmark/hullmark/internal/upgradetest"
	"github.com/hullmark/hullmark/joinservice/registry"
	"github.com/hullmark/hullmark/upgrade"
	"github.com/hullmark/hullmark/upgrade/kube"
)

// TestEngineWithTheServicesCertificate runs the engine's program with what a join service hands over, and has it restart a worker.
func TestEngineWithTheServicesCertificate(t *testing.T) {
	api, err := testenv.Start(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	config, admin := administer(t, api)
	s, handed := siteOf(t, api.Cluster), t.TempDir()
	o, _ := s.startWith(t, options{api: "https://" + api.Address, upgrade: handed})
	s.push(t, admin, o)
	s.write(t, upgradeFile, mustRead(t, filepath.Join(handed, upgradeFile))) // as systemd does
	program := filepath.Join(t.TempDir(), "upgrade")
	if out, err := exec.Command("go", "build", "-o", program, "../upgrade").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	var journal bytes.Buffer
	engine := exec.CommandContext(t.Context(), program, "-api", "https://"+api.Address)
	engine.Env, engine.Stderr = append(os.Environ(), "CREDENTIALS_DIRECTORY="+s.credentials), &journal
	engine.Cancel = func() error { return engine.Process.Signal(os.Interrupt) }
	if err := engine.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- engine.Wait() }()

	live, err := upgradetest.NewLive(config)
	if err != nil {
		t.Fatal(err)
	}
	worker := upgradetest.NewMachine("worker-1", hullmark.Worker, s.policy.Documents[0].Document, nil)
	if err := live.Add(t.Context(), worker, "192.0.2.8"); err != nil {
		t.Fatal(err)
	}
	go live.Run(t.Context())
	operator, err := kube.New(config)
	if err != nil {
		t.Fatal(err)
	}
	spec := upgrade.Spec{ID: "0123456789abcdef", Action: hullmark.UpdateRestart, Reason: "a test", Staging: 1, Unavailable: 1, Timeouts: upgrade.DefaultTimeouts()}
	if err := operator.StoreRequest(t.Context(), upgrade.Request{Schema: upgrade.Schema, Spec: spec}, ""); err != nil {
		t.Fatal(err)
	}
	var state upgrade.State
	for end := time.Now().Add(3 * time.Minute); !state.Phase.Over(); time.Sleep(500 * time.Millisecond) {
		if state, _, err = operator.State(t.Context()); err != nil || time.Now().After(end) {
			t.Fatalf("%v; the state is %+v; the engine says %s", err, state, &journal)
		}
	}
	if state.Phase != upgrade.Done || len(state.Nodes) != 1 || state.Nodes[0].Phase != upgrade.NodeDone || worker.Boots != 2 {
		t.Errorf("it ended as %+v", state)
	}
	// It gives its Lease up when it ends, and ends well.
	if err := engine.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Errorf("it ended with %v: %s", err, &journal)
	}
	upgrades, err := registry.NewUpgrades(config)
	if err != nil {
		t.Fatal(err)
	}
	if holder, term, _, err := upgrades.Holder(t.Context()); holder != "" || term != 1 || err != nil {
		t.Errorf("the Lease is held by %q in term %d, %v", holder, term, err)
	}
	t.Log(journal.String())
}
