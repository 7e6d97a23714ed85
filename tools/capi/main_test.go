package main

import (
	"errors"
	"testing"
	"time"

	"github.com/spf13/pflag"
)

func TestFlags(t *testing.T) {
	s, err := parse([]string{"--namespace=n", "--watch-filter=blue", "--leader-elect", "--metrics-bind-address=:1", "--health-probe-bind-address=:2", "--sync-period=1m", "--concurrency=3"})
	if err != nil || s.namespace != "n" || s.watchFilter != "blue" || !s.leaderElect || s.metrics.DiagnosticsAddress != ":1" || s.health != ":2" ||
		s.syncPeriod != time.Minute || s.concurrency != 3 {
		t.Errorf("%+v, %v", s, err)
	}
	if s.metrics.InsecureDiagnostics || s.metrics.TLSMinVersion != "VersionTLS13" {
		t.Errorf("metrics %+v", s.metrics)
	}
	for _, args := range [][]string{{"--concurrency=0"}, {"more"}, {"--insecure-diagnostics"}} {
		if _, err := parse(args); err == nil || errors.Is(err, pflag.ErrHelp) {
			t.Errorf("%v: %v", args, err)
		}
	}
}
