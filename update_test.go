package hullmark

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestUpdateStatusIsWhatItWas(t *testing.T) {
	want := UpdateStatus{Running: "b", Default: "a", A: RootHash{1}, B: RootHash{2}, Phase: UpdateTrial, Document: DocumentID{3}, Serial: 4}
	text, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	var got UpdateStatus
	if err := json.Unmarshal(text, &got); err != nil || got != want {
		t.Errorf("%s: %+v, %v", text, got, err)
	}
	if got.Release() != want.B {
		t.Errorf("slot b runs, and the release is %s", got.Release())
	}
	for _, bad := range []string{`{"a":"00"}`, `{"document":"` + strings.Repeat("g", 64) + `"}`} {
		if err := json.Unmarshal([]byte(bad), &got); err == nil {
			t.Errorf("%s was taken", bad)
		}
	}
}

func TestUpdateDirectionCheck(t *testing.T) {
	document, source := DocumentID{1}, []string{"https://releases.example.com"}
	for _, good := range []UpdateDirection{
		{Serial: 1, Action: UpdateStage, Document: document, Sources: source},
		{Serial: 1, Action: UpdateStage, Document: document, Sources: []string{"http://192.0.2.1:8080/next", "oci://registry.example.com:5000/hullmark:1"}},
		{Serial: 2, Action: UpdateTry, Document: document},
		{Serial: 3, Action: UpdateRollback, Document: document},
		{Serial: 4, Action: UpdateRestart},
	} {
		if err := good.Check(); err != nil {
			t.Error(err)
		}
	}
	for _, bad := range []UpdateDirection{
		{Action: UpdateRestart},
		{Serial: 1 << 53, Action: UpdateRestart},
		{Serial: 1, Action: "kexec"},
		{Serial: 1, Action: UpdateStage, Sources: source},
		{Serial: 1, Action: UpdateStage, Document: document},
		{Serial: 1, Action: UpdateTry, Document: document, Sources: source},
		{Serial: 1, Action: UpdateCommit, Document: document},
		{Serial: 1, Action: UpdateStage, Document: document, Sources: make([]string, 9)},
		{Serial: 1, Action: UpdateStage, Document: document, Sources: []string{"https://" + strings.Repeat("x", 1025)}},
		{Serial: 1, Action: UpdateStage, Document: document, Sources: []string{"/srv/releases"}},
		{Serial: 1, Action: UpdateStage, Document: document, Sources: []string{"https://one.example.com", "ftp://two.example.com"}},
		{Serial: 1, Action: UpdateStage, Document: document, Sources: []string{"https:///path"}},
	} {
		if err := bad.Check(); err == nil {
			t.Errorf("%+v was taken", bad)
		}
	}
}

// Who may write directions once gives none that is the last.
func TestUpdateDirectionFollows(t *testing.T) {
	for _, c := range []struct {
		serial, last uint64
		want         bool
	}{{1, 0, true}, {8, 7, true}, {7, 7, false}, {6, 7, false}, {1 << 32, 0, true}, {1<<32 + 1, 0, false}, {1<<53 - 1, 7, false}, {0, 1<<64 - 1, false}} {
		if got := (UpdateDirection{Serial: c.serial}).Follows(c.last); got != c.want {
			t.Errorf("%d after %d: %t", c.serial, c.last, got)
		}
	}
}
