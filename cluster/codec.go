package cluster

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"filippo.io/age"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest/channel"
	"github.com/hullmark/hullmark/joinservice"
	"github.com/hullmark/hullmark/joinservice/keys"
	"github.com/hullmark/hullmark/measurements"
)

// maxFile bounds a cluster file, encrypted or not, in bytes.
const maxFile = 4 << 20

// version is that of document; 1 had no CA of the kubelets' own, and no blind.
const version = 2

// document is a cluster file's decrypted content; keys are PKCS #8 and
// certificates X.509, both DER in base64.
type document struct {
	Version        int                      `json:"version"`
	Root           authorityDoc             `json:"root"`
	RootElsewhere  bool                     `json:"rootElsewhere,omitempty"`
	Lease          *leaseDoc                `json:"lease,omitempty"`
	Online         authorityDoc             `json:"online"`
	Keyset         []byte                   `json:"keyset"`
	Blind          []byte                   `json:"blind"`
	Keeper         *keeperDoc               `json:"keeper,omitempty"`
	Kubernetes     caDoc                    `json:"kubernetes"`
	Etcd           caDoc                    `json:"etcd"`
	FrontProxy     caDoc                    `json:"frontProxy"`
	KubeletServing caDoc                    `json:"kubeletServing"`
	ServiceAccount []byte                   `json:"serviceAccount"`
	Revision       uint64                   `json:"revision,omitempty"`
	Changed        time.Time                `json:"changed,omitzero"`
	Policy         []byte                   `json:"policy,omitempty"`
	Signed         []stamp                  `json:"signed,omitempty"`
	First          *joinservice.FirstRecord `json:"initialising,omitempty"`
	Initialised    *hullmark.EKID           `json:"initialised,omitempty"`
	LentFor        *hullmark.EKID           `json:"lentFor,omitempty"`
	Lender         string                   `json:"lender,omitempty"`

	Documents map[measurements.DocumentID][]byte `json:"documents,omitempty"`
	Settings  *joinservice.Settings              `json:"settings,omitempty"`
	Epochs    map[hullmark.EKID]DiskEpoch        `json:"epochs,omitempty"`
}

type authorityDoc struct {
	Certificate []byte `json:"certificate"`
	Key         []byte `json:"key"`
}

// caDoc is a CA.
type caDoc struct {
	authorityDoc
	Next   *authorityDoc `json:"next,omitempty"`
	Former []byte        `json:"former,omitempty"`
}

// leaseDoc is a Lease.
type leaseDoc struct {
	authorityDoc
	Document measurements.DocumentID `json:"document"`
	For      string                  `json:"for,omitempty"`
	Lender   string                  `json:"lender"`
}

// encode returns the decrypted form of a cluster file. It is all secret.
func (c *Cluster) encode() ([]byte, error) {
	keyset, err := c.Keys.Encode()
	if err != nil {
		return nil, err
	}
	d := document{
		Version: version, Keyset: keyset, Blind: bytes.Clone(c.Blind.Expose()), Keeper: c.Keeper.encode(), Policy: c.Policy, First: c.First, Initialised: c.Initialised,
		Documents: c.Documents, Settings: c.Settings, Epochs: c.Epochs, LentFor: c.LentFor,
		Revision: c.Revision.Number, Changed: c.Revision.Time, Signed: c.signed,
	}
	for _, e := range c.exchangeable(&d) {
		if e.ca.Next != nil {
			e.doc.Next = &authorityDoc{}
		}
		if e.ca.Former != nil {
			e.doc.Former = e.ca.Former.Raw
		}
	}
	if c.lender != nil {
		d.Lender = c.lender.String()
	}
	if c.Lease != nil {
		key, err := x509.MarshalPKCS8PrivateKey(c.Lease.Key)
		if err != nil {
			return nil, fmt.Errorf("lease: %w", err)
		}
		d.Lease = &leaseDoc{authorityDoc{Certificate: c.Lease.Certificate.Raw, Key: key}, c.Lease.Document, c.Lease.For, c.Lease.Lender}
		d.Root.Certificate = c.Root.Certificate.Raw
	}
	if c.remote != nil {
		d.RootElsewhere, d.Root.Certificate = true, c.Root.Certificate.Raw
	}
	for _, a := range c.authorities(&d) {
		if a.authority.Key == nil {
			return nil, fmt.Errorf("%s: it has no key", a.name)
		}
		key, err := x509.MarshalPKCS8PrivateKey(a.authority.Key)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", a.name, err)
		}
		*a.doc = authorityDoc{Certificate: a.authority.Certificate.Raw, Key: key}
	}
	if d.ServiceAccount, err = x509.MarshalPKCS8PrivateKey(c.ServiceAccount); err != nil {
		return nil, fmt.Errorf("service-account key: %w", err)
	}
	defer d.wipe()
	return json.Marshal(d)
}

