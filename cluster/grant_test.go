package cluster

import (
	"bytes"
	"crypto/x509"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest/channel"
	"github.com/hullmark/hullmark/internal/nodetest"
	"github.com/hullmark/hullmark/joinservice"
	"github.com/hullmark/hullmark/measurements"
)

var (
	look = []hullmark.Permission{hullmark.MayLook}
	both = []hullmark.Permission{hullmark.MayLook, hullmark.MayRecover}
)

// running is the file of a cluster that runs on one control plane.
func running(t *testing.T) *File {
	t.Helper()
	f := newFile(t)
	document := nodetest.Document(t, "image")
	policy := accepting(t, 1, document)
	policy.Members = []measurements.Member{
		{EKID: firstMachine, Role: hullmark.ControlPlane, Name: "control-plane-1"}, {EKID: otherMachine, Role: hullmark.Worker, Name: "worker-1"},
	}
	if err := f.Update(func(c *Cluster) error {
		c.KeepEpoch(firstMachine, DiskEpoch{Disk: hullmark.UUID{7}, Epoch: 3})
		c.KeepEpoch(otherMachine, DiskEpoch{Disk: hullmark.UUID{8}, Epoch: 3})
		return c.SetPolicy(policy, document)
	}); err != nil {
		t.Fatal(err)
	}
	return f
}

// granting asks for an operator for an hour.
func granting(name string, may []hullmark.Permission) Granting {
	return Granting{Name: name, May: may, Ends: time.Now().Add(time.Hour)}
}

func grant(t *testing.T, f *File, g Granting) (*Grant, error) {
	t.Helper()
	var made *Grant
	err := f.Update(func(c *Cluster) (err error) {
		made, err = c.GrantOperator(g)
		return err
	})
	return made, err
}

// operatorFile grants, and opens the file that comes of it.
func operatorFile(t *testing.T, f *File, g Granting) (*OperatorFile, string) {
	t.Helper()
	made, err := grant(t, f, g)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), g.Name+".operator")
	if err := CreateOperatorFile(path, secret("his own"), made, cheap); err != nil {
		t.Fatal(err)
	}
	file, opened, err := OpenAny(path, secret("his own"))
	if err != nil || file != nil {
		t.Fatal(file, err)
	}
	return opened, path
}

// An operator's file has what he was granted, and none of the cluster's keys.
func TestOperatorsFileHoldsNoKeyOfTheCluster(t *testing.T) {
	f := running(t)
	opened, path := operatorFile(t, f, granting("alice", both))
	g := opened.Grant
	if g.Who.Name != "alice" || !slices.Equal(g.Who.May, both) || g.Who.Policy != 2 {
		t.Errorf("it is the file of %+v", g.Who)
	}
	policy, err := f.Cluster.OpenPolicy()
	if err != nil || len(policy.Operators) != 1 || policy.Operators[0].Key != g.Who.Key || policy.Version != 2 {
		t.Errorf("the policy names %+v, %v", policy.Operators, err)
	}
	if err := channel.CheckOperator([]*x509.Certificate{g.Operator.Certificate, g.Known.Root.Certificate}, f.Cluster.ID()); err != nil {
		t.Error(err)
	}
	plain, err := g.encode()
	if err != nil {
		t.Fatal(err)
	}
	var d map[string]any
	if err := json.Unmarshal(plain, &d); err != nil {
		t.Fatal(err)
	}
	c := f.Cluster
	for name, key := range map[string]Authority{
		"the root": c.Root, "the online CA": c.Online, "Kubernetes' CA": c.Kubernetes.Authority, "etcd's": c.Etcd.Authority, "the front proxy's": c.FrontProxy.Authority,
		"the kubelets'":         c.KubeletServing.Authority,
		"the service accounts'": {Key: c.ServiceAccount},
	} {
		private, err := key.Key.Bytes()
		if err != nil {
			t.Fatal(err)
		}
		if anyHolds(d, private) {
			t.Errorf("it holds the key of %s", name)
		}
	}
	keyset, err := c.Keys.Encode()
	if err != nil {
		t.Fatal(err)
	}
	var masters struct{ Masters map[string][]byte }
	if err := json.Unmarshal(keyset, &masters); err != nil || len(masters.Masters) == 0 {
		t.Fatal(err)
	}
	for _, master := range masters.Masters {
		if anyHolds(d, master) {
			t.Error("it holds a master key")
		}
	}
	if _, err := Open(path, secret("his own")); !errors.Is(err, ErrNotGranted) || !strings.Contains(err.Error(), "the file of operator alice, who may look,recover") {
		t.Errorf("it was opened as a cluster file: %v", err)
	}
	for name, refused := range map[string]func() error{
		"a policy":                func() error { return g.Known.SetPolicy(policy) },
		"a leaf of the root's":    func() error { _, err := g.Known.Operator(channel.VerbStatus, firstMachine); return err },
		"another operator's file": func() error { _, err := g.Known.GrantOperator(granting("bob", look)); return err },
	} {
		if err := refused(); err == nil {
			t.Errorf("it made %s", name)
		}
	}
}

