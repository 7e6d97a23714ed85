//go:build long

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/grafana/grafana-foundation-sdk/go/cog"
	"github.com/grafana/grafana-foundation-sdk/go/cog/variants"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
	query "github.com/grafana/grafana-foundation-sdk/go/prometheus"
	"github.com/grafana/grafana-foundation-sdk/go/stat"
	"github.com/grafana/grafana-foundation-sdk/go/table"
	"github.com/grafana/grafana-foundation-sdk/go/timeseries"
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

// misread says what Grafana's own types do not know of a dashboard, miss in it, or would take for something else.
func misread(text []byte) error {
	runtime := cog.NewRuntime()
	runtime.RegisterDataqueryVariant(query.VariantConfig())
	for _, panel := range []variants.PanelcfgConfig{stat.VariantConfig(), table.VariantConfig(), timeseries.VariantConfig()} {
		runtime.RegisterPanelcfgVariant(panel)
	}
	//lint:ignore SA1019 what people import is of this schema; the next one is that of Grafana's API
	var d dashboard.Dashboard
	all := []error{listed(d.UnmarshalJSONStrict(text))}
	// What a panel says of its fields is not read strictly there.
	var raw struct {
		Panels []struct {
			FieldConfig json.RawMessage `json:"fieldConfig"`
		} `json:"panels"`
	}
	all = append(all, json.Unmarshal(text, &raw))
	for _, panel := range raw.Panels {
		var fields dashboard.FieldConfigSource
		all = append(all, listed(fields.UnmarshalJSONStrict(panel.FieldConfig)))
	}
	return errors.Join(all...)
}

// listed is a list of errors, or nil if nothing is in it: the types return one in any case.
func listed(err error) error {
	var all cog.BuildErrors
	if errors.As(err, &all) && len(all) == 0 {
		return nil
	}
	return err
}

// shown is a query of the dashboard.
type shown struct{ panel, expr, legend string }

// queries reads the dashboard as Grafana does, and returns its queries.
func queries(t *testing.T, text []byte) (all []shown) {
	t.Helper()
	//lint:ignore SA1019 as above
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
	for i, each := range d.Panels {
		panel := each.Panel
		if panel == nil || len(panel.Targets) == 0 {
			t.Fatalf("panel %d shows nothing", i)
		}
		if _, ok := cog.ConfigForPanelcfgVariant(panel.Type); !ok {
			t.Errorf("panel %d: the options of a %s are read by nobody: register its type above", i, panel.Type)
		}
		for _, target := range panel.Targets {
			asks, ok := target.(*query.Dataquery)
			if !ok {
				t.Fatalf("panel %d asks by a %T, not for Prometheus", i, target)
			}
			legend := ""
			if asks.LegendFormat != nil {
				legend = *asks.LegendFormat
			}
			all = append(all, shown{fmt.Sprint(i), asks.Expr, legend})
		}
	}
	return all
}

// rulesFile writes expressions as rules, for promtool to parse: YAML takes JSON.
func rulesFile(t *testing.T, exprs ...string) string {
	t.Helper()
	type rule struct {
		Record string `json:"record"`
		Expr   string `json:"expr"`
	}
	type group struct {
		Name  string `json:"name"`
		Rules []rule `json:"rules"`
	}
	g := group{Name: "dashboard"}
	for i, expr := range exprs {
		g.Rules = append(g.Rules, rule{fmt.Sprintf("dashboard:%d", i), expr})
	}
	text, err := json.Marshal(map[string][]group{"groups": {g}})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "rules.yaml")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

var (
	// defined are the metrics of a node, and of a join service, with their labels, as their sources define them.
	defined = regexp.MustCompile(`describe\("([a-z_]+)", "[^"]*"((?:, "[a-z_]+")*)\)|Name:\s+"hullmark_([a-z_]+)",\s+Help:\s+"[^"]*",?\s*\}(?:, \[\]string\{([^}]*)\})?`)
	metric  = regexp.MustCompile(`hullmark_[a-z_]+`)
	// kept are the labels that an aggregation keeps, selected those that a selector goes by, and named those that a legend shows.
	kept     = regexp.MustCompile(`\bby \(([^)]*)\) \(`)
	selected = regexp.MustCompile(`(hullmark_[a-z_]+)\{([^}]*)\}`)
	named    = regexp.MustCompile(`\{\{ *([a-z_]+) *\}\}`)
	label    = regexp.MustCompile(`([a-z_]+) *(?:=~|!~|!=|=)`)
)

