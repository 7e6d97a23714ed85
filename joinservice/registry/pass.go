package registry

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/apimachinery/pkg/types"
)

// abreast is how many requests are looked at at once: each takes two or three calls of the API, and nodes that come together
// wait for the last.
const abreast = 16

// mostOfOne is how many requests of one requester are looked at in a pass: whoever makes more waits for himself alone. A
// kubelet has one or two.
const mostOfOne = 4

// handled is what became of a request so far.
type handled struct {
	// since is when it was first seen here.
	since time.Time
	// decided says that the decision was written, though the copy may not show it yet, noted that it was looked at whose
	// certificate it brought.
	decided, noted bool
}

// pass looks at all requests once, in any order, so that several approvers seldom look at the same.
type pass struct {
	approver *Approver
	requests []*certificatesv1.CertificateSigningRequest

	mutex sync.Mutex // guards after, and calls of Report
	after map[types.UID]handled
}

// pass notes what was issued, and then decides: a request may come with a certificate that was issued just before. It takes
// what became of requests so far, and returns what did by now.
func (a *Approver) pass(ctx context.Context, objects []any, before map[types.UID]handled) map[types.UID]handled {
	p := &pass{approver: a, after: map[types.UID]handled{}}
	pending := false
	for _, o := range objects {
		csr := o.(*certificatesv1.CertificateSigningRequest)
		if !undecided(csr) && !issued(csr) {
			continue
		}
		h, seen := before[csr.UID]
		if !seen {
			h.since = time.Now()
		}
		p.after[csr.UID] = h
		p.requests = append(p.requests, csr)
		pending = pending || undecided(csr) && !h.decided
	}
	rand.Shuffle(len(p.requests), func(i, j int) { p.requests[i], p.requests[j] = p.requests[j], p.requests[i] })
	p.each(ctx, p.toNote, p.note)
	if pending && a.Newest != nil {
		if err := a.Newest(ctx); err != nil {
			p.report(Decision{}, fmt.Errorf("the API's policy is not taken: %w", err))
		}
	}
	p.each(ctx, p.toDecide, p.decide)
	return p.after
}

// each looks at the requests that are chosen, several at once, and at a few of each requester.
func (p *pass) each(ctx context.Context, chosen func(*certificatesv1.CertificateSigningRequest, handled) bool, look func(context.Context, *certificatesv1.CertificateSigningRequest) (handled, error)) {
	var group errgroup.Group
	group.SetLimit(abreast)
	was, taken := maps.Clone(p.after), map[string]int{}
	for _, csr := range p.requests {
		if ctx.Err() != nil || !chosen(csr, was[csr.UID]) || taken[csr.Spec.Username] == mostOfOne {
			continue
		}
		taken[csr.Spec.Username]++
		group.Go(func() error {
			h, err := look(ctx, csr)
			h.since = was[csr.UID].since
			p.mutex.Lock()
			defer p.mutex.Unlock()
			p.after[csr.UID] = h
			return err
		})
	}
	_ = group.Wait() // each error was reported
}

func (p *pass) report(d Decision, err error) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	if p.approver.Report != nil {
		p.approver.Report(d, err)
	}
}

func (p *pass) toDecide(csr *certificatesv1.CertificateSigningRequest, h handled) bool {
	return undecided(csr) && !h.decided && (!p.approver.others(csr) || time.Since(h.since) >= courtesy)
}

func (p *pass) decide(ctx context.Context, csr *certificatesv1.CertificateSigningRequest) (handled, error) {
	decision, err := p.approver.handle(ctx, csr)
	decided := err == nil && decision.Outcome != Waiting
	if err != nil || decided {
		p.report(decision, err)
	}
	return handled{decided: decided}, err
}

func (p *pass) toNote(csr *certificatesv1.CertificateSigningRequest, h handled) bool {
	return issued(csr) && !h.noted
}

func (p *pass) note(ctx context.Context, csr *certificatesv1.CertificateSigningRequest) (handled, error) {
	err := p.approver.noteIssued(ctx, csr)
	if err != nil && ctx.Err() == nil {
		p.report(Decision{Request: csr.Name, Signer: csr.Spec.SignerName, Requester: csr.Spec.Username}, err)
	}
	return handled{decided: true, noted: err == nil}, err
}

// others reports whether another replica may have the exchange of the machine that makes a request.
func (a *Approver) others(csr *certificatesv1.CertificateSigningRequest) bool {
	who := requesterOf(csr)
	return a.Here != nil && who.token != "" && !a.Here(who.machine)
}

// undecided reports whether a request is for one of the two signers, and still undecided.
func undecided(csr *certificatesv1.CertificateSigningRequest) bool {
	signer := csr.Spec.SignerName
	return len(csr.Status.Conditions) == 0 && len(csr.Status.Certificate) == 0 &&
		(signer == certificatesv1.KubeAPIServerClientKubeletSignerName || signer == certificatesv1.KubeletServingSignerName)
}

// issued reports whether a request brought a client certificate.
func issued(csr *certificatesv1.CertificateSigningRequest) bool {
	return csr.Spec.SignerName == certificatesv1.KubeAPIServerClientKubeletSignerName && len(csr.Status.Certificate) > 0
}
