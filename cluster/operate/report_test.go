package operate

import (
	"slices"
	"strings"
	"testing"

	"github.com/hullmark/hullmark/attest"
	"github.com/hullmark/hullmark/internal/nodetest"
	"github.com/hullmark/hullmark/joinservice"
	"github.com/hullmark/hullmark/measurements"
	"github.com/hullmark/hullmark/pcrs"
)

// exchangeOf judges by the documents, of whose registers none is enforced beside those that always have to match.
func exchangeOf(t *testing.T, documents ...measurements.Document) exchange {
	t.Helper()
	policy := measurements.Policy{}
	for _, d := range documents {
		id, err := d.Digest()
		if err != nil {
			t.Fatal(err)
		}
		policy.Documents = append(policy.Documents, measurements.Accepted{Document: id})
	}
	return exchange{authorizer: joinservice.Authorizer{Policy: policy, Documents: documents}}
}

// claimsOf shows the registers that a document predicts, but for those that are given: they have another value.
func claimsOf(d measurements.Document, but ...pcrs.Register) attest.Claims {
	var claims attest.Claims
	for r, value := range d.Values(pcrs.SHA256) {
		copy(claims.Registers[r][:], value)
	}
	for _, r := range but {
		claims.Registers[r][0] ^= 1
	}
	return claims
}

// TestTheAcceptedDocumentIsReported: a boot that one document accepts is compared with that one, even where registers that
// nobody judges make another one look nearer.
func TestTheAcceptedDocumentIsReported(t *testing.T) {
	good, other := nodetest.Document(t, "image"), nodetest.Document(t, "another")
	x := exchangeOf(t, other, good)
	d, differing := x.nearest(claimsOf(good, 1))
	if !slices.Equal(d.Values(pcrs.SHA256)[4], good.Values(pcrs.SHA256)[4]) || len(differing) != 0 {
		t.Errorf("compared with the document of another image, %v differ", differing)
	}
}

// TestOnlyJudgedRegistersAreBlamed: what is no reason to refuse a node is not named as one.
func TestOnlyJudgedRegistersAreBlamed(t *testing.T) {
	good := nodetest.Document(t, "image")
	x := exchangeOf(t, good)
	err := x.explain(claimsOf(good, 1, 11))
	if err == nil || !strings.Contains(err.Error(), "PCR 11") || strings.Contains(err.Error(), "PCR 1 ") || strings.Contains(err.Error(), "PCR 1:") {
		t.Errorf("PCR 11 differs, and PCR 1, which nothing enforces: %v", err)
	}
	x.authorizer.Policy.Documents[0].Enforce = []pcrs.Register{1}
	if err := x.explain(claimsOf(good, 1, 11)); err == nil || !strings.Contains(err.Error(), "\n  PCR 1 ") && !strings.Contains(err.Error(), "\n  PCR 1:") {
		t.Errorf("PCR 1 is enforced, and differs: %v", err)
	}
}
