package registry

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/joinservice"
	"github.com/hullmark/hullmark/kubeadm"
)

// Decision is what was decided over one certificate request.
type Decision struct {
	// Request is the name of the CertificateSigningRequest, Signer whose certificate it asks for, Requester who asked.
	Request, Signer, Requester string
	// Outcome is Approved or Denied.
	Outcome Outcome
	// Reason says why, for people; it holds no secret.
	Reason string
}

// Approver approves and denies kubelets' certificate requests. Several may run
// at once: of two decisions, which are equal, the API takes the first.
type Approver struct {
	// Registry is where requests, tokens and records are.
	Registry *Registry
	// Admits returns nil if the policy in force admits the machine of a record, under the name and role that the record has, or
	// why it does not: a machine that is a member no more gets no certificate, and renews none.
	Admits func(joinservice.Machine) error
	// Newest sees to it that Admits goes by the newest policy that the API holds (joinservice.Service.TakeNewest): it is called
	// before requests are decided over that were seen together. An error is reported, and then what is in force counts. Without
	// it, what was delivered last does.
	Newest func(context.Context) error
	// Here reports whether a machine's exchange goes on at this replica, which then decides over its first certificate at
	// once; the others leave it to that one for a while. Without Here, none waits.
	Here func(hullmark.EKID) bool
	// Claim claims for a machine the addresses that a serving certificate is to name, and returns those that the machine holds
	// by now, and why not the others (joinservice.Service.ClaimAddresses).
	Claim func(context.Context, hullmark.EKID, []netip.Addr) ([]netip.Addr, []joinservice.Refusal, error)
	// Issuers reports whether a record says which CA issued a certificate: join services that know no exchange of the Kubernetes CA
	// refuse such a record. Without it none says so.
	Issuers func() bool
	// Report is called with each decision that this approver wrote, and with each error
	// that delayed one, or the noting of a certificate; it may be nil.
	Report func(Decision, error)
}

// revisit is how often requests that wait are looked at again.
const revisit = 5 * time.Second

// courtesy is how long a request is left to the replica that has its machine's exchange, which may have ended.
const courtesy = 10 * time.Second

// Run decides over requests as they come, notes in machines' records which certificates were issued, and looks at machines that
// are absent while others want their addresses, over outages of the API, until ctx ends; it returns ctx's error.
func (a *Approver) Run(ctx context.Context) error {
	r := a.Registry
	var requests map[types.UID]handled
	return mirror(ctx, &certificatesv1.CertificateSigningRequest{}, &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return r.requests.list(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return r.requests.watch(ctx, o)
		},
	}, revisit, func(ctx context.Context, objects []any) {
		r.lookAgain(ctx)
		requests = a.pass(ctx, objects, requests)
	})
}

// handle decides over one request and writes the decision.
func (a *Approver) handle(ctx context.Context, csr *certificatesv1.CertificateSigningRequest) (Decision, error) {
	d := Decision{Request: csr.Name, Signer: csr.Spec.SignerName, Requester: csr.Spec.Username}
	var err error
	if d.Outcome, d.Reason, err = a.judge(ctx, csr); err != nil || d.Outcome == Waiting {
		return d, err
	}
	decided := csr.DeepCopy()
	decided.Status.Conditions = append(decided.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
		Type: certificatesv1.RequestConditionType(d.Outcome), Status: corev1.ConditionTrue,
		Reason: "Hullmark" + string(d.Outcome), Message: d.Reason,
	})
	_, err = call(ctx, a.Registry.connection, "decide over certificate request "+csr.Name, func(ctx context.Context) (*certificatesv1.CertificateSigningRequest, error) {
		return a.Registry.requests.update(ctx, csr.Name, decided, "approval")
	})
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		// Somebody else decided, or the request is gone: the watch will tell.
		return Decision{Outcome: Waiting}, nil
	}
	return d, err
}

// noteTries bounds how often an approval is noted in a record while others change it: the machine's own exchange does.
const noteTries = 4

