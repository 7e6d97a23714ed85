package cluster

import (
	"bytes"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest/channel"
	"github.com/hullmark/hullmark/internal/atomicfile"
	"github.com/hullmark/hullmark/joinservice"
	"github.com/hullmark/hullmark/joinservice/keys"
	"github.com/hullmark/hullmark/measurements"
)

// OperatorFile is an operator's file: a Grant, encrypted as a cluster file is, under a passphrase of the operator's own. It is not safe
// for concurrent use.
type OperatorFile struct {
	// Grant is the content as it was read or last written; change it by Update only.
	Grant *Grant

	key   key
	store Store
}

// CreateOperatorFile writes a new operator's file, which must not exist yet.
func CreateOperatorFile(path string, secret hullmark.Secret, g *Grant, workFactor int) error {
	if secret.Len() == 0 {
		return errors.New("create operator's file: the passphrase is empty")
	}
	f := &OperatorFile{Grant: g, key: passphrase{secret, workFactor}}
	encrypted, err := f.encrypt(g)
	if err == nil {
		err = (&onDisk{path: path}).write(encrypted, atomicfile.Options{Mode: 0o600, New: true})
	}
	if err != nil {
		return fmt.Errorf("create operator's file: %w", err)
	}
	return nil
}

// OpenAny reads a cluster file, or an operator's: it returns one of the two. A wrong passphrase is ErrPassphrase.
func OpenAny(path string, secret hullmark.Secret) (*File, *OperatorFile, error) {
	encrypted, err := atomicfile.Read(path, maxFile)
	if err != nil {
		return nil, nil, fmt.Errorf("cluster file: %w", err)
	}
	file, operator, err := readAny(encrypted, secret, &onDisk{path, sha256.Sum256(encrypted)})
	if err != nil {
		return nil, nil, fmt.Errorf("cluster file %s: %w", path, err)
	}
	return file, operator, nil
}

func readAny(encrypted []byte, secret hullmark.Secret, place Store) (*File, *OperatorFile, error) {
	workFactor, err := readWorkFactor(encrypted)
	if err != nil {
		return nil, nil, err
	}
	k := passphrase{secret, workFactor}
	plain, err := decrypt(encrypted, k)
	if err != nil {
		return nil, nil, err
	}
	defer clear(plain)
	if isGrant(plain) {
		grant, err := decodeGrant(plain)
		return nil, &OperatorFile{Grant: grant, key: k, store: place}, err
	}
	c, err := decode(plain)
	return &File{Cluster: c, key: k, store: place}, nil, err
}

// Update lets change edit a copy of the grant and writes the result, as File.Update does.
func (f *OperatorFile) Update(change func(*Grant) error) error {
	next, known := *f.Grant, *f.Grant.Known
	known.Epochs = maps.Clone(known.Epochs)
	next.Known = &known
	if err := change(&next); err != nil {
		return err
	}
	encrypted, err := f.encrypt(&next)
	if err == nil {
		err = f.store.Replace(encrypted)
	}
	if err != nil {
		return fmt.Errorf("update operator's file: %w", err)
	}
	f.Grant = &next
	return nil
}

func (f *OperatorFile) encrypt(g *Grant) ([]byte, error) {
	plain, err := g.encode()
	if err != nil {
		return nil, err
	}
	defer clear(plain)
	return encrypt(plain, f.key)
}

// Operator returns what a node is shown for a verb, whichever node that is. The error is a *hullmark.Condition if he may not.
func (f *OperatorFile) Operator(verb channel.Verb, _ hullmark.EKID) (tls.Certificate, error) {
	return f.Grant.Show(verb, time.Now())
}

// operatorVersion is that of grantDoc.
const operatorVersion = 1

// grantDoc is an operator's file's decrypted content; its forms are those of document.
type grantDoc struct {
	// OperatorVersion tells it from a cluster file.
	OperatorVersion int           `json:"operatorVersion"`
	Operator        authorityDoc  `json:"operator"`
	Root            []byte        `json:"root"`
	API             *authorityDoc `json:"api,omitempty"`
	// KubernetesCA has all certificates that are trusted, one behind the other.
	KubernetesCA []byte                             `json:"kubernetesCA"`
	Disks        []diskKeyDoc                       `json:"disks,omitempty"`
	Policy       []byte                             `json:"policy"`
	Documents    map[measurements.DocumentID][]byte `json:"documents,omitempty"`
	Settings     *joinservice.Settings              `json:"settings,omitempty"`
	Epochs       map[hullmark.EKID]DiskEpoch        `json:"epochs,omitempty"`
	Follows      []byte                             `json:"follows,omitempty"`
}

type diskKeyDoc struct {
	Generation uint32        `json:"generation"`
	Owner      hullmark.EKID `json:"owner"`
	Disk       hullmark.UUID `json:"disk"`
	Key        []byte        `json:"key"`
}

// isGrant tells an operator's file from a cluster file.
func isGrant(plain []byte) bool {
	var peek struct {
		OperatorVersion int `json:"operatorVersion"`
	}
	return json.Unmarshal(plain, &peek) == nil && peek.OperatorVersion != 0
}

