//go:build long

package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/cluster"
	"github.com/hullmark/hullmark/internal/testenv"
	"github.com/hullmark/hullmark/joinservice"
	"github.com/hullmark/hullmark/joinservice/registry"
)

// exchanging is a cluster with one control plane, one of whose CAs is exchanged.
type exchanging struct {
	*apiSite
	name     cluster.CAName
	plane    hullmark.EKID
	rotation uint64
}

func newExchanging(t *testing.T, name cluster.CAName) *exchanging {
	t.Helper()
	x := &exchanging{apiSite: newAPISite(t), name: name, plane: hullmark.EKID{8}}
	x.run(t, exitFailed, x.verb(), "no policy yet")
	if name != cluster.KubernetesCA {
		x.run(t, exitUsage, x.verb()+" --except control-plane-1", "--except is for kubelet-ca and kubernetes-ca alone")
	}
	x.run(t, 0, "policy add member --role worker --name worker-1 --ekid "+hullmark.EKID{7}.String())
	x.run(t, 0, "policy push")
	x.run(t, exitDenied, x.verb(), "no record of any control plane")
	x.at(t, cluster.ExchangeSteady)
	x.keep(t, joinservice.Machine{EKID: x.plane, Name: "control-plane-1", Role: hullmark.ControlPlane, State: joinservice.MachineReady})
	return x
}

func (x *exchanging) verb() string { return "cluster rotate " + string(x.name) }

// step takes the exchange on, and sees that it goes no further before the control plane has booted.
func (x *exchanging) step(t *testing.T, at cluster.Exchange, says ...string) {
	t.Helper()
	x.run(t, 0, x.verb(), append(says, "reboot the control planes")...)
	x.rotation++
	x.run(t, exitDenied, x.verb(), fmt.Sprintf("control-plane-1: it holds the keys of rotation %d, not %d", x.rotation-1, x.rotation), "hullmark node remove")
	x.at(t, at)
}

// at wants the exchange to have come so far, and the cluster to have its policy.
func (x *exchanging) at(t *testing.T, want cluster.Exchange) {
	t.Helper()
	if x.reread(t); x.cluster.Exchange(x.name) != want {
		t.Errorf("the exchange is at %s, want %s", x.cluster.Exchange(x.name), want)
	}
	if p := x.pushed(t); p.Rotation != x.rotation {
		t.Errorf("the cluster has rotation %d, want %d", p.Rotation, x.rotation)
	}
}

// etcd's CA is exchanged a step at each run of the command, and none is taken while a control plane is behind, nor while the API is away.
func TestRotateEtcdCAOfARealAPI(t *testing.T) {
	x := newExchanging(t, cluster.EtcdCA)
	x.step(t, cluster.ExchangeTrusted, "step 1 of 3", "for step 2")
	x.holds(t, x.plane, x.rotation)
	code, output := hullmarkCLI(t, "cluster", "rotate", "etcd-ca", "--server", "127.0.0.1:1", "--wait", "1s", "--cluster", x.path("cluster"), "--passphrase-file", x.path("passphrase"))
	wantExit(t, code, exitUnreachable, output, joinservice.CodeUnreachable)
	x.at(t, cluster.ExchangeTrusted)
	x.step(t, cluster.ExchangeSigning, "step 2 of 3", "for step 3")
	x.holds(t, x.plane, x.rotation)
	x.step(t, cluster.ExchangeSteady, "step 3 of 3", "the exchange is done")

	// The power was cut before a step was pushed: it is, and the next one is not begun.
	x.holds(t, x.plane, x.rotation)
	x.update(t, func(c *cluster.Cluster) error { return c.TrustCA(cluster.EtcdCA) })
	x.rotation++
	x.run(t, exitDenied, x.verb(), fmt.Sprintf("rotation %d, not %d", x.rotation-1, x.rotation))
	x.at(t, cluster.ExchangeTrusted)
}

// The front proxy's CA is exchanged likewise, with an API server that boots after each step. It goes on to tell the servers of aggregated
// APIs of the former CA, until the command is run once more.
func TestRotateFrontProxyCAOfARealAPI(t *testing.T) {
	x := newExchanging(t, cluster.FrontProxyCA)
	x.told(t, registry.ToldFrontProxy, 1)
	x.step(t, cluster.ExchangeTrusted, "step 1 of 3", "for step 2")
	x.reboot(t)
	x.told(t, registry.ToldFrontProxy, 2)
	x.step(t, cluster.ExchangeSigning, "step 2 of 3", "for step 3")
	x.reboot(t)
	x.told(t, registry.ToldFrontProxy, 2)
	x.step(t, cluster.ExchangeSteady, "step 3 of 3", "run this command once more")
	x.reboot(t)
	x.told(t, registry.ToldFrontProxy, 2)
	x.run(t, 0, x.verb(), "the exchange is done", "nothing else was exchanged")
	x.told(t, registry.ToldFrontProxy, 1)
	x.at(t, cluster.ExchangeSteady)
	x.step(t, cluster.ExchangeTrusted, "step 1 of 3")
}

