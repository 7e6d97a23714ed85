package firstboot

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest"
	"github.com/hullmark/hullmark/attest/channel"
	"github.com/hullmark/hullmark/attest/wire"
	"github.com/hullmark/hullmark/firstboot/statedisk"
	"github.com/hullmark/hullmark/internal/nodetest"
	"github.com/hullmark/hullmark/kubeadm"
	"github.com/hullmark/hullmark/measurements"
)

// kubernetesCA is what a rotation brings a control plane of the Kubernetes CA: the one that signs, and others that are trusted, too.
func kubernetesCA(signs *nodetest.Authority, trusted ...*nodetest.Authority) []*wire.File {
	return []*wire.File{
		{Path: hullmark.KubernetesCACertificate, Content: bundle(append([]*nodetest.Authority{signs}, trusted...)...), Mode: 0o644},
		{Path: hullmark.KubernetesCAKey, Content: []byte("the key of one of them"), Mode: 0o600},
		{Path: hullmark.KubernetesSigningCertificate, Content: bytes.Clone(signs.PEM), Mode: 0o644},
	}
}

// bundle has certificates one behind the other.
func bundle(authorities ...*nodetest.Authority) (text []byte) {
	for _, a := range authorities {
		text = append(text, a.PEM...)
	}
	return text
}

// trusts are the authorities by which a kubeconfig of the state disk takes API servers.
func (s *stage) trusts(t *testing.T, kubeconfig string) string {
	t.Helper()
	certificates, err := kubeadm.AuthoritiesOf([]byte(s.kept(t, kubeconfig)))
	if err != nil {
		t.Fatal(err)
	}
	return string(certificates)
}

// A control plane has kubeadm make its certificates anew in the boot from which on the next CA signs, and in no other, and its kubeconfigs
// take API servers by all that are trusted, whatever kubeadm writes.
func TestKubernetesCAIsExchanged(t *testing.T) {
	s, ca := returning(t, time.Now().Add(year))
	next := nodetest.NewAuthority(t)
	made := madeBy(t, next, ca)
	for path, content := range madeBy(t, ca, ca) {
		if strings.Contains(path, "front-proxy-client.") {
			made[path] = content
		}
	}
	for i, step := range []struct {
		files   []*wire.File
		renewed bool
	}{{kubernetesCA(ca, next), false}, {kubernetesCA(next, ca), true}, {kubernetesCA(next), false}} {
		if i > 0 {
			s = s.later(t)
		}
		want := string(step.files[0].GetContent())
		s.cluster.Remade = made
		if last := s.bring(t, s.signed(t, set{version: uint64(i + 1), number: uint64(i + 1), keyset: "keys", beside: step.files})); !last.GetReady() {
			t.Fatalf("step %d: last = %v", i+1, last)
		}
		if (len(s.cluster.Renewals) == 1) != step.renewed {
			t.Errorf("step %d: certificates were made anew %d times", i+1, len(s.cluster.Renewals))
		}
		if held := s.kept(t, hullmark.KubernetesCACertificate); held != want {
			t.Errorf("step %d: the disk has\n%s", i+1, held)
		}
		for _, kubeconfig := range []string{adminConf, kubeletConf} {
			if got := s.trusts(t, kubeconfig); got != want {
				t.Errorf("step %d: %s takes API servers by\n%s", i+1, kubeconfig, got)
			}
		}
		if d := s.document(t); d.Condition != nil {
			t.Errorf("step %d: condition %v", i+1, d.Condition)
		}
	}
}

// An init that never came to Ready goes on although the Kubernetes CA was exchanged since: kubeadm refuses kubeconfigs that begin with
// another one than signs, and finds none.
func TestInitGoesOnWithAnotherKubernetesCA(t *testing.T) {
	s, ca := newStage(t), nodetest.NewAuthority(t)
	s.keep(statedisk.IntentFile, statedisk.IntentStarted)
	s.put(t, ca.ControlPlaneDisk(t, "192.0.2.7:6443", time.Now().Add(year), "192.0.2.7"))
	s.put(t, map[string][]byte{
		kubeletConf: ca.Kubeconfig(t, "192.0.2.7:6443"), superAdminConf: ca.Kubeconfig(t, "192.0.2.7:6443"),
		hullmark.KubernetesCACertificate: bundle(nodetest.NewAuthority(t), ca),
	})
	if last := s.restore(t, controlPlane()); !last.GetReady() || len(s.cluster.Works) != 1 || !s.cluster.Works[0].Retry {
		t.Fatalf("last = %v, work = %+v", last, s.cluster.Works)
	}
	for _, name := range []string{kubeletConf, superAdminConf, "/etc/kubernetes/pki/apiserver.crt"} {
		if s.exists(name) {
			t.Errorf("kubeadm found %s", name)
		}
	}
	if got := s.kept(t, adminConf); got != "kubeconfig" { // which kubeadm has just made
		t.Errorf("%s is still\n%s", adminConf, got)
	}
}

