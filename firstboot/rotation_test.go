package firstboot

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest"
	"github.com/hullmark/hullmark/attest/channel"
	"github.com/hullmark/hullmark/attest/wire"
	"github.com/hullmark/hullmark/measurements"
)

const (
	keysetFile = "/var/lib/hullmark/keyset.json"
	maxNumber  = ^uint64(0)
)

// set is what comes with a rotation, as a root signed it; edit changes the policy before that.
type set struct {
	version, number uint64
	keyset          string
	documents       []string
	edit            func(*measurements.Policy)
	// beside are further files.
	beside []*wire.File
}

// by returns the set's files, with a policy that a root signed, and one file that comes with no rotation.
func (c set) by(t *testing.T, key *ecdsa.PrivateKey, root *x509.Certificate) []*wire.File {
	t.Helper()
	blind := sha256.Sum256([]byte(c.keyset)) // of one rotation there is one
	rotation := hullmark.KeyRotation{Number: c.number, Blind: hullmark.NewSecret(blind[:])}
	files := append(slices.Clone(c.beside),
		&wire.File{Path: keysetFile, Content: []byte(c.keyset), Mode: 0o600},
		&wire.File{Path: hullmark.RotationFile, Content: rotation.Encode(), Mode: 0o600},
		&wire.File{Path: hullmark.SettingsFile, Content: []byte(c.keyset), Mode: 0o644})
	policy := measurements.Policy{Version: c.version, Rotation: c.number, Keys: hullmark.DigestKeys(rotation, wire.ContentOf(files))}
	for _, document := range c.documents {
		id := measurements.DocumentID(sha256.Sum256([]byte(document)))
		policy.Documents = append(policy.Documents, measurements.Accepted{Document: id})
		files = append(files, &wire.File{Path: hullmark.DocumentsFolder + "/" + id.String() + ".json", Content: []byte(document), Mode: 0o644})
	}
	if c.edit != nil {
		c.edit(&policy)
	}
	signed, err := measurements.SignPolicy(key, hullmark.ClusterRootOf(root.RawSubjectPublicKeyInfo), policy)
	if err != nil {
		t.Fatal(err)
	}
	return append(files, &wire.File{Path: hullmark.PolicyFile, Content: signed, Mode: 0o644})
}

func (s *stage) signed(t *testing.T, c set) []*wire.File {
	t.Helper()
	return c.by(t, s.rootKey, s.root)
}

// holds puts a set on the state disk.
func (s *stage) holds(t *testing.T, files []*wire.File) {
	t.Helper()
	for _, f := range files {
		name, ok := keptName(f.GetPath())
		if !ok {
			t.Fatalf("%s is not kept in the manifest", f.GetPath())
		}
		s.keep(name, string(f.GetContent()))
	}
}

// bring lets a join service take the node, a control plane that comes back, with these files.
func (s *stage) bring(t *testing.T, files []*wire.File) *wire.Progress {
	t.Helper()
	return s.againWith(t, &wire.Proceed{NodeName: "node-1", Role: string(hullmark.ControlPlane), Endpoint: "192.0.2.7:6443", Files: files})
}

