package firstboot

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/google/go-tpm/tpm2/transport"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest"
	"github.com/hullmark/hullmark/attest/prover"
	"github.com/hullmark/hullmark/firstboot/update"
	"github.com/hullmark/hullmark/image/verity"
	"github.com/hullmark/hullmark/kubeadm/step"
)

// release is what a node looks at of a measurement document (measurements.Document), whose digest a signed policy names: by what comes of
// it, the rest is for verifiers. Fields that it does not know are theirs.
type release struct {
	Image struct {
		Disk     hullmark.RootHash `json:"disk"`
		RootHash hullmark.RootHash `json:"rootHash"`
		hullmark.Versions
	} `json:"image"`
	SVN     uint32 `json:"svn"`
	Machine struct {
		SecureBoot bool `json:"secureBoot"`
	} `json:"machine"`
	Registers []struct {
		Register string            `json:"register"`
		Values   map[string]string `json:"values"`
	} `json:"registers"`

	// policy is the version of the one that accepts it.
	policy uint64
}

// written is what the slot's writer is told of it.
func (r release) written() update.Release {
	return update.Release{RootHash: verity.Root(r.Image.RootHash), Disk: r.Image.Disk}
}

// judgeRelease refuses a release that would be refused once it runs: by the signed policy that comes with it, by a newer one that the
// node holds, or that an order came with before, by its security version, or since its document is of another machine.
func (a updater) judgeRelease(id hullmark.DocumentID, document, envelope []byte) (r release, err error) {
	policy, err := openPolicy(envelope, a.config.ClusterRoot)
	if err != nil {
		return r, refusedRelease("policy-unsigned", err.Error(), "", "", "use the newest cluster file")
	}
	n, err := a.readNote()
	if err != nil {
		return r, err
	}
	_, held := a.heldPolicies()
	if seen := max(held.Version, n.Policy); policy.Version < seen {
		return r, refusedRelease("policy-older", "the policy that comes with the release is older than one that the node has seen",
			fmt.Sprintf("version %d or later", seen), fmt.Sprintf("version %d", policy.Version), "use the newest cluster file")
	}
	if !policy.accepts(id) {
		return r, refusedRelease("release-not-accepted", "the signed policy does not accept the release's document", "one of its documents", id.String(),
			"let the policy accept it first (hullmark policy add document), and bring it to the cluster (hullmark policy push)")
	}
	if err := json.Unmarshal(document, &r); err != nil {
		return r, refusedRelease("release-not-accepted", "the release's document cannot be read: "+err.Error(), "", "", "use a hullmark of this image's release")
	}
	if r.SVN < policy.MinimumSVN {
		return r, refusedRelease("svn-too-low", "the release has a lower security version than the signed policy demands",
			fmt.Sprintf("%d or higher", policy.MinimumSVN), fmt.Sprint(r.SVN), "take a release with a higher one")
	}
	r.policy = policy.Version
	return r, a.judgeMachine(r)
}

// step is what of it a step to another Kubernetes is judged by.
func (r release) step() step.Release { return step.Release{Versions: r.Image.Versions, SVN: r.SVN} }

func (p signedPolicy) accepts(id hullmark.DocumentID) bool {
	return slices.ContainsFunc(p.Documents, func(d struct {
		Document string `json:"document"`
	},
	) bool {
		return d.Document == id.String()
	})
}

// ofMachine are the registers that hold nothing of a release, by a document's names: firmware, option ROMs, and what is absent here.
var ofMachine = map[string]int{"pcr0": 0, "pcr2": 2, "pcr3": 3, "pcr6": 6, "pcr14": 14}

// secureBootRegister has the certificate that let the release start, where firmware enforces Secure Boot; else it is the machine's, too.
const secureBootRegister = "pcr7"

// judgeMachine holds what a document says of firmware and keys to the registers of this boot.
func (a updater) judgeMachine(r release) error {
	var registers attest.Registers
	err := a.withTPM(func(tpm transport.TPM) (err error) {
		registers, err = prover.ReadRegisters(tpm)
		return err
	})
	if err != nil {
		return err
	}
	for _, predicted := range r.Registers {
		n, ok := ofMachine[predicted.Register]
		if predicted.Register == secureBootRegister && !r.Machine.SecureBoot {
			n, ok = 7, true
		}
		if want := predicted.Values["sha256"]; ok && want != hex.EncodeToString(registers[n][:]) {
			return refusedRelease("other-machine", fmt.Sprintf("the release's document is of other firmware than this machine's: PCR %d differs", n),
				want, hex.EncodeToString(registers[n][:]), "measure the release for this kind of machine (hullmark measure --machine), and let the policy accept that document")
		}
	}
	return nil
}

func refusedRelease(code, title, expected, got, next string) *hullmark.Condition {
	return &hullmark.Condition{Code: code, Step: StepUpdate, Title: title, Expected: expected, Got: got, Next: next}
}
