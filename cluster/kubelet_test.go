package cluster

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/hullmark/hullmark"
)

// The kubelets' CA is exchanged in the one order in which API servers always trust what signs, and each step is a rotation of
// its own; no other order is taken.
func TestKubeletCAIsExchangedInOrder(t *testing.T) {
	f := rotatable(t)
	steps := map[KubeletExchange]func(*Cluster) error{
		KubeletSteady: (*Cluster).TrustKubeletCA, KubeletTrusted: (*Cluster).SignWithKubeletCA, KubeletSigning: (*Cluster).DropKubeletCA,
	}
	held := func(c *Cluster) (certificate, key, trust []byte) {
		all := contents(t, c)
		return all[hullmark.KubeletServingCertificate], all[hullmark.KubeletServingKey], all[hullmark.KubeletTrustFile]
	}
	first, firstKey, _ := held(f.Cluster)
	for i, at := range []KubeletExchange{KubeletSteady, KubeletTrusted, KubeletSigning, KubeletSteady} {
		if got := f.Cluster.KubeletExchange(); got != at {
			t.Fatalf("after %d steps the exchange is at %s, want %s", i, got, at)
		}
		policy, err := f.Cluster.OpenPolicy()
		if err != nil || policy.Rotation != uint64(i) {
			t.Errorf("after %d steps the rotation is %d: %v", i, policy.Rotation, err)
		}
		certificate, key, trust := held(f.Cluster)
		if signsAnew := i >= 2; bytes.Equal(certificate, first) == signsAnew || bytes.Equal(key, firstKey) == signsAnew {
			t.Errorf("after %d steps another CA signs: %t", i, !bytes.Equal(certificate, first))
		}
		if !bytes.Contains(trust, certificate) || bytes.Contains(trust, first) == (i == 3) || bytes.Count(trust, []byte("BEGIN")) != []int{1, 2, 2, 1}[i] {
			t.Errorf("after %d steps API servers trust %s", i, trust)
		}
		for other, step := range steps {
			if other == at {
				continue
			}
			if err := f.Update(step); err == nil || !strings.Contains(err.Error(), "the exchange is at the step "+string(at)) {
				t.Errorf("the step of %s was taken at %s: %v", other, at, err)
			}
		}
		if err := f.Update(steps[at]); err != nil {
			t.Fatal(err)
		}
		f = reopen(t, f)
	}
	for _, rotated := range []string{hullmark.KubeletServingCertificate, hullmark.KubeletServingKey, hullmark.KubeletTrustFile} {
		if !hullmark.Rotated(rotated) || !slices.Contains(sortedPaths(contents(t, f.Cluster)), rotated) {
			t.Errorf("a rotation does not bring %s", rotated)
		}
	}
}

func sortedPaths(files map[string][]byte) (paths []string) {
	for path := range files {
		paths = append(paths, path)
	}
	return paths
}

// Both of an exchange at once is what no step leaves.
func TestDecodeRefusesTwoExchanges(t *testing.T) {
	f := rotatable(t)
	if err := f.Update((*Cluster).TrustKubeletCA); err != nil {
		t.Fatal(err)
	}
	f.Cluster.KubeletFormer = f.Cluster.Etcd.Certificate
	plain, err := f.Cluster.encode()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := decode(plain); err == nil || !strings.Contains(err.Error(), "a next one and a former one") {
		t.Errorf("got %v", err)
	}
}
