package firstboot

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest/wire"
	"github.com/hullmark/hullmark/firstboot/servicefiles"
	"github.com/hullmark/hullmark/firstboot/statedisk"
	"github.com/hullmark/hullmark/internal/nodetest"
	"github.com/hullmark/hullmark/kubeadm"
)

// etcdCA is what a rotation brings of etcd's CA: the one that signs, and others that are trusted, too.
func etcdCA(signs *nodetest.Authority, trusted ...*nodetest.Authority) []*wire.File {
	text := bytes.Clone(signs.PEM)
	for _, a := range trusted {
		text = append(text, a.PEM...)
	}
	return []*wire.File{
		{Path: hullmark.EtcdCACertificate, Content: text, Mode: 0o644}, {Path: hullmark.EtcdCAKey, Content: []byte("the key of one of them"), Mode: 0o600},
	}
}

// madeBy is what kubeadm makes on the disk of returning by these two authorities: that of the cluster and of the front proxy, and etcd's.
func madeBy(t *testing.T, ca, etcd *nodetest.Authority) map[string][]byte {
	t.Helper()
	disk := func(a *nodetest.Authority) map[string][]byte {
		return a.ControlPlaneDisk(t, "192.0.2.7:6443", time.Now().Add(year), "kubernetes", "192.0.2.7")
	}
	made := disk(ca)
	for path, content := range disk(etcd) {
		if strings.Contains(path, "/etcd/") || strings.Contains(path, "/apiserver-etcd-client.") {
			made[path] = content
		}
	}
	for _, authority := range []string{hullmark.KubernetesCACertificate, hullmark.EtcdCACertificate, hullmark.FrontProxyCACertificate} {
		delete(made, authority)
	}
	return made
}

// later is the stage of the machine's next boot, with the same disk and the same cluster.
func (s *stage) later(t *testing.T) *stage {
	t.Helper()
	next := s.rebooted(t)
	next.disk.Claim, next.disk.Opened, next.rootKey, next.root = s.disk.Claim, s.disk.Opened, s.rootKey, s.root
	return next
}

// A control plane holds at each step what the rotation brought, and has kubeadm make its certificates anew in the boot from which on
// the next CA signs, and in no other.
func TestEtcdCAIsExchanged(t *testing.T) {
	s, ca := returning(t, time.Now().Add(year))
	next := nodetest.NewAuthority(t)
	for i, step := range []struct {
		files   []*wire.File
		renewed bool
	}{{etcdCA(ca, next), false}, {etcdCA(next, ca), true}, {etcdCA(next), false}} {
		if i > 0 {
			s = s.later(t)
		}
		want := string(step.files[0].GetContent())
		s.cluster.Remade = madeBy(t, ca, next)
		if last := s.bring(t, s.signed(t, set{version: uint64(i + 1), number: uint64(i + 1), keyset: "keys", beside: step.files})); !last.GetReady() {
			t.Fatalf("step %d: last = %v", i+1, last)
		}
		if (len(s.cluster.Renewals) == 1) != step.renewed {
			t.Errorf("step %d: certificates were made anew %d times", i+1, len(s.cluster.Renewals))
		}
		if held := s.kept(t, hullmark.EtcdCACertificate); held != want || s.kept(t, hullmark.EtcdCAKey) == "" {
			t.Errorf("step %d: the disk has\n%s", i+1, held)
		}
		if info, err := os.Stat(s.onDisk(t, hullmark.EtcdCACertificate)); err != nil || info.Mode().Perm() != 0o644 {
			t.Errorf("step %d: %v, %v", i+1, info, err)
		}
		if d := s.document(t); d.Condition != nil {
			t.Errorf("step %d: condition %v", i+1, d.Condition)
		}
	}
}

// onDisk is where a file of the state disk lies that programs see at name.
func (s *stage) onDisk(t *testing.T, name string) string {
	t.Helper()
	file, err := onState(name)
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(s.agent.StateDir, file)
}

