package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"
)

// outside is the port of each node on which the steady pods answer.
const outside = "30080"

// longestSilence is how long all pods together may be silent while the nodes restart one by one. On processors that are emulated, what
// is away for longer is away for a reason.
const longestSilence = time.Minute

// serveSteadily starts a pod on each node, of which one at least answers always, as far as its budget is kept.
func (d *demo) serveSteadily(ctx context.Context) error {
	image, err := d.bundleImage(ctx)
	if err != nil {
		return err
	}
	text := strings.NewReplacer("IMAGE", image, "NAME", "steady").Replace(steadyManifest)
	fmt.Printf("%s\n%s", d.path("steady.yaml"), text)
	if err := os.WriteFile(d.path("steady.yaml"), []byte(text), 0o600); err != nil {
		return err
	}
	if err := d.kubectl(ctx, "apply", "-f", d.path("steady.yaml")); err != nil {
		return err
	}
	return d.steady(ctx)
}

// steady waits until both pods are available, and answer on each node's own port.
func (d *demo) steady(ctx context.Context) error {
	ctx, cancel := d.attended(ctx)
	defer cancel()
	both := func(answer string) (bool, error) { return answer == "2", nil }
	if err := d.until(ctx, both, "get", "deployment", "steady", "-o", "jsonpath={.status.availableReplicas}"); err != nil {
		return err
	}
	for _, n := range d.nodes() {
		for answered(ctx, n) != nil {
			if err := pause(ctx, time.Second); err != nil {
				return errors.Join(err, answered(context.WithoutCancel(ctx), n))
			}
		}
		fmt.Printf("a pod answers on port %s of %s\n", outside, n.name)
	}
	return nil
}

// answered asks for the pods at a node.
func answered(ctx context.Context, n *node) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://127.0.0.1:"+n.outside+"/health", nil)
	if err != nil {
		return err
	}
	q.Close = true
	a, err := http.DefaultClient.Do(q)
	if err != nil {
		return err
	}
	defer func() { _ = a.Body.Close() }()
	text, err := io.ReadAll(io.LimitReader(a.Body, 16))
	if err == nil && string(text) != "OK" {
		err = fmt.Errorf("it says %q", text)
	}
	return err
}

// askPods asks every second until the returned function is called, at one node, and if that does not answer, at the other, as a load
// balancer before them would. The function says how long nobody answered at most, and fails if that is too long.
func (d *demo) askPods(ctx context.Context) func() error {
	ctx, cancel := context.WithCancel(ctx)
	silence := make(chan time.Duration)
	go func() { silence <- d.longestSilence(ctx) }()
	return func() error {
		cancel()
		longest := <-silence
		fmt.Printf("asked every second, the pods were silent for %.0f s at most\n", longest.Seconds())
		if longest > longestSilence {
			return fmt.Errorf("no pod answered for %v, want %v at most", longest, longestSilence)
		}
		return nil
	}
}

func (d *demo) longestSilence(ctx context.Context) (longest time.Duration) {
	last := time.Now()
	for pause(ctx, time.Second) == nil {
		for _, n := range d.nodes() {
			if answered(ctx, n) == nil {
				last = time.Now()
				break
			}
		}
		longest = max(longest, time.Since(last))
	}
	return longest
}

// pause waits, or returns why there is no more waiting.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}

// steadyManifest is a pod on each of two nodes, and a port of both that leads to them.
const steadyManifest = answering + `---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: steady
spec:
  minAvailable: 1
  selector:
    matchLabels: {app: steady}
---
apiVersion: apps/v1
kind: Deployment
metadata:
  name: steady
spec:
  replicas: 2
  selector:
    matchLabels: {app: steady}
  template:
    metadata:
      labels: {app: steady}
    spec:
      automountServiceAccountToken: false
      tolerations:
      - {key: node-role.kubernetes.io/control-plane, operator: Exists, effect: NoSchedule}
      affinity:
        podAntiAffinity:
          requiredDuringSchedulingIgnoredDuringExecution:
          - topologyKey: kubernetes.io/hostname
            labelSelector:
              matchLabels: {app: steady}
` + answers + `---
apiVersion: v1
kind: Service
metadata:
  name: steady
spec:
  type: NodePort
  selector: {app: steady}
  ports:
  - {name: http, port: 80, targetPort: 8080, nodePort: 30080}
`
