//go:build bench

package bench

import (
	"bufio"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/hullmark/hullmark/internal/testenv"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// process is a manager that runs.
type process struct {
	*testenv.Process
	metrics string
}

// memory is what a process has, in bytes.
type memory struct{ peak, resident, anonymous int }

// figures are what one run of a side showed.
type figures struct {
	side
	// total is from the first moment until the last Machine was a Node.
	total time.Duration
	// idle is the memory with no Machine, memory at the end.
	idle, memory memory
	cpu          time.Duration
	// count, mean, median and p99 are the reconciliations of configs, failed those that ended in an error.
	count, failed     int
	mean, median, p99 time.Duration
	// made are the times from a config's making until its Secret's, handled those from core's last write of it before that, and
	// since those from the first moment.
	made, handled, since []time.Duration
	// management and workload are the calls of either cluster's API.
	management, workload calls
}

// calls are how often a verb was used with a resource.
type calls map[string]int

func (c calls) sum() (n int) {
	for _, each := range c {
		n += each
	}
	return n
}

// memory reads what the kernel counts of the process (proc_pid_status(5)).
func (p process) memory(b *testing.B) memory {
	b.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.PID()))
	must(b, err)
	kib := func(field string) int {
		_, rest, ok := strings.Cut(string(text), "\n"+field+":")
		number, _, _ := strings.Cut(strings.TrimSpace(rest), " ")
		n, err := strconv.Atoi(number)
		if !ok || err != nil {
			b.Fatalf("/proc/PID/status: no %s: %v", field, err)
		}
		return n << 10
	}
	return memory{peak: kib("VmHWM"), resident: kib("VmRSS"), anonymous: kib("RssAnon")}
}

func (p process) cpu(b *testing.B) time.Duration {
	b.Helper()
	d, err := p.CPU()
	must(b, err)
	return d
}

// local asks programs of this machine, whose certificates are their own.
var local = &http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}} // #nosec G402

func healthy(ctx context.Context, url string) error {
	answer, err := get(ctx, url, "")
	if err != nil {
		return err
	}
	return answer.Body.Close()
}

// get asks for a page; the answer's body is the caller's to close.
func get(ctx context.Context, url, token string) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	answer, err := local.Do(request)
	if err == nil && answer.StatusCode != http.StatusOK {
		return nil, errors.Join(fmt.Errorf("%s: %s", url, answer.Status), answer.Body.Close())
	}
	return answer, err
}

// reconciles reads what the provider counted itself, as an account that may.
func (p process) reconciles(ctx context.Context, r *rig, f *figures) error {
	token, err := r.reader(ctx)
	if err != nil {
		return err
	}
	answer, err := get(ctx, p.metrics, token)
	if err != nil {
		return err
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(answer.Body)
	if err := errors.Join(err, answer.Body.Close()); err != nil {
		return err
	}
	m := of(families, f.histogram, f.controller)
	if m == nil || m.GetHistogram().GetSampleCount() == 0 {
		return fmt.Errorf("metrics: no controller %s reconciled", f.controller)
	}
	h := m.GetHistogram()
	f.count, f.mean = int(h.GetSampleCount()), seconds(h.GetSampleSum()/float64(h.GetSampleCount()))
	f.median, f.p99 = quantile(h, 0.5), quantile(h, 0.99)
	if m := of(families, "controller_runtime_reconcile_errors_total", f.controller); m != nil {
		f.failed = int(m.GetCounter().GetValue())
	}
	return nil
}

// of finds a controller's metric.
func of(all map[string]*dto.MetricFamily, name, controller string) *dto.Metric {
	for _, m := range all[name].GetMetric() {
		if slices.ContainsFunc(m.GetLabel(), func(l *dto.LabelPair) bool { return l.GetName() == "controller" && l.GetValue() == controller }) {
			return m
		}
	}
	return nil
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// quantile is where a share of the samples lies below, if those of a bucket are spread evenly.
func quantile(h *dto.Histogram, share float64) time.Duration {
	want := share * float64(h.GetSampleCount())
	var below, from float64
	for _, b := range h.GetBucket() {
		n, to := float64(b.GetCumulativeCount()), b.GetUpperBound()
		if n >= want && !math.IsInf(to, 1) {
			return seconds(from + (to-from)*(want-below)/(n-below))
		}
		below, from = n, to
	}
	return seconds(from)
}

// reader returns the token of an account that may read metrics.
func (r *rig) reader(ctx context.Context) (string, error) {
	name := metav1.ObjectMeta{Name: "read-metrics"}
	subject := rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: name.Name}
	if err := r.create(
		ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name.Name}},
		&rbacv1.ClusterRole{ObjectMeta: name, Rules: []rbacv1.PolicyRule{{NonResourceURLs: []string{"/metrics"}, Verbs: []string{"get"}}}},
		&rbacv1.ClusterRoleBinding{ObjectMeta: name, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name.Name}, Subjects: []rbacv1.Subject{subject}},
	); err != nil {
		return "", err
	}
	all, err := kubernetes.NewForConfig(r.config)
	if err != nil {
		return "", err
	}
	t, err := all.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, name.Name, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		return "", err
	}
	return t.Status.Token, nil
}