// wipe clears the keys that are the document's own; the keeper's are shared with the cluster.
func (d *document) wipe() {
	for _, key := range [][]byte{d.Keyset, d.Blind, d.ServiceAccount, d.Root.Key, d.Online.Key} {
		clear(key)
	}
	for _, ca := range []caDoc{d.Kubernetes, d.Etcd, d.FrontProxy, d.KubeletServing} {
		clear(ca.Key)
		if ca.Next != nil {
			clear(ca.Next.Key)
		}
	}
	if d.Lease != nil {
		clear(d.Lease.Key)
	}
}

// pairing joins an authority to its place in the document.
type pairing struct {
	name      string
	authority *Authority
	doc       *authorityDoc
}

func (c *Cluster) authorities(d *document) []pairing {
	all := []pairing{{"online CA", &c.Online, &d.Online}}
	for _, e := range c.exchangeable(d) {
		all = append(all, pairing{e.name, &e.ca.Authority, &e.doc.authorityDoc})
		if e.doc.Next != nil {
			all = append(all, pairing{"next " + e.name, e.ca.Next, e.doc.Next})
		}
	}
	if d.Lease == nil && !d.RootElsewhere { // Else there is a certificate of the root alone.
		all = append(all, pairing{"root", &c.Root, &d.Root})
	}
	return all
}

// exchangeable joins a CA to its place in the document.
type exchangeable struct {
	name string
	ca   *CA
	doc  *caDoc
}

func (c *Cluster) exchangeable(d *document) []exchangeable {
	return []exchangeable{
		{"Kubernetes CA", &c.Kubernetes, &d.Kubernetes},
		{"etcd CA", &c.Etcd, &d.Etcd},
		{"front-proxy CA", &c.FrontProxy, &d.FrontProxy},
		{"kubelet-serving CA", &c.KubeletServing, &d.KubeletServing},
	}
}

// begin reads the CA's former certificate, and makes the place of a next one.
func (e exchangeable) begin() (err error) {
	if e.doc.Next != nil {
		e.ca.Next = &Authority{}
	}
	if len(e.doc.Former) > 0 {
		if e.ca.Former, err = x509.ParseCertificate(e.doc.Former); err != nil {
			return fmt.Errorf("the former one: %w", err)
		}
	}
	return e.ca.check()
}

