package cluster

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest/wire"
	"github.com/hullmark/hullmark/joinservice"
	"github.com/hullmark/hullmark/measurements"
)

// Limits of a policy that a cluster file holds. All of it goes to a control
// plane in one message, beside the keys and the kubeadm documents.
const (
	// MaxDocuments is how many measurement documents a policy may accept.
	MaxDocuments = 32
	// MaxAccepted bounds the signed policy and the documents that it accepts together, in bytes: with its keys, they are what
	// systemd hands a join service, at most 1 MiB (systemd.exec(5), LoadCredential=).
	MaxAccepted = 768 << 10
)

// OpenPolicy checks the signature of the last policy and reads it; before the first it is the zero value.
func (c *Cluster) OpenPolicy() (measurements.Policy, error) {
	if len(c.Policy) == 0 {
		return measurements.Policy{}, nil
	}
	return measurements.OpenPolicy(c.Policy, c.ID())
}

// SetPolicy signs a policy, which has to have a higher version than the last
// one. Each document that it accepts has to be in the file already or among
// documents; others are forgotten. The last policy itself is left as it is
// signed: of one version there is only one signed form. The policy that is signed commits to the file's keys, and to
// its Kubernetes CA once this policy or the last one commits to any.
func (c *Cluster) SetPolicy(policy measurements.Policy, documents ...measurements.Document) error {
	if _, err := c.rootKey(); errors.Is(err, ErrNotGranted) {
		return err
	}
	digest, err := c.keysDigest(policy.Rotation)
	if err != nil {
		return err
	}
	last, err := c.OpenPolicy()
	if err != nil {
		return err
	}
	policy.Keys, policy.KubernetesCA = digest, c.committedCA(cmp.Or(last.KubernetesCA, policy.KubernetesCA))
	same, err := c.follows(policy)
	if err == nil {
		// By a group, a platform's demands, or secrets, that fail this, no join service admits anybody.
		err = errors.Join(joinservice.CheckGroups(policy), joinservice.CheckPlatforms(policy), joinservice.CheckSecrets(policy, c.Keys, policy.First(c.ID())))
	}
	if err != nil {
		return err
	}
	return c.setPolicy(policy, same, documents...)
}

// setPolicy signs a policy that follows the last one, unless it is the same. Its version is raised above what operators may have signed.
func (c *Cluster) setPolicy(policy measurements.Policy, same bool, documents ...measurements.Document) error {
	if !same {
		next, err := c.nextVersion()
		if err != nil {
			return err
		}
		policy.Version = max(policy.Version, next)
	}
	held, err := c.documentsOf(policy, documents)
	if err != nil {
		return err
	}
	signed := c.Policy
	if !same {
		root, err := c.rootKey()
		if err != nil {
			return err
		}
		if signed, err = measurements.SignPolicy(root, c.ID(), policy); err != nil {
			return err
		}
	}
	if err := checkSize(signed, held); err != nil {
		return err
	}
	if !same {
		if c.signed, err = c.stamps(signed); err != nil {
			return err
		}
	}
	c.Policy, c.Documents = signed, held
	return nil
}

// nextVersion is the lowest version of a policy that follows the last one.
func (c *Cluster) nextVersion() (uint64, error) {
	if len(c.Policy) == 0 {
		return 1, nil
	}
	last, err := hullmark.ParseSigned(c.Policy, len(c.Policy))
	if err != nil {
		return 0, err
	}
	return last.NextVersion()
}

