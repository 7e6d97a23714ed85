package cluster

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest/channel"
	"github.com/hullmark/hullmark/joinservice"
	"github.com/hullmark/hullmark/measurements"
)

// ErrNotGranted is what errors.Is finds where an operator's file is used for what needs the cluster file itself.
var ErrNotGranted = errors.New("this needs the cluster file itself, and an operator's file is named")

// Grant is the content of an operator's file: who he is, and what he needs for what he was granted. It has none of the cluster's own
// keys. Of one who may recover it has those of control planes' disks, which derive from the master keys, and open no other disk.
type Grant struct {
	// Who he is, and the most that he may, as the certificate says.
	Who channel.Named
	// Operator is what he shows nodes, which the root signed.
	Operator Authority
	// API is what he shows the Kubernetes API; nil of one who may not look.
	API *Authority
	// Disks are the keys of control planes' disks, of one who may recover.
	Disks []DiskKey
	// Known is what he knows of the cluster: the certificates of its root and of Kubernetes' CA, the policy and its documents, settings,
	// and the disks that were seen. It holds no key, and signs nothing.
	Known *Cluster
	// Follows is the SHA-256 of the policy, as it was signed, that the cluster had before he changed it; nil while nothing is changed that
	// was not pushed.
	Follows []byte
}

// DiskKey is the key of one disk, if that was made by a generation of the keyset for an owner.
type DiskKey struct {
	Generation uint32
	Owner      hullmark.EKID
	Disk       hullmark.UUID
	Key        hullmark.Secret
}

// maxDiskKeys bounds those of a file: some control planes, each of some owners and generations.
const maxDiskKeys = 1 << 14

// Granting says who is to be an operator, and what he may.
type Granting struct {
	Name string
	May  []hullmark.Permission
	// Ends is when his certificates end.
	Ends time.Time
	// Replace gives one who is there another key, and these permissions: whoever has his earlier file is withdrawn.
	Replace bool
	// Disks are those of control planes beside what the cluster file knows of them.
	Disks map[hullmark.EKID]hullmark.UUID
}

// GrantOperator names an operator in the policy, which it signs, and returns what is in his file. He is one for nodes and join services
// once that policy is in the cluster.
func (c *Cluster) GrantOperator(g Granting) (*Grant, error) {
	root, err := c.rootKey()
	if err != nil {
		return nil, err
	}
	policy, err := c.OpenPolicy()
	if err != nil {
		return nil, err
	}
	if policy.Version, err = c.nextVersion(); err != nil {
		return nil, err
	}
	who, operator, err := c.nameOperator(root, g, policy.Version)
	if err != nil {
		return nil, fmt.Errorf("operator %s: %w", g.Name, err)
	}
	named := hullmark.Operator{Name: who.Name, Key: who.Key, May: who.May}
	if policy.Operators, err = withOperator(policy.Operators, named, g.Replace); err != nil {
		return nil, err
	}
	if err := c.SetPolicy(policy); err != nil {
		return nil, err
	}
	grant := &Grant{Who: who, Operator: operator, Known: c.known()}
	if slices.Contains(g.May, hullmark.MayLook) {
		certificate, key, err := c.Kubernetes.client(pkix.Name{CommonName: named.User()}, g.Ends)
		if err != nil {
			return nil, fmt.Errorf("operator %s: %w", g.Name, err)
		}
		grant.API = &Authority{Certificate: certificate, Key: key}
	}
	if slices.Contains(g.May, hullmark.MayRecover) {
		if grant.Disks, err = c.diskKeys(policy, g.Disks); err != nil {
			return nil, fmt.Errorf("operator %s: %w", g.Name, err)
		}
	}
	return grant, nil
}

// nameOperator makes his key, and its certificate.
func (c *Cluster) nameOperator(root crypto.Signer, g Granting, version uint64) (channel.Named, Authority, error) {
	if !hullmark.ValidOperatorName(g.Name) {
		return channel.Named{}, Authority{}, fmt.Errorf("name %.80q: want at most 32 lower-case letters, digits and hyphens, and not root", g.Name)
	}
	made, err := channel.NewNamedOperator(c.Root.Certificate, root, channel.Named{Name: g.Name, May: g.May, Policy: version, Ends: g.Ends})
	if err != nil {
		return channel.Named{}, Authority{}, err
	}
	key, ok := made.PrivateKey.(*ecdsa.PrivateKey)
	if !ok {
		return channel.Named{}, Authority{}, fmt.Errorf("the key is a %T", made.PrivateKey)
	}
	who, ok, err := channel.LeafNamed(made.Leaf)
	if err == nil && !ok {
		err = errors.New("the certificate names no operator")
	}
	return who, Authority{Certificate: made.Leaf, Key: key}, err
}

