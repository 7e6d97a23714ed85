package wire_test

import (
	"strings"
	"testing"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest/wire"
)

// Whatever a failure has to say, and however JSON writes it, the status that has it can be sent.
func TestUpdateStatusFits(t *testing.T) {
	for name, text := range map[string]string{
		"short": "why", "long": strings.Repeat("é", 10000), "escaped": strings.Repeat("\x01", 100000),
	} {
		c := &hullmark.Condition{Code: "stage-failed", Title: text, Expected: text, Got: text, Next: text, Because: &hullmark.Condition{Code: "root", Title: text, Got: text, Retry: true}}
		s := hullmark.UpdateStatus{Running: "a", Default: "a", Phase: hullmark.UpdateFailed, Failed: c}
		encoded, err := wire.EncodeUpdateStatus(s)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		got, err := wire.DecodeUpdateStatus(encoded)
		if err != nil || got.Failed.Code != "root" || !got.Failed.Retry || got.Failed.Because != nil || !strings.HasPrefix(text, got.Failed.Title) || got.Failed.Title == "" {
			t.Errorf("%s: %v, %d bytes: %.200v", name, err, len(encoded), got.Failed)
		}
		if s.Failed != c || len(c.Because.Title) != len(text) {
			t.Errorf("%s: the status itself was changed", name)
		}
	}
}
