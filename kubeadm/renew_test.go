package kubeadm_test

import (
	"io/fs"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/internal/nodetest"
	"github.com/hullmark/hullmark/kubeadm"
)

// in a year minus a day.
var fresh = time.Now().Add(364 * 24 * time.Hour)

func renewal(files map[string][]byte, endpoint string, names ...string) kubeadm.Renewal {
	return kubeadm.Renewal{
		NodeName: "one", Endpoint: endpoint, Names: names, Now: time.Now(),
		Read: func(path string) ([]byte, error) {
			if text, ok := files[path]; ok {
				return text, nil
			}
			return nil, &fs.PathError{Op: "open", Path: path, Err: fs.ErrNotExist}
		},
	}
}

func TestPlanSaysWhy(t *testing.T) {
	ca := nodetest.NewAuthority(t)
	const endpoint = "api.example.net:6443"
	good := ca.ControlPlaneDisk(t, endpoint, fresh, "kubernetes", "api.example.net", "192.0.2.7")
	old := ca.ControlPlaneDisk(t, endpoint, time.Now().Add(239*24*time.Hour), "kubernetes", "api.example.net", "192.0.2.7")
	oneOld := maps.Clone(good)
	oneOld["/etc/kubernetes/pki/etcd/peer.crt"] = old["/etc/kubernetes/pki/etcd/peer.crt"]
	moved := ca.ControlPlaneDisk(t, "192.0.2.7:6443", fresh, "kubernetes", "api.example.net")
	next := nodetest.NewAuthority(t)
	signedBy := func(authority string, signs, trusted *nodetest.Authority) map[string][]byte {
		files := maps.Clone(good)
		files[authority] = slices.Concat(signs.PEM, trusted.PEM)
		return files
	}
	for name, c := range map[string]struct {
		renewal kubeadm.Renewal
		why     string
	}{
		"all is well":         {renewal(good, endpoint), ""},
		"with a name it has":  {renewal(good, endpoint, "192.0.2.7"), ""},
		"all end soon":        {renewal(old, endpoint), "apiserver.crt ends on "},
		"one ends soon":       {renewal(oneOld, endpoint), "etcd/peer.crt ends on "},
		"another endpoint":    {renewal(good, "203.0.113.7:443"), "apiserver.crt is not for 203.0.113.7"},
		"written otherwise":   {renewal(good, "API.example.net:6443"), "admin.conf names"}, // but its certificate is for it
		"another name":        {renewal(good, endpoint, "*.example.net"), "apiserver.crt is not for *.example.net"},
		"admin.conf is older": {renewal(moved, endpoint), "admin.conf names https://192.0.2.7:6443"},
		"a CA is to follow":   {renewal(signedBy(hullmark.EtcdCACertificate, ca, next), endpoint), ""},
		"etcd's followed":     {renewal(signedBy(hullmark.EtcdCACertificate, next, ca), endpoint), "apiserver-etcd-client.crt is not of the authority"},
		"the proxy's followed": {
			renewal(signedBy(hullmark.FrontProxyCACertificate, next, ca), endpoint), "front-proxy-client.crt is not of the authority",
		},
		"the cluster's followed": {
			renewal(signedBy(hullmark.KubernetesCACertificate, next, ca), endpoint), "apiserver.crt is not of the authority",
		},
	} {
		documents, why, err := c.renewal.Plan()
		if superseded := c.renewal.Superseded(); superseded != strings.Contains(why, "is not of the authority") {
			t.Errorf("%s: %q, and superseded: %t", name, why, superseded)
		}
		if err := (kubeadm.Renewal{Read: c.renewal.Read}).Current(); (err != nil) != c.renewal.Superseded() || err != nil && err.Error() != why {
			t.Errorf("%s: %q, and current: %v", name, why, err)
		}
		if err != nil || !strings.HasPrefix(why, c.why) || (why == "") != (c.why == "") || (len(documents) == 0) != (c.why == "") {
			t.Errorf("%s: %q with %d bytes of documents, %v; want %q", name, why, len(documents), err, c.why)
		}
	}
}

// A kubelet's certificate is made anew once its authority is trusted no more, and not while that is.
func TestKubeletOfAFormerAuthority(t *testing.T) {
	ca, next := nodetest.NewAuthority(t), nodetest.NewAuthority(t)
	certificate, key := ca.Issue(t, fresh)
	for name, c := range map[string]struct {
		trusted []byte
		ended   bool
	}{"its own": {ca.PEM, false}, "it, and the next": {slices.Concat(next.PEM, ca.PEM), false}, "another": {next.PEM, true}, "none": {nil, false}} {
		files := map[string][]byte{kubeadm.ClientCertificate: slices.Concat(key, certificate), hullmark.KubernetesCACertificate: c.trusted}
		if c.trusted == nil {
			delete(files, hullmark.KubernetesCACertificate)
		}
		if got := renewal(files, "192.0.2.7:6443").KubeletEnded(); got != c.ended {
			t.Errorf("trusted is %s: ended %t", name, got)
		}
	}
}

