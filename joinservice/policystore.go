package joinservice

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest/channel"
	"github.com/hullmark/hullmark/firstboot/servicefiles"
	"github.com/hullmark/hullmark/measurements"
	"github.com/hullmark/hullmark/pcrs"
)

// maxDocuments bounds all documents of one policy together, in bytes.
const maxDocuments = 64 << 20

// SignedPolicy is a policy as measurements.SignPolicy makes it, with the
// documents that it accepts in their encoded form. It is unverified, and the
// JSON form of the cache file.
type SignedPolicy struct {
	// Envelope is the signed policy.
	Envelope []byte `json:"envelope"`
	// Documents are encoded measurement documents by their digest.
	Documents map[measurements.DocumentID][]byte `json:"documents"`
}

// PolicyStore holds the policy in force. It is safe for concurrent use: whoever
// reads sees one policy with all its documents, the old or the new.
type PolicyStore struct {
	root  hullmark.ClusterRoot
	cache servicefiles.File
	// mutex serialises Offer. kept reports that the cache file holds what is in force.
	mutex   sync.Mutex
	kept    bool
	inForce atomic.Pointer[verified]
}

// verified is a policy whose signature and documents were checked, prepared for judging many machines.
type verified struct {
	policy     measurements.Policy
	encoded    []byte
	signed     SignedPolicy
	documents  []measurements.Document
	references measurements.References
	members    map[hullmark.EKID]measurements.Member
	// planes are the members that are control planes, and versions what the documents say of Kubernetes.
	planes    []measurements.Member
	versions  map[measurements.DocumentID]hullmark.Version
	groups    []group
	platforms platforms
	// first is the cluster's first root, which vouchers name.
	first hullmark.ClusterRoot
	// crossCertificates lead to the store's root, and roots are those that nodes' configurations may name: that root first.
	crossCertificates [][]byte
	roots             []hullmark.ClusterRoot
	// unread says which groups and platforms' demands this release cannot read; nobody is admitted by them.
	unread error
}

// OpenPolicyStore begins with the higher version of installed and what the
// cache file holds. One that does not verify is passed over
// if the other does; warning then says why, and which groups of the policy in force admit nobody.
// A cache that cannot be read is an error: it may hold a later policy than the installed one.
func OpenPolicyStore(root hullmark.ClusterRoot, installed SignedPolicy, cache servicefiles.File) (store *PolicyStore, warning, err error) {
	s := &PolicyStore{root: root, cache: cache}
	fromDisk, diskErr := s.verify(installed)
	content, err := cache.Read()
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, nil, fmt.Errorf("policy cache: %w", err)
	}
	var kept *verified
	if err == nil {
		if kept, err = s.readCache(content); err != nil {
			warning = fmt.Errorf("policy cache: %w", err)
		}
	}
	if diskErr != nil {
		warning = errors.Join(warning, fmt.Errorf("installed policy: %w", diskErr))
	}
	switch {
	case fromDisk == nil && kept == nil:
		return nil, nil, fmt.Errorf("no policy can be used; next: run hullmark init or recover again: %w", warning)
	case fromDisk == nil || kept != nil && kept.policy.Version >= fromDisk.policy.Version:
		s.inForce.Store(kept)
		s.kept = true
	default:
		s.inForce.Store(fromDisk)
	}
	return s, errors.Join(warning, s.inForce.Load().unread), nil
}

// readCache returns the cached policy.
func (s *PolicyStore) readCache(content []byte) (*verified, error) {
	var signed SignedPolicy
	if err := hullmark.DecodeStrict(content, len(content), &signed); err != nil {
		return nil, err
	}
	return s.verify(signed)
}

// verify checks the signature, parses everything, and holds the documents to their digests.
func (s *PolicyStore) verify(signed SignedPolicy) (*verified, error) {
	policy, crossCertificates, roots, err := openPolicy(signed.Envelope, s.root)
	if err != nil {
		return nil, err
	}
	encoded, err := policy.Encode()
	if err != nil {
		return nil, err
	}
	e := &verified{
		policy: policy, encoded: encoded, first: policy.First(s.root), crossCertificates: crossCertificates, roots: roots, members: membersOf(policy),
		signed:   SignedPolicy{Envelope: signed.Envelope, Documents: map[measurements.DocumentID][]byte{}},
		versions: map[measurements.DocumentID]hullmark.Version{},
	}
	if err := e.take(signed.Documents); err != nil {
		return nil, fmt.Errorf("policy version %d: %w", policy.Version, err)
	}
	for _, m := range policy.Members {
		if m.Role == hullmark.ControlPlane {
			e.planes = append(e.planes, m)
		}
	}
	// Who signed it has checked them. One that this release cannot read admits nobody; all other rules hold.
	if e.groups, err = groupsOf(policy); err != nil {
		e.unread = fmt.Errorf("policy version %d is in force, but this release cannot read all of its groups, and those admit nobody: %w", policy.Version, err)
	}
	var unread error
	if e.platforms, unread = platformsOf(policy); unread != nil {
		e.unread = errors.Join(e.unread, fmt.Errorf("policy version %d is in force, but this release cannot read all that it demands of platforms, whose evidence counts for nothing: %w", policy.Version, unread))
	}
	e.references = measurements.NewReferences(policy, e.documents)
	return e, nil
}

