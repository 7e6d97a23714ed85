package cluster

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/hullmark/hullmark"
)

// exchangeSteps take an exchange on, by how far it has come.
var exchangeSteps = map[Exchange]func(*Cluster, CAName) error{
	ExchangeSteady: (*Cluster).TrustCA, ExchangeTrusted: (*Cluster).SignWithCA, ExchangeSigning: (*Cluster).DropCA,
}

// placesOf are where a control plane has the certificate that signs, its key, and what is trusted.
func placesOf(name CAName) (certificate, key, trust string) {
	switch name {
	case KubeletCA:
		return hullmark.KubeletServingCertificate, hullmark.KubeletServingKey, hullmark.KubeletTrustFile
	case EtcdCA:
		return hullmark.EtcdCACertificate, hullmark.EtcdCAKey, hullmark.EtcdCACertificate
	case KubernetesCA:
		return hullmark.KubernetesCACertificate, hullmark.KubernetesCAKey, hullmark.KubernetesCACertificate
	}
	return hullmark.FrontProxyCACertificate, hullmark.FrontProxyCAKey, hullmark.FrontProxyCACertificate
}

// first is the first certificate of a text in PEM, which is the one that programs sign with.
func first(text []byte) []byte {
	certificate, _, _ := bytes.Cut(text, []byte("-----END"))
	return certificate
}

// Each CA is exchanged in the one order in which everybody always trusts what signs, and each step is a rotation of its own; no
// other order is taken.
func TestCAsAreExchangedInOrder(t *testing.T) {
	for _, name := range CANames() {
		t.Run(string(name), func(t *testing.T) {
			f := rotatable(t)
			signs, key, trusted := placesOf(name)
			before := contents(t, f.Cluster)
			for i, at := range []Exchange{ExchangeSteady, ExchangeTrusted, ExchangeSigning, ExchangeSteady} {
				if got := f.Cluster.Exchange(name); got != at {
					t.Fatalf("after %d steps the exchange is at %s, want %s", i, got, at)
				}
				policy, err := f.Cluster.OpenPolicy()
				if err != nil || policy.Rotation != uint64(i) {
					t.Errorf("after %d steps the rotation is %d: %v", i, policy.Rotation, err)
				}
				held := contents(t, f.Cluster)
				wantSigner(t, i, held, before, signs, key)
				if !bytes.Contains(held[trusted], first(held[signs])) || bytes.Contains(held[trusted], first(before[signs])) == (i == 3) || bytes.Count(held[trusted], []byte("BEGIN")) != []int{1, 2, 2, 1}[i] {
					t.Errorf("after %d steps %s is trusted", i, held[trusted])
				}
				if !bytes.Equal(held[trusted], f.Cluster.CATrust(name)) || !bytes.Equal(first(held[signs]), first(f.Cluster.CACertificate(name))) {
					t.Errorf("after %d steps the file says something else than control planes get", i)
				}
				for other, step := range exchangeSteps {
					if other == at {
						continue
					}
					if err := f.Update(func(c *Cluster) error { return step(c, name) }); err == nil || !strings.Contains(err.Error(), "the exchange is at the step "+string(at)) {
						t.Errorf("the step of %s was taken at %s: %v", other, at, err)
					}
				}
				f = step(t, f, name)
			}
			for _, path := range []string{signs, key, trusted} {
				if !hullmark.Rotated(path) || !hullmark.Replaced(path) {
					t.Errorf("a rotation does not bring %s", path)
				}
			}
		})
	}
}

// wantSigner looks at who signs after so many steps, and whether the key is its.
func wantSigner(t *testing.T, steps int, held, before map[string][]byte, signs, key string) {
	t.Helper()
	anew := steps >= 2
	if bytes.Equal(first(held[signs]), first(before[signs])) == anew || bytes.Equal(held[key], before[key]) == anew {
		t.Errorf("after %d steps another CA signs: %t", steps, !anew)
	}
	if _, err := tls.X509KeyPair(held[signs], held[key]); err != nil {
		t.Errorf("after %d steps: %v", steps, err)
	}
}

// step takes an exchange one step on, and returns the file as it is read after that.
func step(t *testing.T, f *File, name CAName) *File {
	t.Helper()
	if err := f.Update(func(c *Cluster) error { return exchangeSteps[c.Exchange(name)](c, name) }); err != nil {
		t.Fatal(err)
	}
	return reopen(t, f)
}

// Exchanges of several CAs go on beside each other, and beside that of other keys.
func TestExchangesBesideEachOther(t *testing.T) {
	f := rotatable(t)
	before := contents(t, f.Cluster)
	f = step(t, f, EtcdCA)
	f = step(t, f, FrontProxyCA)
	f = step(t, f, EtcdCA)
	if err := f.Update((*Cluster).RotateOnlineCA); err != nil {
		t.Fatal(err)
	}
	f = step(t, reopen(t, f), FrontProxyCA)
	f = step(t, f, EtcdCA)
	if a, b, c := f.Cluster.Exchange(EtcdCA), f.Cluster.Exchange(FrontProxyCA), f.Cluster.Exchange(KubeletCA); a != ExchangeSteady || b != ExchangeSigning || c != ExchangeSteady {
		t.Errorf("the exchanges are at %s, %s and %s", a, b, c)
	}
	after := contents(t, f.Cluster)
	for path, changed := range map[string]bool{
		hullmark.EtcdCAKey: true, hullmark.FrontProxyCAKey: true, hullmark.OnlineCAKey: true, hullmark.KubeletServingKey: false, hullmark.KubernetesCAKey: false, pkiDir + "sa.key": false,
	} {
		if bytes.Equal(before[path], after[path]) == changed {
			t.Errorf("%s was exchanged: %t", path, !changed)
		}
	}
}