// A control plane whose certificates are of the former CA, and cannot be made anew, goes on with them, for others still trust that CA. It
// says so, to its join service too, and tries again in its next boot.
func TestSupersededCertificatesAreUsedUntilMadeAnew(t *testing.T) {
	const endpoint, peer = "192.0.2.7:6443", "/etc/kubernetes/pki/etcd/peer.key"
	for name, c := range map[string]struct {
		off          time.Duration
		refuse, fail error
		endpoint     string
		tried        int
		why          string // empty: they are made anew
	}{
		"with a wrong clock":                     {off: -time.Hour, endpoint: endpoint, why: "the machine's clock is off by"},
		"by documents that kubeadm refuses":      {refuse: errors.New("no such field"), endpoint: endpoint, why: "no such field"},
		"with a kubeadm that fails":              {fail: errors.New("no room"), endpoint: endpoint, tried: 1, why: "no room"},
		"with all that it takes":                 {endpoint: endpoint, tried: 1},
		"by an operator who knows no endpoint":   {tried: 1},
		"by such a one, and with a wrong clock":  {off: time.Hour, why: "the machine's clock is off by"},
		"with a clock that is a little off only": {off: time.Minute, endpoint: endpoint, tried: 1},
	} {
		t.Run(name, func(t *testing.T) {
			s, ca := returning(t, time.Now().Add(year))
			next := nodetest.NewAuthority(t)
			boot := func(s *stage, off time.Duration, tried int) {
				t.Helper()
				s.cluster.Remade = madeBy(t, ca, next)
				last := s.againWith(t, &wire.Proceed{
					NodeName: "node-1", Role: string(hullmark.ControlPlane), Endpoint: c.endpoint, Time: time.Now().Add(off).Unix(),
					Files: s.signed(t, set{version: 2, number: 1, keyset: "keys", beside: etcdCA(next, ca)}),
				})
				if !last.GetReady() || len(s.cluster.Renewals) != tried || !s.machine.Has("start "+kubeletUnit) {
					t.Fatalf("last = %v, kubeadm was tried %d times, the machine did %q", last, len(s.cluster.Renewals), s.machine.Did())
				}
				for _, left := range []string{kubeadm.RenewFile, asideDir} {
					if s.exists(left) {
						t.Errorf("%s is left", left)
					}
				}
			}
			told := func(s *stage) bool {
				_, found, err := serviceFiles{s.agent}.Read(servicefiles.Superseded)
				if err != nil {
					t.Error(err)
				}
				return found
			}
			before := s.kept(t, peer)
			s.cluster.Refuse, s.cluster.Fail = c.refuse, c.fail
			boot(s, c.off, c.tried)
			if c.why != "" {
				if d := s.document(t); d.Condition == nil || d.Condition.Code != "certificates-superseded" || d.Condition.Retry || !strings.Contains(d.Condition.Title, c.why) {
					t.Errorf("condition %v, want certificates-superseded, because %s", d.Condition, c.why)
				}
				if !told(s) || s.kept(t, peer) != before {
					t.Errorf("its join service is told: %t; the key of before is there: %t", told(s), s.kept(t, peer) == before)
				}
				s = s.later(t)
				boot(s, 0, 1)
			}
			if d := s.document(t); d.Condition != nil || told(s) || s.kept(t, peer) == before {
				t.Errorf("condition %v; its join service is told: %t; the key of before is there: %t", d.Condition, told(s), s.kept(t, peer) == before)
			}
		})
	}
}

// An init that never came to Ready goes on although the authorities were exchanged since: kubeadm, which refuses certificates of others,
// finds none. Of an authority that stayed it finds those that it has made.
func TestInitGoesOnAfterAnExchange(t *testing.T) {
	for _, exchanged := range []bool{false, true} {
		s, ca := newStage(t), nodetest.NewAuthority(t)
		s.keep(statedisk.IntentFile, statedisk.IntentStarted)
		s.put(t, ca.ControlPlaneDisk(t, "192.0.2.7:6443", time.Now().Add(year), "192.0.2.7"))
		if exchanged {
			s.put(t, map[string][]byte{hullmark.EtcdCACertificate: slices.Concat(nodetest.NewAuthority(t).PEM, ca.PEM)})
		}
		if last := s.restore(t, controlPlane()); !last.GetReady() || len(s.cluster.Works) != 1 || !s.cluster.Works[0].Retry {
			t.Fatalf("exchanged %t: last = %v, work = %+v", exchanged, last, s.cluster.Works)
		}
		if left := s.exists("/etc/kubernetes/pki/etcd/peer.crt"); left == exchanged || !s.exists(hullmark.EtcdCACertificate) {
			t.Errorf("exchanged %t: kubeadm found the certificates of before: %t", exchanged, left)
		}
	}
}

