package registry

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/joinservice"
	"github.com/hullmark/hullmark/measurements"
)

func testMachine(id byte, name string) joinservice.Machine {
	return joinservice.Machine{
		EKID: hullmark.EKID{id}, Name: name, Role: hullmark.Worker, State: joinservice.MachineJoining,
		Record:    joinservice.Record{Disk: hullmark.UUID{id}, Committed: 1, Issued: 2},
		Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.1")}, Seen: time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC),
		Condition: &hullmark.Condition{Code: "c", Step: "DISK", Title: "t", Next: "n"},
	}
}

func machineObject(t testing.TB, m joinservice.Machine) *corev1.ConfigMap {
	t.Helper()
	text, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return &corev1.ConfigMap{ObjectMeta: meta(nodeKind, MachineObject(m.EKID)), Data: map[string]string{machineKey: string(text)}}
}

func TestParseMachine(t *testing.T) {
	want := testMachine(1, "w1")
	got, err := ParseMachine(machineObject(t, want))
	if err != nil {
		t.Fatal(err)
	}
	if a, b := machineObject(t, want).Data[machineKey], machineObject(t, got).Data[machineKey]; a != b {
		t.Errorf("wrote %s, read %s", a, b)
	}
	for name, change := range map[string]func(*corev1.ConfigMap){
		"unknown field":     func(o *corev1.ConfigMap) { o.Data[machineKey] = `{"x":1,` + o.Data[machineKey][1:] },
		"trailing data":     func(o *corev1.ConfigMap) { o.Data[machineKey] += "{}" },
		"no JSON":           func(o *corev1.ConfigMap) { o.Data[machineKey] = "" },
		"another key":       func(o *corev1.ConfigMap) { o.Data["x"] = "y" },
		"another binary":    func(o *corev1.ConfigMap) { o.BinaryData = map[string][]byte{"x": nil} },
		"no key":            func(o *corev1.ConfigMap) { o.Data = nil },
		"another machine's": func(o *corev1.ConfigMap) { o.Name = MachineObject(hullmark.EKID{2}) },
	} {
		object := machineObject(t, want)
		change(object)
		if _, err := ParseMachine(object); err == nil || !strings.Contains(err.Error(), "hullmark/"+object.Name) {
			t.Errorf("%s: got %v, want an error that names the object", name, err)
		}
	}
}

func FuzzParseMachine(f *testing.F) {
	f.Add(machineObject(f, testMachine(0, "w1")).Data[machineKey])
	f.Add(`{}`)
	f.Fuzz(func(t *testing.T, text string) {
		object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: MachineObject(hullmark.EKID{})}, Data: map[string]string{machineKey: text}}
		if m, err := ParseMachine(object); err == nil && m.EKID != (hullmark.EKID{}) {
			t.Errorf("took the record of %s for another machine's", m.EKID)
		}
	})
}

// FuzzObjects holds the readers of names and groups to what is written: whom an object names, it names again.
func FuzzObjects(f *testing.F) {
	node := hullmark.EKID{7}
	f.Add(holderKey, node.String(), "", "")
	f.Add(node.String(), "", hullmark.EKID{8}.String(), "")
	f.Add(holderKey, "x", node.String(), "1")
	f.Fuzz(func(t *testing.T, key, value, other, more string) {
		object := &corev1.ConfigMap{Data: map[string]string{key: value}}
		if other != "" {
			object.Data[other] = more
		}
		want := maps.Clone(object.Data)
		if holder, err := ParseHolder(object); err == nil {
			if PutHolder(object, holder); !maps.Equal(object.Data, want) {
				t.Errorf("%q holds a name as %s", want, holder)
			}
		}
		object.Data = maps.Clone(want)
		if nodes, err := ParseCounted(object); err == nil {
			if PutCounted(object, nodes); !maps.Equal(object.Data, want) {
				t.Errorf("%q counts %v", want, nodes)
			}
		}
	})
}

func documentOf(content string) (measurements.DocumentID, *corev1.ConfigMap) {
	id := measurements.DocumentID(sha256.Sum256([]byte(content)))
	return id, &corev1.ConfigMap{ObjectMeta: meta(documentKind, documentObject(id)), BinaryData: map[string][]byte{documentKind: []byte(content)}}
}

