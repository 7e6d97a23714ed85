package firstboot

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"
	"unicode"

	"google.golang.org/protobuf/proto"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest/wire"
	"github.com/hullmark/hullmark/kubeadm"
)

// FuzzProceed holds what a node takes of Proceed to what it does with it: files go below the state disk's folders, and names are names.
func FuzzProceed(f *testing.F) {
	file := &wire.File{Path: kubeadm.DiscoveryFile, Content: []byte("x"), Mode: 0o600}
	for _, p := range []*wire.Proceed{
		{NodeName: "worker-1", Role: "worker", Files: []*wire.File{file}, Hooks: []string{"storage.service"}},
		{NodeName: "w", Role: "worker", Files: []*wire.File{{Path: "/var/lib/hullmark/../x", Mode: 0o600}, {Path: "/etc/kubernetes//y", Mode: 0o777}}},
		{NodeName: "cp", Role: "control-plane", Endpoint: "[2001:db8::1]:6443", Names: []string{"api.example.net", "192.0.2.1"}, Manifests: [][]byte{{1}}},
		{NodeName: "cp", Role: "control-plane", JoinAnew: true},
		{NodeName: "cp", Role: "control-plane", Manifests: [][]byte{{1}}, Snapshot: &wire.Snapshot{Size: 1, Bump: 1, Sha256: make([]byte, 32), Backup: make([]byte, 32)}},
	} {
		raw, err := proto.Marshal(p)
		if err != nil {
			f.Fatal(err)
		}
		for kind := range 4 {
			f.Add(raw, uint8(kind))
		}
	}
	kinds := []hullmark.TicketKind{hullmark.Init, hullmark.Join, hullmark.Rejoin, hullmark.Recover}
	f.Fuzz(func(t *testing.T, raw []byte, kind uint8) {
		p := &wire.Proceed{}
		if proto.Unmarshal(raw, p) != nil || wire.CheckFromVerifier(&wire.FromVerifier{Message: &wire.FromVerifier_Proceed{Proceed: p}}) != nil {
			return
		}
		o := openedBy(kinds[int(kind)%len(kinds)], "", false)
		if o.kind == hullmark.Join || o.kind == hullmark.Rejoin {
			o.service = "192.0.2.1:7444"
		}
		o.disk.Joined = o.kind == hullmark.Rejoin || o.kind == hullmark.Recover
		if o.checkProceed(p) != nil {
			return
		}
		for _, file := range p.GetFiles() {
			at, err := place(file.GetPath())
			if err != nil || !filepath.IsLocal(at) || file.GetMode()&^0o777 != 0 {
				t.Errorf("%q goes to %q, mode %o: %v", file.GetPath(), at, file.GetMode(), err)
			}
		}
		for _, name := range append(append(p.GetNames(), p.GetHooks()...), p.GetNodeName()) {
			if name == "" || len(name) > 253 || strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsPrint(r) || unicode.IsSpace(r) || r == '/' }) {
				t.Errorf("%q is taken for a name", name)
			}
		}
		if p.GetJoinAnew() && (o.kind != hullmark.Rejoin || p.GetRole() != string(hullmark.ControlPlane)) {
			t.Errorf("a %s by %s gives its node up", p.GetRole(), o.kind)
		}
		if o.service == "" && p.GetRole() == string(hullmark.Worker) {
			t.Error("an operator made a worker")
		}
	})
}

// What a join service calls a policy is bounded, and none that no root signed is one.
func FuzzOpenPolicy(f *testing.F) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		f.Fatal(err)
	}
	signed, err := hullmark.SignPolicyDocument(key, []byte(`{"schema":"hullmark.policy/v3","version":1}`))
	if err != nil {
		f.Fatal(err)
	}
	text, err := json.Marshal(signed)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Add([]byte(`{"policy":"e30=","rootKey":"","signature":""}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		p, err := openPolicy(text, signed.Root())
		if err == nil && p.Version != 1 {
			t.Errorf("%+v was not signed", p)
		}
	})
}
