//go:build long

package registry

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/joinservice"
	"github.com/hullmark/hullmark/kubeadm"
)

// everyone is the policy of tests in which every machine is a member.
func everyone(joinservice.Machine) error { return nil }

// A machine that the policy admits no more renews neither of its certificates, and a token that it has is good for none; its
// record says until when it had one.
func TestRemovedMachineRenewsNothing(t *testing.T) {
	var removed atomic.Bool
	runApprover(t, &Approver{Admits: func(m joinservice.Machine) error {
		if removed.Load() && m.EKID == (hullmark.EKID{60}) {
			return errors.New("policy version 2 admits this machine no more")
		}
		return nil
	}})
	token, _ := admitted(t, testMachine(60, "w60"))
	other, _ := admitted(t, testMachine(61, "w61"))
	renew := func(name string, token hullmark.Secret) func() (client, serving string) {
		first, key := signingRequest(t, template(name))
		node := api.Anonymous()
		node.CertData, node.KeyData = wantSigned(t, request(t, bearer(token), clientSigner, first, certificatesv1.UsageClientAuth)), key
		return func() (string, string) {
			return request(t, node, clientSigner, requestPEM(t, template(name)), certificatesv1.UsageClientAuth),
				request(t, node, servingSigner, requestPEM(t, template(name, "10.0.0."+strings.TrimPrefix(name, "w"))), certificatesv1.UsageServerAuth)
		}
	}
	ofMember, ofRemoved := renew("w61", other), renew("w60", token)
	client, serving := ofRemoved()
	wantSigned(t, serving)
	checkNoted(t, hullmark.EKID{60}, wantSigned(t, client))

	removed.Store(true)
	const says = "admits this machine no more"
	client, serving = ofRemoved()
	wantDenied(t, client, says)
	wantDenied(t, serving, says)
	wantDenied(t, request(t, bearer(token), clientSigner, requestPEM(t, template("w60")), certificatesv1.UsageClientAuth), says)
	client, serving = ofMember()
	wantSigned(t, client)
	wantSigned(t, serving)

	// A rule that was removed by mistake and comes back counts again.
	removed.Store(false)
	client, _ = ofRemoved()
	wantSigned(t, client)
}

// checkNoted holds a certificate to the life that all have, and the machine's record to its end.
func checkNoted(t *testing.T, node hullmark.EKID, text []byte) {
	t.Helper()
	block, _ := pem.Decode(text)
	certificate, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	if life := time.Until(certificate.NotAfter); life > kubeadm.CertificateLife || life < kubeadm.CertificateLife-time.Hour {
		t.Errorf("the certificate is good for %v, want about %v", life, kubeadm.CertificateLife)
	}
	m, _, err := service.Load(t.Context(), node)
	if err != nil || m.CertificateEnds.Before(certificate.NotAfter) || m.CertificateEnds.Sub(certificate.NotAfter) > 2*time.Hour {
		t.Errorf("the record says that it ends at %v, %v; it does at %v", m.CertificateEnds, err, certificate.NotAfter)
	}
	eventually(t, "the note of a certificate", func() error {
		if m, _, err := service.Load(t.Context(), node); err != nil || !m.Holds(fingerprintOf(certificate)) {
			return fmt.Errorf("the record lists %+v: %w", m.Credentials, err)
		}
		return nil
	})
}

// runApprover runs an approver of its own connection until the test ends.
func runApprover(t *testing.T, a *Approver) {
	t.Helper()
	runApproverOf(t, replicas(t, 1)[0], a)
}

func runApproverOf(t *testing.T, r *Registry, a *Approver) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	a.Registry = r
	if a.Claim == nil {
		a.Claim = claims(t, r).ClaimAddresses
	}
	var ended sync.WaitGroup
	ended.Go(func() {
		if err := a.Run(ctx); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
	t.Cleanup(func() {
		cancel()
		ended.Wait()
	})
}

// nodeOf gets a machine its first certificate, and returns a client that shows it.
func nodeOf(t *testing.T, m joinservice.Machine) *Registry {
	t.Helper()
	token, _ := admitted(t, m)
	first, key := signingRequest(t, template(m.Name))
	config := api.Anonymous()
	config.CertData, config.KeyData = wantSigned(t, request(t, bearer(token), clientSigner, first, certificatesv1.UsageClientAuth)), key
	r, err := New(config)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func makeNode(t *testing.T, r *Registry, name string) error {
	t.Helper()
	_, err := r.nodes.create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}})
	return err
}