// LongestCertificate is how long after its approval a kubelet's client certificate ends at the latest: the controller manager
// signs an approved request for an hour, as long as that is kept (k8s.io/kubernetes pkg/controller/certificates/cleaner,
// approvedExpiration).
const LongestCertificate = kubeadm.CertificateLife + time.Hour

// judge decides over one request; what is approved for the bearer of a token is recorded first.
func (a *Approver) judge(ctx context.Context, csr *certificatesv1.CertificateSigningRequest) (Outcome, string, error) {
	for try := 1; ; try++ {
		known, err := a.look(ctx, csr)
		if err != nil {
			return Waiting, "", err
		}
		outcome, reason := decide(csr, known, time.Now())
		switch {
		case outcome != Approved:
		case csr.Spec.SignerName == certificatesv1.KubeletServingSignerName:
			outcome, reason, err = a.claim(ctx, csr, known, reason)
		default:
			err = a.note(ctx, csr, known)
		}
		if !errors.Is(err, joinservice.ErrConflict) || try == noteTries {
			return outcome, reason, err
		}
	}
}

// note records what is approved before it is: the key of a token's bearer, so that of two keys, at whatever replicas, one is
// first; and until when the machine may have a certificate, which is what it still has once it is removed.
func (a *Approver) note(ctx context.Context, csr *certificatesv1.CertificateSigningRequest, known facts) error {
	m := known.machine
	if requesterOf(csr).token != "" && m.FirstKey == "" {
		request, err := parseRequest(csr.Spec.Request)
		if err != nil {
			return err
		}
		m.FirstKey = keyOf(request.RawSubjectPublicKeyInfo)
	}
	// Another replica that approves the same request notes much the same time.
	if ends := time.Now().Add(LongestCertificate).UTC().Truncate(time.Second); csr.Spec.SignerName == certificatesv1.KubeAPIServerClientKubeletSignerName && ends.Sub(m.CertificateEnds) > time.Minute {
		m.CertificateEnds = ends
	}
	if m.FirstKey == known.machine.FirstKey && m.CertificateEnds.Equal(known.machine.CertificateEnds) {
		return nil
	}
	_, err := a.Registry.Store(ctx, m, known.version)
	return err
}

// claim claims the addresses of a serving request, and denies it unless its machine holds each of them: nobody can leave one
// out of it but who made it.
func (a *Approver) claim(ctx context.Context, csr *certificatesv1.CertificateSigningRequest, known facts, reason string) (Outcome, string, error) {
	request, err := parseRequest(csr.Spec.Request)
	if err != nil {
		return Waiting, "", err
	}
	wanted := addressesOf(request)
	if len(wanted) == 0 {
		return Approved, reason, nil
	}
	granted, refused, err := a.Claim(ctx, known.node, wanted)
	if err != nil {
		return Waiting, "", fmt.Errorf("certificate request %s: %w", csr.Name, err)
	}
	for _, r := range refused {
		return Denied, brief(r.Condition.Error()), nil
	}
	for _, address := range wanted {
		if !slices.Contains(granted, address) {
			return Denied, fmt.Sprintf("IP address: machine %s does not hold %s", known.node, address), nil
		}
	}
	return Approved, reason, nil
}

// look fetches what the records say about who made a request.
func (a *Approver) look(ctx context.Context, csr *certificatesv1.CertificateSigningRequest) (facts, error) {
	who := requesterOf(csr)
	var known facts
	var err error
	switch {
	case who.token != "":
		known.node, known.found = who.machine, true
	case who.name != "":
		known.node, known.found, err = a.Registry.holder(ctx, who.name)
	}
	if err != nil || !known.found {
		return known, err
	}
	var version joinservice.Version
	known.machine, version, err = a.Registry.Load(ctx, known.node)
	known.version, known.recorded = version, version != ""
	if err != nil {
		return facts{}, fmt.Errorf("certificate request %s: %w", csr.Name, err)
	}
	if known.recorded {
		known.refused = a.Admits(known.machine)
	}
	return known, nil
}