// The former CA's key is nowhere in the file once the next one signs, and a next one's is from the first step on.
func TestExchangeKeepsNoOldKey(t *testing.T) {
	for _, name := range CANames() {
		f := rotatable(t)
		has := func(key []byte) bool {
			plain, err := f.Cluster.encode()
			if err != nil {
				t.Fatal(err)
			}
			var d map[string]any
			if err := json.Unmarshal(plain, &d); err != nil {
				t.Fatal(err)
			}
			return anyHolds(d, key)
		}
		old, err := f.Cluster.ca(name).Key.Bytes()
		if err != nil {
			t.Fatal(err)
		}
		f = step(t, f, name)
		next, err := f.Cluster.ca(name).Next.Key.Bytes()
		if err != nil {
			t.Fatal(err)
		}
		if !has(old) || !has(next) {
			t.Errorf("%s: a key is not found that is needed", name)
		}
		if f = step(t, f, name); has(old) || !has(next) {
			t.Errorf("%s: the former key is in the file, or the present one is not", name)
		}
	}
}

// Both of an exchange at once is what no step leaves.
func TestDecodeRefusesTwoExchanges(t *testing.T) {
	for _, name := range CANames() {
		f := step(t, rotatable(t), name)
		f.Cluster.ca(name).Former = f.Cluster.Kubernetes.Certificate
		plain, err := f.Cluster.encode()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := decode(plain); err == nil || !strings.Contains(err.Error(), "a next one and a former one") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Whoever holds the cluster file reaches etcd at each step, whether a member was booted since or not: it takes certificates of
// what the step before trusted, and shows one of the step before or of this one.
func TestEtcdClientInAnExchange(t *testing.T) {
	f := rotatable(t)
	good := func(der []byte, roots *x509.CertPool, usage x509.ExtKeyUsage) bool {
		certificate, err := x509.ParseCertificate(der)
		if err != nil {
			t.Fatal(err)
		}
		_, err = certificate.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{usage}})
		return err == nil
	}
	pool := func(c *Cluster) *x509.CertPool {
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM(c.CATrust(EtcdCA))
		return roots
	}
	for range exchangeSteps {
		before := f.Cluster
		f = step(t, f, EtcdCA)
		config, err := f.Cluster.EtcdClient(time.Now(), time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		for who, member := range map[string]*Cluster{"a member of the step before": before, "a member of this step": f.Cluster} {
			if !good(config.Certificates[0].Certificate[0], pool(member), x509.ExtKeyUsageClientAuth) {
				t.Errorf("%s: %s does not take the operator's certificate", f.Cluster.Exchange(EtcdCA), who)
			}
			shown, err := member.EtcdClient(time.Now(), time.Hour) // A client's stands in for a server's: both are of what signs.
			if err != nil {
				t.Fatal(err)
			}
			if !good(shown.Certificates[0].Certificate[0], config.RootCAs, x509.ExtKeyUsageClientAuth) {
				t.Errorf("%s: the operator does not take the certificate of %s", f.Cluster.Exchange(EtcdCA), who)
			}
		}
	}
}

// From the first step of its first exchange on, policies commit to what nodes trust of the Kubernetes CA, whatever is changed in them, and
// none does before. The controller manager signs by a file that has the one certificate of what signs.
func TestPolicyCommitsToTheKubernetesCA(t *testing.T) {
	f := rotatable(t)
	want := func(when string, committed bool) {
		t.Helper()
		policy, err := f.Cluster.OpenPolicy()
		if err != nil {
			t.Fatal(err)
		}
		held := contents(t, f.Cluster)
		digest := hullmark.CADigest{}
		if committed {
			digest = hullmark.DigestCA(held[hullmark.KubernetesCACertificate])
		}
		if policy.KubernetesCA != digest {
			t.Errorf("%s: the policy commits to %s, want %s", when, policy.KubernetesCA, digest)
		}
		if signs := held[hullmark.KubernetesSigningCertificate]; !bytes.Equal(signs, f.Cluster.CACertificate(KubernetesCA)) {
			t.Errorf("%s: the controller manager signs by\n%s", when, signs)
		}
		if _, err := tls.X509KeyPair(held[hullmark.KubernetesSigningCertificate], held[hullmark.KubernetesCAKey]); err != nil {
			t.Errorf("%s: %v", when, err)
		}
	}
	want("a new cluster", false)
	f = step(t, f, EtcdCA)
	want("an exchange of another CA", false)
	for i := range 3 {
		f = step(t, f, KubernetesCA)
		want(fmt.Sprintf("after step %d", i+1), true)
	}
	for what, change := range map[string]func(*Cluster) error{"another root": (*Cluster).RotateRoot, "another online CA": (*Cluster).RotateOnlineCA} {
		if err := f.Update(change); err != nil {
			t.Fatal(err)
		}
		f = reopen(t, f)
		want(what, true)
	}
	if err := f.Update(func(c *Cluster) error {
		policy, err := c.OpenPolicy()
		if err != nil {
			return err
		}
		policy.Version, policy.KubernetesCA = policy.Version+1, hullmark.CADigest{}
		return c.SetPolicy(policy)
	}); err != nil {
		t.Fatal(err)
	}
	want("a policy that somebody edited", true)
}
