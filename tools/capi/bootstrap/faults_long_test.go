//go:build long

package bootstrap

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hullmark/hullmark/tools/capi/api/bootstrap/v1alpha1"
)

// journey makes a control plane Machine and a worker, and waits for both to have their Secrets and for the lock to be free.
func journey(p place) {
	p.Helper()
	p.machine("cp", true)
	p.machine("worker", false)
	arrive(p)
}

func arrive(p place) {
	p.Helper()
	for _, name := range []string{"cp", "worker"} {
		checkContract(p, p.reason(name, v1alpha1.AvailableReason))
	}
	p.eventually("the lock is freed", func() error {
		if p.get("c-lock", &corev1.ConfigMap{}) {
			return errors.New("still there")
		}
		return nil
	})
}

// TestKilledAtEachWrite stops the manager before and after each of its writes; the next one goes on from there.
func TestKilledAtEachWrite(t *testing.T) {
	t.Parallel()
	// A journey of nobody killed says how many writes there are.
	var writes atomic.Int32
	p := newPlace(t, "killed-never")
	start(t, params{namespaces: []string{p.namespace}, hook: func(_ string, do func() error) error { writes.Add(1); return do() }})
	journey(p)
	n := writes.Load()
	t.Logf("%d writes", n)
	if n < 8 { // of each config Paused, the Secret and the verdict; the lock taken and freed
		t.Fatalf("only %d writes: the test sees not all of them", n)
	}
	for k := int32(1); k <= n; k++ {
		for _, after := range []bool{false, true} {
			t.Run(fmt.Sprintf("write %d, after %v", k, after), func(t *testing.T) {
				t.Parallel()
				p := newPlace(t, fmt.Sprintf("killed-%d-%v", k, after))
				var seen atomic.Int32
				killed := make(chan string, 1)
				stop := start(t, params{namespaces: []string{p.namespace}, hook: func(what string, do func() error) error {
					at := seen.Add(1)
					var err error
					if at < k || at == k && after {
						err = do()
					}
					if at < k {
						return err
					}
					if at == k {
						killed <- what
					}
					return errors.New("killed")
				}})
				p.machine("cp", true)
				p.machine("worker", false)
				// It may take fewer writes than the first one did, if nothing had to be waited for.
				p.eventually("killed, or arrived", func() error {
					select {
					case what := <-killed:
						t.Logf("killed at %s", what)
						return nil
					default:
					}
					for _, name := range []string{"cp", "worker"} {
						if p.config(name).Status.DataSecretName == "" {
							return fmt.Errorf("%s is on its way", name)
						}
					}
					if p.get("c-lock", &corev1.ConfigMap{}) {
						return errors.New("the lock is held")
					}
					return nil
				})
				stop()
				start(t, params{namespaces: []string{p.namespace}})
				arrive(p)
			})
		}
	}
}

// TestFaultyAPI: each first write is answered by a conflict, or is done and answered too late, or is done twice.
func TestFaultyAPI(t *testing.T) {
	t.Parallel()
	conflict := apierrors.NewConflict(schema.GroupResource{Resource: "any"}, "any", errors.New("injected"))
	for name, answer := range map[string]func(do func() error) error{
		"conflict":    func(func() error) error { return conflict },
		"unavailable": func(func() error) error { return apierrors.NewServiceUnavailable("injected") },
		"late":        func(do func() error) error { return errors.Join(do(), context.DeadlineExceeded) },
		"twice":       func(do func() error) error { return errors.Join(do(), do()) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPlace(t, "faulty-"+name)
			var mutex sync.Mutex
			seen := map[string]int{}
			start(t, params{namespaces: []string{p.namespace}, hook: func(what string, do func() error) error {
				mutex.Lock()
				seen[what]++
				n := seen[what]
				mutex.Unlock()
				if n%2 == 1 {
					return answer(do)
				}
				return do()
			}})
			journey(p)
			mutex.Lock()
			defer mutex.Unlock()
			if len(seen) < 4 { // Secret, lock made, lock deleted, status
				t.Errorf("only these writes were seen: %v", seen)
			}
		})
	}
}