// metricLabels reads which labels each metric has.
func metricLabels(t *testing.T) map[string][]string {
	t.Helper()
	known := map[string][]string{}
	for _, file := range []string{"node.go", "../joinservice/metrics.go"} {
		source, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range defined.FindAllStringSubmatch(string(source), -1) {
			known["hullmark_"+m[1]+m[3]] = regexp.MustCompile(`[a-z_]+`).FindAllString(m[2]+m[4], -1)
		}
	}
	if len(known) < 15 || !slices.Equal(known["hullmark_node_condition"], []string{"code", "step"}) || !slices.Equal(known["hullmark_exchanges_total"], []string{"outcome"}) {
		t.Fatalf("the sources define %v", known)
	}
	return known
}

// operand is what stands in the parentheses that were opened before a text.
func operand(text string) string {
	open := 1
	for i, c := range text {
		switch c {
		case '(':
			open++
		case ')':
			if open--; open == 0 {
				return text[:i]
			}
		}
	}
	return text
}

// unknown lists what expressions ask for that there is not: metrics, and labels of theirs.
func unknown(known map[string][]string, text string) (faults []string) {
	want := func(metric, label string) {
		if label != "instance" && label != "job" && !slices.Contains(known[metric], label) { // Prometheus adds these two.
			faults = append(faults, metric+" has no label "+label)
		}
	}
	for _, name := range metric.FindAllString(text, -1) {
		if _, ok := known[name]; !ok {
			faults = append(faults, name+" is no metric of a node or a join service")
		}
	}
	for _, m := range kept.FindAllStringSubmatchIndex(text, -1) {
		for _, name := range metric.FindAllString(operand(text[m[1]:]), -1) {
			for each := range strings.SplitSeq(text[m[2]:m[3]], ",") {
				want(name, strings.TrimSpace(each))
			}
		}
	}
	for _, m := range selected.FindAllStringSubmatch(text, -1) {
		for _, each := range label.FindAllStringSubmatch(m[2], -1) {
			want(m[1], each[1])
		}
	}
	return faults
}

// TestDashboard has Grafana's own types read the dashboard, strictly, Prometheus' own program its queries, and wants each to ask for
// metrics, and labels of theirs, that exist.
func TestDashboard(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(monitoring, "dashboard.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := misread(text); err != nil {
		t.Error(err)
	}
	for right, wrong := range map[string]string{
		`"title": "Hullmark"`: `"titel": "Hullmark"`, `"gridPos"`: `"gridpos"`, `"legendFormat"`: `"legend"`, `"reduceOptions"`: `"reducedOptions"`, `"thresholds"`: `"treshold"`,
		`"showHeader": true`: `"showHeader": "true"`, `"schemaVersion"`: `"schema"`, `"list": []`: `"lists": []`, `"tooltip"`: `"tooltips"`,
	} {
		changed := bytes.Replace(text, []byte(right), []byte(wrong), 1)
		if bytes.Equal(changed, text) || misread(changed) == nil {
			t.Errorf("%s in the place of %s is read", wrong, right)
		}
	}
	known := metricLabels(t)
	var exprs []string
	for _, q := range queries(t, text) {
		exprs = append(exprs, q.expr)
		labels := []string{"instance", "job"}
		for _, name := range metric.FindAllString(q.expr, -1) {
			labels = append(labels, known[name]...)
		}
		for _, m := range named.FindAllStringSubmatch(q.legend, -1) {
			if !slices.Contains(labels, m[1]) {
				t.Errorf("panel %s: the legend shows %s, which no metric of %s has", q.panel, m[1], q.expr)
			}
		}
	}
	promtool(t, "check", "rules", rulesFile(t, exprs...))
	if exec.CommandContext(t.Context(), "promtool", "check", "rules", rulesFile(t, append(exprs, "sum(hullmark_node_ready")...)).Run() == nil {
		t.Error("promtool takes an expression that is none")
	}
	rules, err := os.ReadFile(filepath.Join(monitoring, "alerts.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range append(exprs, string(rules)) {
		for _, fault := range unknown(known, text) {
			t.Error(fault)
		}
	}
	for text, want := range map[string]string{
		`sum by (instance, outcom) (rate(hullmark_exchanges_total[5m])) + hullmark_policy_version`: "hullmark_exchanges_total has no label outcom",
		`sum by (outcome) (hullmark_policy_version)`:                                               "hullmark_policy_version has no label outcome",
		`hullmark_node_update_phase{fase="trial"} == 1`:                                            "hullmark_node_update_phase has no label fase",
		`hullmark_node_redy`: "hullmark_node_redy is no metric of a node or a join service",
	} {
		if got := unknown(known, text); !slices.Equal(got, []string{want}) {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
	}
}