// What was granted opens its verbs, and no others.
func TestOperatorsFileOpensItsVerbs(t *testing.T) {
	f := running(t)
	for name, c := range map[string]struct {
		may           []hullmark.Permission
		look, recover bool
	}{"look": {look, true, false}, "both": {both, true, true}} {
		opened, _ := operatorFile(t, f, granting(name, c.may))
		for verb, may := range map[channel.Verb]bool{
			channel.VerbStatus: c.look, channel.VerbLogs: c.look, channel.VerbRecover: c.recover, channel.VerbInit: false, channel.VerbBegin: false, channel.VerbUpdate: false,
		} {
			shown, err := opened.Operator(verb, firstMachine)
			var refused *hullmark.Condition
			if (err == nil) != may || err != nil && (!errors.As(err, &refused) || refused.Code != "operator-not-permitted") {
				t.Errorf("%s: %s: %v", name, verb, err)
			}
			if err == nil && len(shown.Certificate) != 2 {
				t.Errorf("%s: %s: a chain of %d certificates", name, verb, len(shown.Certificate))
			}
		}
		if _, _, err := opened.Grant.Client(); (err == nil) != c.look {
			t.Errorf("%s: the API: %v", name, err)
		}
		if got := len(opened.Grant.Disks) > 0; got != c.recover {
			t.Errorf("%s: it has keys of disks: %v", name, got)
		}
	}
	short := granting("carol", both)
	short.Ends = time.Now().Add(-time.Minute)
	opened, _ := operatorFile(t, f, short)
	var ended *hullmark.Condition
	if _, err := opened.Operator(channel.VerbStatus, firstMachine); !errors.As(err, &ended) || ended.Code != "operator-expired" {
		t.Errorf("a certificate that has ended: %v", err)
	}
}