// event is a line of the API server's audit log.
type event struct {
	Stage, Verb, UserAgent string
	User                   struct{ Username string }
	ObjectRef              struct{ Resource, Subresource, Namespace, Name string }
	ResponseStatus         struct{ Code int }
	StageTimestamp         time.Time
}

// readAudit counts the provider's calls between two moments, and finds when configs and Secrets were made.
func (r *rig) readAudit(f *figures, begin, end time.Time) error {
	file, err := os.Open(r.file("audit.log"))
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	f.management, f.workload = calls{}, calls{}
	born, written, secret := map[string]time.Time{}, map[string]time.Time{}, map[string]time.Time{}
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var e event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			return fmt.Errorf("audit log: %w", err)
		}
		if e.Stage == "ResponseComplete" == (e.Verb == "watch") {
			continue // a watch counts when it begins
		}
		f.count1(e, begin, end)
		name, at := e.ObjectRef.Name, e.StageTimestamp
		switch {
		case e.ObjectRef.Namespace != namespace || e.ObjectRef.Subresource != "" || e.ResponseStatus.Code/100 != 2 || e.Verb == "get":
		case e.ObjectRef.Resource == "secrets" && e.Verb == "create" && e.User.Username == f.account:
			secret[name] = at
		case e.ObjectRef.Resource == f.resource && e.User.Username == coreUser:
			if _, known := born[name]; !known {
				born[name] = at
			}
			if _, made := secret[name]; !made {
				written[name] = at
			}
		}
	}
	for name, at := range secret {
		if from, known := born[name]; known {
			f.made, f.handled, f.since = append(f.made, at.Sub(from)), append(f.handled, at.Sub(written[name])), append(f.since, at.Sub(begin))
		}
	}
	// Core may make a Machine too many, which it deletes again: there are more then.
	if len(f.made) < *machines {
		return errors.Join(lines.Err(), fmt.Errorf("audit log: %d configs whose Secret was made by %s, want %d", len(f.made), f.account, *machines))
	}
	return lines.Err()
}

// count1 counts one call, if it is the provider's and in time.
func (f *figures) count1(e event, begin, end time.Time) {
	if e.StageTimestamp.Before(begin) || e.StageTimestamp.After(end) {
		return
	}
	what := e.Verb + " " + e.ObjectRef.Resource
	if e.ObjectRef.Subresource != "" {
		what += "/" + e.ObjectRef.Subresource
	}
	switch {
	case e.User.Username == f.account:
		f.management[what]++
	case e.User.Username == workloadUser && strings.HasPrefix(e.UserAgent, f.agent):
		f.workload[what]++
	}
}

// calls returns each kind of call, the most frequent first.
func (f figures) listing() string {
	var s strings.Builder
	for _, c := range []struct {
		of    string
		calls calls
	}{{"management", f.management}, {"workload", f.workload}} {
		var whats []string
		for what := range c.calls {
			whats = append(whats, what)
		}
		slices.SortFunc(whats, func(a, b string) int { return cmp.Or(c.calls[b]-c.calls[a], strings.Compare(a, b)) })
		for _, what := range whats {
			fmt.Fprintf(&s, "%s\t%s\t%s\t%d\t\n", f.name, c.of, what, c.calls[what])
		}
	}
	return s.String()
}

// row is a figure of a run, and how it is written.
type row struct {
	what  string
	of    func(figures) float64
	write func(float64) string
}

