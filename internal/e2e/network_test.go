//go:build network

package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// networkPods are one pod that answers, behind a service of both families, and two that ask it. Their programs are the verity root's.
const networkPods = `apiVersion: v1
kind: Service
metadata:
  name: answer
spec:
  ipFamilyPolicy: RequireDualStack
  selector: {app: answer}
  ports:
  - {port: 80, targetPort: 8080}
---
` + answerPod + "---\n" + askerPod + "---\n"

const (
	// answerPod answers with its own name, by either family.
	answerPod = `apiVersion: v1
kind: Pod
metadata:
  name: answer
  labels: {app: answer}
spec:
  automountServiceAccountToken: false
  terminationGracePeriodSeconds: 1
  containers:
  - name: answer
    image: localhost/hullmark/node:any
    command: [/usr/bin/socat, -U, "TCP6-LISTEN:8080,fork,reuseaddr,ipv6only=0", "OPEN:/etc/hostname,rdonly"]
    volumeMounts:
    - {name: verity-root, mountPath: /usr, readOnly: true}
  volumes:
  - name: verity-root
    hostPath: {path: /usr, type: Directory}
`
	askerPod = `apiVersion: v1
kind: Pod
metadata:
  name: friend
  labels: {role: friend}
spec:
  automountServiceAccountToken: false
  terminationGracePeriodSeconds: 1
  containers:
  - name: asker
    image: localhost/hullmark/node:any
    command: [/pause]
    volumeMounts:
    - {name: verity-root, mountPath: /usr, readOnly: true}
  volumes:
  - name: verity-root
    hostPath: {path: /usr, type: Directory}
`
	// friendsOnly lets one of the askers through.
	friendsOnly = `apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  name: friends
spec:
  podSelector:
    matchLabels: {app: answer}
  policyTypes: [Ingress]
  ingress:
  - from:
    - podSelector:
        matchLabels: {role: friend}
`
)

// TestNetworkFamiliesAndPolicies boots one machine to a cluster of both families. Its Node, pods and services have addresses of
// both, and answer at each; a NetworkPolicy refuses one pod and lets another through, also while nobody judges; a plan of the
// add-ons finds nothing to change. Then another pod network takes flannel's place, installed as any is.
func TestNetworkFamiliesAndPolicies(t *testing.T) {
	b := newBench(t)
	m := b.boot(t, "machine", b.newCluster(t, "cluster"), nil)
	m.keepJournal(t)
	m.init(t, 0, "cluster", "--workloads", "--pod-subnet", "10.244.0.0/16,fd00:10:244::/56", "--service-subnet", "10.96.0.0/16,fd00:10:96::/112")

	b.wantFamilies(t, "the Node's addresses", "node", "control-plane-1", `{range .status.addresses[?(@.type=="InternalIP")]}{.address} {end}`, "10.0.2.0/24", "::/0")
	b.wantFamilies(t, "the Node's pods", "node", "control-plane-1", `{.spec.podCIDRs[*]}`, "10.244.0.0/16", "fd00:10:244::/56")
	b.apply(t, "pods.yaml", networkPods+strings.ReplaceAll(askerPod, "friend", "stranger"))
	b.kubectl(t, "wait", "--for", "condition=Ready", "pod/answer", "pod/friend", "pod/stranger", "--timeout", "5m")
	pods := b.wantFamilies(t, "the pod's addresses", "pod", "answer", `{.status.podIPs[*].ip}`, "10.244.0.0/16", "fd00:10:244::/56")
	services := b.wantFamilies(t, "the service's addresses", "service", "answer", `{.spec.clusterIPs[*]}`, "10.96.0.0/16", "fd00:10:96::/112")
	var ways []netip.AddrPort
	for i := range 2 {
		ways = append(ways, netip.AddrPortFrom(pods[i], 8080), netip.AddrPortFrom(services[i], 80))
	}
	for _, way := range ways {
		b.reaches(t, "friend", way, true)
		b.reaches(t, "stranger", way, true)
	}

	b.apply(t, "policy.yaml", friendsOnly)
	for _, way := range ways {
		b.reaches(t, "stranger", way, false)
		b.reaches(t, "friend", way, true)
	}
	b.kubectl(t, "-n", "kube-system", "delete", "pod", "--selector", "k8s-app=flannel", "--wait=false")
	for range 5 { // While flannel ends and starts, too, nobody gets through whom the policy refuses.
		b.refused(t, "stranger", ways[0])
	}
	b.kubectl(t, "-n", "kube-system", "rollout", "status", "daemonset/flannel", "--timeout", "5m")
	b.reaches(t, "friend", ways[0], true)
	b.refused(t, "stranger", ways[0])

	plan := cli(t, 0, "addons", "plan", "--cluster", b.path("cluster"), "--passphrase-file", b.path("passphrase"), "--server", m.api)
	if regexp.MustCompile(`(?m)^ +(created|changed|deleted|note) `).MatchString(plan) || strings.Count(plan, "this release's manifests") < 3 {
		t.Error("the plan of a cluster that has just begun changes an object, or notes that policies are not enforced")
	}

	b.kubectl(t, "delete", "networkpolicy", "friends")
	b.kubectl(t, "-n", "kube-system", "delete", "daemonset", "flannel")
	b.kubectl(t, "delete", "pod", "answer", "friend", "stranger")
	b.kubectl(t, "apply", "-f", filepath.Join(source(t), "docs", "examples", "own-cni.yaml"))
	b.kubectl(t, "-n", "kube-system", "rollout", "status", "daemonset/own-cni", "--timeout", "5m")
	b.apply(t, "own.yaml", answerPod+"---\n"+askerPod)
	b.kubectl(t, "wait", "--for", "condition=Ready", "pod/answer", "pod/friend", "--timeout", "5m")
	own := b.addresses(t, "pod", "answer", `{.status.podIPs[*].ip}`)
	if len(own) != 1 || own[0].Compare(netip.MustParseAddr("10.244.0.128")) < 0 || !netip.MustParsePrefix("10.244.0.0/24").Contains(own[0]) {
		t.Fatalf("the pod's addresses are %v, want one of the other pod network's", own)
	}
	b.reaches(t, "friend", netip.AddrPortFrom(own[0], 8080), true)
	b.reaches(t, "friend", netip.AddrPortFrom(services[0], 80), true)
}