// Who may recover has the keys of control planes' disks, of each generation, and of no other disk.
func TestOperatorsKeysAreOfControlPlanesDisks(t *testing.T) {
	f := running(t)
	third := hullmark.EKID{3}
	if err := f.Update(func(c *Cluster) error {
		next, err := c.Keys.Next(bytes.NewReader(bytes.Repeat([]byte{5}, 32)))
		if err != nil {
			return err
		}
		c.Keys = next
		policy, err := c.OpenPolicy()
		if err != nil {
			return err
		}
		policy.Version, policy.Rotation = 2, 1
		policy.Members = append(policy.Members, measurements.Member{EKID: third, Role: hullmark.ControlPlane, Name: "control-plane-2"})
		policy.Rebinds = []measurements.Rebind{{Old: hullmark.EKID{4}, New: firstMachine}}
		return c.SetPolicy(policy)
	}); err != nil {
		t.Fatal(err)
	}
	g := granting("alice", both)
	g.Disks = map[hullmark.EKID]hullmark.UUID{third: {9}, otherMachine: {8}, firstMachine: {7}}
	opened, _ := operatorFile(t, f, g)
	keys := opened.Grant.DiskKeys()
	for name, c := range map[string]struct {
		generation uint32
		owner      hullmark.EKID
		disk       hullmark.UUID
		has        bool
	}{
		"the first":                {1, firstMachine, hullmark.UUID{7}, true},
		"the first, of later keys": {2, firstMachine, hullmark.UUID{7}, true},
		"one that was rebound":     {1, hullmark.EKID{4}, hullmark.UUID{7}, true},
		"one by its record":        {2, third, hullmark.UUID{9}, true},
		"a worker's":               {1, otherMachine, hullmark.UUID{8}, false},
		"another disk":             {1, firstMachine, hullmark.UUID{10}, false},
		"a generation to come":     {3, firstMachine, hullmark.UUID{7}, false},
		"another owner":            {1, third, hullmark.UUID{7}, false},
	} {
		key, err := keys.DiskKey(c.generation, f.Cluster.ID(), c.owner, c.disk)
		var missing *hullmark.Condition
		if (err == nil) != c.has || err != nil && (!errors.As(err, &missing) || missing.Code != "disk-key-missing") {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if want, err := f.Cluster.Keys.DiskKey(c.generation, f.Cluster.ID(), c.owner, c.disk); c.has && (err != nil || !key.Equal(want)) {
			t.Errorf("%s: another key: %v", name, err)
		}
		key.Wipe()
	}
	if again, err := keys.DiskKey(1, f.Cluster.ID(), firstMachine, hullmark.UUID{7}); err != nil || again.Equal(hullmark.NewSecret(make([]byte, 32))) {
		t.Errorf("a key that was used is gone: %v", err)
	}
	if _, err := keys.Decrypt(f.Cluster.ID(), hullmark.EncryptedText{}); !errors.Is(err, ErrNotGranted) {
		t.Errorf("it opens secrets of pools: %v", err)
	}
	if keys.Current() != 0 {
		t.Error("it has a generation for new disks")
	}
}

// What cannot be granted is refused, and changes nothing.
func TestGrantOperatorRefuses(t *testing.T) {
	f := running(t)
	if _, err := grant(t, f, granting("alice", look)); err != nil {
		t.Fatal(err)
	}
	before := bytes.Clone(f.Cluster.Policy)
	for name, c := range map[string]struct {
		g    Granting
		says string
	}{
		"a name twice":          {granting("alice", look), "--replace"},
		"nobody to replace":     {Granting{Name: "bob", May: look, Ends: time.Now().Add(time.Hour), Replace: true}, "names no operator bob"},
		"an unknown permission": {granting("bob", []hullmark.Permission{"policy"}), "unknown"},
		"no permission":         {granting("bob", nil), "bob"},
		"out of order":          {granting("bob", []hullmark.Permission{hullmark.MayRecover, hullmark.MayLook}), "out of order"},
		"recover without look":  {granting("bob", []hullmark.Permission{hullmark.MayRecover}), "comes without look"},
		"no name":               {granting("root", look), "not root"},
	} {
		if _, err := grant(t, f, c.g); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, want %q", name, err, c.says)
		}
	}
	if !bytes.Equal(f.Cluster.Policy, before) {
		t.Error("the policy changed")
	}
	if _, err := grant(t, newFile(t), granting("alice", both)); err == nil || !strings.Contains(err.Error(), "no disk of a control plane is known") {
		t.Errorf("of a cluster that did not begin: %v", err)
	}
	lent := mustLend(t, newFile(t), firstMachine, false)
	if _, err := grant(t, lent, granting("alice", look)); !errors.Is(err, ErrLent) {
		t.Errorf("by a file that was lent: %v", err)
	}
	first, _ := operatorFile(t, f, Granting{Name: "alice", May: look, Ends: time.Now().Add(time.Hour), Replace: true})
	policy, err := f.Cluster.OpenPolicy()
	if err != nil || len(policy.Operators) != 1 || policy.Operators[0].Key != first.Grant.Who.Key {
		t.Errorf("%+v, %v", policy.Operators, err)
	}
}