func TestPolicyOf(t *testing.T) {
	id, document := documentOf("d")
	policy := &corev1.ConfigMap{ObjectMeta: meta(policyKind, policyObject), BinaryData: map[string][]byte{policyKind: []byte("p")}}
	envelope, documents, err := policyOf([]any{document, policy})
	if err != nil || string(envelope) != "p" || len(documents) != 1 || string(documents[id]) != "d" {
		t.Fatalf("got %q, %q, %v", envelope, documents, err)
	}
	if envelope, _, err := policyOf([]any{document}); envelope != nil || err != nil {
		t.Errorf("without a policy: %q, %v", envelope, err)
	}
	for name, change := range map[string]func(o *corev1.ConfigMap){
		"text":        func(o *corev1.ConfigMap) { o.Data = map[string]string{"x": ""} },
		"another key": func(o *corev1.ConfigMap) { o.BinaryData["x"] = nil },
		"no key":      func(o *corev1.ConfigMap) { o.BinaryData = nil },
		"name":        func(o *corev1.ConfigMap) { o.Name = "other" },
		"no digest":   func(o *corev1.ConfigMap) { o.Name = documentKind + ".00" },
		"upper case":  func(o *corev1.ConfigMap) { o.Name = strings.ToUpper(o.Name) },
	} {
		changed := document.DeepCopy()
		change(changed)
		if _, _, err := policyOf([]any{changed, policy}); err == nil || !strings.Contains(err.Error(), changed.Name) {
			t.Errorf("%s: got %v, want an error that names the object", name, err)
		}
	}
}

func TestLettersAreOfTheAlphabet(t *testing.T) {
	seen := map[byte]int{}
	for _, c := range letters(36 * 1000) {
		seen[c]++
	}
	got := string(slices.Sorted(maps.Keys(seen)))
	if got != "0123456789abcdefghijklmnopqrstuvwxyz" {
		t.Errorf("got the characters %s", got)
	}
	for c, n := range seen {
		// 1000 ± 10 standard deviations; a modulo of the whole byte would give the first four 1109 and the last 984, in 36,000 draws.
		if n < 684 || n > 1316 {
			t.Errorf("%c: %d of 36000", c, n)
		}
	}
}

// answering returns a registry whose API answers every call with a status.
func answering(t *testing.T, code int, reason metav1.StatusReason) *Registry {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		_ = json.NewEncoder(w).Encode(metav1.Status{
			TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Code: int32(code), Reason: reason, Message: strings.Repeat("m", 1000),
		})
	}))
	t.Cleanup(server.Close)
	return connect(t, server.URL)
}

func connect(t *testing.T, host string) *Registry {
	t.Helper()
	r, err := New(&rest.Config{Host: host})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestErrorsThatPassAreConditions(t *testing.T) {
	for name, c := range map[string]struct {
		code   int
		reason metav1.StatusReason
		want   string
	}{
		"forbidden":      {http.StatusForbidden, metav1.StatusReasonForbidden, "api-forbidden"},
		"unauthorized":   {http.StatusUnauthorized, metav1.StatusReasonUnauthorized, "api-forbidden"},
		"no etcd":        {http.StatusInternalServerError, metav1.StatusReasonInternalError, "api-unreachable"},
		"starting":       {http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable, "api-unreachable"},
		"gateway":        {http.StatusGatewayTimeout, metav1.StatusReasonTimeout, "api-unreachable"},
		"an odd gateway": {http.StatusBadGateway, metav1.StatusReasonUnknown, "api-unreachable"},
		"invalid":        {http.StatusUnprocessableEntity, metav1.StatusReasonInvalid, ""},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, err := answering(t, c.code, c.reason).Load(t.Context(), hullmark.EKID{1})
			var condition *hullmark.Condition
			if errors.As(err, &condition) != (c.want != "") || condition != nil && (condition.Code != c.want || !condition.Retry || condition.Next == "") {
				t.Errorf("got %v, want %s", err, c.want)
			}
			if err == nil || len(err.Error()) > 1500 || !strings.Contains(err.Error(), "0100000") {
				t.Errorf("got %v, want a bounded error that names the machine", err)
			}
		})
	}
}

func TestAnAPIThatIsDownOrStallsIsUnreachable(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = silent.Close() }()
	gone, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = gone.Close()
	for name, address := range map[string]string{"stalls": silent.Addr().String(), "down": gone.Addr().String()} {
		r := connect(t, "http://"+address)
		r.timeout = 100 * time.Millisecond
		for call, err := range everyCall(t.Context(), r) {
			var c *hullmark.Condition
			if !errors.As(err, &c) || c.Code != "api-unreachable" || !c.Retry {
				t.Errorf("%s: %s: got %v", name, call, err)
			}
		}
	}
}

