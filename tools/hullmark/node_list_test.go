package main

import (
	"bytes"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/cluster/operate"
	"github.com/hullmark/hullmark/joinservice"
)

// TestNodeListColumns holds each value to its column: of a machine that has all of them, and of one that has none.
func TestNodeListColumns(t *testing.T) {
	now := time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)
	var out bytes.Buffer
	err := writeNodes(&out, []operate.Machine{{
		Machine: joinservice.Machine{
			Name: "worker-1", Role: hullmark.Worker, State: joinservice.MachineReady, Seen: now.Add(-time.Minute), Phase: "READY",
			Platform: hullmark.PlatformClaims{Trust: hullmark.TrustTPM}, Kubernetes: hullmark.Version{Major: 1, Minor: 36, Patch: 3},
			Update: &hullmark.UpdateStatus{Running: "b", Default: "b", Phase: hullmark.UpdateIdle}, Record: joinservice.Record{Disk: hullmark.UUID{7}, Committed: 3, Issued: 4},
			CertificateEnds: time.Date(2026, 11, 24, 13, 5, 59, 0, time.FixedZone("", 3600)),
		}, Image: "node 1", Release: "spring",
	}, {Machine: joinservice.Machine{Name: "plane"}}}, now)
	if err != nil {
		t.Fatal(err)
	}
	want := [][]string{
		{"name", "role", "state", "trust", "image", "release", "kubernetes", "slot", "disk", "epoch", "certificate", "seen", "condition"},
		{"worker-1", "worker", "ready", string(hullmark.TrustTPM), "node 1", "spring", "v1.36.3", "b", hullmark.UUID{7}.String(), "3..4", "2026-11-24T12:05Z", "1m0s ago", "READY"},
		{"plane", "", "", "", "-", "-", "unknown", "-", "-", "-", "-", "never", ""},
	}
	lines := bytes.Split(bytes.TrimSuffix(out.Bytes(), []byte("\n")), []byte("\n"))
	if len(lines) != len(want) {
		t.Fatalf("%d lines:\n%s", len(lines), out.Bytes())
	}
	var at []int // where the columns begin
	for _, match := range regexp.MustCompile(`\S+`).FindAllIndex(lines[0], -1) {
		at = append(at, match[0])
	}
	for i, line := range lines {
		var got []string
		for column := range at {
			end := len(line)
			if column+1 < len(at) {
				end = min(end, at[column+1])
			}
			got = append(got, string(bytes.TrimSpace(line[min(at[column], end):end])))
		}
		if !slices.Equal(got, want[i]) {
			t.Errorf("%q, want %q", got, want[i])
		}
	}
}