func (s *stage) kept(t *testing.T, name string) string {
	t.Helper()
	text, err := s.agent.readState(name)
	if errors.Is(err, errNotOpen) {
		kept, _ := keptName(name)
		return s.disk.Files[kept]
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	return string(text)
}

// A control plane takes what comes with a rotation by the newest policy that a root signed, whoever brings it, and keeps its
// own against an older one.
func TestNewerKeysStay(t *testing.T) {
	for name, c := range map[string]struct {
		held, cached, brought *set
		taken                 bool
		code                  string
	}{
		"the first that it gets":             {nil, nil, &set{version: 1, keyset: "brought"}, true, ""},
		"later ones":                         {&set{version: 1, keyset: "own"}, nil, &set{version: 2, number: 1, keyset: "brought"}, true, ""},
		"the same":                           {&set{version: 2, number: 1, keyset: "own"}, nil, &set{version: 2, number: 1, keyset: "own"}, false, ""},
		"older ones":                         {&set{version: 2, number: 2, keyset: "own"}, nil, &set{version: 1, number: 1, keyset: "brought"}, false, "keys-older"},
		"older ones than a policy by itself": {&set{version: 1, number: 1, keyset: "own"}, &set{version: 3, number: 2, keyset: "unseen"}, &set{version: 2, number: 1, keyset: "brought"}, false, "keys-older"},
		"those of the policy by itself":      {&set{version: 1, number: 1, keyset: "own"}, &set{version: 3, number: 2, keyset: "brought"}, &set{version: 3, number: 2, keyset: "brought"}, true, ""},
	} {
		t.Run(name, func(t *testing.T) {
			s, _ := returning(t, time.Now().Add(year))
			if c.held != nil {
				s.holds(t, s.signed(t, *c.held))
			}
			if c.cached != nil {
				s.caches(t, s.signed(t, *c.cached))
			}
			before := s.kept(t, hullmark.RotationFile)
			brought := s.signed(t, *c.brought)
			policy, mark := bytes.Clone(wire.ContentOf(brought)(hullmark.PolicyFile)), bytes.Clone(wire.ContentOf(brought)(hullmark.RotationFile))
			if last := s.bring(t, brought); !last.GetReady() {
				t.Fatalf("last = %v", last)
			}
			if c.taken && (s.kept(t, keysetFile) != "brought" || s.kept(t, hullmark.PolicyFile) != string(policy) || s.kept(t, hullmark.RotationFile) != string(mark)) {
				t.Errorf("the keyset is %q", s.kept(t, keysetFile))
			}
			if !c.taken && (s.kept(t, keysetFile) != "own" || s.kept(t, hullmark.RotationFile) != before) {
				t.Errorf("the keyset is %q", s.kept(t, keysetFile))
			}
			if s.kept(t, hullmark.SettingsFile) != c.brought.keyset {
				t.Error("what comes with no rotation was not taken")
			}
			if got := s.document(t).Condition; (got == nil) != (c.code == "") || got != nil && got.Code != c.code {
				t.Errorf("condition %v, want %q", got, c.code)
			}
		})
	}
}

// caches puts a set's policy where the join service keeps the newest one that it was given.
func (s *stage) caches(t *testing.T, files []*wire.File) {
	t.Helper()
	text, err := json.Marshal(map[string]any{"envelope": wire.ContentOf(files)(hullmark.PolicyFile), "documents": map[string][]byte{}})
	if err != nil {
		t.Fatal(err)
	}
	s.keep(policyCache, string(text))
}

// replace returns files with other content for one of them.
func replace(files []*wire.File, path, content string) []*wire.File {
	next := slices.DeleteFunc(slices.Clone(files), func(f *wire.File) bool { return f.GetPath() == path })
	return append(next, &wire.File{Path: path, Content: []byte(content), Mode: 0o600})
}

func without(files []*wire.File, path string) []*wire.File {
	return slices.DeleteFunc(slices.Clone(files), func(f *wire.File) bool { return f.GetPath() == path })
}

// Whoever plays a join service brings nothing that no root signed: neither a number that no later rotation could pass, nor keys
// without one, nor others under a policy that was signed. The node says so before its fuse, keeps what it has, and takes the
// operator's later rotation, and that of an honest service.
func TestUnsignedKeysAreRefused(t *testing.T) {
	own, next := set{version: 3, number: 1, keyset: "own"}, set{version: 4, number: 2, keyset: "brought", documents: []string{"document"}}
	stranger, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	root, err := channel.NewRoot(stranger)
	if err != nil {
		t.Fatal(err)
	}
	document := fmt.Sprintf("%s/%x.json", hullmark.DocumentsFolder, sha256.Sum256([]byte("document")))
	for name, c := range map[string]struct {
		files func(s *stage) []*wire.File
		says  string
	}{
		"a number above all others": {func(s *stage) []*wire.File {
			blind, _ := hullmark.NewBlind(rand.Reader)
			return replace(s.signed(t, next), hullmark.RotationFile, string(hullmark.KeyRotation{Number: maxNumber, Blind: blind}.Encode()))
		}, "of rotation 18446744073709551615, and the signed policy says 2"},
		"a number alone": {func(s *stage) []*wire.File {
			blind, _ := hullmark.NewBlind(rand.Reader)
			return []*wire.File{{Path: hullmark.RotationFile, Content: hullmark.KeyRotation{Number: maxNumber, Blind: blind}.Encode(), Mode: 0o600}}
		}, "policy: it is empty"},
		"a keyset alone": {func(*stage) []*wire.File {
			return []*wire.File{{Path: keysetFile, Content: []byte("stale"), Mode: 0o600}}
		}, "policy: it is empty"},
		"a keyset with the policy": {func(s *stage) []*wire.File { return without(s.signed(t, next), hullmark.RotationFile) }, "want a number"},
		"another keyset":           {func(s *stage) []*wire.File { return replace(s.signed(t, next), keysetFile, "stale") }, "not those that the signed policy commits to"},
		"another online CA": {func(s *stage) []*wire.File {
			return replace(s.signed(t, next), "/var/lib/hullmark/online-ca.key", "stale")
		}, "not those that the signed policy commits to"},
		"an old keyset by the new policy": {func(s *stage) []*wire.File {
			return replace(s.signed(t, own), hullmark.PolicyFile, string(wire.ContentOf(s.signed(t, next))(hullmark.PolicyFile)))
		}, "of rotation 1, and the signed policy says 2"},
		"another CA of etcd": {func(s *stage) []*wire.File {
			return replace(s.signed(t, next), hullmark.EtcdCACertificate, "foreign")
		}, "not those that the signed policy commits to"},
		"the front proxy's CA of before": {func(s *stage) []*wire.File {
			return replace(s.signed(t, set{version: next.version, number: next.number, keyset: "brought", beside: []*wire.File{{Path: hullmark.FrontProxyCAKey, Content: []byte("next"), Mode: 0o600}}}), hullmark.FrontProxyCAKey, "former")
		}, "not those that the signed policy commits to"},
		"another Kubernetes CA": {func(s *stage) []*wire.File {
			return replace(s.signed(t, next), hullmark.KubernetesCACertificate, "foreign")
		}, "not those that the signed policy commits to"},
		"what a worker is brought": {func(s *stage) []*wire.File {
			files := wire.ContentOf(s.signed(t, next))
			return []*wire.File{{Path: hullmark.PolicyFile, Content: files(hullmark.PolicyFile), Mode: 0o644}}
		}, "want a number"},
		"an authority alone": {func(*stage) []*wire.File {
			return []*wire.File{{Path: hullmark.EtcdCAKey, Content: []byte("foreign"), Mode: 0o600}}
		}, "policy: it is empty"},
		"a policy of another root": {func(*stage) []*wire.File { return next.by(t, stranger, root) }, "has not handed over"},
		"a changed policy": {func(s *stage) []*wire.File {
			files := s.signed(t, next)
			text := string(wire.ContentOf(files)(hullmark.PolicyFile))
			at := strings.Index(text, `"signature": "`) + 40
			return replace(files, hullmark.PolicyFile, text[:at]+map[bool]string{true: "A", false: "B"}[text[at] != 'A']+text[at+1:])
		}, "policy:"},
		"a document that nobody accepted": {func(s *stage) []*wire.File {
			return append(s.signed(t, next), &wire.File{Path: hullmark.DocumentsFolder + "/" + strings.Repeat("0", 64) + ".json", Content: make([]byte, 1000), Mode: 0o644})
		}, "no document that the signed policy accepts"},
		"another document in its place": {func(s *stage) []*wire.File { return replace(s.signed(t, next), document, "stale") }, "no document that the signed policy accepts"},
		"a document too few":            {func(s *stage) []*wire.File { return without(s.signed(t, next), document) }, "1 documents of the signed policy are missing"},
	} {
		t.Run(name, func(t *testing.T) {
			s, _ := returning(t, time.Now().Add(year))
			s.holds(t, s.signed(t, own))
			policy := s.kept(t, hullmark.PolicyFile)
			last := s.bring(t, c.files(s))
			if f := last.GetFailed(); f.GetCode() != "keys-unsigned" || !strings.Contains(f.GetTitle(), c.says) {
				t.Fatalf("last = %v, want %s", last, c.says)
			}
			if r := s.registers(t); r[attest.FuseRegister] != [32]byte{} || s.kept(t, keysetFile) != "own" || s.kept(t, hullmark.PolicyFile) != policy {
				t.Error("the fuse was blown, or something was written")
			}
			after := s.rebooted(t)
			after.disk.Claim, after.disk.Opened, after.rootKey, after.root = s.disk.Claim, s.disk.Opened, s.rootKey, s.root
			if last := after.bring(t, s.signed(t, next)); !last.GetReady() || after.kept(t, keysetFile) != "brought" {
				t.Errorf("the signed rotation: last = %v, the keyset is %q", last, after.kept(t, keysetFile))
			}
		})
	}
}

// The number on the disk decides nothing: one that an earlier attacker left there, or a torn one, holds up neither the operator
// nor a service.
func TestForgedNumberHoldsNothingUp(t *testing.T) {
	blind, err := hullmark.NewBlind(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	for name, mark := range map[string]string{"the highest number": string(hullmark.KeyRotation{Number: maxNumber, Blind: blind}.Encode()), "a torn one": "x", "an old one": "7"} {
		for _, from := range []string{"", "192.0.2.1:7444"} {
			s := newStage(t)
			if err := (setup{s.agent}).run(t.Context()); err != nil {
				t.Fatal(err)
			}
			s.holds(t, replace(s.signed(t, set{version: 3, number: 1, keyset: "own"}), hullmark.RotationFile, mark))
			s.open(t)
			f := &finishing{conversation: &conversation{agent: s.agent, service: from}, comesBack: true}
			brought := s.signed(t, set{version: 4, number: 2, keyset: "brought"})
			if files, mark, err := f.newKeys(brought); err != nil || len(files) != len(brought)-1 || mark == nil {
				t.Errorf("%s, from %q: %d files, mark %v: %v", name, from, len(files), mark, err)
			}
		}
	}
}

func TestPolicyHasOneSchema(t *testing.T) {
	if policySchema != measurements.PolicySchema {
		t.Errorf("%q, and %q is signed", policySchema, measurements.PolicySchema)
	}
}

// A join that is begun anew brings everything: what an earlier one left is gone. It is none by an older policy than the disk holds.
func TestJoinBegunAnewTakesAllKeys(t *testing.T) {
	for held, taken := range map[uint64]bool{1: true, 2: true, 3: false} {
		s := newStage(t)
		if err := (setup{s.agent}).run(t.Context()); err != nil {
			t.Fatal(err)
		}
		s.holds(t, s.signed(t, set{version: held, number: 1, keyset: "keys"}))
		s.open(t)
		brought := s.signed(t, set{version: 2, number: 1, keyset: "keys"})
		f := &finishing{conversation: &conversation{agent: s.agent, service: "192.0.2.1:7444"}, joins: true}
		files, mark, err := f.newKeys(brought)
		if (err == nil) != taken || taken && (len(files) != len(brought)-1 || mark == nil) {
			t.Errorf("over version %d: %d files, mark %v: %v", held, len(files), mark, err)
		}
	}
}

// A control plane keeps the documents of the policy that it holds, and no others.
func TestDocumentsOfAnEarlierPolicyGo(t *testing.T) {
	s, _ := returning(t, time.Now().Add(year))
	s.holds(t, s.signed(t, set{version: 1, keyset: "own", documents: []string{"old"}}))
	if last := s.bring(t, s.signed(t, set{version: 2, number: 1, keyset: "brought", documents: []string{"new"}})); !last.GetReady() {
		t.Fatalf("last = %v", last)
	}
	for document, want := range map[string]string{"old": "", "new": "new"} {
		if got := s.kept(t, fmt.Sprintf("%s/%x.json", hullmark.DocumentsFolder, sha256.Sum256([]byte(document)))); got != want {
			t.Errorf("document %s holds %q", document, got)
		}
	}
}

// A join service gives a worker no keys, and a control plane that comes back no other authorities than it has; the operator may.
func TestAuthoritiesOfANodeThatComesBackStay(t *testing.T) {
	for path, refused := range map[string]bool{
		"/etc/kubernetes/pki/sa.key": true, "/etc/kubernetes/kubelet.conf": true, "/var/lib/hullmark/initialising.json": true,
		hullmark.SettingsFile: false, "/etc/kubernetes/audit.yaml": false,
	} {
		s, _ := returning(t, time.Now().Add(year))
		last := s.bring(t, []*wire.File{{Path: path, Content: []byte("stale"), Mode: 0o600}})
		if got := last.GetFailed().GetCode() == "proceed-refused"; got != refused || got == last.GetReady() {
			t.Errorf("%s: last = %v", path, last)
		}
	}
	o := openedBy(hullmark.Join, "192.0.2.1:7444", false)
	if err := o.checkOwned(&wire.Proceed{Role: string(hullmark.Worker), Files: []*wire.File{{Path: keysetFile}}}); err == nil {
		t.Error("a worker takes keys")
	}
	o.service, o.disk.Joined = "", true
	if err := o.checkOwned(&wire.Proceed{Role: string(hullmark.ControlPlane), Files: []*wire.File{{Path: "/etc/kubernetes/pki/sa.key"}}}); err != nil {
		t.Errorf("an operator: %v", err)
	}
}
