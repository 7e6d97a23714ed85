package firstboot

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"testing"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest"
	"github.com/hullmark/hullmark/attest/prover"
	"github.com/hullmark/hullmark/measurements"
)

// A release is judged by what would judge it once it runs: signature, version and documents of the policy, security version, firmware.
func TestReleaseIsJudged(t *testing.T) {
	s := newStage(t)
	s.holds(t, s.signed(t, set{version: 5, number: 1, keyset: "held"}))
	s.open(t)
	registers, err := prover.ReadRegisters(s.tpm)
	if err != nil {
		t.Fatal(err)
	}
	s.agent.config.ClusterRoot = hullmark.ClusterRootOf(s.root.RawSubjectPublicKeyInfo)
	document := func(svn int, register int, r attest.Registers) string {
		return fmt.Sprintf(`{"image":{"disk":"%064x","rootHash":"%064x"},"svn":%d,"machine":{"secureBoot":false},"registers":[{"register":"pcr%d","values":{"sha256":"%s"}}]}`,
			1, 2, svn, register, hex.EncodeToString(r[register][:]))
	}
	other := registers
	other[7][0]++
	other[4][0]++
	mine := document(3, 7, registers)
	for name, c := range map[string]struct {
		document string
		policy   set
		signer   *stage
		code     string
	}{
		"accepted":                         {document: mine, policy: set{version: 6, documents: []string{mine}}},
		"the version that the node holds":  {document: mine, policy: set{version: 5, documents: []string{mine}}},
		"another release's registers":      {document: document(3, 4, other), policy: set{version: 6, documents: []string{document(3, 4, other)}}},
		"not accepted":                     {document: mine, policy: set{version: 6, documents: []string{"{}"}}, code: "release-not-accepted"},
		"an older policy":                  {document: mine, policy: set{version: 4, documents: []string{mine}}, code: "policy-older"},
		"another cluster's policy":         {document: mine, policy: set{version: 6, documents: []string{mine}}, signer: newStage(t), code: "policy-unsigned"},
		"a security version that is lower": {document: mine, policy: set{version: 6, documents: []string{mine}, edit: func(p *measurements.Policy) { p.MinimumSVN = 4 }}, code: "svn-too-low"},
		"other firmware":                   {document: document(3, 7, other), policy: set{version: 6, documents: []string{document(3, 7, other)}}, code: "other-machine"},
	} {
		signer := s
		if c.signer != nil {
			signer = c.signer
		}
		files := signer.signed(t, c.policy)
		envelope := files[len(files)-1].GetContent()
		r, err := updater{s.agent}.judgeRelease(sha256.Sum256([]byte(c.document)), []byte(c.document), envelope)
		var condition *hullmark.Condition
		if errors.As(err, &condition) != (c.code != "") || c.code != "" && condition.Code != c.code || c.code == "" && err != nil {
			t.Errorf("%s: %v, want %q", name, err, c.code)
		}
		if c.code == "" && (r.SVN != 3 || r.Image.RootHash[31] != 2) {
			t.Errorf("%s: %+v", name, r)
		}
	}
}