// refuseGrant says whose file it is that was named where a cluster file is wanted.
func refuseGrant(plain []byte) error {
	g, err := decodeGrant(plain)
	if err != nil {
		return err
	}
	return fmt.Errorf("it is the file of operator %s, who may %s: %w", g.Who.Name, hullmark.FormatPermissions(g.Who.May), ErrNotGranted)
}

// encode returns the decrypted form of an operator's file. It is all secret.
func (g *Grant) encode() ([]byte, error) {
	d := grantDoc{
		OperatorVersion: operatorVersion, Root: g.Known.Root.Certificate.Raw,
		Policy: g.Known.Policy, Documents: g.Known.Documents, Settings: g.Known.Settings, Epochs: g.Known.Epochs,
		Follows: g.Follows,
	}
	defer d.wipe()
	for _, certificate := range g.Known.Kubernetes.certificates() {
		d.KubernetesCA = append(d.KubernetesCA, certificate.Raw...)
	}
	var err error
	if d.Operator, err = g.Operator.encode(); err != nil {
		return nil, fmt.Errorf("operator's key: %w", err)
	}
	if g.API != nil {
		api, err := g.API.encode()
		if err != nil {
			return nil, fmt.Errorf("key for the API: %w", err)
		}
		d.API = &api
	}
	for _, k := range g.Disks {
		d.Disks = append(d.Disks, diskKeyDoc{k.Generation, k.Owner, k.Disk, bytes.Clone(k.Key.Expose())})
	}
	return json.Marshal(d)
}

func (a Authority) encode() (authorityDoc, error) {
	key, err := x509.MarshalPKCS8PrivateKey(a.Key)
	return authorityDoc{Certificate: a.Certificate.Raw, Key: key}, err
}

// wipe clears the keys that are the document's own.
func (d *grantDoc) wipe() {
	clear(d.Operator.Key)
	if d.API != nil {
		clear(d.API.Key)
	}
	for _, k := range d.Disks {
		clear(k.Key)
	}
}

// decodeGrant strictly reads what Grant.encode writes, and holds it to the root that it names.
func decodeGrant(plain []byte) (*Grant, error) {
	var d grantDoc
	defer d.wipe()
	if err := hullmark.DecodeStrict(plain, len(plain), &d); err != nil {
		return nil, err
	}
	if d.OperatorVersion != operatorVersion {
		return nil, fmt.Errorf("operatorVersion: want %d, got %d: the file is another release's; use the hullmark that wrote it, or ask for another", operatorVersion, d.OperatorVersion)
	}
	if len(d.Follows) != 0 && len(d.Follows) != sha256.Size {
		return nil, fmt.Errorf("follows: %d bytes, want a SHA-256", len(d.Follows))
	}
	g := &Grant{Known: &Cluster{Policy: d.Policy, Documents: d.Documents, Settings: d.Settings, Epochs: d.Epochs}, Follows: d.Follows}
	var err error
	if g.Operator, err = d.Operator.decode(); err != nil {
		return nil, fmt.Errorf("operator's certificate: %w", err)
	}
	if d.API != nil {
		api, err := d.API.decode()
		if err != nil {
			return nil, fmt.Errorf("certificate for the API: %w", err)
		}
		g.API = &api
	}
	if g.Known.Root.Certificate, err = x509.ParseCertificate(d.Root); err != nil {
		return nil, fmt.Errorf("root: %w", err)
	}
	authorities, err := x509.ParseCertificates(d.KubernetesCA)
	if err == nil && (len(authorities) == 0 || len(authorities) > 2) {
		err = fmt.Errorf("want one certificate, or the two of an exchange, got %d", len(authorities))
	}
	if err != nil {
		return nil, fmt.Errorf("the Kubernetes CA: %w", err)
	}
	g.Known.Kubernetes = knownCA(authorities)
	if g.Disks, err = decodeDiskKeys(d.Disks); err != nil {
		return nil, err
	}
	return g, g.check()
}

func decodeDiskKeys(all []diskKeyDoc) (read []DiskKey, err error) {
	if len(all) > maxDiskKeys {
		return nil, fmt.Errorf("disks: %d keys, want at most %d", len(all), maxDiskKeys)
	}
	for _, k := range all {
		if len(k.Key) != keys.Size || k.Generation == 0 {
			return nil, fmt.Errorf("disks: %s: want a key of %d bytes, and a generation from 1", k.Disk, keys.Size)
		}
		read = append(read, DiskKey{k.Generation, k.Owner, k.Disk, hullmark.NewSecret(bytes.Clone(k.Key))})
	}
	return read, nil
}

// check holds what was read to what GrantOperator makes, and finds out who it is.
func (g *Grant) check() (err error) {
	var ok bool
	if g.Who, ok, err = channel.LeafNamed(g.Operator.Certificate); err == nil && !ok {
		err = errors.New("the certificate names no operator")
	}
	if err != nil {
		return fmt.Errorf("operator's certificate: %w", err)
	}
	if err := channel.CheckOperator([]*x509.Certificate{g.Operator.Certificate, g.Known.Root.Certificate}, g.Known.ID()); err != nil {
		return err
	}
	if _, err := g.Known.OpenPolicy(); err != nil {
		return err
	}
	return g.Known.checkDocuments()
}