// trust is what a worker is brought of the Kubernetes CA, by a policy of a root that commits to it.
func (s *stage) trust(t *testing.T, version uint64, certificates []byte) []*wire.File {
	t.Helper()
	signed := s.signed(t, set{version: version, number: version, keyset: "keys", edit: func(p *measurements.Policy) { p.KubernetesCA = hullmark.DigestCA(certificates) }})
	return []*wire.File{
		{Path: hullmark.PolicyFile, Content: wire.ContentOf(signed)(hullmark.PolicyFile), Mode: 0o644},
		{Path: hullmark.KubernetesCACertificate, Content: certificates, Mode: 0o644},
	}
}

// asWorker lets a join service take the node, a worker that comes back, with these files.
func (s *stage) asWorker(t *testing.T, files []*wire.File) *wire.Progress {
	t.Helper()
	return s.againWith(t, &wire.Proceed{NodeName: "worker-1", Role: string(hullmark.Worker), Files: files})
}

// A worker takes at its next boot what the root signed of the Kubernetes CA, keeps no policy, and goes on with that in boots that bring
// none, whatever its host has put on the disk meanwhile.
func TestWorkerTakesTheKubernetesCA(t *testing.T) {
	s, ca, next := newStage(t), nodetest.NewAuthority(t), nodetest.NewAuthority(t)
	s.comeBack(t, "kubelet.conf")
	s.put(t, map[string][]byte{hullmark.KubernetesCACertificate: ca.PEM, kubeletConf: ca.Kubeconfig(t, "192.0.2.7:6443")})
	for i, step := range []struct {
		brings []byte
		host   map[string][]byte
		want   []byte
	}{
		{nil, nil, ca.PEM},
		{bundle(ca, next), nil, bundle(ca, next)},
		{nil, map[string][]byte{hullmark.KubernetesCACertificate: ca.PEM, kubeletConf: ca.Kubeconfig(t, "192.0.2.7:6443")}, bundle(ca, next)},
		{next.PEM, nil, next.PEM},
		{nil, map[string][]byte{hullmark.KubernetesCACertificate: bundle(ca, next), kubeletConf: ca.Kubeconfig(t, "192.0.2.7:6443")}, next.PEM},
	} {
		if i > 0 {
			s = s.later(t)
		}
		s.put(t, step.host)
		var files []*wire.File
		if step.brings != nil {
			files = s.trust(t, uint64(i+1), step.brings)
		}
		if last := s.asWorker(t, files); !last.GetReady() {
			t.Fatalf("boot %d: last = %v", i, last)
		}
		if held := s.kept(t, hullmark.KubernetesCACertificate); held != string(step.want) {
			t.Errorf("boot %d: the disk has\n%s", i, held)
		}
		if got := s.trusts(t, kubeletConf); got != string(step.want) {
			t.Errorf("boot %d: the kubelet takes API servers by\n%s", i, got)
		}
		if s.kept(t, hullmark.PolicyFile) != "" {
			t.Errorf("boot %d: the worker keeps a policy, which may be an old one when it is asked by that", i)
		}
		if info, err := os.Stat(s.onDisk(t, hullmark.KubernetesCACertificate)); err != nil || step.brings != nil && info.Mode().Perm() != 0o644 {
			t.Errorf("boot %d: %v, %v", i, info, err)
		}
	}
}

