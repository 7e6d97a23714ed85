package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hullmark/hullmark"
)

func TestReadyWantsAnotherBootOfTheSameNode(t *testing.T) {
	n := node{name: "worker-1"}
	for _, step := range []struct {
		answer    string
		ready, ok bool
	}{
		{"", false, true},
		{"uid-a boot-1", false, true},
		{"uid-a boot-1 False", false, true},
		{"uid-a boot-1 True", true, true},
		{"uid-a boot-1 True", false, true}, // what is left of the boot before
		{"uid-a boot-2 Unknown", false, true},
		{"uid-a boot-2 True", true, true},
		{"uid-b boot-3 True", false, false},
	} {
		if ready, err := n.ready(step.answer); ready != step.ready || (err == nil) != step.ok {
			t.Errorf("%q: %v, %v", step.answer, ready, err)
		}
	}
}

// planned is a demo with workers whose folder exists.
func planned(t *testing.T, workers uint) *demo {
	t.Helper()
	d := &demo{out: t.TempDir(), state: t.TempDir()}
	d.plan(workers)
	return d
}

func TestEachNodeHasItsOwnAddress(t *testing.T) {
	d := planned(t, 2)
	basic := fmt.Sprintf(`{"version":1,"clusterRoot":"%064x","stateDisk":{"serial":"hullmark-state"}}`, 7)
	if err := os.WriteFile(d.path("node.json"), []byte(basic), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := d.nodeConfigs(); err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string]string{"node.json": "10.0.2.21/24 []", "worker-1.node.json": "10.0.2.22/24 [10.0.2.21:7444]", "worker-2.node.json": "10.0.2.23/24 [10.0.2.21:7444]"} {
		text, err := os.ReadFile(d.path(file))
		if err != nil {
			t.Fatal(err)
		}
		c, err := hullmark.ParseNodeConfig(text)
		if err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprint(c.Addresses[0], " ", c.Endpoints); got != want || c.Gateway != router || c.StateDisk.Serial == "" {
			t.Errorf("%s: %s, want %s", file, got, want)
		}
	}
}

// kubectl puts a script in kubectl's place.
func kubectl(t *testing.T, d *demo, script string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(d.out, "kubectl"), []byte("#!/bin/sh\n"+script), 0o700); err != nil {
		t.Fatal(err)
	}
}

func TestUntilSaysWhatItGotLast(t *testing.T) {
	d := planned(t, 1)
	kubectl(t, d, "echo half; echo refused >&2; exit 1")
	ctx, cancel := context.WithCancelCause(t.Context())
	asked := 0
	err := d.until(ctx, func(string) (bool, error) {
		asked++
		cancel(errors.New("time is up"))
		return true, nil // a failed question has no right answer
	}, "get")
	if err == nil || asked != 1 {
		t.Fatalf("asked %d times: %v", asked, err)
	}
	for _, want := range []string{"time is up", `"half"`, "refused"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%v: no %s", err, want)
		}
	}
	kubectl(t, d, "echo OK")
	if err := d.until(t.Context(), func(answer string) (bool, error) { return answer == "OK", nil }, "get"); err != nil {
		t.Error(err)
	}
}

func TestAWaitEndsWithItsMachine(t *testing.T) {
	d := planned(t, 1)
	log, err := os.Create(filepath.Join(t.TempDir(), "worker.log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	d.workers[0].running = &process{done: make(chan struct{}), log: log}
	ctx, cancel := d.attended(t.Context())
	defer cancel()
	if ctx.Err() != nil {
		t.Fatal(context.Cause(ctx))
	}
	close(d.workers[0].running.done)
	select {
	case <-ctx.Done():
	case <-time.After(time.Minute):
	}
	if cause := context.Cause(ctx); cause == nil || !strings.Contains(cause.Error(), "worker-1's machine ended") {
		t.Error(cause)
	}
}
