package upgrade_test

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/upgrade"
)

func TestRequestIsWhatItWas(t *testing.T) {
	want := request(newSite(t, 1, 0).spec())
	want.Attended, want.Paused, want.Spec.Except, want.Spec.Pools = []string{"cp-1"}, true, []string{"w-1"}, map[string]int{"a": 3}
	text, err := want.Encode()
	if err != nil {
		t.Fatal(err)
	}
	if got, err := upgrade.ParseRequest(text); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%s: %+v, %v", text, got, err)
	}
	if !strings.Contains(string(text), `"away":"1h0m0s"`) {
		t.Errorf("people cannot read %s", text)
	}
}

func TestRequestRefuses(t *testing.T) {
	long := strings.Repeat("x", 300)
	for name, change := range map[string]func(*upgrade.Request){
		"no id":                 func(r *upgrade.Request) { r.Spec.ID = "" },
		"another id":            func(r *upgrade.Request) { r.Spec.ID = "0123456789ABCDEF" },
		"another action":        func(r *upgrade.Request) { r.Spec.Action = hullmark.UpdateCommit },
		"no root hash":          func(r *upgrade.Request) { r.Spec.RootHash = hullmark.RootHash{} },
		"no documents":          func(r *upgrade.Request) { r.Spec.Documents = nil },
		"a document twice":      func(r *upgrade.Request) { r.Spec.Documents = append(r.Spec.Documents, r.Spec.Documents[0]) },
		"no document":           func(r *upgrade.Request) { r.Spec.Documents[0] = hullmark.DocumentID{} },
		"no sources":            func(r *upgrade.Request) { r.Spec.Sources = nil },
		"a long source":         func(r *upgrade.Request) { r.Spec.Sources = []string{"https://" + strings.Repeat("x", 2000)} },
		"a folder for a source": func(r *upgrade.Request) { r.Spec.Sources = []string{"/srv/releases"} },
		"a restart's documents": func(r *upgrade.Request) { r.Spec.Action = hullmark.UpdateRestart },
		"a long reason":         func(r *upgrade.Request) { r.Spec.Reason = long },
		"a name that is none":   func(r *upgrade.Request) { r.Spec.Except = []string{"../x"} },
		"many names":            func(r *upgrade.Request) { r.Spec.Except = strings.Split(strings.Repeat("a ", 300), " ") },
		"an operator's name":    func(r *upgrade.Request) { r.Attended = []string{"A"} },
		"nobody stages":         func(r *upgrade.Request) { r.Spec.Staging = 0 },
		"nobody goes":           func(r *upgrade.Request) { r.Spec.Unavailable = -1 },
		"a pool of nobody":      func(r *upgrade.Request) { r.Spec.Pools = map[string]int{"a": 0} },
		"a pool without a name": func(r *upgrade.Request) { r.Spec.Pools = map[string]int{"": 1} },
		"no time":               func(r *upgrade.Request) { r.Spec.Timeouts.Drain = 0 },
		"a long time":           func(r *upgrade.Request) { r.Spec.Timeouts.Away = upgrade.Duration(25 * time.Hour) },
	} {
		r := request(newSite(t, 1, 0).spec())
		change(&r)
		if text, err := r.Encode(); err == nil {
			t.Errorf("%s was taken: %s", name, text)
		}
		text, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := upgrade.ParseRequest(text); err == nil {
			t.Errorf("%s was read: %s", name, text)
		}
	}
	good, err := request(newSite(t, 1, 0).spec()).Encode()
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string][]byte{
		"another format":   bytes.Replace(good, []byte("upgrade/v1"), []byte("upgrade/v2"), 1),
		"an unknown field": bytes.Replace(good, []byte(`"schema"`), []byte(`"more":1,"schema"`), 1),
		"too much":         append(bytes.Repeat([]byte(" "), upgrade.MaxRequest), good...),
		"a word for time":  bytes.Replace(good, []byte(`"1h0m0s"`), []byte(`"soon"`), 1),
	} {
		if _, err := upgrade.ParseRequest(text); err == nil {
			t.Errorf("%s was read", name)
		}
	}
}

// The largest upgrade fits into one object.
func TestStateIsBounded(t *testing.T) {
	long := strings.Repeat("x", 500)
	s := upgrade.State{Spec: newSite(t, 1, 0).spec(), Phase: upgrade.Running, Term: 1 << 60, Began: time.Now().UTC()}
	for i := range upgrade.MaxNodes {
		s.Nodes = append(s.Nodes, upgrade.NodeState{
			Name: strings.Repeat("n", 63), EKID: hullmark.EKID{byte(i), byte(i >> 8)}, Role: hullmark.Worker, Pool: strings.Repeat("p", 20), Phase: upgrade.NodeDone,
			Document: hullmark.DocumentID{1}, Serial: 1 << 40, Tries: 3, BootID: strings.Repeat("b", 36), Began: s.Began, Drained: s.Began, Back: s.Began, Ended: s.Began,
			Away: upgrade.Duration(time.Hour + time.Second), Before: upgrade.Duration(time.Hour + time.Second),
		})
	}
	s.Nodes[0].Note, s.Nodes[0].Failed = long, &hullmark.Condition{Code: "a", Title: long, Expected: long, Got: long, Next: long}
	text, err := s.Encode()
	if err != nil {
		t.Fatal(err)
	}
	if got, err := upgrade.ParseState(text); err != nil || len(got.Nodes) != upgrade.MaxNodes {
		t.Errorf("%d nodes came back: %v", len(got.Nodes), err)
	}
	s.Nodes = append(s.Nodes, upgrade.NodeState{Name: "more", EKID: hullmark.EKID{0, 0, 1}, Role: hullmark.Worker, Phase: upgrade.NodeWaiting})
	if _, err := s.Encode(); err == nil {
		t.Error("one node more was taken")
	}
}