// Whoever plays a join service brings a worker no Kubernetes CA that the root did not sign, and nothing else of a rotation. The worker says
// so before its fuse, and keeps what it has.
func TestWorkerTakesNoOtherKubernetesCA(t *testing.T) {
	stranger, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	root, err := channel.NewRoot(stranger)
	if err != nil {
		t.Fatal(err)
	}
	foreign := nodetest.NewAuthority(t).PEM
	for name, c := range map[string]struct {
		files      func(s *stage, next []byte) []*wire.File
		code, says string
	}{
		"another one": {func(s *stage, next []byte) []*wire.File {
			return replace(s.trust(t, 1, next), hullmark.KubernetesCACertificate, string(foreign))
		}, "keys-unsigned", "not the one that the signed policy commits to"},
		"one more": {func(s *stage, next []byte) []*wire.File {
			return replace(s.trust(t, 1, next), hullmark.KubernetesCACertificate, string(next)+string(foreign))
		}, "keys-unsigned", "not the one that the signed policy commits to"},
		"without a policy": {func(s *stage, next []byte) []*wire.File {
			return without(s.trust(t, 1, next), hullmark.PolicyFile)
		}, "keys-unsigned", "policy: it is empty"},
		"a policy alone": {func(s *stage, next []byte) []*wire.File {
			return without(s.trust(t, 1, next), hullmark.KubernetesCACertificate)
		}, "keys-unsigned", "kubeconfig"},
		"a policy that commits to none": {func(s *stage, next []byte) []*wire.File {
			signed := wire.ContentOf(s.signed(t, set{version: 1, keyset: "keys"}))
			return replace(s.trust(t, 1, next), hullmark.PolicyFile, string(signed(hullmark.PolicyFile)))
		}, "keys-unsigned", "not the one that the signed policy commits to"},
		"a policy of another root": {func(s *stage, next []byte) []*wire.File {
			signed := set{version: 1, keyset: "keys", edit: func(p *measurements.Policy) { p.KubernetesCA = hullmark.DigestCA(next) }}.by(t, stranger, root)
			return replace(s.trust(t, 1, next), hullmark.PolicyFile, string(wire.ContentOf(signed)(hullmark.PolicyFile)))
		}, "keys-unsigned", "has not handed over"},
		"its key beside it": {func(s *stage, next []byte) []*wire.File {
			return append(s.trust(t, 1, next), &wire.File{Path: hullmark.KubernetesCAKey, Content: []byte("key"), Mode: 0o600})
		}, "keys-unsigned", "want a number"},
		"all of a rotation": {func(s *stage, next []byte) []*wire.File {
			return s.signed(t, set{version: 1, number: 1, keyset: "keys"})
		}, "proceed-refused", "it brings a worker"},
	} {
		t.Run(name, func(t *testing.T) {
			s, ca, next := newStage(t), nodetest.NewAuthority(t), nodetest.NewAuthority(t)
			s.comeBack(t, "kubelet.conf")
			s.put(t, map[string][]byte{hullmark.KubernetesCACertificate: ca.PEM, kubeletConf: ca.Kubeconfig(t, "192.0.2.7:6443")})
			last := s.asWorker(t, c.files(s, next.PEM))
			if f := last.GetFailed(); f.GetCode() != c.code || !strings.Contains(f.GetTitle(), c.says) {
				t.Fatalf("last = %v, want %s, %s", last, c.code, c.says)
			}
			if r := s.registers(t); r[attest.FuseRegister] != [32]byte{} || s.kept(t, hullmark.KubernetesCACertificate) != string(ca.PEM) {
				t.Error("the fuse was blown, or something was written")
			}
			after := s.later(t)
			if last := after.asWorker(t, after.trust(t, 1, next.PEM)); !last.GetReady() || after.kept(t, hullmark.KubernetesCACertificate) != string(next.PEM) {
				t.Errorf("what the root signed: last = %v", last)
			}
		})
	}
}

// A worker that joins a cluster whose policies commit to the Kubernetes CA finds no other where it is told of the cluster.
func TestWorkerJoinsByTheCommittedCA(t *testing.T) {
	s, ca := newStage(t), nodetest.NewAuthority(t)
	pinned := hullmark.ClusterRootOf(s.root.RawSubjectPublicKeyInfo)
	discovery := func(certificates []byte) *wire.File {
		return &wire.File{Path: kubeadm.DiscoveryFile, Mode: 0o644, Content: fmt.Appendf(nil, "clusters: [{name: '', cluster: {server: 'https://192.0.2.7:6443', certificate-authority-data: %s}}]\n",
			base64.StdEncoding.EncodeToString(certificates))}
	}
	policy := s.trust(t, 1, ca.PEM)[:1]
	for what, c := range map[string]struct {
		files []*wire.File
		says  string
	}{
		"the one of the policy":     {append(slices.Clone(policy), discovery(ca.PEM)), ""},
		"no policy":                 {[]*wire.File{discovery(ca.PEM)}, ""}, // of a cluster that never exchanged it
		"another one":               {append(slices.Clone(policy), discovery(nodetest.NewAuthority(t).PEM)), "not the one that the signed policy commits to"},
		"nothing where it is to be": {append(slices.Clone(policy), &wire.File{Path: kubeadm.DiscoveryFile, Content: []byte("a: b")}), "kubeconfig"},
	} {
		err := checkSigned(&wire.Proceed{Role: string(hullmark.Worker), Files: c.files}, pinned)
		if (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, want %q", what, err, c.says)
		}
	}
	o := openedBy(hullmark.Join, "192.0.2.1:7444", false)
	if err := o.checkOwned(&wire.Proceed{Role: string(hullmark.Worker), Files: policy}); err != nil {
		t.Error(err)
	}
	o.service = ""
	if err := o.checkOwned(&wire.Proceed{Role: string(hullmark.Worker), Files: policy}); err == nil {
		t.Error("an operator brings a worker a policy")
	}
}
