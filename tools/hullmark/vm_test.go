package main

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/hullmark/hullmark/pcrs/machine"
)

func TestParseSize(t *testing.T) {
	for text, want := range map[string]int64{"0": 0, "512": 512, "3K": 3 << 10, "20M": 20 << 20, "10G": 10 << 30, "1T": 1 << 40} {
		if got, err := machine.ParseSize(text); got != want || err != nil {
			t.Errorf("%s: %d, %v", text, got, err)
		}
	}
	for _, bad := range []string{"G", "-1", "1.5G", "10g", "10GB", "99999999T"} {
		if _, err := machine.ParseSize(bad); err == nil {
			t.Errorf("%q was accepted", bad)
		}
	}
}

func TestVMOptions(t *testing.T) {
	dir := t.TempDir()
	nodeConfig := filepath.Join(dir, "node.json")
	valid := fmt.Sprintf(`{"version":1,"clusterRoot":"%064x","stateDisk":{"serial":"hullmark-state"}}`, 7)
	if err := os.WriteFile(nodeConfig, []byte(valid), 0o600); err != nil {
		t.Fatal(err)
	}
	o := vmOptions{tpm: "tis", accel: "tcg", forwards: []string{"0:7443"}, nodeConfig: nodeConfig}
	o.config.CPUs, o.config.MemoryMiB = 2, 3072
	c, err := o.resolve(filepath.Join(dir, "node.raw"))
	if err != nil {
		t.Fatal(err)
	}
	if c.Dir != filepath.Join(dir, "node.vm") || c.TPM != machine.TIS || c.Forwards[0].Guest != 7443 || string(c.NodeConfig) != valid || c.StateDisk != machine.DefaultStateDisk {
		t.Errorf("%+v", c)
	}
}

func TestExistingStateDiskKeepsItsSize(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "state.raw"), make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	if size, err := stateDiskSize("", dir); size != 1<<20 || err != nil {
		t.Errorf("%d, %v", size, err)
	}
	if size, err := stateDiskSize("0", dir); size != 0 || err != nil {
		t.Errorf("asked for none: %d, %v", size, err)
	}
}

func TestUsageErrorsHaveTheirExitCode(t *testing.T) {
	nonsense := filepath.Join(t.TempDir(), "node.json")
	if err := os.WriteFile(nonsense, []byte("nonsense"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"cluster", "nosuch"},
		{"node", "nosuch"},
		{"cache", "nosuch"},
		{"eventlog", "nosuch"},
		{"vm", "a", "--config", nonsense},
		{"build", "--profile", "nosuch", "--source", "../.."},
		{"build", "--image-id", "a b"},
		{"build", "--config", "absent"},
		{"build", "-o", "yaml"},
		{"vm"},
		{"vm", "a", "b"},
		{"vm", "a", "--forward", "x"},
		{"vm", "a", "--network", "n", "--forward", "1:2"},
		{"vm", "a", "--forward", "1:10.0.2.21:2"},
		{"vm", "network"},
		{"vm", "network", "n", "--forward", "1:2"},
		{"vm", "a", "--state-disk", "x"},
		{"vm", "a", "--memory", "-5"},
		{"vm", "a", "--tpm", "foo"},
		{"vm", "a", "--accel", "foo"},
		{"vm", "a", "--cpus", "0"},
	} {
		if code := run(args); code != exitUsage {
			t.Errorf("%q: exit %d", args, code)
		}
	}
}