// A renewal whose boot was cut, and that kubeadm fails in the next one, ends with what was set aside for it. A program that whoever was
// root left there is in no kubeconfig then.
func TestCutRenewalEndsWithWhatWasSetAside(t *testing.T) {
	s, ca := returning(t, time.Now().Add(year))
	next := nodetest.NewAuthority(t)
	old := map[string]string{}
	for _, name := range kubeadm.Renewals() {
		old[name] = s.kept(t, name)
		s.put(t, map[string][]byte{aside(name): []byte(old[name])})
	}
	if err := s.agent.removeState(kubeadm.Renewals()...); err != nil {
		t.Fatal(err)
	}
	s.put(t, map[string][]byte{
		kubeadm.RenewFile: []byte("kind: InitConfiguration\n"), hullmark.EtcdCACertificate: slices.Concat(next.PEM, ca.PEM),
		aside(adminConf): []byte(strings.Replace(old[adminConf], "users:", "users:\n- name: x\n  user: {exec: {apiVersion: client.authentication.k8s.io/v1, command: /var/lib/containerd/x}}", 1)),
	})
	s.cluster.Fail = errors.New("no room")
	if last := s.again(t, hullmark.ControlPlane, "192.0.2.7:6443"); !last.GetReady() {
		t.Fatalf("last = %v", last)
	}
	for name, want := range old {
		if got := s.kept(t, name); got != want && name != adminConf || strings.Contains(got, "containerd") || got == "" {
			t.Errorf("%s is not as it was:\n%s", name, got)
		}
	}
	if d := s.document(t); d.Condition == nil || d.Condition.Code != "certificates-superseded" || s.exists(kubeadm.RenewFile) || s.exists(asideDir) {
		t.Errorf("condition %v; documents are left: %t, what was set aside: %t", d.Condition, s.exists(kubeadm.RenewFile), s.exists(asideDir))
	}
}

// The join service is told of certificates that are not of the authorities that sign by now, and of such as cannot be read, and writes
// nothing of that.
func TestServiceIsToldOfItsCertificates(t *testing.T) {
	s, ca := returning(t, time.Now().Add(year))
	next := nodetest.NewAuthority(t)
	files := serviceFiles{s.agent}
	for _, step := range []struct {
		disk map[string][]byte
		says string
	}{
		{nil, ""},
		{map[string][]byte{hullmark.EtcdCACertificate: slices.Concat(ca.PEM, next.PEM)}, ""},
		{map[string][]byte{hullmark.EtcdCACertificate: slices.Concat(next.PEM, ca.PEM)}, "apiserver-etcd-client.crt is not of the authority that signs by now"},
		{madeBy(t, ca, next), ""},
		{map[string][]byte{hullmark.FrontProxyCACertificate: next.PEM}, "front-proxy-client.crt is not of the authority that signs by now"},
		{map[string][]byte{"/etc/kubernetes/pki/front-proxy-client.crt": []byte("torn")}, "front-proxy-client.crt: no PEM"},
	} {
		s.put(t, step.disk)
		if why, found, err := files.Read(servicefiles.Superseded); string(why) != step.says || found != (step.says != "") || err != nil {
			t.Errorf("it is told %q, %t, %v; want %q", why, found, err, step.says)
		}
	}
}