func TestStateRefuses(t *testing.T) {
	good := upgrade.State{Schema: upgrade.Schema, Spec: newSite(t, 1, 0).spec(), Phase: upgrade.Running, Nodes: []upgrade.NodeState{{Name: "a", EKID: hullmark.EKID{1}, Role: hullmark.Worker, Phase: upgrade.NodeWaiting}}}
	for name, change := range map[string]func(*upgrade.State){
		"another phase":        func(s *upgrade.State) { s.Phase = "begun" },
		"another node's phase": func(s *upgrade.State) { s.Nodes[0].Phase = "begun" },
		"no next phase":        func(s *upgrade.State) { s.Nodes[0].Phase = upgrade.NodeReleasing },
		"a next phase":         func(s *upgrade.State) { s.Nodes[0].Next = upgrade.NodeDone },
		"a name":               func(s *upgrade.State) { s.Nodes[0].Name = "." },
		"a role":               func(s *upgrade.State) { s.Nodes[0].Role = "boss" },
		"a node twice":         func(s *upgrade.State) { s.Nodes = append(s.Nodes, s.Nodes[0]) },
		"time before":          func(s *upgrade.State) { s.Nodes[0].Waited = -1 },
		"a long note":          func(s *upgrade.State) { s.Nodes[0].Note = strings.Repeat("x", 600) },
		"no list":              func(s *upgrade.State) { s.Nodes = nil },
		"another format":       func(s *upgrade.State) { s.Schema = "x" },
		"no spec":              func(s *upgrade.State) { s.Spec = upgrade.Spec{} },
	} {
		s := good
		s.Nodes = append([]upgrade.NodeState{}, good.Nodes...)
		change(&s)
		text, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := upgrade.ParseState(text); err == nil || strings.Contains(err.Error(), "%!") {
			t.Errorf("%s was read: %s, %v", name, text, err)
		}
	}
	text, err := good.Encode()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := upgrade.ParseState(text); err != nil {
		t.Errorf("the positive control: %v", err)
	}
}

func FuzzParseRequest(f *testing.F) {
	text, err := request(upgrade.Spec{
		ID: "0123456789abcdef", Action: hullmark.UpdateTry, RootHash: hullmark.RootHash{1}, Documents: []hullmark.DocumentID{{1}}, Sources: []string{"https://a"},
		Staging: 1, Unavailable: 1, Timeouts: upgrade.DefaultTimeouts(),
	}).Encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Add([]byte(`{"schema":"hullmark.upgrade/v1","spec":{"id":"0123456789abcdef","action":"restart","staging":1,"unavailable":1,"drain":{"force":true},"timeouts":{"stage":"1s","drain":"1s","away":"24h"}},"aborted":true}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		r, err := upgrade.ParseRequest(text)
		if err != nil {
			return
		}
		again, err := r.Encode()
		if err != nil {
			t.Fatalf("it was read and is not written: %v", err)
		}
		if same, err := upgrade.ParseRequest(again); err != nil || !reflect.DeepEqual(same, r) {
			t.Errorf("%s came back as %+v, %v", text, same, err)
		}
	})
}

func FuzzParseState(f *testing.F) {
	s := upgrade.State{
		Spec: upgrade.Spec{ID: "0123456789abcdef", Action: hullmark.UpdateRestart, Staging: 1, Unavailable: 1, Timeouts: upgrade.DefaultTimeouts()}, Phase: upgrade.Stopping, Term: 7,
		Failed: &hullmark.Condition{Code: "a", Title: "b", Next: "c"}, Waits: "for it", Waited: 5,
		Nodes: []upgrade.NodeState{{Name: "a", EKID: hullmark.EKID{1}, Role: hullmark.ControlPlane, Phase: upgrade.NodeReleasing, Next: upgrade.NodeFailed, Serial: 2, Withdraw: true}},
	}
	text, err := s.Encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Fuzz(func(t *testing.T, text []byte) {
		s, err := upgrade.ParseState(text)
		if err != nil {
			return
		}
		if _, err := s.Encode(); err != nil && len(text) < upgrade.MaxState/2 {
			t.Fatalf("it was read and is not written: %v", err)
		}
		_ = upgrade.Changes(upgrade.State{}, s)
	})
}
