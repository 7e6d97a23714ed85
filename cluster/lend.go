package cluster

import (
	"crypto/ecdsa"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"reflect"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest/channel"
	"github.com/hullmark/hullmark/joinservice"
	"github.com/hullmark/hullmark/measurements"
)

// ErrLent says that a file was lent, and can sign nothing.
var ErrLent = errors.New("this cluster file was lent to begin the cluster on one machine, and has no root key; next: use the cluster file that it was lent from")

// Lease stands in for the root's key in a file that was lent: an operator's certificate for channel.VerbBegin on one machine.
type Lease struct {
	// Certificate is the leaf; Key is its key.
	Certificate *x509.Certificate
	Key         *ecdsa.PrivateKey
}

// Node is the machine on which the cluster may be begun.
func (l *Lease) Node() (hullmark.EKID, error) {
	scope, err := channel.LeafScope(l.Certificate)
	if err == nil && scope.Verb != channel.VerbBegin {
		err = fmt.Errorf("lease: the certificate is for %s, want %s", scope.Verb, channel.VerbBegin)
	}
	return scope.EKID, err
}

// Lend returns the cluster for whoever is to begin it on one machine, and on no other: it has everything but the root's key, so
// that it signs no policy. The policy accepts the document and names the machine as a control plane from now on. It is lent for one
// machine, as two would begin two clusters; replace gives up the machine that was the first, with its data. Of a cluster that has
// begun nothing is lent: further machines join by its join service.
func (c *Cluster) Lend(document measurements.Document, node hullmark.EKID, name string, replace bool) (*Cluster, error) {
	if c.Lease != nil {
		return nil, ErrLent
	}
	policy, err := c.lendingPolicy(document, measurements.Member{EKID: node, Role: hullmark.ControlPlane, Name: name}, replace)
	if err == nil {
		err = c.SetPolicy(policy, document)
	}
	if err != nil {
		return nil, fmt.Errorf("lend the cluster: %w", err)
	}
	operator, err := channel.NewOperator(c.Root.Certificate, c.Root.Key, channel.Scope{Verb: channel.VerbBegin, Policy: policy.Version, EKID: node})
	if err != nil {
		return nil, err
	}
	key, ok := operator.PrivateKey.(*ecdsa.PrivateKey)
	if !ok {
		return nil, fmt.Errorf("lend the cluster: the operator's key is a %T", operator.PrivateKey)
	}
	c.LentFor = &node
	lent := *c
	lent.Root.Key, lent.LentFor = nil, nil
	lent.Lease = &Lease{Certificate: operator.Leaf, Key: key}
	return &lent, nil
}

// lendingPolicy is the policy by which the cluster is lent for a machine. One that is given up is no member any more.
func (c *Cluster) lendingPolicy(document measurements.Document, member measurements.Member, replace bool) (measurements.Policy, error) {
	last, err := c.OpenPolicy()
	if err != nil {
		return measurements.Policy{}, err
	}
	previous := last
	for _, given := range c.firsts() {
		if given == member.EKID {
			continue
		}
		if !replace {
			return measurements.Policy{}, fmt.Errorf("%s was to be its first machine; go on with that one, or give it up with its data (--replace-first)", given)
		}
		previous = previous.Without(given)
	}
	if replace {
		c.GiveUpFirst()
	}
	if c.Initialised != nil {
		return measurements.Policy{}, errors.New("it has begun; further machines join by its join service")
	}
	policy, err := joinservice.FirstPolicy(previous, document, member)
	if err == nil && policy.Version == last.Version && !reflect.DeepEqual(policy, last) {
		policy.Version++
	}
	return policy, err
}

// firsts are the machines that are, or were to be, the first.
func (c *Cluster) firsts() (all []hullmark.EKID) {
	if c.First != nil {
		all = append(all, c.First.EKID)
	}
	if c.LentFor != nil {
		all = append(all, *c.LentFor)
	}
	return all
}

// TakeBack notes what was done with a file that was lent: the first node, its disk, and what its join services are set to. It has to
// be the one that was lent last, and must not know less than what is noted already.
func (c *Cluster) TakeBack(lent *Cluster) error {
	if err := c.checkLent(lent); err != nil {
		return fmt.Errorf("take the cluster back: %w", err)
	}
	if lent.First == nil {
		return nil
	}
	node := lent.First.EKID
	c.First, c.Initialised, c.Settings = lent.First, lent.Initialised, lent.Settings
	if epoch, ok := lent.Epochs[node]; ok {
		c.setEpoch(node, epoch)
	}
	return nil
}

func (c *Cluster) checkLent(lent *Cluster) error {
	if lent.Lease == nil {
		return errors.New("this is no file that was lent")
	}
	if c.Lease != nil {
		return ErrLent
	}
	if !lent.Root.Certificate.Equal(c.Root.Certificate) {
		return errors.New("it was lent by another cluster, or before the root was exchanged")
	}
	node, err := lent.Lease.Node()
	if err != nil {
		return err
	}
	if c.LentFor == nil || *c.LentFor != node {
		return fmt.Errorf("it was lent for %s, and that machine was given up since", node)
	}
	if lent.First == nil {
		return nil
	}
	if lent.First.EKID != node {
		return fmt.Errorf("it was lent for %s, and %s was begun on", node, lent.First.EKID)
	}
	if c.First != nil && !reflect.DeepEqual(*c.First, *lent.First) && lent.First.Issued <= c.First.Issued {
		return errors.New("the cluster file knows more of the first node than the one that was lent")
	}
	return nil
}

// lentOperator is the operator's certificate of a file that was lent, if it is for this.
func (c *Cluster) lentOperator(verb channel.Verb, node hullmark.EKID, policy measurements.Policy) (tls.Certificate, error) {
	machine, err := c.Lease.Node()
	if err != nil {
		return tls.Certificate{}, err
	}
	if verb != channel.VerbInit || node != machine {
		return tls.Certificate{}, fmt.Errorf("%s of %s: it is lent for init of %s: %w", verb, node, machine, ErrLent)
	}
	operator := tls.Certificate{Certificate: [][]byte{c.Lease.Certificate.Raw, c.Root.Certificate.Raw}, PrivateKey: c.Lease.Key, Leaf: c.Lease.Certificate}
	return channel.WithCrossCertificates(operator, policy.CrossCertificates), nil
}
