//go:build long

package registry

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/client-go/rest"

	"github.com/hullmark/hullmark/joinservice"
)

// life gets a machine its first certificate with another token, and returns what its kubelet connects with.
func life(t *testing.T, m joinservice.Machine) *rest.Config {
	t.Helper()
	token, _ := admitted(t, m)
	first, key := signingRequest(t, template(m.Name))
	config := api.Anonymous()
	config.CertData, config.KeyData = wantSigned(t, request(t, bearer(token), clientSigner, first, certificatesv1.UsageClientAuth)), key
	return config
}

// asks requests both certificates of a kubelet, as whoever shows this one does.
func asks(t *testing.T, who *rest.Config, name, address string) (client, serving string) {
	t.Helper()
	return request(t, who, clientSigner, requestPEM(t, template(name)), certificatesv1.UsageClientAuth),
		request(t, who, servingSigner, requestPEM(t, template(name, address)), certificatesv1.UsageServerAuth)
}

// A kubelet's key is copied, and its machine removed: nobody gets the name until the copied certificate has ended, the machine
// included. Its operator says that it is gone all the same, and it comes back: the copy renews nothing and gets no serving
// certificate, and what the machine has by now does.
func TestCopiedKeyOfARemovedMachine(t *testing.T) {
	approving(t, 2)
	m := testMachine(71, "w71")
	copied := life(t, m)
	first, err := admin.Delete(t.Context(), m, false)
	if err != nil || time.Until(first) < time.Hour {
		t.Fatal(first, err)
	}
	if err := service.Claim(t.Context(), "w71", m.EKID); conditionCode(err) != "name-rests" {
		t.Errorf("claimed by its own machine while the copy lives: %v", err)
	}
	if again, err := admin.Delete(t.Context(), m, false); err != nil || !again.Equal(first) {
		t.Errorf("removed once more, it rests until %v: %v; want %v", again, err, first)
	}
	if err := admin.Free(t.Context(), "w71"); err != nil {
		t.Fatal(err)
	}
	back := life(t, m)
	client, serving := asks(t, back, "w71", "10.0.0.1")
	wantSigned(t, client)
	wantSigned(t, serving)
	client, serving = asks(t, copied, "w71", "10.0.0.1")
	const says = "was seen to get since its last token"
	wantDenied(t, client, says)
	wantDenied(t, serving, says)
}

// A reset leaves the machine its record and its name; its last token begins another life all the same.
func TestCopiedKeyOfAResetMachine(t *testing.T) {
	approving(t, 1)
	m := testMachine(72, "w72")
	copied := life(t, m)
	id, token, err := issue(t.Context(), m)
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "another token", func() error {
		kept, version, err := service.Load(t.Context(), m.EKID)
		if err != nil {
			return err
		}
		kept.Token, kept.FirstKey, kept.Credentials = id, "", nil // as joinservice does
		_, err = service.Store(t.Context(), kept, version)
		return err
	})
	first, key := signingRequest(t, template("w72"))
	back := api.Anonymous()
	back.CertData, back.KeyData = wantSigned(t, request(t, bearer(token), clientSigner, first, certificatesv1.UsageClientAuth)), key
	client, serving := asks(t, back, "w72", "10.0.0.1")
	wantSigned(t, client)
	wantSigned(t, serving)
	client, serving = asks(t, copied, "w72", "10.0.0.1")
	wantDenied(t, client, "was seen to get since its last token")
	wantDenied(t, serving, "was seen to get since its last token")
}

// What was issued while no approver ran is noted by the next one, from what the API lists still, before it decides over what
// was asked for by that.
func TestApproversThatWereAwayNoteWhatWasIssued(t *testing.T) {
	m := testMachine(73, "w73")
	token, _ := admitted(t, m)
	first, key := signingRequest(t, template("w73"))
	name := request(t, bearer(token), clientSigner, first, certificatesv1.UsageClientAuth)
	csr, err := admin.requests.get(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	a := &Approver{Registry: service, Admits: everyone}
	if d, err := a.handle(t.Context(), csr); err != nil || d.Outcome != Approved {
		t.Fatal(d, err) // It approves, and is gone.
	}
	node := api.Anonymous()
	node.CertData, node.KeyData = wantSigned(t, name), key
	client, serving := asks(t, node, "w73", "10.0.0.1")
	time.Sleep(notePatience + time.Second)
	approving(t, 2)
	wantSigned(t, client)
	wantSigned(t, serving)
}

// Which CA issued a certificate is in the record once the policy commits to one, and not before: join services of earlier releases read
// no such record.
func TestIssuersAreRecordedOnceThePolicyCommits(t *testing.T) {
	var commits atomic.Bool
	runApprover(t, &Approver{Admits: everyone, Issuers: commits.Load})
	for i, name := range []string{"w178", "w179"} {
		commits.Store(i == 1)
		m := testMachine(byte(178+i), name)
		certificate, err := parseIssued(life(t, m).CertData)
		if err != nil {
			t.Fatal(err)
		}
		want := ""
		if commits.Load() {
			want = joinservice.IssuerOf(certificate)
		}
		eventually(t, "the note of a certificate", func() error {
			m, _, err := service.Load(t.Context(), m.EKID)
			if err == nil && (len(m.Credentials) != 1 || m.Credentials[0].Fingerprint != fingerprintOf(certificate) || m.Credentials[0].Issuer != want) {
				err = fmt.Errorf("%s: the record lists %+v, want the issuer %q", name, m.Credentials, want)
			}
			return err
		})
	}
}

// What an approver decides it decides by the API's policy of then, not by what it was told last.
func TestApproverAsksForTheNewestPolicy(t *testing.T) {
	var newest atomic.Bool
	policy := func(m joinservice.Machine) error {
		if newest.Load() && m.Name == "w74" {
			return errRemoved
		}
		return nil
	}
	m := testMachine(74, "w74")
	token, _ := admitted(t, m)
	runApprover(t, &Approver{Admits: policy, Newest: func(context.Context) error {
		newest.Store(true)
		return nil
	}})
	wantDenied(t, request(t, bearer(token), clientSigner, requestPEM(t, template("w74")), certificatesv1.UsageClientAuth), errRemoved.Error())
	other, _ := admitted(t, testMachine(75, "w75"))
	wantSigned(t, request(t, bearer(other), clientSigner, requestPEM(t, template("w75")), certificatesv1.UsageClientAuth))
}

var errRemoved = errors.New("policy version 2 admits this machine no more")

// However many requests a worker makes, the next one's waits for a handful of them.
func TestOneWorkersRequestsDelayNobody(t *testing.T) {
	const flood = 200
	for _, m := range []joinservice.Machine{testMachine(76, "w76"), testMachine(77, "w77")} {
		admitted(t, m)
	}
	ask := func(name string, times int) (last string) {
		config, err := api.Config("system:node:"+name, "system:nodes")
		if err != nil {
			t.Fatal(err)
		}
		listed(t, config, name)
		text := requestPEM(t, template(name))
		for range times {
			last = request(t, config, clientSigner, text, certificatesv1.UsageClientAuth)
		}
		return last
	}
	ask("w76", flood)
	mine := ask("w77", 1)
	before, decided := 0, make(chan int, 1)
	runApprover(t, &Approver{Admits: everyone, Report: func(d Decision, err error) {
		if d.Request == mine {
			decided <- before
		}
		before++
	}})
	if n := <-decided; n > mostOfOne {
		t.Errorf("%d decisions over another worker's requests came first", n)
	}
	if err := removeRequests(t); err != nil {
		t.Error(err)
	}
}