// everyCall makes each call once and returns its error.
func everyCall(ctx context.Context, r *Registry) map[string]error {
	_, _, load := r.Load(ctx, hullmark.EKID{1})
	_, store := r.Store(ctx, testMachine(1, "w1"), "")
	_, list := r.List(ctx)
	_, issue := r.Issue(ctx, testMachine(1, "w1"), func(string) error { return nil })
	_, ready := r.NodeReady(ctx, "w1")
	_, deleted := r.Delete(ctx, testMachine(1, "w1"), false)
	_, _, resting := r.Resting(ctx, "w1")
	return map[string]error{
		"load": load, "store": store, "list": list, "issue": issue, "ready": ready,
		"claim": r.Claim(ctx, "w1", hullmark.EKID{1}), "delete": deleted, "resting": resting, "free": r.Free(ctx, "w1"), "revoke": r.Revoke(ctx, "abc123"),
		"push": r.PushPolicy(ctx, "", "", []byte("p"), nil), "refused": r.Refused(ctx, "why"),
	}
}

func TestACancelledCallIsNoCondition(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var c *hullmark.Condition
	if _, _, err := connect(t, "http://127.0.0.1:1").Load(ctx, hullmark.EKID{1}); !errors.Is(err, context.Canceled) || errors.As(err, &c) {
		t.Errorf("got %v", err)
	}
}

// A list that others change again and again is tried anew, in time for a ticket and by the node itself.
func TestAGroupThatIsContendedIsTriedAgain(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if r.Method == http.MethodGet {
			_ = json.NewEncoder(w).Encode(corev1.ConfigMap{TypeMeta: metav1.TypeMeta{Kind: "ConfigMap", APIVersion: "v1"}, ObjectMeta: meta(groupKind, GroupObjects+"cloud")})
			return
		}
		w.WriteHeader(http.StatusConflict)
		_ = json.NewEncoder(w).Encode(metav1.Status{
			TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Code: http.StatusConflict, Reason: metav1.StatusReasonConflict,
		})
	}))
	t.Cleanup(server.Close)
	r := connect(t, server.URL)
	short, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	var c *hullmark.Condition
	if err := r.Enrol(short, "cloud", hullmark.EKID{1}, 3); !errors.As(err, &c) || !c.Retry {
		t.Errorf("cut off: got %v", err)
	}
	if err := r.Enrol(t.Context(), "cloud", hullmark.EKID{1}, 3); !errors.As(err, &c) || !c.Retry || c.Code != "record-contended" {
		t.Errorf("at its end: got %v", err)
	}
	var longest time.Duration
	for try := range editTries {
		longest += longestPause(try)
	}
	if longest > joinservice.DecisionTime/2 {
		t.Errorf("the pauses take up to %v of %v", longest, joinservice.DecisionTime)
	}
}

// A push demands the version that it was to replace, and reads none by itself.
func TestPushDemandsAVersion(t *testing.T) {
	var asked string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var object corev1.ConfigMap
		_ = json.NewDecoder(r.Body).Decode(&object)
		asked += r.Method + " " + object.ResourceVersion + "\n"
		reason := metav1.StatusReasonConflict
		if r.Method == http.MethodPost {
			reason = metav1.StatusReasonAlreadyExists
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusConflict)
		_ = json.NewEncoder(w).Encode(metav1.Status{
			TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Code: http.StatusConflict, Reason: reason,
		})
	}))
	t.Cleanup(server.Close)
	r := connect(t, server.URL)
	for version, want := range map[joinservice.Version]string{"17": "PUT 17\n", "": "POST \n"} {
		asked = ""
		if err := r.PushPolicy(t.Context(), "", version, []byte("p"), nil); !errors.Is(err, ErrPushedMeanwhile) || asked != want {
			t.Errorf("version %q: asked %q, want %q; %v", version, asked, want, err)
		}
	}
}

func TestNamesAndTokensAreCheckedBeforeTheAPIIsAsked(t *testing.T) {
	r := connect(t, "http://127.0.0.1:1")
	var c *hullmark.Condition
	for _, err := range []error{
		r.Claim(t.Context(), "../x", hullmark.EKID{1}),
		r.Revoke(t.Context(), "../../x"),
		r.PushPolicy(t.Context(), "", "", nil, nil),
		r.PushPolicy(t.Context(), "", "", make([]byte, maxObject+1), nil),
		r.PushPolicy(t.Context(), "", "", []byte("p"), map[measurements.DocumentID][]byte{{1}: []byte("other")}),
	} {
		if err == nil || errors.As(err, &c) {
			t.Errorf("got %v", err)
		}
	}
}