// take keeps the documents that the policy names; each has to be there.
func (e *verified) take(documents map[measurements.DocumentID][]byte) error {
	size := 0
	for _, accepted := range e.policy.Documents {
		content, ok := documents[accepted.Document]
		if !ok {
			return fmt.Errorf("document %v: missing", accepted.Document)
		}
		if size += len(content); size > maxDocuments {
			return fmt.Errorf("documents: more than %d bytes together", maxDocuments)
		}
		if got := measurements.DocumentID(sha256.Sum256(content)); got != accepted.Document {
			return fmt.Errorf("document %v: its content has the digest %v", accepted.Document, got)
		}
		document, err := measurements.Parse(content)
		if err != nil {
			return fmt.Errorf("document %v: %w", accepted.Document, err)
		}
		e.documents = append(e.documents, document)
		e.signed.Documents[accepted.Document] = content
		e.versions[accepted.Document] = document.Image.Kubernetes
	}
	return nil
}

// Offer puts a policy in force if the root key, or that of a root to which it has handed over, signed it, it parses, its
// documents are there, and its version is higher than that in force, and writes
// it to the cache file. It reports whether another policy is in force since. The
// policy that is in force already is not refused; every refusal is an error that
// says why. An error with taken set means that only the cache file was not written, or
// that some groups of the policy admit nobody, which is said each time that it is offered.
func (s *PolicyStore) Offer(offered SignedPolicy) (taken bool, err error) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	current := s.inForce.Load()
	next, err := s.choose(current, offered)
	if err != nil {
		return false, fmt.Errorf("offered policy: %w", err)
	}
	if next != current {
		s.inForce.Store(next)
		s.kept = false
	}
	return next != current, errors.Join(s.keep(next), next.unread)
}

// keep writes what is in force to the cache file, unless it is there.
func (s *PolicyStore) keep(inForce *verified) error {
	if s.kept {
		return nil
	}
	if err := writeCache(s.cache, inForce.signed); err != nil {
		return fmt.Errorf("policy version %d is in force, but not kept for the next start: %w", inForce.policy.Version, err)
	}
	s.kept = true
	return nil
}

// choose returns the policy in force itself if the offered one says the same.
func (s *PolicyStore) choose(current *verified, offered SignedPolicy) (*verified, error) {
	policy, _, _, err := openPolicy(offered.Envelope, s.root)
	if err != nil {
		return nil, err
	}
	if policy.Version < current.policy.Version {
		return nil, fmt.Errorf("its version is %d, and %d is in force: sign it again with a higher one", policy.Version, current.policy.Version)
	}
	if policy.Version == current.policy.Version {
		encoded, err := policy.Encode()
		if err != nil {
			return nil, err
		}
		if !bytes.Equal(encoded, current.encoded) {
			return nil, fmt.Errorf("its version is %d, which another policy in force has: sign it again with a higher one", policy.Version)
		}
		return current, nil
	}
	return s.verify(offered)
}

// openPolicy checks a policy against a root, whose own key signed it or that of a root to which it has handed over. It returns
// the cross-certificates that lead to root, and the roots that they come from after root itself.
func openPolicy(envelope []byte, root hullmark.ClusterRoot) (policy measurements.Policy, crossCertificates [][]byte, roots []hullmark.ClusterRoot, err error) {
	signer, err := measurements.PolicySigner(envelope)
	if err != nil {
		return policy, nil, nil, err
	}
	// Whoever made it signed it. That alone says nothing.
	if policy, err = measurements.OpenPolicy(envelope, signer); err != nil {
		return policy, nil, nil, err
	}
	all, err := RootsOf(policy, signer)
	if err != nil {
		return policy, nil, nil, fmt.Errorf("open policy: %w", err)
	}
	at := slices.Index(all, root)
	if at < 0 {
		return policy, nil, nil, errors.New("open policy: signed by the root key of another cluster, or by a root to which this service's has not handed over")
	}
	return policy, policy.CrossCertificates[2*at:], all[at:], nil
}

// RootsOf returns the roots that nodes' configurations may name by a policy: the one that signed it, and those that have handed over to it.
func RootsOf(policy measurements.Policy, signer hullmark.ClusterRoot) ([]hullmark.ClusterRoot, error) {
	return channel.ParseRoots(signer, policy.CrossCertificates)
}

// CrossCertificates returns the certificates, in DER, that lead to the service's root from roots that nodes' configurations may still name.
func (s *PolicyStore) CrossCertificates() [][]byte { return s.inForce.Load().crossCertificates }

// Policy returns the policy in force. It is shared: the caller must not change it.
func (s *PolicyStore) Policy() measurements.Policy { return s.inForce.Load().policy }

// Signed returns the policy in force as it was signed. It is shared: the caller must not change it.
func (s *PolicyStore) Signed() SignedPolicy { return s.inForce.Load().signed }

func writeCache(file servicefiles.File, signed SignedPolicy) error {
	content, err := json.Marshal(signed)
	if err != nil {
		return err
	}
	return file.Write(content)
}

// BootedBy returns the accepted document all of whose judged registers have these values, in bank SHA-256, if there is one. It is for a
// machine that looks at itself: nobody else has to believe it.
func (s *PolicyStore) BootedBy(measured pcrs.Values) (hullmark.DocumentID, bool) {
	e := s.inForce.Load()
	for _, d := range e.documents {
		predicted := d.Values(pcrs.SHA256)
		if slices.ContainsFunc(e.policy.Judged(d), func(r pcrs.Register) bool { return predicted[r] == nil || !bytes.Equal(predicted[r], measured[r]) }) {
			continue
		}
		if id, err := d.Digest(); err == nil {
			return id, true
		}
	}
	return hullmark.DocumentID{}, false
}