// The operator's file follows the policy, and takes none that the root did not sign, none that is older, and none without its documents.
func TestOperatorsFileTakesLaterPolicies(t *testing.T) {
	f := running(t)
	opened, path := operatorFile(t, f, granting("alice", look))
	old := bytes.Clone(f.Cluster.Policy)
	next := nodetest.Document(t, "next")
	sign := func(f *File, version uint64) error {
		return f.Update(func(c *Cluster) error { return c.SetPolicy(accepting(t, version, next), next) })
	}
	if err := sign(f, 3); err != nil {
		t.Fatal(err)
	}
	stranger := newFile(t)
	if err := sign(stranger, 9); err != nil {
		t.Fatal(err)
	}
	take := func(envelope []byte, documents map[measurements.DocumentID][]byte) error {
		return opened.Update(func(g *Grant) error { return g.Take(envelope, documents) })
	}
	changed := bytes.Replace(f.Cluster.Policy, []byte(`"signature": "`), []byte(`"signature": "AA`), 1)
	for name, err := range map[string]error{
		"another cluster's":    take(stranger.Cluster.Policy, stranger.Cluster.Documents),
		"a changed one":        take(changed, f.Cluster.Documents),
		"one without document": take(f.Cluster.Policy, nil),
	} {
		if err == nil {
			t.Errorf("%s was taken", name)
		}
	}
	if err := take(f.Cluster.Policy, f.Cluster.Documents); err != nil {
		t.Fatal(err)
	}
	if err := take(old, nil); err == nil || !strings.Contains(err.Error(), "version 2") {
		t.Errorf("an older policy was taken: %v", err)
	}
	if err := take(f.Cluster.Policy, nil); err != nil {
		t.Errorf("the same once more: %v", err)
	}
	_, again, err := OpenAny(path, secret("his own"))
	if err != nil {
		t.Fatal(err)
	}
	if documents, err := again.Grant.Known.AcceptedDocuments(); err != nil || len(documents) != 1 || !bytes.Equal(again.Grant.Known.Policy, f.Cluster.Policy) {
		t.Errorf("%d documents, %v", len(documents), err)
	}
}

// A file is opened as what it is, by its passphrase alone, and never overwritten.
func TestOpenAny(t *testing.T) {
	f := running(t)
	_, path := operatorFile(t, f, granting("alice", look))
	if file, operator, err := OpenAny(f.store.(*onDisk).path, secret("correct")); err != nil || file == nil || operator != nil {
		t.Errorf("a cluster file: %v, %v, %v", file, operator, err)
	}
	if _, _, err := OpenAny(path, secret("correct")); !errors.Is(err, ErrPassphrase) {
		t.Errorf("the cluster file's passphrase opens it: %v", err)
	}
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode() != 0o600 || !bytes.HasPrefix(content, []byte("age-encryption.org/v1\n-> scrypt ")) {
		t.Errorf("mode %v: %v", info.Mode(), err)
	}
	made, err := grant(t, f, granting("bob", look))
	if err != nil {
		t.Fatal(err)
	}
	if err := CreateOperatorFile(path, secret("his own"), made, cheap); !errors.Is(err, os.ErrExist) {
		t.Errorf("it was overwritten: %v", err)
	}
	if err := CreateOperatorFile(path+"2", secret(""), made, cheap); err == nil {
		t.Error("it was made under no passphrase")
	}
}

// grantSeed is an operator's file's content.
func grantSeed(t testing.TB) []byte {
	t.Helper()
	c, err := New()
	if err != nil {
		t.Fatal(err)
	}
	c.setEpoch(firstMachine, DiskEpoch{Disk: hullmark.UUID{7}, Epoch: 3})
	c.Settings = &joinservice.Settings{ControlPlaneEndpoint: "192.0.2.7:6443"}
	if err := c.SetPolicy(measurements.Policy{Version: 1, Members: []measurements.Member{{EKID: firstMachine, Role: hullmark.ControlPlane, Name: "control-plane-1"}}}); err != nil {
		t.Fatal(err)
	}
	g, err := c.GrantOperator(granting("alice", both))
	if err != nil {
		t.Fatal(err)
	}
	plain, err := g.encode()
	if err != nil {
		t.Fatal(err)
	}
	return plain
}

