//go:build long

package load

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/hullmark/hullmark/internal/testenv"
)

// spans are the parts of a join that the table shows, between two notes. What
// the service itself does lies between Hello and Challenge, Proof and Ticket, and Opened and Proceed.
var spans = []struct{ what, from, to string }{
	{"whole join", "begin", "end"},
	{"Hello to Ticket", "Hello", "Ticket"},
	{"Hello to Challenge", "Hello", "Challenge"},
	{"Challenge to Proof (TPM)", "Challenge", "Proof"},
	{"Proof to Ticket", "Proof", "Ticket"},
	{"Opened to Proceed", "Opened", "Proceed"},
	{"request", "kubelet", "request"},
	{"approval", "request", "approved"},
	{"signing", "approved", "certificate"},
	{"Node Ready", "certificate", "ready"},
	{"Progress to end", "Progress", "end"},
}

// used is processor time by program.
type used map[string]time.Duration

// account says how much processor time each program has used so far; the machines, without their TPMs, are this process.
func (s *site) account(t *testing.T) used {
	t.Helper()
	all := used{}
	for _, p := range s.Processes() {
		var err error
		all[p.Name()], err = p.CPU()
		must(t, err)
	}
	for i, r := range s.replicas {
		var err error
		all[fmt.Sprintf("replica %d", i)], err = r.CPU()
		must(t, err)
	}
	all["machines"] = ownTime(t)
	return all
}

// ownTime is the processor time of this process.
func ownTime(t testing.TB) time.Duration {
	t.Helper()
	var own syscall.Rusage
	must(t, syscall.Getrusage(syscall.RUSAGE_SELF, &own))
	return time.Duration(own.Utime.Nano() + own.Stime.Nano())
}

// since says what was used since an earlier account; a program that was started anew has used all of it since.
func (u used) since(before used) string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(u)) {
		spent := u[name] - before[name]
		if spent < 0 {
			spent = u[name]
		}
		parts = append(parts, fmt.Sprintf("%s %.1f s", name, spent.Seconds()))
	}
	return strings.Join(parts, ", ")
}

// report prints how long the parts of all joins took, and what the programs needed for them since an earlier account.
func (s *site) report(t *testing.T, wall time.Duration, before used) {
	t.Helper()
	var out strings.Builder
	table := tabwriter.NewWriter(&out, 0, 0, 2, ' ', tabwriter.AlignRight)
	_, _ = fmt.Fprintf(table, "%d joins in %v\tp50\tp99\tmax\t\n", len(s.machines), wall.Round(time.Millisecond))
	for _, span := range spans {
		var all []time.Duration
		for _, m := range s.machines {
			all = append(all, m.took(span.from, span.to))
		}
		slices.Sort(all)
		_, _ = fmt.Fprintf(table, "%s\t%v\t%v\t%v\t\n", span.what, rank(all, 50), rank(all, 99), rank(all, 100))
	}
	_ = table.Flush()
	_, _ = fmt.Fprintf(&out, "attempts that ended early: %v\n", s.told())
	_, _ = fmt.Fprintf(&out, "processor time: %s\n", s.account(t).since(before))
	for i, r := range s.replicas {
		peak, err := r.Memory(testenv.Peak)
		must(t, err)
		_, _ = fmt.Fprintf(&out, "replica %d: peak memory %d MiB\n", i, peak>>20)
	}
	t.Logf("\n%s", out.String())
}

// rank is the least of sorted times that so many of a hundred do not exceed.
func rank(sorted []time.Duration, percent int) time.Duration {
	return sorted[(len(sorted)*percent+99)/100-1].Round(100 * time.Microsecond)
}

// metric scrapes one metric without labels.
func (r *replica) metric(name string) (string, error) {
	text, err := r.page(context.Background(), "/metrics")
	if err != nil {
		return "", err
	}
	for line := range bytes.Lines(text) {
		if value, ok := bytes.CutPrefix(line, []byte(name+" ")); ok {
			return string(bytes.TrimSpace(value)), nil
		}
	}
	return "", fmt.Errorf("no metric %s", name)
}

func (r *replica) page(ctx context.Context, path string) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+r.Metrics+path, nil)
	if err != nil {
		return nil, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %s", path, response.Status)
	}
	return io.ReadAll(response.Body)
}

// profile writes where a replica spends its processor time from now on to a file of the folder.
func (r *replica) profile(ctx context.Context, folder string, length time.Duration) error {
	content, err := r.page(ctx, fmt.Sprintf("/debug/pprof/profile?seconds=%d", int(length.Seconds())))
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(folder, filepath.Base(r.Dir)+".pprof"), content, 0o600)
}
