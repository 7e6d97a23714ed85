package measurements

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/pcrs"
)

// PolicySchema names the format of a Policy.
const PolicySchema = "hullmark.policy/v3"

// Limits of a policy.
const (
	// MaxPolicy is the largest encoded policy, in bytes.
	MaxPolicy           = 4 << 20
	maxDocuments        = 256
	maxMembers          = 10000
	maxCrossCertificate = 2 << 10
	// MaxNames is how many further names an Endpoint may have.
	MaxNames = 64
)

// Policy is what a cluster accepts. It is signed by the cluster's root key.
type Policy struct {
	// Schema is PolicySchema.
	Schema string `json:"schema"`
	// Version rises with every change, from 1; of two policies the higher is in force.
	Version uint64 `json:"version"`
	// MinimumSVN refuses documents with a lower security version, even those accepted below.
	MinimumSVN uint32 `json:"minimumSVN"`
	// Documents are the accepted documents.
	Documents []Accepted `json:"documents"`
	// Builders say who has to have signed each of them.
	Builders Builders `json:"builders,omitzero"`
	// Trust is the least class of trust of each role's machines.
	Trust LeastTrust `json:"trust,omitzero"`
	// Platforms say what evidence of machines' platforms has to show. Evidence of a kind that is not here counts for nothing.
	Platforms []Platform `json:"platforms,omitempty"`
	// Members are the machines that may hold a ticket.
	Members []Member `json:"members"`
	// Groups are rules for machines that no rule above names.
	Groups []Group `json:"groups,omitempty"`
	// Denied are machines that no group admits.
	Denied []hullmark.EKID `json:"denied,omitempty"`
	// Pools are what members' nodes are given beside what every node is.
	Pools []Pool `json:"pools,omitempty"`
	// Rebinds let a machine open a disk that was formatted for another.
	Rebinds []Rebind `json:"rebinds"`
	// Resets allow one more formatting of a machine's disk.
	Resets []Reset `json:"resets"`
	// Overrides set a disk's epoch after a rollback was examined.
	Overrides []Override `json:"overrides"`
	// Endpoint is where the control plane is reached since that was changed; nil means where it was when it was initialised.
	Endpoint *Endpoint `json:"endpoint,omitempty"`
	// Rotation is how often the operator has replaced keys that control planes hold: one that holds those of a lower rotation
	// lacks some. It never falls.
	Rotation uint64 `json:"rotation,omitempty"`
	// Keys commits to the keys of that rotation: nothing else is taken from a join service, or handed out by one.
	Keys hullmark.KeysDigest `json:"keys,omitzero"`
	// KubernetesCA commits to the Kubernetes CA's certificates, once an exchange of it was begun: no worker takes others. It is zero
	// before.
	KubernetesCA hullmark.CADigest `json:"kubernetesCA,omitzero"`
	// OperatorsFrom refuses operators' leaves that were made by an earlier policy's version (channel.Scope, channel.Named), at nodes
	// that hold this one. It never falls.
	OperatorsFrom uint64 `json:"operatorsFrom,omitempty"`
	// Operators may do some of what whoever holds the root key does, each by a key of his own.
	Operators []hullmark.Operator `json:"operators,omitempty"`
	// CrossCertificates are certificates, in DER, of the roots that nodes' configurations may still name beside the one that
	// signs: the newest first, each time the one by which a root handed over to the next, and that root's own. Package attest
	// reads them.
	CrossCertificates [][]byte `json:"crossCertificates,omitempty"`
	// FirstRoot is the cluster's first root, once another one signs.
	FirstRoot hullmark.ClusterRoot `json:"firstRoot,omitzero"`
}

// First returns the cluster's first root, by which its keys go for good. root is the one that signs, or that hands over to it.
func (p Policy) First(root hullmark.ClusterRoot) hullmark.ClusterRoot {
	return cmp.Or(p.FirstRoot, root)
}

// Endpoint is where a cluster's API servers are reached.
type Endpoint struct {
	// Address is HOST:PORT, as nodes reach the control plane.
	Address string `json:"address"`
	// Names are the names and addresses that the API servers' certificates are for beside Address's and those that they have
	// anyway: DNS names, in which a * may stand for the first label, or IP addresses.
	Names []string `json:"names"`
}

// Accepted is a document that is accepted, by its digest.
type Accepted struct {
	Document DocumentID `json:"document"`
	// Enforce lists registers that have to match beyond those that code
	// requires (RequiredRegisters), ascending, out of 1 and 5.
	Enforce []pcrs.Register `json:"enforce"`
	// Trust is the least class of machines that boot it, beside that of their role; empty demands none.
	Trust hullmark.TrustClass `json:"trust,omitempty"`
	// Signatures are builders' over the statement about the document, as in its envelope.
	Signatures [][]byte `json:"signatures,omitempty"`
}