func ms(v float64) string     { return fmt.Sprintf("%.1f ms", v*1000) }
func whole(v float64) string  { return fmt.Sprintf("%.1f s", v) }
func mib(v float64) string    { return fmt.Sprintf("%.0f MiB", v/(1<<20)) }
func number(v float64) string { return fmt.Sprintf("%.2f", v) }

// share is where a share of the times lies below.
func share(times []time.Duration, part float64) float64 {
	sorted := slices.Sorted(slices.Values(times))
	return sorted[min(len(sorted)-1, int(part*float64(len(sorted))))].Seconds()
}

func rows(wait bool) []row {
	per := func(n int) float64 { return float64(n) / float64(*machines) }
	all := []row{
		{"until the last Secret", func(f figures) float64 { return share(f.since, 1) }, whole},
		{"until the last Machine is a Node", func(f figures) float64 { return f.total.Seconds() }, whole},
	}
	if wait {
		all = append(all, row{"until a Secret: median", func(f figures) float64 { return share(f.since, 0.5) }, whole})
	} else {
		all = append(all,
			row{"from config to Secret: median", func(f figures) float64 { return share(f.made, 0.5) }, ms},
			row{"from config to Secret: p99", func(f figures) float64 { return share(f.made, 0.99) }, ms},
			row{"from core's last write of the config to Secret: median", func(f figures) float64 { return share(f.handled, 0.5) }, ms},
			row{"from core's last write of the config to Secret: p99", func(f figures) float64 { return share(f.handled, 0.99) }, ms})
	}
	return append(
		all,
		row{"a reconciliation: mean", func(f figures) float64 { return f.mean.Seconds() }, ms},
		row{"a reconciliation: median", func(f figures) float64 { return f.median.Seconds() }, ms},
		row{"a reconciliation: p99", func(f figures) float64 { return f.p99.Seconds() }, ms},
		row{"reconciliations a Machine", func(f figures) float64 { return per(f.count) }, number},
		row{"reconciliations that failed", func(f figures) float64 { return float64(f.failed) }, number},
		row{"API calls a Machine", func(f figures) float64 { return per(f.management.sum() + f.workload.sum()) }, number},
		row{"of these, to the workload cluster", func(f figures) float64 { return per(f.workload.sum()) }, number},
		row{"processor time a Machine", func(f figures) float64 { return f.cpu.Seconds() / float64(*machines) }, ms},
		row{"memory, peak resident", func(f figures) float64 { return float64(f.memory.peak) }, mib},
		row{"memory at the end, resident", func(f figures) float64 { return float64(f.memory.resident) }, mib},
		row{"memory at the end, anonymous", func(f figures) float64 { return float64(f.memory.anonymous) }, mib},
		row{"memory with no Machine, resident", func(f figures) float64 { return float64(f.idle.resident) }, mib},
	)
}

// table shows the sides beside each other: the median of the rounds, each round if there are several, and how often the first side's
// figure goes into the other's.
func table(sides []side, seen map[string][]figures, wait bool) string {
	var s strings.Builder
	t := tabwriter.NewWriter(&s, 0, 0, 2, ' ', 0)
	how := map[bool]string{false: "as they are made", true: "all at once, when the control plane is initialized"}[wait]
	fmt.Fprintf(t, "\n%d Machines, %s; %d rounds; on each side %d workers and no limit of calls\n", *machines, how, *rounds, *concurrency)
	for i, one := range sides {
		fmt.Fprint(t, map[bool]string{true: "what"}[i == 0], "\t", one.name)
		if i > 0 {
			fmt.Fprint(t, "\tratio")
		}
	}
	fmt.Fprint(t, "\t\n")
	for _, r := range rows(wait) {
		fmt.Fprint(t, r.what)
		var first float64
		for i, one := range sides {
			var values []float64
			for _, f := range seen[one.name] {
				values = append(values, r.of(f))
			}
			middle := slices.Sorted(slices.Values(values))[len(values)/2]
			fmt.Fprint(t, "\t", r.write(middle))
			if len(values) > 1 {
				for j, v := range values {
					fmt.Fprint(t, map[bool]string{true: " (", false: ", "}[j == 0], r.write(v))
				}
				fmt.Fprint(t, ")")
			}
			switch {
			case i == 0:
				first = middle
			case first == 0:
				fmt.Fprint(t, "\t-")
			default:
				fmt.Fprintf(t, "\t%.2f", middle/first)
			}
		}
		fmt.Fprint(t, "\t\n")
	}
	_ = t.Flush() // It is a string.
	return s.String()
}
