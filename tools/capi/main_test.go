package main

import (
	"errors"
	"testing"
	"time"

	"github.com/spf13/pflag"
)

func TestFlags(t *testing.T) {
	common := []string{"--namespace=n", "--watch-filter=blue", "--leader-elect", "--metrics-bind-address=:1", "--health-probe-bind-address=:2", "--sync-period=1m", "--concurrency=3"}
	// The one file is there, the other is not.
	keeper := []string{"--keeper=hashivault://k?address=https://vault.example", "--keeper-secret-file=main.go", "--keeper-ca-file=none", "--sealing-key-secret=key", "--voucher-validity=1h"}
	for _, args := range [][]string{{"bootstrap"}, append([]string{"control-plane"}, keeper...)} {
		s, err := parse(append(args, common...))
		if err != nil || s.role.name != args[0] || s.namespace != "n" || s.watchFilter != "blue" || !s.leaderElect || s.metrics.DiagnosticsAddress != ":1" || s.health != ":2" ||
			s.syncPeriod != time.Minute || s.concurrency != 3 {
			t.Errorf("%q: %+v, %v", args, s, err)
		}
		if s.metrics.InsecureDiagnostics || s.metrics.TLSMinVersion != "VersionTLS13" {
			t.Errorf("%q: metrics %+v", args, s.metrics)
		}
		if want := (controlPlaneSettings{"hashivault://k?address=https://vault.example", "main.go", "", "key", time.Hour}); args[0] == "control-plane" && s.controlPlane != want {
			t.Errorf("%+v, want %+v", s.controlPlane, want)
		}
	}
}

func TestFlagsRefused(t *testing.T) {
	for _, args := range [][]string{
		{},
		{"more"},
		{"--leader-elect"},
		{"bootstrap", "--concurrency=0"},
		{"bootstrap", "more"},
		{"bootstrap", "--insecure-diagnostics"},
		{"bootstrap", "--keeper=local://"},
		{"control-plane", "--sealing-key-secret="},
		{"control-plane", "--voucher-validity=1s"},
	} {
		if _, err := parse(args); err == nil || errors.Is(err, pflag.ErrHelp) {
			t.Errorf("%q: %v", args, err)
		}
	}
	if _, err := parse([]string{"control-plane", "--help"}); !errors.Is(err, pflag.ErrHelp) {
		t.Errorf("--help: %v", err)
	}
}
