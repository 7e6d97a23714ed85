//go:build cluster

package e2e

import (
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// readyLine is what the demo says each time that it saw a node Ready in another boot.
var readyLine = regexp.MustCompile(`(?m)^(\S+) is Ready: node uid ([0-9a-f-]{36}), boot ([0-9a-f-]{36})$`)

// podLine is a line of `kubectl get pods -o wide`: name, readiness, state, restarts and age, address, node.
var podLine = regexp.MustCompile(`(?m)^(answer|asker)\S*\s+(\d/\d)\s+(\S+)\s.*\s10\.244\.\d+\.\d+\s+(\S+)\s+<none>`)

// The life of a cluster in two virtual machines. A control plane shows the predicted registers and becomes Ready; a worker
// joins by itself, comes back by itself, and follows its control plane after a power cut: each time as the same node. A pod of
// it is reached through a service from the other node each time. With an empty disk the worker joins anew, as another Node. The
// state disks then show none of the secrets that they hold.
func TestCluster(t *testing.T) {
	b := bench{out: filepath.Join(source(t), "out"), dir: filepath.Join(source(t), "out", "demo-cluster")}
	t.Cleanup(func() { b.keepLogs(t) })
	out := command(t, 0, "make", "demo-cluster")
	table, _, found := strings.Cut(out, "accepted as")
	if !found || strings.Count(table, "  equal") < 15 {
		t.Error("the table does not show every predicted register equal to the measured one")
	}
	boots := map[string]map[string][]string{} // node, uid, boots
	for _, m := range readyLine.FindAllStringSubmatch(out, -1) {
		node, uid, boot := m[1], m[2], m[3]
		if boots[node] == nil {
			boots[node] = map[string][]string{}
		}
		if !slices.Contains(boots[node][uid], boot) {
			boots[node][uid] = append(boots[node][uid], boot)
		}
	}
	for node, want := range map[string][]int{"control-plane-1": {2}, "worker-1": {1, 3}} {
		var ready []int // in how many boots each Node object of this name was Ready
		for _, seen := range boots[node] {
			ready = append(ready, len(seen))
		}
		if slices.Sort(ready); !slices.Equal(ready, want) {
			t.Errorf("the Nodes of %s were Ready in %d boots, want %d: %v", node, ready, want, boots[node])
		}
	}
	b.reached(t, out, 4)
	t.Run("the agent of the worker that joins is small", func(t *testing.T) { checkMemory(t, out) })
	if strings.Contains(out, "  differ") {
		t.Error("a measured register differs from the predicted one")
	}
	for what, want := range map[string]*regexp.Regexp{
		"the records tell of a worker that is Ready": regexp.MustCompile(`(?m)^worker-1 +worker +ready `),
		"a log is read through a kubelet":            regexp.MustCompile(`(?m)^kubectl logs reached the kubelet$`),
		"a program is run through a kubelet":         regexp.MustCompile(`(?m)^kubectl exec reached the kubelet$`),
		"no bootstrap token is left":                 regexp.MustCompile(`(?m)^tokens:$`),
		"the control plane says that it is Ready":    regexp.MustCompile(`"READY"`),
		"the endpoint is not served before a boot":   regexp.MustCompile(`(?m)^control-plane-1 .* does not serve 10\.0\.2\.20 yet`),
		"a boot makes the certificates for it":       regexp.MustCompile(`making the control plane's certificates anew: apiserver\.crt is not for 10\.0\.2\.20`),
		"the worker's kubelet has gone over":         regexp.MustCompile(`(?m)the control plane is reached at 10\.0\.2\.20:6443 by now`),
		"the endpoint is served then":                regexp.MustCompile(`(?m)^control-plane-1 .* serves it `),
	} {
		if !want.MatchString(out) {
			t.Errorf("the demo does not show that %s (%s)", what, want)
		}
	}
	needles := b.secrets(t)
	for _, machine := range []string{"vm", "worker-1"} {
		t.Run("the state disk of "+machine+" shows no secret", func(t *testing.T) { b.searchStateDisk(t, machine, needles) })
	}
}

// reached checks that a pod of the worker answered a pod of the control plane so many times.
func (b bench) reached(t *testing.T, out string, times int) {
	t.Helper()
	if n := strings.Count(out, "\nOK\n"); n != times {
		t.Errorf("the service answered the API server %d times, want %d", n, times)
	}
	where := map[string]string{"answer": "worker-1", "asker": "control-plane-1"}
	seen := map[string]int{}
	for _, m := range podLine.FindAllStringSubmatch(out, -1) {
		if name, ready, state, node := m[1], m[2], m[3], m[4]; ready == "1/1" && state == "Running" && node == where[name] {
			seen[name]++
		}
	}
	if seen["asker"] != times || seen["answer"] < times {
		t.Errorf("Ready on two nodes: %v, want %d of each", seen, times)
	}
}