// withOperator adds one, or puts him in the place of the one of his name.
func withOperator(all []hullmark.Operator, o hullmark.Operator, replace bool) ([]hullmark.Operator, error) {
	all = slices.Clone(all)
	i := slices.IndexFunc(all, func(other hullmark.Operator) bool { return other.Name == o.Name })
	switch {
	case i < 0 && replace:
		return nil, fmt.Errorf("the policy names no operator %s who could be given another file; leave --replace out", o.Name)
	case i < 0:
		return append(all, o), nil
	case !replace:
		return nil, fmt.Errorf("the policy names an operator %s already; to give him another key and file, say so (--replace); whoever has his earlier one is withdrawn then", o.Name)
	}
	all[i] = o
	return all, nil
}

// known is what an operator may know of the cluster.
func (c *Cluster) known() *Cluster {
	return &Cluster{
		Root: Authority{Certificate: c.Root.Certificate}, Kubernetes: knownCA(c.Kubernetes.certificates()),
		Policy: c.Policy, Documents: c.Documents, Settings: c.Settings, Epochs: maps.Clone(c.Epochs),
	}
}

// knownCA is the Kubernetes CA as an operator knows it: the certificates that are trusted, one or two.
func knownCA(certificates []*x509.Certificate) CA {
	ca := CA{Authority: Authority{Certificate: certificates[0]}}
	if len(certificates) > 1 {
		ca.Former = certificates[1]
	}
	return ca
}

// diskKeys derives the keys of the disks that control planes are known to have: for each generation of the keyset, since nobody but the
// disk says which is its own, and for each owner that a rebind hands over.
func (c *Cluster) diskKeys(policy measurements.Policy, more map[hullmark.EKID]hullmark.UUID) (all []DiskKey, err error) {
	for _, m := range policy.Members {
		if m.Role != hullmark.ControlPlane {
			continue
		}
		owners := []hullmark.EKID{m.EKID}
		for _, r := range policy.Rebinds {
			if r.New == m.EKID {
				owners = append(owners, r.Old)
			}
		}
		for _, disk := range knownDisks(c.Epochs[m.EKID].Disk, more[m.EKID]) {
			for _, owner := range owners {
				if all, err = c.appendKeys(all, policy.First(c.ID()), owner, disk); err != nil {
					return nil, err
				}
			}
		}
	}
	if len(all) == 0 {
		return nil, errors.New("no disk of a control plane is known, whose key he would need to recover; next: begin the cluster first (hullmark init)")
	}
	return all, nil
}

// knownDisks leaves out what is none, or comes twice.
func knownDisks(disks ...hullmark.UUID) []hullmark.UUID {
	disks = slices.DeleteFunc(disks, func(d hullmark.UUID) bool { return d == (hullmark.UUID{}) })
	return slices.Compact(disks)
}

func (c *Cluster) appendKeys(all []DiskKey, first hullmark.ClusterRoot, owner hullmark.EKID, disk hullmark.UUID) ([]DiskKey, error) {
	for generation := range c.Keys.Current() {
		key, err := c.Keys.DiskKey(generation+1, first, owner, disk)
		if err != nil {
			continue // A keyset may have gaps.
		}
		if all = append(all, DiskKey{generation + 1, owner, disk, key}); len(all) > maxDiskKeys {
			return nil, fmt.Errorf("more than %d keys of disks", maxDiskKeys)
		}
	}
	return all, nil
}

// Show is the certificate, with its chain, that a verb at a node is asked by. The error is a *hullmark.Condition if he may not.
func (g *Grant) Show(verb channel.Verb, now time.Time) (tls.Certificate, error) {
	if err := g.Who.Check(verb, now); err != nil {
		return tls.Certificate{}, err
	}
	policy, err := g.Known.OpenPolicy()
	if err != nil {
		return tls.Certificate{}, err
	}
	shown := tls.Certificate{Certificate: [][]byte{g.Operator.Certificate.Raw, g.Known.Root.Certificate.Raw}, PrivateKey: g.Operator.Key, Leaf: g.Operator.Certificate}
	return channel.WithCrossCertificates(shown, policy.CrossCertificates), nil
}

// Client is the certificate and the key, both in PEM, that the Kubernetes API is shown.
func (g *Grant) Client() (certificate, key []byte, err error) {
	if g.API == nil {
		return nil, nil, ErrNotGranted
	}
	key, err = encodeKey(g.API.Key)
	return encodeCertificate(g.API.Certificate), key, err
}

