package firstboot

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest/channel"
	"github.com/hullmark/hullmark/attest/wire"
	"github.com/hullmark/hullmark/firstboot/servicefiles"
	"github.com/hullmark/hullmark/firstboot/statedisk"
	"github.com/hullmark/hullmark/kubeadm"
)

const (
	// maxPolicy bounds a signed policy that the node reads, in bytes.
	maxPolicy = 1 << 20
	// policyCache is where the join service of a control plane keeps the newest policy that it was given.
	policyCache = keptService + servicefiles.Policy
)

// signedPolicy is what a node looks at of a policy (measurements.Policy), whose signature was checked: by what comes of it, the
// rest is for join services. Fields that it does not know are theirs.
type signedPolicy struct {
	Schema            string              `json:"schema"`
	Version           uint64              `json:"version"`
	Rotation          uint64              `json:"rotation"`
	Keys              hullmark.KeysDigest `json:"keys"`
	KubernetesCA      hullmark.CADigest   `json:"kubernetesCA"`
	CrossCertificates [][]byte            `json:"crossCertificates"`
	// OperatorsFrom is the lowest Policy of a Scope that counts.
	OperatorsFrom uint64 `json:"operatorsFrom"`
	MinimumSVN    uint32 `json:"minimumSVN"`
	Documents     []struct {
		Document string `json:"document"`
	} `json:"documents"`
	// Operators are those whom the policy names. Permissions that the node does not know open nothing here.
	Operators []hullmark.Operator `json:"operators"`
	// Members and Pools say what a control plane is that a named operator recovers.
	Members []policyMember `json:"members"`
	Pools   []policyPool   `json:"pools"`
}

// policyMember and policyPool are what a node looks at of a measurements.Member and of a measurements.Pool.
type policyMember struct {
	EKID hullmark.EKID `json:"ekid"`
	Role hullmark.Role `json:"role"`
	Name string        `json:"name"`
	Pool string        `json:"pool"`
}

type policyPool struct {
	Name  string   `json:"name"`
	Hooks []string `json:"hooks"`
	Files []struct {
		Path    string `json:"path"`
		Mode    string `json:"mode"`
		Content string `json:"content"`
	} `json:"files"`
}

// staticPods are those of the pool. One that holds a secret is left out: the node has nothing that opens it.
func (p policyPool) staticPods() (files []*wire.File, err error) {
	for _, f := range p.Files {
		if !strings.HasPrefix(f.Path, kubeadm.StaticPodsDir+"/") || hullmark.HasEncrypted(f.Content) {
			continue
		}
		mode, err := strconv.ParseUint(f.Mode, 8, 9)
		if err != nil {
			return nil, fmt.Errorf("pool %s: %.80q: mode: %w", p.Name, f.Path, err)
		}
		files = append(files, &wire.File{Path: f.Path, Content: []byte(f.Content), Mode: uint32(mode)})
	}
	return files, checkFiles(files)
}

// policySchema is measurements.PolicySchema.
const policySchema = "hullmark.policy/v3"

// openPolicy takes a policy that was signed by the root which the node's measured configuration names, or by one to which that
// has handed over.
func openPolicy(envelope []byte, pinned hullmark.ClusterRoot) (signedPolicy, error) {
	signed, err := hullmark.ParseSigned(envelope, maxPolicy)
	if err != nil {
		return signedPolicy{}, fmt.Errorf("policy: %w", err)
	}
	document, err := signed.Open()
	if err != nil {
		return signedPolicy{}, fmt.Errorf("policy: %w", err)
	}
	var p signedPolicy
	if err := json.Unmarshal(document, &p); err != nil {
		return signedPolicy{}, fmt.Errorf("policy: %w", err)
	}
	if p.Schema != policySchema {
		return signedPolicy{}, fmt.Errorf("policy: schema %.40q, want %q", p.Schema, policySchema)
	}
	roots, err := channel.ParseRoots(signed.Root(), p.CrossCertificates)
	if err != nil {
		return signedPolicy{}, fmt.Errorf("policy: %w", err)
	}
	if !slices.Contains(roots, pinned) {
		return signedPolicy{}, errors.New("policy: it is signed by a root to which the one in the node config has not handed over")
	}
	return p, nil
}

// isTrust reports whether a file that comes with a rotation is brought to workers, too: the certificates of the Kubernetes CA, and the
// policy that commits to them.
func isTrust(path string) bool {
	return path == hullmark.PolicyFile || path == hullmark.KubernetesCACertificate
}