// TestManifestNamesWhatTheCodeNames holds together what no compiler does.
func TestManifestNamesWhatTheCodeNames(t *testing.T) {
	for _, want := range []string{"name: " + Namespace + "\n", "name: " + User + "\n", "name: " + tokenGroup + "\n", "namespace: " + tokenNamespace + "\n", "'" + string(tokenType) + "'", "'" + tokenPrefix + "'", "'" + AddressObjects + "'", "name: " + UpgradeUser + "\n", "name: " + lookRole + "\n", "name: " + changeRole + "\n", "'hullmark:operator:'", "'" + UpgradeUser + "'", "'" + UpgradeState + "'", "'" + CordonedBy + "'", "[" + upgradeLease + "]", "'" + directionKey + "'", "'^" + directionKind + "\\\\.[", "'" + Namespace + "'", "'^" + base64.StdEncoding.EncodeToString([]byte(tokenGroup+","+machineGroup)) + "(", clientSigner, servingSigner} {
		if !bytes.Contains(Manifest(), []byte(want)) {
			t.Errorf("the manifest lacks %q", want)
		}
	}
	text := string(Manifest())
	for _, never := range []string{"*", "escalate", "bind]", "impersonate", "nodeclient", "cluster-admin"} {
		if strings.Contains(text, never) {
			t.Errorf("the manifest holds %q", never)
		}
	}
	documents := 0
	for _, d := range strings.Split(text, "\n---\n") {
		var object struct {
			APIVersion, Kind string
			Metadata         metav1.ObjectMeta
		}
		if err := yaml.Unmarshal([]byte(d), &object); err != nil || object.Kind == "" || object.Metadata.Labels[managedLabel] != managedBy {
			t.Errorf("%v in\n%s", err, d)
		}
		documents++
	}
	if documents != 45 {
		t.Errorf("the manifest has %d documents", documents)
	}
}

func TestStrictRefuses(t *testing.T) {
	var into struct{ A int }
	for _, text := range []string{"", `{"B":1}`, `{"A":1} x`, `{"A":"1"}`} {
		if err := strict(text, &into); err == nil {
			t.Errorf("%q was read", text)
		}
	}
	if err := strict(`{"A":1}`+"\n", &into); err != nil || into.A != 1 {
		t.Error(err)
	}
	if err := strict("", &into); err == nil || !strings.Contains(err.Error(), "empty") {
		t.Error(err)
	}
}

func TestDirectionIsWhatItWas(t *testing.T) {
	node := hullmark.EKID{7}
	for _, want := range []hullmark.UpdateDirection{
		{Serial: 3, Action: hullmark.UpdateStage, Document: hullmark.DocumentID{1}, Sources: []string{"https://releases.example.com"}},
		{Serial: 4, Action: hullmark.UpdateRestart},
		{}, // It was withdrawn.
	} {
		object := &corev1.ConfigMap{}
		if err := PutDirection(object, node, want); err != nil {
			t.Fatal(err)
		}
		got, err := ParseDirection(object)
		if err != nil || got.Serial != want.Serial || got.Action != want.Action || !slices.Equal(got.Sources, want.Sources) || object.Name != DirectionObject(node) || object.Labels[kindLabel] != directionKind {
			t.Errorf("%+v came back as %+v, %v", want, got, err)
		}
	}
	if err := PutDirection(&corev1.ConfigMap{}, node, hullmark.UpdateDirection{Serial: 1, Action: "kexec"}); err == nil {
		t.Error("an action that there is not was written")
	}
}

func FuzzParseDirection(f *testing.F) {
	f.Add(`{"serial":4,"action":"restart"}`)
	f.Add(`{"serial":4,"action":"stage","document":"` + strings.Repeat("ab", 32) + `","sources":["https://a"]}`)
	f.Fuzz(func(t *testing.T, text string) {
		object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: DirectionObject(hullmark.EKID{1})}, Data: map[string]string{directionKey: text}}
		d, err := ParseDirection(object)
		if err != nil {
			return
		}
		if err := PutDirection(object, hullmark.EKID{1}, d); err != nil {
			t.Errorf("%+v was read and is not written: %v", d, err)
		}
	})
}

// Of a record that another release wrote, what is known is read.
func TestReadMachine(t *testing.T) {
	object := machineObject(t, testMachine(1, "w1"))
	object.Data[machineKey] = `{"x":1,` + object.Data[machineKey][1:]
	var some struct {
		EKID hullmark.EKID `json:"ekid"`
		Name string        `json:"name"`
	}
	if err := ReadMachine(object, &some); err != nil || some.EKID != (hullmark.EKID{1}) || some.Name != "w1" {
		t.Errorf("%+v, %v", some, err)
	}
	object.Data["y"] = "z"
	if err := ReadMachine(object, &some); err == nil {
		t.Error("an object of something else was read")
	}
}