// Newer reports whether a signed policy is a later one than the grant has. One that the root of the file did not sign is an error, and so
// is an earlier one: whoever shows that holds the later one back.
func (g *Grant) Newer(envelope []byte) (bool, error) {
	held, err := g.Known.OpenPolicy()
	if err != nil {
		return false, err
	}
	shown, err := g.openShown(envelope, held.Version)
	return shown.Version > held.Version, err
}

// openShown opens a policy that the cluster has, which may have no version below least.
func (g *Grant) openShown(envelope []byte, least uint64) (measurements.Policy, error) {
	shown, err := measurements.OpenPolicy(envelope, g.Known.ID())
	if err != nil {
		return shown, fmt.Errorf("%w; if the cluster's root was exchanged, ask whoever holds the cluster file for another operator's file", err)
	}
	if shown.Version < least {
		return shown, fmt.Errorf("the policy in the cluster has version %d, and this file holds version %d, which the root signed later", shown.Version, least)
	}
	return shown, nil
}

// Take puts a later signed policy in the place of the one that the grant has, with the documents that it names.
func (g *Grant) Take(envelope []byte, documents map[measurements.DocumentID][]byte) error {
	newer, err := g.Newer(envelope)
	if err != nil || !newer {
		return err
	}
	return g.Known.hold(envelope, documents)
}

// ChangePolicy signs a policy that he made of the one that the grant has, with documents that it accepts anew. What he may not change is
// refused (measurements.ChangePolicy).
func (g *Grant) ChangePolicy(policy measurements.Policy, documents ...measurements.Document) error {
	held, err := g.Known.documentsOf(policy, documents)
	if err != nil {
		return err
	}
	if err := joinservice.CheckGroups(policy); err != nil {
		return err
	}
	signed, err := measurements.ChangePolicy(g.Operator.Key, g.Known.Policy, policy)
	if err != nil {
		return err
	}
	if err := checkSize(signed, held); err != nil {
		return err
	}
	if g.Follows == nil {
		g.Follows = policyDigest(g.Known.Policy)
	}
	g.Known.Policy, g.Known.Documents = signed, held
	return nil
}

// policyDigest tells one signed policy from another.
func policyDigest(envelope []byte) []byte {
	digest := sha256.Sum256(envelope)
	return digest[:]
}

// MayReplace reports whether the policy that he changed may take the place of the one that the cluster has: that from which it follows.
func (g *Grant) MayReplace(inForce []byte) bool { return bytes.Equal(g.Follows, policyDigest(inForce)) }

// Pushed notes that the cluster has the policy of the grant.
func (g *Grant) Pushed() { g.Follows = nil }

// Drop gives up what he changed and did not push, for the policy that the cluster has, with its documents. One that is older than what the
// root signed of those that he knows is an error, as in Newer: what he signed himself is his own word alone.
func (g *Grant) Drop(inForce []byte, documents map[measurements.DocumentID][]byte) error {
	if g.Follows == nil {
		return g.Take(inForce, documents)
	}
	held, err := hullmark.ParseSigned(g.Known.Policy, len(g.Known.Policy))
	if err != nil {
		return err
	}
	least, err := held.RootVersion()
	if err != nil {
		return err
	}
	if _, err := g.openShown(inForce, least); err != nil {
		return err
	}
	if err := g.Known.hold(inForce, documents); err != nil {
		return err
	}
	g.Follows = nil
	return nil
}

// DiskKeys opens the disks whose keys the grant has (joinservice.DiskKeys), and nothing else.
func (g *Grant) DiskKeys() joinservice.DiskKeys { return grantedKeys{g} }

type grantedKeys struct{ *Grant }

// Current is 0: nobody formats a disk by these.
func (grantedKeys) Current() uint32 { return 0 }

// DiskKey returns a copy of the key of a disk.
func (g grantedKeys) DiskKey(generation uint32, _ hullmark.ClusterRoot, owner hullmark.EKID, disk hullmark.UUID) (hullmark.Secret, error) {
	for _, k := range g.Disks {
		if k.Generation == generation && k.Owner == owner && k.Disk == disk {
			return hullmark.NewSecret(slices.Clone(k.Key.Expose())), nil
		}
	}
	return hullmark.Secret{}, &hullmark.Condition{
		Code: "disk-key-missing", Step: "ATTEST", Title: "the file of operator " + g.Who.Name + " has no key of this disk: it was made, or its machine joined, after the file",
		Expected: "a control plane's disk of then", Got: disk.String(),
		Next: "recover another control plane, or ask whoever holds the cluster file to do it, or for another file (hullmark operator new --replace)",
	}
}

// Decrypt opens nothing: what pools hold encrypted is on the disk.
func (grantedKeys) Decrypt(hullmark.ClusterRoot, hullmark.EncryptedText) (hullmark.Secret, error) {
	return hullmark.Secret{}, ErrNotGranted
}
