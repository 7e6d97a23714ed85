//go:build long

package registry

import (
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hullmark/hullmark/kubeadm"
)

// counted counts the calls of a client.
type counted struct {
	http.RoundTripper
	calls *atomic.Int64
}

func (c counted) RoundTrip(r *http.Request) (*http.Response, error) {
	c.calls.Add(1)
	return c.RoundTripper.RoundTrip(r)
}

// nodesOfCluster is the size of cluster that docs/operate.md speaks of; each node renews two certificates in 80 % of their
// life, in the mean.
const nodesOfCluster = 5000

// What a cluster's renewals cost its join services: many at once are decided much faster than they come in.
func TestApprovalsKeepUp(t *testing.T) {
	const machines = 100
	var names []string
	for i := range machines {
		m := testMachine(byte(i), "p"+string(rune('a'+i/26))+string(rune('a'+i%26)))
		m.EKID[1] = 70
		admitted(t, m)
		names = append(names, m.Name)
	}
	requests := make([]string, 0, 2*machines)
	for i, name := range names {
		config, err := api.Config("system:node:"+name, "system:nodes")
		if err != nil {
			t.Fatal(err)
		}
		listed(t, config, name)
		requests = append(requests, request(t, config, clientSigner, requestPEM(t, template(name)), certificatesv1.UsageClientAuth),
			request(t, config, servingSigner, requestPEM(t, template(name, fmt.Sprintf("10.1.0.%d", i))), certificatesv1.UsageServerAuth))
	}
	config, err := api.Config(User)
	if err != nil {
		t.Fatal(err)
	}
	var calls atomic.Int64
	config.WrapTransport = func(inner http.RoundTripper) http.RoundTripper { return counted{inner, &calls} }
	r, err := New(config)
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	var decisions sync.WaitGroup
	decisions.Add(len(requests))
	of := map[string]bool{}
	for _, name := range requests {
		of[name] = true
	}
	runApproverOf(t, r, &Approver{Admits: everyone, Report: func(d Decision, err error) {
		if err != nil || d.Outcome != Approved {
			t.Errorf("%s: %s %s, %v", d.Request, d.Outcome, d.Reason, err)
		}
		if of[d.Request] {
			decisions.Done()
		}
	}})
	decisions.Wait()
	took := time.Since(began)
	rate := float64(len(requests)) / took.Seconds()
	wanted := 2 * nodesOfCluster / (0.8 * kubeadm.CertificateLife.Seconds())
	t.Logf("%d requests in %v: %.0f a second, with %.1f calls of the API for each; %d nodes ask %.3f times a second",
		len(requests), took.Round(time.Millisecond), rate, float64(calls.Load())/float64(len(requests)), nodesOfCluster, wanted)
	if rate < 20*wanted {
		t.Errorf("%.1f requests are decided in a second; %d nodes ask %.3f times", rate, nodesOfCluster, wanted)
	}
	if err := removeRequests(t); err != nil {
		t.Error(err)
	}
}

// removeRequests keeps the other tests' approvers from reading these.
func removeRequests(t *testing.T) error {
	list, err := admin.requests.list(t.Context(), metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, csr := range list.Items {
		if err := admin.requests.delete(t.Context(), csr.Name); err != nil {
			return err
		}
	}
	return nil
}