// An interrupted renewal goes on with its documents, for the release that this image carries.
func TestInterrupted(t *testing.T) {
	files := map[string][]byte{kubeadm.RenewFile: []byte("kind: ClusterConfiguration\nkubernetesVersion: v1.30.0\nmore: v1.30.0\n")}
	documents, err := renewal(files, "192.0.2.7:6443").Interrupted()
	if want := "kind: ClusterConfiguration\nkubernetesVersion: " + kubeadm.Version + "\nmore: v1.30.0\n"; string(documents) != want || err != nil {
		t.Errorf("documents %s, %v", documents, err)
	}
	if documents, err := renewal(nil, "192.0.2.7:6443").Interrupted(); documents != nil || err != nil {
		t.Errorf("without a file: %s, %v", documents, err)
	}
	broken := renewal(nil, "192.0.2.7:6443")
	broken.Read = func(string) ([]byte, error) { return nil, fs.ErrPermission }
	if _, err := broken.Interrupted(); err == nil {
		t.Error("a file that cannot be read is taken for none")
	}
}

// The new certificates are for all that the old ones were for, and of the same kind; kubeadm is told the node's own flags.
func TestPlanKeepsWhatTheNodeHas(t *testing.T) {
	files := nodetest.NewAuthority(t).ControlPlaneDisk(t, "192.0.2.7:6443", fresh, "kubernetes", "kubernetes.default.svc.prod.internal", "old.example.net", "192.0.2.7")
	documents, why, err := renewal(files, "[2001:db8::7]:6443", "new.example.net").Plan()
	if err != nil || why == "" {
		t.Fatal(why, err)
	}
	for _, want := range []string{
		"- old.example.net", "- new.example.net", "- 2001:db8::7", "- etcd.example.net", "controlPlaneEndpoint: '[2001:db8::7]:6443'", "encryptionAlgorithm: ECDSA-P256",
		"advertiseAddress: 192.0.2.7", "bindPort: 6443", "serviceSubnet: 10.96.0.0/12", "dnsDomain: prod.internal", "name: one",
	} {
		if !strings.Contains(string(documents), want) {
			t.Errorf("%q is missing in\n%s", want, documents)
		}
	}
}

func TestPlanNeedsWhatKubeadmWrote(t *testing.T) {
	ca := nodetest.NewAuthority(t)
	for path, text := range map[string]string{
		"/etc/kubernetes/pki/etcd/peer.crt":             "no PEM",
		hullmark.EtcdCACertificate:                      "no PEM",
		hullmark.FrontProxyCACertificate:                "", // gone
		"/etc/kubernetes/pki/apiserver.crt":             "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
		"/etc/kubernetes/pki/front-proxy-client.crt":    "", // gone
		"/etc/kubernetes/admin.conf":                    "clusters: []",
		"/etc/kubernetes/manifests/kube-apiserver.yaml": "spec: {containers: [{command: [--secure-port=6443]}]}",
	} {
		files := ca.ControlPlaneDisk(t, "192.0.2.7:6443", fresh, "192.0.2.7")
		if files[path] = []byte(text); text == "" {
			delete(files, path)
		}
		r := renewal(files, "192.0.2.7:6443")
		if path == "/etc/kubernetes/manifests/kube-apiserver.yaml" { // It counts only when there is something to do.
			r.Names = []string{"new.example.net"}
		}
		if _, why, err := r.Plan(); err == nil {
			t.Errorf("%s: planned without an error: %q", path, why)
		}
		if r.Superseded() {
			t.Errorf("%s: what cannot be read is of an authority that was exchanged", path)
		}
		if read := strings.HasSuffix(path, ".crt"); (r.Current() != nil) != read {
			t.Errorf("%s: of the authorities that sign by now are those that cannot be read: %v", path, r.Current())
		}
	}
}

func TestIsOwn(t *testing.T) {
	ca := nodetest.NewAuthority(t)
	r := renewal(ca.ControlPlaneDisk(t, "api.example.net:6443", fresh), "api.example.net:6443")
	for endpoint, want := range map[string]bool{"192.0.2.7:6443": true, "api.example.net:6443": false, "192.0.2.7:443": false} {
		if own, err := r.IsOwn(ca.Kubeconfig(t, endpoint)); own != want || err != nil {
			t.Errorf("%s: %v, %v", endpoint, own, err)
		}
	}
}
