//go:build bench

package bench

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/hullmark/hullmark/internal/testenv"
)

var (
	machines    = flag.Int("machines", 500, "how many Machines the MachineDeployment has")
	rounds      = flag.Int("rounds", 1, "how often each provider is measured, in turn")
	concurrency = flag.Int("concurrency", 10, "how many objects of a kind a provider works on at a time")
	names       = flag.String("sides", "hullmark,kubeadm", "the providers to measure; hullmark-kubeadm is ours with a kubeadm spec")
	backlog     = flag.Bool("backlog", true, "measure each once more, with all Machines there and waiting for their control plane")
	compiled    = flag.String("programs", "", "the folder of the managers (core, kubeadm, manager) that were compiled before; compiled now if empty")
	timeout     = flag.Duration("wait", 15*time.Minute, "how long one run may take, with its rig")
)

// settle is how long a run goes on after the last Machine has its Node, so that what the provider still does then is counted.
const settle = 10 * time.Second

// BenchmarkBootstrap has a MachineDeployment's Machines get their bootstrap data from each provider: as they are made, and
// all at once, when the control plane that they wait for is initialized. It fails if a Machine has none at the end.
func BenchmarkBootstrap(b *testing.B) {
	ctrl.SetLogger(logr.Discard())
	klog.SetLogger(logr.Discard())
	programs := build(b)
	_, err := testenv.Programs(b.Context()) // Kubernetes may have to be compiled, which is no run's time.
	must(b, err)
	for _, wait := range []bool{false, true}[:map[bool]int{false: 1, true: 2}[*backlog]] {
		seen := map[string][]figures{}
		sides := chosen(b)
		for i := range *rounds {
			order := slices.Clone(sides)
			if i%2 == 1 {
				slices.Reverse(order) // Who goes first changes by round.
			}
			for _, s := range order {
				f := measure(b, programs, s, wait)
				seen[s.name] = append(seen[s.name], f)
				fmt.Fprint(os.Stdout, f.listing())
			}
		}
		fmt.Fprint(os.Stdout, table(sides, seen, wait))
	}
}

// chosen are the sides that the flag names.
func chosen(b *testing.B) (found []side) {
	b.Helper()
	for name := range strings.SplitSeq(*names, ",") {
		i := slices.IndexFunc(sides, func(s side) bool { return s.name == name })
		if i < 0 {
			b.Fatalf("-sides: there is no %q", name)
		}
		found = append(found, sides[i])
	}
	return found
}

// measure has one provider bootstrap all Machines, on a rig of its own.
func measure(b *testing.B, programs string, s side, wait bool) figures {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.Context(), *timeout)
	defer cancel()
	r := newRig(b, ctx, programs)
	defer r.end(b)
	f := figures{side: s}
	must(b, errors.Join(r.startCore(ctx), s.install(ctx, r), r.newCluster(ctx)))
	p, err := r.startProvider(ctx, s)
	must(b, err)
	if !wait {
		r.initialize()
		must(b, r.awaitControlPlane(ctx))
	}
	time.Sleep(settle) // The caches are full, and nothing is left to do.
	f.idle = p.memory(b)
	if wait {
		must(b, errors.Join(r.deploy(ctx, s), r.awaitMachines(ctx, "made", owned)))
		time.Sleep(settle)
	}
	begin := time.Now()
	before := p.cpu(b)
	if wait {
		r.initialize()
	} else {
		must(b, r.deploy(ctx, s))
	}
	must(b, r.awaitMachines(ctx, "Nodes", joined))
	time.Sleep(settle)
	end := time.Now()
	f.cpu, f.memory = p.cpu(b)-before, p.memory(b)
	f.total = end.Add(-settle).Sub(begin)
	must(b, errors.Join(p.reconciles(ctx, r, &f), r.checkSecrets(ctx), p.Alive()))
	must(b, r.readAudit(&f, begin, end))
	return f
}

// build compiles core's manager and both providers'.
func build(b *testing.B) (folder string) {
	b.Helper()
	if *compiled != "" {
		return *compiled
	}
	folder = b.TempDir()
	for name, of := range map[string]string{
		"manager": "github.com/hullmark/hullmark/tools/capi", "core": "sigs.k8s.io/cluster-api/core", "kubeadm": "sigs.k8s.io/cluster-api/bootstrap/kubeadm",
	} {
		must(b, compile(b.Context(), filepath.Join(folder, name), of))
	}
	return folder
}

func must(b *testing.B, err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}