// A machine that is removed while its certificate lives makes its Node no more, and renews nothing; nobody else gets its name
// before that has ended.
func TestRemovedMachineMakesNoNode(t *testing.T) {
	approving(t, 1)
	m, heir := testMachine(62, "w62"), testMachine(64, "w62")
	node, other := nodeOf(t, m), nodeOf(t, testMachine(63, "w63"))
	if err := errors.Join(makeNode(t, node, "w62"), makeNode(t, other, "w63")); err != nil {
		t.Fatal(err)
	}
	until, err := admin.Delete(t.Context(), m, false)
	if left := time.Until(until); err != nil || left > LongestCertificate || left < kubeadm.CertificateLife {
		t.Fatalf("its certificate may live for %v: %v", left, err)
	}
	if err := makeNode(t, node, "w62"); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "was removed") {
		t.Errorf("its Node, made anew: %v", err)
	}
	pending, err := node.requests.create(t.Context(), csrOf(requestPEM(t, template("w62"))))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // It waits for a record, and other tests' approvers would look at it.
		if err := admin.requests.delete(context.Background(), pending.Name); err != nil {
			t.Error(err)
		}
	})
	if err := service.Claim(t.Context(), "w62", heir.EKID); conditionCode(err) != "name-rests" {
		t.Errorf("its name, claimed by another machine: %v", err)
	}
	forget(t, heir)
	if csr, err := admin.requests.get(t.Context(), pending.Name); err != nil || len(csr.Status.Conditions) > 0 {
		t.Errorf("its renewal: %+v, %v", csr.Status, err)
	}
	// What it may read still is what docs/operate.md says.
	for what, allowed := range map[access]bool{"list /services": true, "get /endpoints default x": true, "get /secrets default x": false, "list /secrets": false, "get /configmaps default x": false, "get /nodes - w63": false} {
		if may(t, what, "system:node:w62", "system:nodes") != allowed {
			t.Errorf("%s: want %v", what, allowed)
		}
	}
	ready, err := other.nodes.get(t.Context(), "w63")
	if err != nil {
		t.Fatal(err)
	}
	ready.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	if _, err := other.nodes.update(t.Context(), "w63", ready, "status"); err != nil {
		t.Errorf("another machine's own Node: %v", err)
	}
}

// A name rests only as long as it has to.
func TestNamesRest(t *testing.T) {
	approving(t, 1)
	m, heir := testMachine(65, "w65"), hullmark.EKID{66}
	node := nodeOf(t, m)
	if _, err := admin.Delete(t.Context(), m, false); err != nil {
		t.Fatal(err)
	}
	if removed, rests, err := admin.Resting(t.Context(), "w65"); err != nil || !rests || removed.EKID != m.EKID {
		t.Fatalf("got %v %v %v", removed, rests, err)
	}
	// Its own certificate may be in other hands, too: its operator knows, or waits.
	if err := service.Claim(t.Context(), "w65", m.EKID); conditionCode(err) != "name-rests" || !strings.Contains(err.Error(), "--gone") {
		t.Errorf("claimed by its own machine: %v", err)
	}
	if err := makeNode(t, node, "w65"); !apierrors.IsForbidden(err) {
		t.Errorf("its Node, made anew: %v", err)
	}
	if err := admin.Free(t.Context(), "w65"); err != nil {
		t.Fatal(err)
	}
	if err := service.Claim(t.Context(), "w65", m.EKID); err != nil {
		t.Fatal(err)
	}
	eventually(t, "its Node", func() error { return makeNode(t, node, "w65") })
	if _, err := service.Store(t.Context(), withEnd(m, time.Now().Add(time.Hour)), ""); err != nil {
		t.Fatal(err)
	}
	if _, err := admin.Delete(t.Context(), m, false); err != nil {
		t.Fatal(err)
	}
	if err := service.Claim(t.Context(), "w65", heir); conditionCode(err) != "name-rests" {
		t.Errorf("while it rests: %v", err)
	}
	if err := service.Claim(t.Context(), "w65", hullmark.EKID{67}); conditionCode(err) != "name-taken" {
		t.Errorf("it is kept for who claimed it first: %v", err)
	}
	forget(t, joinservice.Machine{EKID: heir, Name: "w65"})
	restUntil(t, "w65", Removed{EKID: m.EKID, Until: time.Now().Add(-time.Second)})
	if err := service.Claim(t.Context(), "w65", heir); err != nil {
		t.Errorf("when that is over: %v", err)
	}
	if _, rests, err := admin.Resting(t.Context(), "w65"); rests || err != nil {
		t.Errorf("and then: %v, %v", rests, err)
	}
	// Who knows that the machine is gone does not wait.
	gone := testMachine(68, "w68")
	nodeOf(t, gone)
	if until, err := admin.Delete(t.Context(), gone, true); err != nil || !until.IsZero() {
		t.Fatal(until, err)
	}
	forget(t, joinservice.Machine{EKID: heir, Name: "w68"})
	if err := service.Claim(t.Context(), "w68", heir); err != nil {
		t.Errorf("of a machine that is gone: %v", err)
	}
}

// restUntil lets a name rest until then, whatever is said of it.
func restUntil(t *testing.T, name string, removed Removed) {
	t.Helper()
	err := admin.editList(t.Context(), removedObject, removedObject, func(list *corev1.ConfigMap) (bool, error) {
		list.Data[name] = removed.String()
		return true, nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// A certificate that is approved while its machine is removed is not overlooked.
func TestRemovalMeetsARenewal(t *testing.T) {
	m := testMachine(69, "w69")
	admitted(t, m)
	kept, version, err := service.Load(t.Context(), m.EKID)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := service.Store(t.Context(), withEnd(kept, time.Now().Add(time.Hour)), version); err != nil {
		t.Fatal(err)
	}
	if err := admin.deleteRecord(t.Context(), m.EKID, version); !apierrors.IsConflict(err) {
		t.Errorf("a record that is another one by now was deleted: %v", err)
	}
	until, err := admin.Delete(t.Context(), kept, false)
	if left := time.Until(until); err != nil || left < time.Minute {
		t.Errorf("what the caller read is what counts: %v, %v", until, err)
	}
}

func withEnd(m joinservice.Machine, end time.Time) joinservice.Machine {
	m.CertificateEnds = end.UTC().Truncate(time.Second)
	return m
}

func csrOf(text []byte) *certificatesv1.CertificateSigningRequest {
	return &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "csr-"},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			Request: text, SignerName: clientSigner, Usages: []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth},
		},
	}
}