// keepJournal reads the machine's journal now and then: it is gone with the machine, and is kept if the test fails.
func (m machine) keepJournal(t *testing.T) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	over := make(chan struct{})
	t.Cleanup(func() { stop(); <-over })
	go func() {
		defer close(over)
		for ctx.Err() == nil {
			text, err := exec.CommandContext(ctx, filepath.Join(source(t), "bin", "hullmark"),
				"node", "logs", "--node", m.agent, "--cluster", m.bench.path("cluster"), "--passphrase-file", m.bench.path("passphrase")).Output()
			if err == nil {
				_ = os.WriteFile(filepath.Join(m.Dir(), "journal.log"), text, 0o600)
			}
			select {
			case <-ctx.Done():
			case <-time.After(time.Minute):
			}
		}
	}()
}

// apply applies a manifest.
func (b bench) apply(t *testing.T, name, manifest string) {
	t.Helper()
	if err := os.WriteFile(b.path(name), []byte(manifest), 0o600); err != nil {
		t.Fatal(err)
	}
	b.kubectl(t, "apply", "-f", b.path(name))
}

// addresses reads the addresses, or those of networks, that an object's field has.
func (b bench) addresses(t *testing.T, kind, name, field string) (all []netip.Addr) {
	t.Helper()
	for _, text := range strings.Fields(b.kubectl(t, "get", kind, name, "-o", "jsonpath="+field)) {
		address, _, _ := strings.Cut(text, "/")
		a, err := netip.ParseAddr(address)
		if err != nil {
			t.Fatalf("%s %s: %v", kind, name, err)
		}
		all = append(all, a)
	}
	return all
}

// wantFamilies fails the test unless an object's field has one address of each of two networks, in their order.
func (b bench) wantFamilies(t *testing.T, what, kind, name, field string, networks ...string) []netip.Addr {
	t.Helper()
	got := b.addresses(t, kind, name, field)
	if !slices.EqualFunc(got, networks, func(a netip.Addr, network string) bool { return netip.MustParsePrefix(network).Contains(a) }) {
		t.Fatalf("%s are %v, want one of each of %v", what, got, networks)
	}
	return got
}

// patience is how long a rule of kube-proxy's, or a policy, may take where the processor is emulated; askTime bounds one question.
const (
	patience = 3 * time.Minute
	askTime  = 20 * time.Second
)

// reaches waits until a pod gets an answer at an address, or none.
func (b bench) reaches(t *testing.T, pod string, at netip.AddrPort, wanted bool) {
	t.Helper()
	for began := time.Now(); ; time.Sleep(2 * time.Second) {
		answered, said := b.ask(t, pod, at)
		if answered == wanted {
			t.Logf("after %v: %s gets an answer of %s: %t", time.Since(began).Round(time.Second), pod, at, wanted)
			return
		}
		if time.Since(began) > patience {
			t.Fatalf("%s gets an answer of %s: %t, want %t: %s", pod, at, answered, wanted, said)
		}
	}
}

// refused fails the test if a pod gets an answer now.
func (b bench) refused(t *testing.T, pod string, at netip.AddrPort) {
	t.Helper()
	if answered, said := b.ask(t, pod, at); answered {
		t.Errorf("%s gets an answer of %s: %s", pod, at, said)
	}
}

// ask runs socat in a pod, which prints what is answered. It is no answer that the question could not be asked.
func (b bench) ask(t *testing.T, pod string, at netip.AddrPort) (answered bool, said string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), askTime+time.Minute)
	defer cancel()
	target := fmt.Sprintf("TCP%d:%s,connect-timeout=%d", map[bool]int{true: 4, false: 6}[at.Addr().Is4()], at, int(askTime.Seconds()))
	cmd := exec.CommandContext(ctx, filepath.Join(b.out, "kubectl"), "--kubeconfig", b.path("kubeconfig"), "exec", pod, "--", "/usr/bin/socat", "-u", target, "-")
	out, err := cmd.CombinedOutput()
	said = strings.TrimSpace(string(out))
	refusal := strings.Contains(said, "socat") && (strings.Contains(said, "timed out") || strings.Contains(said, "refused") || strings.Contains(said, "unreachable"))
	if err != nil && !refusal {
		t.Logf("%s could not ask %s: %v: %s", pod, at, err, said)
	}
	if err == nil && said != "answer" {
		t.Fatalf("%s was answered %q", at, said)
	}
	return err == nil, said
}