// The Kubernetes CA is exchanged likewise. Its next one signs only once workers trust it, and its former one goes only once their kubelets
// are known by no certificate of it; --except leaves a worker behind, and no control plane. In the end workers, and servers of aggregated
// APIs, trust the present one alone, and the former one's administrators are refused.
func TestRotateKubernetesCAOfARealAPI(t *testing.T) {
	x := newExchanging(t, cluster.KubernetesCA)
	worker, former := hullmark.EKID{7}, *x.cluster
	x.keep(t, joinservice.Machine{EKID: worker, Name: "worker-1", Role: hullmark.Worker, State: joinservice.MachineReady})
	certified := func(by *cluster.Cluster) {
		x.change(t, worker, func(m *joinservice.Machine) {
			m.CertificateEnds = time.Now().Add(time.Hour)
			m.Credentials = []joinservice.Credential{{Fingerprint: strings.Repeat("0a", 32), Ends: m.CertificateEnds, Issuer: joinservice.AuthorityID(by.Kubernetes.Certificate)}}
		})
	}
	certified(&former)
	const behind = "worker-1: it was not booted since all control planes trust what they do"
	if err := x.env.Apply(t.Context(), []byte(strings.ReplaceAll(controlPlaneObjects, "kubernetes-signing-ca.crt", "ca.crt"))); err != nil {
		t.Fatal(err)
	}
	x.run(t, exitDenied, x.verb(), "an earlier release of Hullmark began this cluster")
	x.at(t, cluster.ExchangeSteady)
	x.leaveControlPlane(t)
	x.told(t, registry.ToldClients, 1)
	x.step(t, cluster.ExchangeTrusted, "step 1 of 3", "reboot all workers", "for step 2")
	x.reboot(t)
	x.told(t, registry.ToldClients, 2)
	x.run(t, exitDenied, x.verb(), behind, "--except")
	x.run(t, exitUsage, x.verb()+" --except control-plane-1 --except worker-1", "it is a control plane")
	x.booted(t, worker)
	x.run(t, exitUsage, x.verb()+" --except worker-1", "no node of that name is behind")
	x.step(t, cluster.ExchangeSigning, "step 2 of 3", "make kubeconfigs", "for step 3")
	x.reboot(t)
	x.run(t, exitDenied, x.verb(), "worker-1: its kubelet may be known by a certificate of the former CA until ")
	certified(x.cluster)
	x.step(t, cluster.ExchangeSteady, "step 3 of 3", "run this command once more")
	x.reboot(t)
	x.told(t, registry.ToldClients, 2)
	x.run(t, exitDenied, x.verb(), behind)
	x.booted(t, worker)
	x.run(t, 0, x.verb(), "the exchange is done", "nothing else was exchanged")
	x.told(t, registry.ToldClients, 1)
	x.at(t, cluster.ExchangeSteady)
	x.administers(t, x.cluster, true)
	x.administers(t, &former, false)
	x.change(t, worker, func(m *joinservice.Machine) { m.KubernetesCA = hullmark.CADigest{} })
	x.run(t, 0, x.verb()+" --except worker-1", "step 1 of 3")
}

// change changes a machine's record.
func (x *exchanging) change(t *testing.T, node hullmark.EKID, change func(*joinservice.Machine)) {
	t.Helper()
	m, version, err := x.client.Load(t.Context(), node)
	if err != nil {
		t.Fatal(err)
	}
	change(&m)
	if _, err := x.client.Store(t.Context(), m, version); err != nil {
		t.Fatal(err)
	}
}

// booted records that a worker trusts what the policy commits to.
func (x *exchanging) booted(t *testing.T, node hullmark.EKID) {
	t.Helper()
	policy := x.pushed(t)
	x.change(t, node, func(m *joinservice.Machine) { m.KubernetesCA = policy.KubernetesCA })
}

// administers looks whether the API server takes a certificate by which whoever has a cluster file administers the cluster.
func (x *exchanging) administers(t *testing.T, by *cluster.Cluster, want bool) {
	t.Helper()
	certificate, key, err := by.Administrator(time.Now(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	config := x.env.Anonymous()
	config.CertData, config.KeyData = certificate, key
	client, err := registry.New(config)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.List(t.Context()); (err == nil) != want {
		t.Errorf("it is taken for an administrator: %v, want %t", err, want)
	}
}

// reboot has the API server go on with the keys of the cluster file, and says so in the control plane's record.
func (x *exchanging) reboot(t *testing.T) {
	t.Helper()
	x.reread(t)
	x.env.Cluster = x.cluster
	if err := x.env.Reboot(t.Context()); err != nil {
		t.Fatal(err)
	}
	config, err := x.env.Config(registry.User)
	if err != nil {
		t.Fatal(err)
	}
	if x.client, err = registry.New(config); err != nil { // Its API server may have a certificate of another CA.
		t.Fatal(err)
	}
	x.holds(t, x.plane, x.rotation)
}

// told waits until the servers of aggregated APIs are told of so many of these CAs.
func (x *exchanging) told(t *testing.T, what registry.Told, want int) {
	t.Helper()
	if err := testenv.Poll(t.Context(), time.Second, func() error {
		get, err := x.env.Kubectl(t.Context(), "get", "configmap", "--namespace=kube-system", "extension-apiserver-authentication", "-o", "jsonpath={.data."+string(what)+"}")
		if err != nil {
			return err
		}
		out, err := get.CombinedOutput()
		if got := strings.Count(string(out), "-----BEGIN CERTIFICATE-----"); err != nil || got != want {
			return fmt.Errorf("%d CAs, want %d: %v", got, want, err)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
}