// Member is a membership rule: the machine with this identity has this role and name.
type Member struct {
	EKID hullmark.EKID `json:"ekid"`
	Role hullmark.Role `json:"role"`
	// Name is the node's name: RFC 1123 labels, at most 63 characters.
	Name string `json:"name"`
	// Pool names the pool that the node belongs to; empty means none.
	Pool string `json:"pool,omitempty"`
	// ProviderID is what the machine's infrastructure calls it (hullmark.ValidProviderID): its kubelet says it when it registers the
	// node, and never another afterwards. Empty means none.
	ProviderID string `json:"providerID,omitempty"`
}

// Rebind lets New open the disks of Old.
type Rebind struct {
	Old hullmark.EKID `json:"old"`
	New hullmark.EKID `json:"new"`
}

// Reset lets EKID format a disk although it has one. It is used up once the machine's recorded disk is another than OldUUID.
type Reset struct {
	EKID    hullmark.EKID `json:"ekid"`
	OldUUID hullmark.UUID `json:"oldUUID"`
}

// Override sets the epoch of one disk. Each has its own serial, from 1, ascending, and is used once.
type Override struct {
	Serial uint64        `json:"serial"`
	EKID   hullmark.EKID `json:"ekid"`
	UUID   hullmark.UUID `json:"uuid"`
	Epoch  uint64        `json:"epoch"`
}

// enforceable are the registers that are for a policy to require or not: a host's tables, and how its disk is partitioned.
var enforceable = []pcrs.Register{1, 5}

// Enforceable returns the registers of which a policy says whether they have to match, ascending.
func Enforceable() []pcrs.Register { return slices.Clone(enforceable) }

// Member returns the rule for a machine, and whether there is one.
func (p Policy) Member(ekid hullmark.EKID) (Member, bool) {
	i := slices.IndexFunc(p.Members, func(m Member) bool { return m.EKID == ekid })
	if i < 0 {
		return Member{}, false
	}
	return p.Members[i], true
}

// Encode returns the policy's canonical form, built as that of a Document. Empty lists are written as [].
func (p Policy) Encode() ([]byte, error) {
	p = p.normalised()
	if err := p.check(); err != nil {
		return nil, fmt.Errorf("encode policy: %w", err)
	}
	return hullmark.CanonicalJSON(p)
}

// normalised sets the schema and makes every list present; it shares no list that it changes.
func (p Policy) normalised() Policy {
	p.Schema = PolicySchema
	p.Documents = append([]Accepted{}, p.Documents...)
	for i, a := range p.Documents {
		p.Documents[i].Enforce = append([]pcrs.Register{}, a.Enforce...)
	}
	if p.Builders = (Builders{p.Builders.Threshold, slices.Clone(p.Builders.Of)}); p.Builders.isZero() {
		p.Builders = Builders{}
	}
	p.Members = append([]Member{}, p.Members...)
	p.Pools = slices.Clone(p.Pools)
	p.Groups, p.Denied = slices.Clone(p.Groups), slices.Clone(p.Denied)
	p.Operators = slices.Clone(p.Operators)
	p.Rebinds = append([]Rebind{}, p.Rebinds...)
	p.Resets = append([]Reset{}, p.Resets...)
	p.Overrides = append([]Override{}, p.Overrides...)
	if p.Endpoint != nil {
		p.Endpoint = &Endpoint{Address: p.Endpoint.Address, Names: append([]string{}, p.Endpoint.Names...)}
	}
	return p
}

// ParsePolicy reads a policy that Encode wrote and fails for anything else. It checks no signature: see OpenPolicy.
func ParsePolicy(encoded []byte) (Policy, error) {
	p, err := ParseEditedPolicy(encoded)
	if err != nil {
		return Policy{}, err
	}
	if err := hullmark.CheckCanonicalJSON(encoded, p.normalised()); err != nil {
		return Policy{}, fmt.Errorf("read policy: %w", err)
	}
	return p, nil
}

// ParseEditedPolicy reads a policy that a person wrote or changed, and that is yet to be signed: the order of its fields and its
// white space are free. All else is as strict as in ParsePolicy.
func ParseEditedPolicy(text []byte) (Policy, error) {
	var p Policy
	if err := strict(text, MaxPolicy, &p); err != nil {
		return Policy{}, fmt.Errorf("read policy: %w", err)
	}
	if p.Schema != PolicySchema {
		return Policy{}, fmt.Errorf("read policy: schema %q, want %q", p.Schema, PolicySchema)
	}
	if err := p.check(); err != nil {
		return Policy{}, fmt.Errorf("read policy: %w", err)
	}
	return p, nil
}

func (p Policy) check() error {
	if p.Version == 0 {
		return errors.New("version: want at least 1")
	}
	if p.OperatorsFrom > p.Version {
		return fmt.Errorf("operatorsFrom: %d is above the policy's own version %d, so no operator could come", p.OperatorsFrom, p.Version)
	}
	for _, check := range []func() error{p.checkDocuments, p.checkBuilders, p.checkTrust, p.checkMembers, p.checkPools, p.checkGroups, p.checkExceptions, p.checkEndpoint, p.checkCrossCertificates} {
		if err := check(); err != nil {
			return err
		}
	}
	return hullmark.CheckOperators(p.Operators)
}

