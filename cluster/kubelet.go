package cluster

import (
	"errors"
	"fmt"
)

// KubeletExchange is how far the exchange of the kubelets' CA has come. Each step is one rotation, and the next one is safe
// only once every control plane holds it: then no API server ever meets a kubelet whose certificate it does not trust.
type KubeletExchange string

const (
	// KubeletSteady has one CA.
	KubeletSteady KubeletExchange = "steady"
	// KubeletTrusted has a next CA that API servers trust, too, and that signs nothing yet.
	KubeletTrusted KubeletExchange = "trusted"
	// KubeletSigning has a CA that signs, and the former one, which API servers still trust: kubelets have certificates of it
	// until they ask for others.
	KubeletSigning KubeletExchange = "signing"
)

// KubeletExchange says how far the exchange of the kubelets' CA has come.
func (c *Cluster) KubeletExchange() KubeletExchange {
	switch {
	case c.KubeletNext != nil:
		return KubeletTrusted
	case c.KubeletFormer != nil:
		return KubeletSigning
	}
	return KubeletSteady
}

// TrustKubeletCA makes the CA that is to follow, and has API servers trust it beside the present one.
func (c *Cluster) TrustKubeletCA() error {
	if err := c.wantKubelet(KubeletSteady); err != nil {
		return err
	}
	next, err := newAuthority("kubelet-serving-ca")
	if err != nil {
		return fmt.Errorf("rotate the kubelets' CA: %w", err)
	}
	c.KubeletNext = &next
	return c.demandRotation()
}

// SignWithKubeletCA has the next CA sign; API servers go on to trust the one before. The key of that one is gone then.
func (c *Cluster) SignWithKubeletCA() error {
	if err := c.wantKubelet(KubeletTrusted); err != nil {
		return err
	}
	c.KubeletFormer, c.KubeletServing, c.KubeletNext = c.KubeletServing.Certificate, *c.KubeletNext, nil
	return c.demandRotation()
}

// DropKubeletCA ends the trust in the former CA.
func (c *Cluster) DropKubeletCA() error {
	if err := c.wantKubelet(KubeletSigning); err != nil {
		return err
	}
	c.KubeletFormer = nil
	return c.demandRotation()
}

// wantKubelet refuses a step out of its order.
func (c *Cluster) wantKubelet(want KubeletExchange) error {
	if got := c.KubeletExchange(); got != want {
		return fmt.Errorf("rotate the kubelets' CA: the exchange is at the step %s, want %s: API servers trust the next CA first, then it signs, then the former one goes", got, want)
	}
	return nil
}

// checkKubelet refuses what no step leaves behind.
func (c *Cluster) checkKubelet() error {
	if c.KubeletNext != nil && c.KubeletFormer != nil {
		return errors.New("kubelet-serving CA: it has a next one and a former one")
	}
	return nil
}

// kubeletTrust returns what API servers hold kubelets to, in PEM: the CA that signs, then the other one of an exchange.
func (c *Cluster) kubeletTrust() []byte {
	trusted := encodeCertificate(c.KubeletServing.Certificate)
	switch {
	case c.KubeletNext != nil:
		return append(trusted, encodeCertificate(c.KubeletNext.Certificate)...)
	case c.KubeletFormer != nil:
		return append(trusted, encodeCertificate(c.KubeletFormer)...)
	}
	return trusted
}

// KubeletCA returns the certificate of the CA that signs kubelets' serving certificates, in PEM, as
// hullmark.KubeletServingCertificate holds it.
func (c *Cluster) KubeletCA() []byte { return encodeCertificate(c.KubeletServing.Certificate) }