// What the host puts in the place of an authority on the disk, or an intruder who was root there, is gone in the next boot, also in one
// that is brought none: the manifest has the authorities of the last rotation.
func TestFormerAuthoritiesStayAway(t *testing.T) {
	for _, path := range []string{
		hullmark.EtcdCACertificate, hullmark.EtcdCAKey, hullmark.FrontProxyCACertificate, hullmark.FrontProxyCAKey, hullmark.KubeletTrustFile,
		hullmark.KubernetesCACertificate, hullmark.KubernetesCAKey, hullmark.KubernetesSigningCertificate,
	} {
		for what, spoil := range map[string]func(file string) error{
			"as it was":  func(string) error { return nil },
			"old blocks": func(file string) error { return os.WriteFile(file, []byte("former"), 0o600) },
			"a link to another": func(file string) error {
				return errors.Join(os.Rename(file, file+".former"), os.Symlink(filepath.Base(file)+".former", file))
			},
			"nothing":            os.Remove,
			"readable to others": func(file string) error { return os.Chmod(file, 0o666) },
		} {
			if what != "old blocks" && path != hullmark.EtcdCACertificate {
				continue
			}
			s, ca := returning(t, time.Now().Add(year))
			kept, ok := proceedName(path)
			if !ok {
				t.Fatalf("%s is not kept in the manifest", path)
			}
			content := string(ca.PEM)
			s.keep(kept, content)
			if err := s.agent.storeState(path, []byte(content)); err != nil {
				t.Fatal(err)
			}
			file := s.onDisk(t, path)
			if err := spoil(file); err != nil {
				t.Fatal(err)
			}
			if last := s.again(t, hullmark.ControlPlane, "192.0.2.7:6443"); !last.GetReady() {
				t.Fatalf("%s, %s: last = %v", path, what, last)
			}
			info, err := os.Lstat(file)
			if err != nil || info.Mode() != 0o600 || s.kept(t, path) != content {
				t.Errorf("%s, %s: the disk has %v with %q, %v", path, what, info, s.kept(t, path), err)
			}
		}
	}
}

// A former authority comes back by no older rotation either, whoever brings it; the operator's newest cluster file counts.
func TestOlderAuthoritiesAreNotTaken(t *testing.T) {
	s, ca := returning(t, time.Now().Add(year))
	next, third := nodetest.NewAuthority(t), nodetest.NewAuthority(t)
	for i, boot := range []struct {
		version uint64
		signs   *nodetest.Authority
		holds   *nodetest.Authority
		code    string
	}{{5, next, next, ""}, {4, ca, next, "keys-older"}, {6, third, third, ""}, {5, next, third, "keys-older"}} {
		if i > 0 {
			s = s.later(t)
		}
		s.cluster.Remade = madeBy(t, ca, boot.holds)
		if last := s.bring(t, s.signed(t, set{version: boot.version, number: boot.version, keyset: "keys", beside: etcdCA(boot.signs)})); !last.GetReady() {
			t.Fatalf("boot %d: last = %v", i, last)
		}
		if s.kept(t, hullmark.EtcdCACertificate) != string(boot.holds.PEM) {
			t.Errorf("boot %d: policy version %d brought another authority", i, boot.version)
		}
		if d := s.document(t); (d.Condition == nil) != (boot.code == "") || d.Condition != nil && d.Condition.Code != boot.code {
			t.Errorf("boot %d: condition %v, want %q", i, d.Condition, boot.code)
		}
	}
}

// Whoever was root on a control plane could write its manifest. A former authority that he left there, under the number of the rotation
// that the node holds, is gone once that rotation is brought again, by a service or by the operator.
func TestAuthoritiesInTheManifestAreMended(t *testing.T) {
	s, ca := returning(t, time.Now().Add(year))
	next := nodetest.NewAuthority(t)
	for i, left := range []string{"", string(slices.Concat(next.PEM, ca.PEM))} {
		if i > 0 {
			s = s.later(t)
			kept, _ := proceedName(hullmark.EtcdCACertificate)
			s.keep(kept, left)
		}
		s.cluster.Remade = madeBy(t, ca, next)
		if last := s.bring(t, s.signed(t, set{version: 2, number: 1, keyset: "keys", beside: etcdCA(next)})); !last.GetReady() {
			t.Fatalf("boot %d: last = %v", i, last)
		}
		if s.kept(t, hullmark.EtcdCACertificate) != string(next.PEM) {
			t.Errorf("boot %d: another authority is trusted than the signed policy commits to", i)
		}
	}
}

