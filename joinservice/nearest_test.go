package joinservice

import (
	"testing"

	"github.com/hullmark/hullmark/measurements"
	"github.com/hullmark/hullmark/pcrs"
)

// The reason that stands for all is against the document that fits best: of two machines' documents, one's own.
func TestNearestReason(t *testing.T) {
	others, own, removed := measurements.DocumentID{1}, measurements.DocumentID{2}, measurements.DocumentID{3}
	value := make(pcrs.Digest, 32)
	got := nearest([]measurements.Reason{
		{Document: removed, Text: "the policy does not accept this document"},
		{Document: others, Expected: value, Text: "PCR 0"},
		{Document: others, Expected: value, Text: "PCR 2"},
		{Document: own, Expected: value, Text: "PCR 1"},
	})
	if got.Document != own || got.Text != "PCR 1" {
		t.Errorf("got %v", got)
	}
}
