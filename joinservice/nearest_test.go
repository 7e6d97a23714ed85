package joinservice

import (
	"testing"

	"github.com/hullmark/hullmark/measurements"
)

// The reason that stands for all is against the document that fits best: of two machines' documents, one's own.
func TestNearestReason(t *testing.T) {
	others, own := measurements.DocumentID{1}, measurements.DocumentID{2}
	got := nearest([]measurements.Reason{{Document: others, Text: "PCR 0"}, {Document: others, Text: "PCR 2"}, {Document: own, Text: "PCR 1"}})
	if got.Document != own || got.Text != "PCR 1" {
		t.Errorf("got %v", got)
	}
}