// Of what a manifest has for other folders, authorities that come with a rotation are placed, and nothing else: whoever was root on a node
// could write its manifest, and what he left there would be in the next boot, of a clean image, after all that removes such things.
func TestNothingElseIsPlaced(t *testing.T) {
	for _, path := range []string{
		"/etc/kubernetes/manifests/intruder.yaml", "/etc/kubernetes/manifests/etcd.yaml", "/etc/kubernetes/controller-manager.conf", "/etc/kubernetes/pki/sa.key",
		"/etc/kubernetes/pki/other/ca.crt", hullmark.RootFile,
	} {
		s, _ := returning(t, time.Now().Add(year))
		s.keep(keptPlaced+strings.TrimPrefix(path, "/"), "intruder")
		if last := s.again(t, hullmark.ControlPlane, "192.0.2.7:6443"); !last.GetReady() {
			t.Fatalf("%s: last = %v", path, last)
		}
		if text, err := os.ReadFile(s.onDisk(t, path)); string(text) == "intruder" {
			t.Errorf("%s was placed, %v", path, err)
		}
	}
}

// A boot that is cut between the manifest and the files that it has for others leaves nothing that the next one believes.
func TestCutWhileAuthoritiesArePlaced(t *testing.T) {
	s, ca := returning(t, time.Now().Add(year))
	next := nodetest.NewAuthority(t)
	certificate, key := hullmark.EtcdCACertificate, hullmark.EtcdCAKey
	for path, content := range map[string]string{certificate: string(slices.Concat(next.PEM, ca.PEM)), key: "the next key"} {
		kept, _ := proceedName(path)
		s.keep(kept, content)
	}
	if err := s.agent.storeState(key, []byte("the next key")); err != nil { // The certificate is still the former one.
		t.Fatal(err)
	}
	s.cluster.Remade = madeBy(t, ca, next)
	if last := s.again(t, hullmark.ControlPlane, "192.0.2.7:6443"); !last.GetReady() || len(s.cluster.Renewals) != 1 {
		t.Fatalf("last = %v, made anew %d times", last, len(s.cluster.Renewals))
	}
	if s.kept(t, certificate) != string(slices.Concat(next.PEM, ca.PEM)) || s.kept(t, key) != "the next key" {
		t.Error("the disk has two halves")
	}
	if _, err := s.agent.readState(kubeadm.RenewFile); !os.IsNotExist(err) {
		t.Errorf("the documents of the renewal are still there: %v", err)
	}
}

// A worker is brought no authority of etcd or of the front proxy, nor what signs for the cluster, and a control plane that comes back none
// without a signed policy.
func TestAuthoritiesAreForControlPlanes(t *testing.T) {
	for _, path := range []string{
		hullmark.EtcdCACertificate, hullmark.EtcdCAKey, hullmark.FrontProxyCACertificate, hullmark.FrontProxyCAKey, hullmark.KubernetesCAKey, hullmark.KubernetesSigningCertificate,
	} {
		o := openedBy(hullmark.Join, "192.0.2.1:7444", false)
		if err := o.checkOwned(&wire.Proceed{Role: string(hullmark.Worker), Files: []*wire.File{{Path: path}}}); err == nil {
			t.Errorf("a worker takes %s", path)
		}
		s, _ := returning(t, time.Now().Add(year))
		before := s.kept(t, path)
		last := s.bring(t, []*wire.File{{Path: path, Content: []byte("foreign"), Mode: 0o600}})
		if last.GetFailed().GetCode() != "keys-unsigned" {
			t.Errorf("%s: last = %v", path, last)
		}
		if after, err := os.ReadFile(s.onDisk(t, path)); string(after) == "foreign" || err == nil && string(after) != before {
			t.Errorf("%s was written", path)
		}
	}
}