// decode strictly reads what encode writes.
func decode(data []byte) (*Cluster, error) {
	if isGrant(data) {
		return nil, refuseGrant(data)
	}
	var d document
	defer d.wipe()
	if err := hullmark.DecodeStrict(data, len(data), &d); err != nil {
		return nil, err
	}
	if d.Version != version {
		return nil, fmt.Errorf("version: want %d, got %d: the file is another release's; use the hullmark that wrote it, or make a new cluster", version, d.Version)
	}
	c := &Cluster{
		Keeper: d.Keeper.decode(), Policy: d.Policy, First: d.First, Initialised: d.Initialised,
		Documents: d.Documents, Settings: d.Settings, Epochs: d.Epochs, LentFor: d.LentFor,
		Revision: Revision{d.Revision, d.Changed}, signed: d.Signed,
	}
	err := errors.Join(c.checkDocuments(), c.checkStamps())
	if err != nil {
		return nil, err
	}
	for _, e := range c.exchangeable(&d) {
		if err := e.begin(); err != nil {
			return nil, fmt.Errorf("%s: %w", e.name, err)
		}
	}
	if d.Lender != "" {
		if c.lender, err = age.ParseX25519Identity(d.Lender); err != nil {
			return nil, errors.New("lender: this is no identity of age") // The error may quote it.
		}
	}
	if d.Lease != nil {
		if err := c.decodeLease(d.Lease, d.Root); err != nil {
			return nil, fmt.Errorf("lease: %w", err)
		}
	}
	if d.RootElsewhere {
		if err := c.decodeRemote(&d); err != nil {
			return nil, fmt.Errorf("root: %w", err)
		}
	}
	for _, a := range c.authorities(&d) {
		if *a.authority, err = a.doc.decode(); err != nil {
			return nil, fmt.Errorf("%s: %w", a.name, err)
		}
	}
	if c.ServiceAccount, err = decodeKey(d.ServiceAccount); err != nil {
		return nil, fmt.Errorf("service-account key: %w", err)
	}
	if err := c.Online.Certificate.CheckSignatureFrom(c.Root.Certificate); err != nil {
		return nil, fmt.Errorf("online CA: %w", err)
	}
	if c.Keys, err = keys.Parse(d.Keyset); err != nil {
		return nil, err
	}
	c.Blind = hullmark.NewSecret(bytes.Clone(d.Blind))
	return c, hullmark.CheckBlind(c.Blind)
}

// decodeLease reads what a file that was lent has in the place of the root's key.
func (c *Cluster) decodeLease(lease *leaseDoc, root authorityDoc) error {
	if len(root.Key) > 0 || c.LentFor != nil || c.lender != nil {
		return errors.New("the root's key, for whom it is lent, or what opens it for the lender is there, too")
	}
	if _, err := age.ParseX25519Recipient(lease.Lender); err != nil {
		return fmt.Errorf("lender: %w", err)
	}
	held, err := lease.decode()
	if err != nil {
		return err
	}
	if c.Root.Certificate, err = x509.ParseCertificate(root.Certificate); err != nil {
		return err
	}
	c.Lease = &Lease{Certificate: held.Certificate, Key: held.Key, Document: lease.Document, For: lease.For, Lender: lease.Lender}
	if _, err := c.Lease.Node(); err != nil {
		return err
	}
	return channel.CheckOperator([]*x509.Certificate{held.Certificate, c.Root.Certificate}, c.ID())
}

// decodeRemote reads what a file has of a root whose key is elsewhere: its certificate.
func (c *Cluster) decodeRemote(d *document) (err error) {
	if len(d.Root.Key) > 0 || d.Lease != nil {
		return errors.New("its key is said to be elsewhere, and it is there, or a lease is")
	}
	if c.Root.Certificate, err = x509.ParseCertificate(d.Root.Certificate); err != nil {
		return err
	}
	if err := c.Root.Certificate.CheckSignatureFrom(c.Root.Certificate); err != nil {
		return err
	}
	c.remote, err = newRemoteKey(c.Root.Certificate.PublicKey)
	return err
}

func (d authorityDoc) decode() (Authority, error) {
	certificate, err := x509.ParseCertificate(d.Certificate)
	if err != nil {
		return Authority{}, err
	}
	key, err := decodeKey(d.Key)
	if err != nil {
		return Authority{}, err
	}
	if !key.PublicKey.Equal(certificate.PublicKey) {
		return Authority{}, errors.New("the certificate is for another key")
	}
	return Authority{Certificate: certificate, Key: key}, nil
}

func decodeKey(der []byte) (*ecdsa.PrivateKey, error) {
	parsed, err := x509.ParsePKCS8PrivateKey(der)
	if err != nil {
		return nil, err
	}
	key, ok := parsed.(*ecdsa.PrivateKey)
	if !ok || key.Curve != elliptic.P256() {
		return nil, errors.New("the key is not ECDSA P-256")
	}
	return key, nil
}