// checkSigned holds what comes with a rotation to the signed policy among it, whoever brings it.
func checkSigned(p *wire.Proceed, pinned hullmark.ClusterRoot) error {
	files := p.GetFiles()
	if isControlPlane(p) || slices.ContainsFunc(files, func(f *wire.File) bool { return hullmark.Rotated(f.GetPath()) && !isTrust(f.GetPath()) }) {
		return checkRotated(files, pinned)
	}
	return checkTrust(files, pinned)
}

// checkTrust holds the certificates of the Kubernetes CA that a worker is brought to the signed policy among the files; one that joins
// finds them where it is told of the cluster.
func checkTrust(files []*wire.File, pinned hullmark.ClusterRoot) error {
	if !slices.ContainsFunc(files, func(f *wire.File) bool { return isTrust(f.GetPath()) }) {
		return nil
	}
	content := wire.ContentOf(files)
	policy, err := openPolicy(content(hullmark.PolicyFile), pinned)
	if err != nil {
		return err
	}
	certificates := content(hullmark.KubernetesCACertificate)
	if certificates == nil {
		if certificates, err = kubeadm.AuthoritiesOf(content(kubeadm.DiscoveryFile)); err != nil {
			return err
		}
	}
	if hullmark.DigestCA(certificates) != policy.KubernetesCA {
		return errors.New("the Kubernetes CA is not the one that the signed policy commits to")
	}
	return nil
}

// checkRotated holds the files that come with a rotation to the signed policy among them: all of them come, or none.
func checkRotated(files []*wire.File, pinned hullmark.ClusterRoot) error {
	if !slices.ContainsFunc(files, func(f *wire.File) bool { return hullmark.Rotated(f.GetPath()) }) {
		return nil
	}
	content := wire.ContentOf(files)
	policy, err := openPolicy(content(hullmark.PolicyFile), pinned)
	if err != nil {
		return err
	}
	rotation, err := hullmark.ParseKeyRotation(content(hullmark.RotationFile))
	if err != nil {
		return err
	}
	defer rotation.Blind.Wipe()
	if rotation.Number != policy.Rotation {
		return fmt.Errorf("the keys are of rotation %d, and the signed policy says %d", rotation.Number, policy.Rotation)
	}
	if hullmark.DigestKeys(rotation, content) != policy.Keys {
		return errors.New("the keys are not those that the signed policy commits to")
	}
	return policy.checkDocuments(files)
}

// checkDocuments wants the documents that the policy accepts, each by its digest, and no others: a join service could not start
// with more than it is given room for.
func (p signedPolicy) checkDocuments(files []*wire.File) error {
	missing := map[string]bool{}
	for _, d := range p.Documents {
		missing[hullmark.DocumentsFolder+"/"+d.Document+".json"] = true
	}
	for _, f := range files {
		if !strings.HasPrefix(f.GetPath(), hullmark.DocumentsFolder+"/") {
			continue
		}
		if digest := sha256.Sum256(f.GetContent()); !missing[f.GetPath()] || f.GetPath() != fmt.Sprintf("%s/%x.json", hullmark.DocumentsFolder, digest) {
			return fmt.Errorf("%.120q is no document that the signed policy accepts", f.GetPath())
		}
		delete(missing, f.GetPath())
	}
	if len(missing) > 0 {
		return fmt.Errorf("%d documents of the signed policy are missing", len(missing))
	}
	return nil
}

// heldPolicies returns the signed policy that came to the state disk with the keys, and the newest one there: that, or one that
// the join service took since. What does not verify is none, as for the join service; none is the zero value.
func (a *Agent) heldPolicies() (installed, newest signedPolicy) {
	if envelope, err := a.readState(hullmark.PolicyFile); err == nil {
		installed, _ = openPolicy(envelope, a.config.ClusterRoot)
	}
	var cache struct {
		Envelope []byte `json:"envelope"`
	}
	newest = installed
	if text, err := a.kept.read(policyCache); err == nil && json.Unmarshal(text, &cache) == nil {
		if p, err := openPolicy(cache.Envelope, a.config.ClusterRoot); err == nil && p.Version > newest.Version {
			newest = p
		}
	}
	return installed, newest
}

// holdsKeys reports whether the manifest has the very keys that a signed policy commits to.
func (k *kept) holdsKeys(p signedPolicy) (held bool) {
	err := k.look(func(m statedisk.Manifest) error {
		content := func(path string) []byte {
			name, _ := proceedName(path)
			return m.Files[name].Content
		}
		rotation, err := hullmark.ParseKeyRotation(content(hullmark.RotationFile))
		if err != nil {
			return err
		}
		defer rotation.Blind.Wipe()
		held = rotation.Number == p.Rotation && hullmark.DigestKeys(rotation, content) == p.Keys
		return nil
	})
	return err == nil && held
}
