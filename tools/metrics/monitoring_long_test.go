//go:build long

package main

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
)

const monitoring = "../../docs/examples/monitoring"

// promtool runs Prometheus' own checker.
func promtool(t *testing.T, args ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "promtool", args...)
	cmd.Dir = monitoring
	out, err := cmd.CombinedOutput()
	if errors.Is(err, exec.ErrNotFound) {
		t.Fatal("promtool is missing: apt-get install prometheus")
	}
	if err != nil {
		t.Errorf("promtool %v: %v\n%s", args, err, out)
	}
}

// TestAlerts has Prometheus' own program read the alerts, and play series for which each is raised, or is not.
func TestAlerts(t *testing.T) {
	promtool(t, "check", "rules", "--lint=all", "--lint-fatal", "alerts.yaml")
	promtool(t, "test", "rules", "alerts_test.yaml")
	broken := filepath.Join(t.TempDir(), "alerts.yaml")
	rules, err := os.ReadFile(filepath.Join(monitoring, "alerts.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(broken, regexp.MustCompile(`== 0\n`).ReplaceAll(rules, []byte("== \n")), 0o600); err != nil {
		t.Fatal(err)
	}
	if exec.CommandContext(t.Context(), "promtool", "check", "rules", broken).Run() == nil {
		t.Error("promtool takes an expression that is none")
	}
	tested, err := os.ReadFile(filepath.Join(monitoring, "alerts_test.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	for _, alert := range regexp.MustCompile(`alert: (\w+)`).FindAllSubmatch(rules, -1) {
		if !regexp.MustCompile(`alertname: ` + string(alert[1]) + `\n`).Match(tested) {
			t.Errorf("no test plays %s", alert[1])
		}
	}
}

// TestDashboard has Grafana's own types read the dashboard, strictly, and wants each query to ask for metrics that exist.
func TestDashboard(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(monitoring, "dashboard.json"))
	if err != nil {
		t.Fatal(err)
	}
	//lint:ignore SA1019 what people import is of this schema; the next one is that of Grafana's API
	var d dashboard.Dashboard
	if err := json.Unmarshal(text, &d); err != nil {
		t.Fatal(err)
	}
	if err := d.Validate(); err != nil {
		t.Error(err)
	}
	if len(d.Panels) < 10 {
		t.Errorf("%d panels", len(d.Panels))
	}
	known := map[string]bool{}
	for _, file := range []string{"node.go", "../joinservice/metrics.go"} {
		source, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range regexp.MustCompile(`(?:describe\("|Name: "hullmark_)([a-z_]+)"`).FindAllSubmatch(source, -1) {
			known["hullmark_"+string(name[1])] = true
		}
	}
	if len(known) < 15 {
		t.Fatalf("%d metrics were found in the sources", len(known))
	}
	rules, err := os.ReadFile(filepath.Join(monitoring, "alerts.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range regexp.MustCompile(`hullmark_[a-z_]+`).FindAllString(string(text)+string(rules), -1) {
		if !known[name] {
			t.Errorf("%s is no metric of a node or a join service", name)
		}
	}
}
