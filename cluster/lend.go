package cluster

import (
	"crypto/ecdsa"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"reflect"

	"filippo.io/age"

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
	// Document is what the machine has to have booted.
	Document measurements.DocumentID
	// For is the Cluster, NAMESPACE/NAME, that a file is sealed for; empty of one under a passphrase.
	For string
	// Lender is the age recipient of whoever lent the file, who can open it whatever it is sealed to.
	Lender string
}

// Loan says what a cluster is lent for.
type Loan struct {
	// Document is what the machine has to have booted.
	Document measurements.Document
	// Node is the machine, Name its node's name, and ProviderID, which may be empty, what the kubelet calls it for Cluster API or a cloud.
	Node             hullmark.EKID
	Name, ProviderID string
	// ReplaceFirst gives up the machine that was the first, with its data.
	ReplaceFirst bool
	// For is the Cluster of Cluster API, NAMESPACE/NAME, that the file is for; it may be empty.
	For string
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
// machine, as two would begin two clusters. Of a cluster that has begun nothing is lent: further machines join by its join service.
func (c *Cluster) Lend(loan Loan) (*Cluster, error) {
	if c.Lease != nil {
		return nil, ErrLent
	}
	id, err := loan.Document.Digest()
	if err != nil {
		return nil, fmt.Errorf("lend the cluster: %w", err)
	}
	policy, err := c.lendingPolicy(loan)
	if err == nil {
		err = c.SetPolicy(policy, loan.Document)
	}
	if err != nil {
		return nil, fmt.Errorf("lend the cluster: %w", err)
	}
	node := loan.Node
	root, err := c.rootKey()
	if err != nil {
		return nil, err
	}
	operator, err := channel.NewOperator(c.Root.Certificate, root, channel.Scope{Verb: channel.VerbBegin, Policy: policy.Version, EKID: node})
	if err != nil {
		return nil, err
	}
	if c.lender == nil {
		if c.lender, err = age.GenerateX25519Identity(); err != nil {
			return nil, err
		}
	}
	key, ok := operator.PrivateKey.(*ecdsa.PrivateKey)
	if !ok {
		return nil, fmt.Errorf("lend the cluster: the operator's key is a %T", operator.PrivateKey)
	}
	c.LentFor = &node
	lent := *c
	lent.Root.Key, lent.remote, lent.LentFor, lent.lender = nil, nil, nil, nil
	lent.Revision, lent.signed = Revision{}, nil
	lent.Lease = &Lease{Certificate: operator.Leaf, Key: key, Document: id, For: loan.For, Lender: c.lender.Recipient().String()}
	return &lent, nil
}

// lendingPolicy is the policy by which the cluster is lent for a machine. One that is given up is no member any more.
func (c *Cluster) lendingPolicy(loan Loan) (measurements.Policy, error) {
	last, err := c.OpenPolicy()
	if err != nil {
		return measurements.Policy{}, err
	}
	if c.Initialised != nil {
		return measurements.Policy{}, errors.New("it has begun: further machines join by its join service; if it is lost, begin it anew with this file (hullmark init --replace-first)")
	}
	previous, gaveUp := last, false
	for _, given := range c.Firsts() {
		if given == loan.Node {
			continue
		}
		if !loan.ReplaceFirst {
			return measurements.Policy{}, fmt.Errorf("%s was to be its first machine; go on with that one, or give it up with its data (--replace-first)", given)
		}
		previous, gaveUp = previous.Without(given), true
	}
	if gaveUp {
		c.GiveUpFirst()
	}
	member := measurements.Member{EKID: loan.Node, Role: hullmark.ControlPlane, Name: loan.Name, ProviderID: loan.ProviderID}
	policy, err := joinservice.FirstPolicy(previous, loan.Document, member)
	if err == nil && policy.Version == last.Version && !reflect.DeepEqual(policy, last) {
		policy.Version++
	}
	return policy, err
}

// Firsts are the machines that are, or were to be, the first: which the cluster was begun on, and which it was lent for.
func (c *Cluster) Firsts() (all []hullmark.EKID) {
	if c.First != nil {
		all = append(all, c.First.EKID)
	}
	if c.LentFor != nil && (c.First == nil || c.First.EKID != *c.LentFor) {
		all = append(all, *c.LentFor)
	}
	return all
}

// maxLentTickets bounds how often a machine may have been given a ticket by a file that was lent: each needs an empty disk.
const maxLentTickets = 1 << 10

// TakeBack notes what was done with a file that was lent: the first node, its disk, and what its join services are set to. It is the
// word of whoever borrowed the file, so it only adds: what is noted already stays, and another machine's than that which the file was
// lent for last is refused.
func (c *Cluster) TakeBack(lent *Cluster) error {
	if err := c.checkLent(lent); err != nil {
		return fmt.Errorf("take the cluster back: %w", err)
	}
	if lent.First == nil {
		return nil
	}
	if c.First == nil {
		c.First, c.Settings = lent.First, lent.Settings
		c.setEpoch(lent.First.EKID, lent.Epochs[lent.First.EKID])
	}
	if c.Initialised == nil {
		c.Initialised = lent.Initialised
	}
	return nil
}

func (c *Cluster) checkLent(lent *Cluster) error {
	switch {
	case lent.Lease == nil:
		return errors.New("this is no file that was lent")
	case c.Lease != nil:
		return ErrLent
	case !lent.Root.Certificate.Equal(c.Root.Certificate):
		return errors.New("it was lent by another cluster, or before the root was exchanged")
	}
	node, err := lent.Lease.Node()
	if err != nil {
		return err
	}
	if c.LentFor == nil || *c.LentFor != node {
		return fmt.Errorf("it was lent for %s, and that machine was given up since", node)
	}
	first := lent.First
	if first == nil {
		return nil
	}
	epoch, known := lent.Epochs[node]
	switch {
	case first.EKID != node || lent.Initialised != nil && *lent.Initialised != node:
		return fmt.Errorf("it was lent for %s, and tells of another machine", node)
	case first.Issued == 0 || first.Issued > maxLentTickets || first.Committed > first.Issued:
		return fmt.Errorf("it tells of %d tickets, of which number %d is on the disk: want at most %d", first.Issued, first.Committed, maxLentTickets)
	case first.Committed == 0:
		return errors.New("the machine was given a ticket, and has not opened its disk: run hullmark init with the lent file again, or give the machine up (hullmark cluster lend --replace-first)")
	case lent.Settings == nil || !known || epoch.Disk != first.Disk || epoch.Epoch != first.Committed:
		return errors.New("it tells of a first node, and not what init notes with it")
	case c.First != nil && (c.First.EKID != node || c.First.Disk != first.Disk):
		return errors.New("the cluster file knows another disk, or another machine, as the first node's")
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
