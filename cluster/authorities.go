package cluster

import (
	"crypto/x509"
	"errors"
	"fmt"
	"slices"

	"github.com/hullmark/hullmark"
)

// CAName names a CA that can be exchanged while the cluster lives.
type CAName string

const (
	// KubeletCA signs kubelets' serving certificates.
	KubeletCA CAName = "kubelet-ca"
	// EtcdCA signs the certificates by which etcd's members know each other and their clients, and those them.
	EtcdCA CAName = "etcd-ca"
	// FrontProxyCA signs the certificate by which the servers of aggregated APIs know API servers.
	FrontProxyCA CAName = "front-proxy-ca"
	// KubernetesCA signs the certificates of API servers, and of all their clients: kubelets, control planes, administrators.
	KubernetesCA CAName = "kubernetes-ca"
)

// CANames returns all of them.
func CANames() []CAName { return []CAName{KubeletCA, EtcdCA, FrontProxyCA, KubernetesCA} }

// CA is an authority that can be exchanged while the cluster lives.
type CA struct {
	// Authority signs.
	Authority
	// Next is to follow it, and Former went before it; one of the two is there while it is exchanged (Exchange).
	Next   *Authority
	Former *x509.Certificate
}

// Exchange is how far the exchange of a CA has come. Each step is one rotation, and the next one is safe only once every control
// plane holds it: then nobody ever meets a certificate of a CA that he does not trust.
type Exchange string

const (
	// ExchangeSteady has one CA.
	ExchangeSteady Exchange = "steady"
	// ExchangeTrusted has a next CA that is trusted, too, and that signs nothing yet.
	ExchangeTrusted Exchange = "trusted"
	// ExchangeSigning has a CA that signs, and the former one, which is still trusted: certificates of it are used until others
	// have been made.
	ExchangeSigning Exchange = "signing"
)

// exchange says how far the exchange has come.
func (a *CA) exchange() Exchange {
	switch {
	case a.Next != nil:
		return ExchangeTrusted
	case a.Former != nil:
		return ExchangeSigning
	}
	return ExchangeSteady
}

// certificates returns those that are trusted: the one that signs, then the other one of an exchange.
func (a *CA) certificates() []*x509.Certificate {
	all := []*x509.Certificate{a.Certificate}
	switch {
	case a.Next != nil:
		all = append(all, a.Next.Certificate)
	case a.Former != nil:
		all = append(all, a.Former)
	}
	return all
}

// trust returns certificates in PEM.
func (a *CA) trust() (text []byte) {
	for _, c := range a.certificates() {
		text = append(text, encodeCertificate(c)...)
	}
	return text
}

// check refuses what no step leaves behind.
func (a *CA) check() error {
	if a.Next != nil && a.Former != nil {
		return errors.New("it has a next one and a former one")
	}
	return nil
}

// ca returns a CA by its name.
func (c *Cluster) ca(name CAName) *CA {
	switch name {
	case KubeletCA:
		return &c.KubeletServing
	case EtcdCA:
		return &c.Etcd
	case FrontProxyCA:
		return &c.FrontProxy
	case KubernetesCA:
		return &c.Kubernetes
	}
	panic(fmt.Sprintf("there is no CA %q", name)) // Only a mistake in the program can be the cause.
}

// commonName is what a new CA calls itself.
func (name CAName) commonName() string {
	switch name {
	case KubeletCA:
		return "kubelet-serving-ca"
	case KubernetesCA:
		return "kubernetes"
	}
	return string(name)
}

// Exchange says how far the exchange of a CA has come.
func (c *Cluster) Exchange(name CAName) Exchange { return c.ca(name).exchange() }

// CACertificate returns the certificate of the CA that signs, in PEM.
func (c *Cluster) CACertificate(name CAName) []byte { return encodeCertificate(c.ca(name).Certificate) }

// CATrust returns the certificates of all that are trusted for a CA, in PEM: the one that signs, then the other one of an exchange.
func (c *Cluster) CATrust(name CAName) []byte { return c.ca(name).trust() }

// committedCA is what a policy that follows another one commits to of the Kubernetes CA: what nodes trust, from the first step of its first
// exchange on, and nothing before. Join services of earlier releases refuse a policy that has it.
func (c *Cluster) committedCA(last hullmark.CADigest) hullmark.CADigest {
	if last == (hullmark.CADigest{}) && c.Kubernetes.exchange() == ExchangeSteady {
		return last
	}
	return hullmark.DigestCA(c.Kubernetes.trust())
}

// TrustCA makes the CA that is to follow, and has it trusted beside the present one.
func (c *Cluster) TrustCA(name CAName) error {
	if err := c.wantExchange(name, ExchangeSteady); err != nil {
		return err
	}
	next, err := newAuthority(name.commonName())
	if err != nil {
		return fmt.Errorf("rotate %s: %w", name, err)
	}
	c.ca(name).Next = &next
	return c.demandRotation()
}

// SignWithCA has the next CA sign; the one before goes on to be trusted. The key of that one is gone then.
func (c *Cluster) SignWithCA(name CAName) error {
	if err := c.wantExchange(name, ExchangeTrusted); err != nil {
		return err
	}
	a := c.ca(name)
	*a = CA{Authority: *a.Next, Former: a.Certificate}
	return c.demandRotation()
}

// DropCA ends the trust in the former CA.
func (c *Cluster) DropCA(name CAName) error {
	if err := c.wantExchange(name, ExchangeSigning); err != nil {
		return err
	}
	c.ca(name).Former = nil
	return c.demandRotation()
}

// wantExchange refuses a step out of its order, and one for a CA that nobody has.
func (c *Cluster) wantExchange(name CAName, want Exchange) error {
	if !slices.Contains(CANames(), name) {
		return fmt.Errorf("rotate %q: want one of %q", name, CANames())
	}
	if got := c.Exchange(name); got != want {
		return fmt.Errorf("rotate %s: the exchange is at the step %s, want %s: the next CA is trusted first, then it signs, then the former one goes", name, got, want)
	}
	return nil
}