// TestDiesBeforeItsSecret: the first control plane has the lock and nothing else when its Machine is deleted.
func TestDiesBeforeItsSecret(t *testing.T) {
	t.Parallel()
	p := newPlace(t, "before")
	locked := make(chan struct{}, 1)
	stop := start(t, params{namespaces: []string{p.namespace}, hook: func(what string, do func() error) error {
		if what == fmt.Sprintf("create %T", &corev1.Secret{}) {
			select {
			case locked <- struct{}{}:
			default:
			}
			return errors.New("killed")
		}
		return do()
	}})
	p.machine("first", true, held)
	<-locked
	stop()
	if err := admin.Delete(t.Context(), p.machineNamed("first")); err != nil {
		t.Fatal(err)
	}
	lock := &corev1.ConfigMap{}
	if !p.get("c-lock", lock) || !strings.Contains(lock.Data[lockKey], `"first"`) {
		t.Fatalf("lock %+v", lock)
	}
	p.machine("second", true, held)
	start(t, params{namespaces: []string{p.namespace}})
	p.reason("second", v1alpha1.AvailableReason)
	if p.get("c-lock", lock); !strings.Contains(lock.Data[lockKey], `"second"`) {
		t.Errorf("lock %+v", lock.Data)
	}
}

var many = flag.Int("configs", 60, "how many configs TestManyConfigs makes")

// TestManyConfigs bounds what a config costs the API, and has it cost nothing when nothing changes.
func TestManyConfigs(t *testing.T) {
	t.Parallel()
	const each = 12
	configs := *many
	p := newPlace(t, "many")
	var mutex sync.Mutex
	calls := map[string]int{}
	total := func() (n int) {
		mutex.Lock()
		defer mutex.Unlock()
		for _, c := range calls {
			n += c
		}
		return n
	}
	start(t, params{namespaces: []string{p.namespace}, transport: func(r *http.Request) {
		mutex.Lock()
		defer mutex.Unlock()
		if r.URL.Query().Get("watch") == "" {
			parts := strings.Split(r.URL.Path, "/")
			what := r.Method
			for i, part := range parts {
				if part == p.namespace && i+1 < len(parts) {
					what += " " + parts[i+1]
				}
			}
			calls[what]++
		}
	}})
	p.machine("cp", true)
	p.reason("cp", v1alpha1.AvailableReason)
	begun := time.Now()
	for i := range configs {
		p.machine(fmt.Sprintf("w%03d", i), false, held)
	}
	p.eventually("all are ready", func() error {
		var list v1alpha1.HullmarkConfigList
		if err := admin.List(t.Context(), &list, client.InNamespace(p.namespace)); err != nil {
			return err
		}
		ready := 0
		for _, c := range list.Items {
			if c.Status.DataSecretName == c.Name {
				ready++
			}
		}
		if ready != configs+1 {
			return fmt.Errorf("%d of %d", ready, configs+1)
		}
		return nil
	})
	took := time.Since(begun)
	// Machines get their Secrets and provider IDs, which wakes the configs once more each.
	p.eventually("Machines are provisioned", func() error {
		var list clusterv1.MachineList
		if err := admin.List(t.Context(), &list, client.InNamespace(p.namespace)); err != nil {
			return err
		}
		for _, m := range list.Items {
			if m.Spec.ProviderID == "" {
				return fmt.Errorf("%s is not", m.Name)
			}
		}
		return nil
	})
	time.Sleep(5 * time.Second)
	settled := total()
	time.Sleep(10 * time.Second)
	mutex.Lock()
	t.Logf("%d configs in %v: %d calls, %.1f each: %v", configs, took, settled, float64(settled)/float64(configs), calls)
	mutex.Unlock()
	if settled > configs*each {
		t.Errorf("%d calls, want at most %d for each of %d configs", settled, each, configs)
	}
	if later := total(); later != settled {
		t.Errorf("%d calls though nothing changed: %v", later-settled, calls)
	}
}