// The content is strictly decoded, and held to the root that it names.
func TestDecodeGrantRefuses(t *testing.T) {
	plain, other := grantSeed(t), grantSeed(t)
	field := func(plain []byte, name string) []byte {
		var d map[string]json.RawMessage
		if err := json.Unmarshal(plain, &d); err != nil {
			t.Fatal(err)
		}
		return d[name]
	}
	swap := func(name string, by []byte) []byte { return bytes.Replace(plain, field(plain, name), by, 1) }
	for name, data := range map[string][]byte{
		"a field more":             bytes.Replace(plain, []byte(`"operatorVersion":1`), []byte(`"operatorVersion":1,"x":2`), 1),
		"another version":          bytes.Replace(plain, []byte(`"operatorVersion":1`), []byte(`"operatorVersion":2`), 1),
		"something behind it":      append(bytes.Clone(plain), '1'),
		"another root":             swap("root", field(other, "root")),
		"another operator":         swap("operator", field(other, "operator")),
		"another policy":           swap("policy", field(other, "policy")),
		"the API's as the node's":  swap("operator", field(plain, "api")),
		"a key that is short":      bytes.Replace(plain, []byte(`"key":"`), []byte(`"key":"AAAA`), 1),
		"a disk without a number":  bytes.Replace(plain, []byte(`"generation":1`), []byte(`"generation":0`), 1),
		"a root's key beside that": bytes.Replace(plain, []byte(`"root":`), []byte(`"rootKey":"AA==","root":`), 1),
	} {
		if bytes.Equal(data, plain) {
			t.Errorf("%s: nothing was changed", name)
		}
		if _, err := decodeGrant(data); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	if _, err := decodeGrant(plain); err != nil {
		t.Errorf("the positive control: %v", err)
	}
}

func FuzzDecodeGrant(f *testing.F) {
	f.Add(grantSeed(f))
	f.Add([]byte(`{"operatorVersion":1}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		g, err := decodeGrant(data)
		if err != nil {
			return
		}
		encoded, err := g.encode()
		if err != nil {
			t.Fatal(err)
		}
		again, err := decodeGrant(encoded)
		if err != nil {
			t.Fatalf("took %q, but not what it says: %v", data, err)
		}
		if twice, err := again.encode(); err != nil || !bytes.Equal(twice, encoded) {
			t.Errorf("%q came back as %q, %v", encoded, twice, err)
		}
	})
}

// While the Kubernetes CA is exchanged an operator's file has both certificates that API servers may chain to, and outlives the next step;
// a file with more than an exchange has is refused.
func TestOperatorsFileInAnExchange(t *testing.T) {
	f := running(t)
	for i := range 4 {
		opened, _ := operatorFile(t, f, Granting{Name: "alice", May: look, Ends: time.Now().Add(time.Hour), Replace: i > 0})
		if known := opened.Grant.Known.KubernetesCA(); !bytes.Equal(known, f.Cluster.KubernetesCA()) || bytes.Count(known, []byte("BEGIN")) != []int{1, 2, 2, 1}[i] {
			t.Errorf("after %d steps the file knows\n%s", i, known)
		}
		if err := opened.Grant.API.Certificate.CheckSignatureFrom(f.Cluster.Kubernetes.Certificate); err != nil {
			t.Errorf("after %d steps: %v", i, err)
		}
		f = step(t, f, KubernetesCA)
	}
	made, err := grant(t, f, granting("bob", look))
	if err != nil {
		t.Fatal(err)
	}
	for n, want := range map[int]string{0: "got 0", 3: "got 3"} {
		plain, err := made.encode()
		if err != nil {
			t.Fatal(err)
		}
		var d grantDoc
		if err := json.Unmarshal(plain, &d); err != nil {
			t.Fatal(err)
		}
		d.KubernetesCA = bytes.Repeat(f.Cluster.Kubernetes.Certificate.Raw, n)
		if plain, err = json.Marshal(d); err != nil {
			t.Fatal(err)
		}
		if _, err := decodeGrant(plain); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%d certificates: %v", n, err)
		}
	}
}
