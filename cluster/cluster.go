// Package cluster keeps what only a cluster's operator holds: the root key, the
// master keys, the Kubernetes authorities, and how far the first node has come.
package cluster

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"time"

	"filippo.io/age"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest/channel"
	"github.com/hullmark/hullmark/joinservice"
	"github.com/hullmark/hullmark/joinservice/keys"
	"github.com/hullmark/hullmark/measurements"
)

// Authority is a signing key with its certificate.
type Authority struct {
	Certificate *x509.Certificate
	Key         *ecdsa.PrivateKey
}

// DiskEpoch is the state of one machine's state disk.
type DiskEpoch struct {
	// Disk is the disk.
	Disk hullmark.UUID `json:"disk"`
	// Epoch is its counter.
	Epoch uint64 `json:"epoch"`
	// Etcd is what the machine's member of etcd had stored on it; zero if that was never heard.
	Etcd hullmark.EtcdState `json:"etcd,omitzero"`
	// Heard is when init or recover saw it, by the operator's clock: the file tells no copy of the disk since then.
	Heard time.Time `json:"heard,omitzero"`
}

// Cluster is the content of a cluster file. It has many methods, in a file for each subject: the parts are stored together, and a
// change of one is held to the others, as a policy that commits to the keys.
type Cluster struct {
	// Root signs the online CA, the operator's certificates and the policy; nodes pin its hash, or that of one that has handed
	// over to it, as Policy says. Root.Key is nil if it is elsewhere (RemoteRoot), and in a file that was lent.
	Root Authority
	// remote is a Root.Key that is elsewhere.
	remote *remoteKey
	// Lease, if it is set, is all that there is in the place of Root.Key.
	Lease *Lease
	// LentFor is the machine for which the file was lent last; nil if it was not (Lend).
	LentFor *hullmark.EKID
	// lender opens what was lent, whatever it is sealed to; nil if nothing was.
	lender *age.X25519Identity
	// Online signs join services' certificates.
	Online Authority
	// Keys are the master keys that disk keys derive from.
	Keys keys.Keyset
	// Blind is that of the present rotation (hullmark.KeyRotation).
	Blind hullmark.Secret
	// Keeper, if it is set, wraps Keys on control planes' disks.
	Keeper *Keeper
	// Kubernetes, Etcd and FrontProxy are the authorities that kubeadm would otherwise make itself.
	Kubernetes, Etcd, FrontProxy CA
	// KubeletServing signs kubelets' serving certificates, and nothing else: API servers trust it for kubelets, and nobody
	// trusts it for API servers.
	KubeletServing CA
	// ServiceAccount signs service accounts' tokens.
	ServiceAccount *ecdsa.PrivateKey
	// Revision counts the file's changes.
	Revision Revision
	// Policy is the last policy that Root signed, in its signed form; empty before the first.
	Policy []byte
	// signed tells the last policies from others of their versions.
	signed []stamp
	// Documents are those that Policy accepts, in encoded form.
	Documents map[measurements.DocumentID][]byte
	// Settings are those of the join services; nil before the first init.
	Settings *joinservice.Settings
	// Epochs are the newest states of state disks that an operator has seen.
	Epochs map[hullmark.EKID]DiskEpoch
	// First is set from the first ticket on.
	First *joinservice.FirstRecord
	// Initialised is set once that node was Ready.
	Initialised *hullmark.EKID
}

// New makes every key of a cluster.
func New() (*Cluster, error) { return newCluster((*Cluster).makeRoot) }

// NewUnder makes every key of a cluster but the root's, which is elsewhere.
func NewUnder(root RemoteRoot) (*Cluster, error) {
	return newCluster(func(c *Cluster) error { return c.takeRoot(root) })
}

func newCluster(makeRoot func(*Cluster) error) (*Cluster, error) {
	c := &Cluster{}
	for _, step := range []func(*Cluster) error{makeRoot, (*Cluster).makeExchange, (*Cluster).makeKubernetes} {
		if err := step(c); err != nil {
			return nil, fmt.Errorf("new cluster: %w", err)
		}
	}
	return c, nil
}

// makeExchange makes what the exchange needs beside the root.
func (c *Cluster) makeExchange() (err error) {
	if c.Blind, err = hullmark.NewBlind(rand.Reader); err != nil {
		return err
	}
	c.Keys, err = keys.New(rand.Reader)
	return err
}

// makeRoot makes a root whose key is in the file, and an online CA of it.
func (c *Cluster) makeRoot() (err error) {
	c.remote = nil
	if c.Root.Key, err = newKey(); err != nil {
		return err
	}
	return c.certifyRoot()
}

// certifyRoot makes the root's certificate, and an online CA of it.
func (c *Cluster) certifyRoot() error {
	key, err := c.rootKey()
	if err != nil {
		return err
	}
	if c.Root.Certificate, err = channel.NewRoot(key); err != nil {
		return err
	}
	return c.makeOnline()
}

func (c *Cluster) makeOnline() error {
	key, err := c.rootKey()
	if err != nil {
		return err
	}
	if c.Online.Key, err = newKey(); err != nil {
		return err
	}
	c.Online.Certificate, err = channel.NewOnlineCA(c.Root.Certificate, key, c.Online.Key.Public())
	return err
}

func newKey() (*ecdsa.PrivateKey, error) { return ecdsa.GenerateKey(elliptic.P256(), rand.Reader) }

// ID returns the present cluster root, which the configurations of the cluster's nodes name from now on.
func (c *Cluster) ID() hullmark.ClusterRoot {
	return hullmark.ClusterRootOf(c.Root.Certificate.RawSubjectPublicKeyInfo)
}

// Operator returns a client certificate for connections to a node, which opens one verb there, and to no other node if the operator
// knows which it is. It is a fresh one each time; but with a root's key that is elsewhere, there is one for each scope, so that whoever
// has the key is asked once. A file that was lent has the one that it was lent with, else the error is ErrLent.
func (c *Cluster) Operator(verb channel.Verb, node hullmark.EKID) (tls.Certificate, error) {
	policy, err := c.OpenPolicy()
	if err != nil {
		return tls.Certificate{}, err
	}
	if c.Lease != nil {
		return c.lentOperator(verb, node, policy)
	}
	operator, err := c.newOperator(channel.Scope{Verb: verb, Policy: policy.Version, EKID: node})
	return channel.WithCrossCertificates(operator, policy.CrossCertificates), err
}