// follows reports whether policy is the last one; if not, it has to be a higher one.
func (c *Cluster) follows(policy measurements.Policy) (same bool, err error) {
	last, err := c.OpenPolicy()
	if err != nil {
		return false, err
	}
	encoded, err := policy.Encode()
	if err != nil {
		return false, err
	}
	if last.Version > 0 {
		lastEncoded, err := last.Encode()
		if err != nil {
			return false, err
		}
		if bytes.Equal(encoded, lastEncoded) {
			return true, nil
		}
	}
	if policy.Version <= last.Version || policy.MinimumSVN < last.MinimumSVN || policy.Rotation < last.Rotation {
		return false, fmt.Errorf("policy version %d with security version %d and rotation %d: in force are %d, %d and %d; want a higher version, and no lower security version or rotation",
			policy.Version, policy.MinimumSVN, policy.Rotation, last.Version, last.MinimumSVN, last.Rotation)
	}
	if policy.OperatorsFrom < last.OperatorsFrom {
		return false, fmt.Errorf("policy version %d with operatorsFrom %d: in force is %d; want no lower operatorsFrom", policy.Version, policy.OperatorsFrom, last.OperatorsFrom)
	}
	if last.Version > 0 && policy.Rotation == last.Rotation && policy.Keys != last.Keys {
		return false, errors.New("the cluster file's keys are not those that the policy in force commits to, and no rotation was counted")
	}
	if policy.FirstRoot != last.FirstRoot || !slices.EqualFunc(policy.CrossCertificates, last.CrossCertificates, bytes.Equal) {
		return false, errors.New("the policy names other cross-certificates than the one in force; only hullmark cluster rotate root and hullmark cluster forget-root change them")
	}
	return false, nil
}

// documentsOf returns the encoded documents that a policy accepts.
func (c *Cluster) documentsOf(policy measurements.Policy, documents []measurements.Document) (map[measurements.DocumentID][]byte, error) {
	known := map[measurements.DocumentID][]byte{}
	for _, d := range documents {
		encoded, err := d.Encode()
		if err != nil {
			return nil, err
		}
		known[sha256.Sum256(encoded)] = encoded
	}
	held := map[measurements.DocumentID][]byte{}
	for _, a := range policy.Documents {
		encoded, ok := known[a.Document]
		if !ok {
			encoded, ok = c.Documents[a.Document]
		}
		if !ok {
			return nil, fmt.Errorf("the policy accepts document %s, which is not in the cluster file; next: add it (hullmark policy add document), or remove it from the policy", a.Document)
		}
		held[a.Document] = encoded
	}
	return held, nil
}

// hold puts a policy in its signed form in the place of the one that is held, with those that it names of the documents that lie beside it.
func (c *Cluster) hold(signed []byte, documents map[measurements.DocumentID][]byte) error {
	policy, err := measurements.OpenPolicy(signed, c.ID())
	if err != nil {
		return err
	}
	held := map[measurements.DocumentID][]byte{}
	for _, a := range policy.Documents {
		content, ok := documents[a.Document]
		if !ok || sha256.Sum256(content) != a.Document {
			return fmt.Errorf("document %s, which the policy names, is not beside it", a.Document)
		}
		held[a.Document] = content
	}
	if err := checkSize(signed, held); err != nil {
		return err
	}
	c.Policy, c.Documents = signed, held
	return nil
}

func checkSize(signed []byte, documents map[measurements.DocumentID][]byte) error {
	total := len(signed)
	for _, encoded := range documents {
		total += len(encoded)
	}
	if len(documents) > MaxDocuments || total > MaxAccepted || len(signed) > wire.MaxFile {
		return fmt.Errorf("the policy would accept %d documents and be %d bytes long with them, %d of them its own; at most %d documents, %d bytes and %d bytes are allowed; next: remove documents of old releases",
			len(documents), total, len(signed), MaxDocuments, MaxAccepted, wire.MaxFile)
	}
	return nil
}

// AcceptedDocuments returns the documents that the last policy accepts, in its order.
func (c *Cluster) AcceptedDocuments() ([]measurements.Document, error) {
	policy, err := c.OpenPolicy()
	if err != nil {
		return nil, err
	}
	var documents []measurements.Document
	held, err := c.documentsOf(policy, nil)
	if err != nil {
		return nil, err
	}
	for _, a := range policy.Documents {
		document, err := measurements.Parse(held[a.Document])
		if err != nil {
			return nil, fmt.Errorf("document %s: %w", a.Document, err)
		}
		documents = append(documents, document)
	}
	return documents, nil
}

// checkDocuments holds what was read from a file to what SetPolicy writes.
func (c *Cluster) checkDocuments() error {
	for id, encoded := range c.Documents {
		if sha256.Sum256(encoded) != id {
			return fmt.Errorf("document %s: its content has another digest", id)
		}
	}
	if len(c.Documents) > 0 && len(c.Policy) == 0 {
		return errors.New("documents without a policy")
	}
	return checkSize(c.Policy, c.Documents)
}
