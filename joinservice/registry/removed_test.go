package registry

import (
	"testing"
	"time"

	"github.com/hullmark/hullmark"
)

func TestParseRemoved(t *testing.T) {
	want := Removed{EKID: hullmark.EKID{7}, Until: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}
	if got, err := ParseRemoved(want.String()); err != nil || got.EKID != want.EKID || !got.Until.Equal(want.Until) {
		t.Errorf("got %+v, %v", got, err)
	}
	for _, text := range []string{"", want.EKID.String(), want.EKID.String() + " ", "x 2026-01-02T03:04:05Z", want.String() + " ", want.EKID.String() + " tomorrow"} {
		if _, err := ParseRemoved(text); err == nil {
			t.Errorf("%q was read", text)
		}
	}
}

func TestDropEnded(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	names := map[string]string{"over": Removed{Until: now.Add(-restKept - time.Second)}.String(), "lives": Removed{Until: now}.String(), "unread": "x"}
	if dropEnded(names, now); len(names) != 2 || names["over"] != "" {
		t.Errorf("got %v", names)
	}
	if dropEnded(names, now.Add(LongestCertificate+time.Minute)); names["lives"] == "" {
		t.Error("one look by a clock that is ahead ended a rest")
	}
}