func (p Policy) checkDocuments() error {
	if len(p.Documents) > maxDocuments {
		return fmt.Errorf("documents: %d, want at most %d", len(p.Documents), maxDocuments)
	}
	seen := map[DocumentID]bool{}
	for _, a := range p.Documents {
		if seen[a.Document] {
			return fmt.Errorf("documents: %v is accepted twice", a.Document)
		}
		seen[a.Document] = true
		for i, r := range a.Enforce {
			if !slices.Contains(enforceable, r) || i > 0 && r <= a.Enforce[i-1] {
				return fmt.Errorf("document %v: enforce: %v is not for a policy to enforce or to leave out, or is out of order (want ascending out of %v)", a.Document, r, enforceable)
			}
		}
	}
	return nil
}

func (p Policy) checkMembers() error {
	if len(p.Members) > maxMembers {
		return fmt.Errorf("members: %d, want at most %d", len(p.Members), maxMembers)
	}
	ids, names, providers := map[hullmark.EKID]bool{}, map[string]bool{}, map[string]bool{}
	for _, m := range p.Members {
		if ids[m.EKID] || names[m.Name] {
			return fmt.Errorf("members: %s (%v): identity or name has a rule already", m.Name, m.EKID)
		}
		ids[m.EKID], names[m.Name] = true, true
		if !m.Role.Valid() {
			return fmt.Errorf("members: %s: role %q is unknown", m.Name, m.Role)
		}
		if !hullmark.ValidNodeName(m.Name) {
			return fmt.Errorf("members: name %q: want a DNS label: at most 63 lower-case letters, digits and hyphens", m.Name)
		}
		if m.ProviderID != "" && (!hullmark.ValidProviderID(m.ProviderID) || providers[m.ProviderID]) {
			return fmt.Errorf("members: %s: provider ID %.80q: want SCHEME://…, of at most %d characters, and no other member's", m.Name, m.ProviderID, hullmark.MaxProviderID)
		}
		providers[m.ProviderID] = true
	}
	return nil
}

func (p Policy) checkExceptions() error {
	if len(p.Rebinds) > maxMembers || len(p.Resets) > maxMembers || len(p.Overrides) > maxMembers {
		return fmt.Errorf("rebinds, resets and overrides: want at most %d of each", maxMembers)
	}
	for _, r := range p.Rebinds {
		if r.Old == r.New {
			return fmt.Errorf("rebinds: %v to itself", r.Old)
		}
	}
	last := uint64(0)
	for _, o := range p.Overrides {
		if o.Serial <= last {
			return fmt.Errorf("overrides: serial %d does not follow %d", o.Serial, last)
		}
		last = o.Serial
	}
	return nil
}

func (p Policy) checkEndpoint() error {
	if p.Endpoint == nil {
		return nil
	}
	return p.Endpoint.Check()
}

// checkCrossCertificates leaves what is in the certificates to package attest.
func (p Policy) checkCrossCertificates() error {
	if len(p.CrossCertificates)%2 != 0 || len(p.CrossCertificates) > 2*hullmark.MaxCrossCertificates {
		return fmt.Errorf("crossCertificates: %d certificates, want two for each, and at most %d cross-certificates", len(p.CrossCertificates), hullmark.MaxCrossCertificates)
	}
	for _, certificate := range p.CrossCertificates {
		if len(certificate) == 0 || len(certificate) > maxCrossCertificate {
			return fmt.Errorf("crossCertificates: a certificate of %d bytes, want at most %d", len(certificate), maxCrossCertificate)
		}
	}
	if len(p.CrossCertificates) > 0 && p.FirstRoot == (hullmark.ClusterRoot{}) {
		return errors.New("crossCertificates: without firstRoot")
	}
	return nil
}

// Check reports what keeps an endpoint from being any cluster's.
func (e Endpoint) Check() error {
	// EndpointHost spells an address in its usual form: one that is written otherwise would never be found in a certificate.
	host, ok := hullmark.EndpointHost(e.Address)
	if !ok || !hullmark.ValidServerName(host) || !strings.HasPrefix(strings.TrimPrefix(e.Address, "["), host) {
		return fmt.Errorf("endpoint: address %.80q: want HOST:PORT, with a DNS name in lower case or an IP address, and a port from 1 to 65535", e.Address)
	}
	if len(e.Names) > MaxNames {
		return fmt.Errorf("endpoint: %d names, want at most %d", len(e.Names), MaxNames)
	}
	for i, name := range e.Names {
		if !hullmark.ValidServerName(name) || slices.Contains(e.Names[:i], name) {
			return fmt.Errorf("endpoint: name %.80q: want a DNS name in lower case or an IP address, each once", name)
		}
	}
	return nil
}
