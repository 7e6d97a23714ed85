package backup

import (
	"bytes"
	"crypto/sha256"
	"crypto/x509"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"math/bits"
	"net/netip"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"go.etcd.io/etcd/api/v3/mvccpb"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest/wire"
	"github.com/hullmark/hullmark/joinservice"
	"github.com/hullmark/hullmark/kubeadm"
	"github.com/hullmark/hullmark/measurements"
)

// uniform is a cluster of a control plane and two workers, one of which is a member no longer.
func uniform(t testing.TB) *etcd {
	t.Helper()
	e := newEtcd(t).cluster()
	first := machine(1, "cp1")
	first.Role = hullmark.ControlPlane
	second := machine(2, "w1")
	second.Token, second.Condition, second.Phase = "abcdef", &hullmark.Condition{Code: "c", Title: "t"}, "phase"
	for _, m := range []joinservice.Machine{first, second, machine(3, "w2")} {
		e.machine(m)
		e.node(m.Name)
	}
	e.node("stranger")
	e.pod("waits", "")
	return e
}

func TestPrepare(t *testing.T) {
	e := uniform(t)
	kept := []string{
		"/registry/configmaps/hullmark/kube-root-ca.crt", "/registry/configmaps/default/policy", "/registry/configmaps/default/node.x",
		"/registry/secrets/default/bootstrap-token-abcdef", "/registry/leases/kube-system/w2", "compact_rev_key",
	}
	dropped := []string{
		"/registry/configmaps/kube-system/extension-apiserver-authentication", "/registry/configmaps/hullmark/policy", "/registry/configmaps/hullmark/document.ab", "/registry/masterleases/192.0.2.1",
		"/registry/secrets/kube-system/bootstrap-token-abcdef", "/registry/certificatesigningrequests/csr-1",
	}
	for _, key := range append(slices.Clone(kept), dropped...) {
		e.put(key, []byte("old"))
		e.put(key, []byte("new"))
	}
	// What is encrypted, and need not be read, is no obstacle.
	e.put("/registry/secrets/default/secret", []byte("k8s:enc:aescbc:v1:key1:…"))
	e.entry(&mvccpb.KeyValue{Key: []byte("/registry/events/default/leased"), Lease: 7}, "")
	e.put("/registry/services/specs/default/gone", []byte("v"))
	e.remove("/registry/services/specs/default/gone")
	e.put("/registry/services/specs/default/again", []byte("1"))
	e.remove("/registry/services/specs/default/again")
	e.put("/registry/services/specs/default/again", []byte("2"))
	e.put("", nil) // as etcdutl raises a revision
	e.buckets["key"][string(e.revisionKey(e.last))] = []byte{}

	got := e.prepare(restore(rule(2, "w1"), measurements.Member{EKID: hullmark.EKID{1}, Role: hullmark.ControlPlane, Name: "cp1"}))

	for _, key := range kept {
		if string(got.values[key]) != "new" {
			t.Errorf("%s: got %q", key, got.values[key])
		}
	}
	for _, key := range dropped {
		if value, ok := got.values[key]; ok {
			t.Errorf("%s is kept: %q", key, value)
		}
	}
	want := append(kept, authorityKey, configurationKey, machineKeys+hullmark.EKID{2}.String(), nameKeys+"w1",
		nodeKeys+"w1", csiNodeKeys+"w1", nodeLeaseKeys+"w1", podKeys+"default/on-w1", podKeys+"default/waits",
		"/registry/secrets/default/secret", "/registry/services/specs/default/again")
	slices.Sort(want)
	if keys := slices.Sorted(maps.Keys(got.values)); !slices.Equal(keys, want) {
		t.Errorf("got  %q\nwant %q", keys, want)
	}
	if string(got.Configuration) != "kind: ClusterConfiguration\n" || got.Revision != e.last || !slices.Equal(got.GivenUp, []string{"cp1", "stranger", "w2"}) {
		t.Errorf("got %s, revision %d, given up %q", got.Configuration, got.Revision, got.GivenUp)
	}
	for name, n := range map[string]int{
		"meta": 2, "lease": 0, "alarm": 0, "auth": 1, "authUsers": 1, "authRoles": 1, "members": 1, "members_removed": 1, "cluster": 1,
	} {
		if m, ok := got.buckets[name]; !ok || m != n {
			t.Errorf("bucket %s has %d entries, want %d", name, m, n)
		}
	}
	returned := machine(2, "w1")
	returned.Record.Issued, returned.Phase = uint64(now.Unix()), "phase"
	m, _ := got.machine(t, 2)
	if !reflect.DeepEqual(m, returned) || !reflect.DeepEqual(got.Workers, []joinservice.Machine{returned}) {
		t.Errorf("got %+v and %+v, want %+v", m, got.Workers, returned)
	}
	if holder := got.holder(t, "w1"); holder != m.EKID {
		t.Errorf("the name is %s's", holder)
	}
}

func (e *etcd) revisionKey(major int64) []byte {
	at := makeRevision(major, 0)
	return at[:]
}

// A backup says whether its cluster has the pod network that init brings.
func TestPrepareTellsOfFlannel(t *testing.T) {
	manifest, err := kubeadm.Flannel(kubeadm.Params{NodeName: "n", AdvertiseAddress: netip.MustParseAddr("192.0.2.1"), ServiceSubnet: kubeadm.MustParseSubnets("10.96.0.0/12"), PodSubnet: kubeadm.MustParseSubnets("10.244.0.0/16")})
	if err != nil || !strings.Contains(string(manifest), "kind: DaemonSet\nmetadata:\n  name: flannel\n  namespace: kube-system\n") {
		t.Fatalf("flannel is another object than the one that is looked for: %v\n%s", err, manifest)
	}
	e := uniform(t)
	if got := e.prepare(restore()); got.Flannel {
		t.Error("a cluster without flannel has it")
	}
	e.put(flannelKey, []byte("v"))
	if got := e.prepare(restore()); !got.Flannel {
		t.Error("flannel is not seen")
	}
	e.remove(flannelKey)
	if got := e.prepare(restore()); got.Flannel {
		t.Error("flannel that was removed is there")
	}
}

func TestPrepareReadsJSON(t *testing.T) {
	e := newEtcd(t).cluster()
	object := &corev1.Pod{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}, Spec: corev1.PodSpec{NodeName: "gone"}}
	text, err := json.Marshal(object)
	if err != nil {
		t.Fatal(err)
	}
	e.put(podKeys+"default/p", text)
	if got := e.prepare(restore()); got.values[podKeys+"default/p"] != nil {
		t.Error("the Pod of a Node that is gone came back")
	}
}

func TestPrepareKeepsRevisions(t *testing.T) {
	e := uniform(t)
	for _, name := range compactions {
		e.buckets["meta"][string(name)] = e.revisionKey(e.last + 10)
	}
	if got := e.prepare(restore()); got.Revision != e.last+10 {
		t.Errorf("revision %d, want that of the last compaction", got.Revision)
	}
}

func TestPrepareInBatches(t *testing.T) {
	e := newEtcd(t).cluster()
	const n = 3 * batchEntries
	for i := range n {
		e.put("/registry/things/"+string(e.revisionKey(int64(i))), []byte("v"))
	}
	large := make([]byte, batchBytes/8)
	for i := range 20 {
		e.put("/registry/large/"+string(e.revisionKey(int64(i))), large)
	}
	if got := e.prepare(restore()); len(got.values) != n+20+2 {
		t.Errorf("%d keys came back", len(got.values))
	}
}

// While the Kubernetes CA is exchanged a backup has two certificates of it, or the one of the step before, and the cluster file has two.
func TestPrepareInAnExchange(t *testing.T) {
	other := makeAuthority()
	for what, c := range map[string]struct {
		held  []*x509.Certificate
		known []*x509.Certificate
	}{
		"the step before":     {[]*x509.Certificate{authority()}, []*x509.Certificate{authority(), other}},
		"the former one":      {[]*x509.Certificate{authority()}, []*x509.Certificate{other, authority()}},
		"both of an exchange": {[]*x509.Certificate{other, authority()}, []*x509.Certificate{authority()}},
	} {
		e := uniform(t)
		var text []byte
		for _, held := range c.held {
			text = append(text, certificate(held)...)
		}
		e.configMap("kube-system", "kube-root-ca.crt", map[string]string{"ca.crt": string(text)})
		want := restore()
		want.Authorities = c.known
		if _, err := Prepare(memory(t), e.backup(), want); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func TestPrepareRefuses(t *testing.T) {
	// Each is a change of a cluster that is fine without.
	for name, test := range map[string]struct {
		change func(e *etcd)
		want   string
	}{
		"no configuration": {func(e *etcd) { e.remove(configurationKey) }, "has no ClusterConfiguration"},
		"no CA":            {func(e *etcd) { e.remove(authorityKey) }, "has no ca.crt"},
		"another CA": {func(e *etcd) {
			e.configMap("kube-system", "kube-root-ca.crt", map[string]string{"ca.crt": string(certificate(makeAuthority()))})
		}, "of another cluster"},
		"a CA that was cut": {func(e *etcd) {
			e.configMap("kube-system", "kube-root-ca.crt", map[string]string{"ca.crt": string(certificate(authority())) + "-----BEGIN CERTIFICATE-----"})
		}, "of another cluster"},
		"an encrypted record": {func(e *etcd) { e.put(machineKeys+"x", []byte("k8s:enc:aesgcm:v1:k:")) }, machineKeys + "x is encrypted"},
		"an encrypted Pod":    {func(e *etcd) { e.put(podKeys+"default/x", []byte("k8s:enc:aesgcm:v1:k:")) }, podKeys + "default/x is encrypted"},
		"another kind":        {func(e *etcd) { e.object(machineKeys+"x", &corev1.Pod{}, "Pod") }, machineKeys + "x"},
		"no object":           {func(e *etcd) { e.put(podKeys+"default/x", []byte("x")) }, podKeys + "default/x"},
		"no entry":            {func(e *etcd) { e.buckets["key"]["x"] = nil }, "none of etcd's"},
		"no value":            {func(e *etcd) { e.buckets["key"][string(e.revisionKey(1000))] = []byte("x") }, "damaged"},
		"no bucket":           {func(e *etcd) { delete(e.buckets, "key") }, "none of etcd's"},
		"no revision":         {func(e *etcd) { e.buckets["meta"]["finishedCompactRev"] = []byte("x") }, "none of etcd's"},
		"a negative number":   {func(e *etcd) { e.buckets["key"][string(e.revisionKey(-1))] = nil }, "none of etcd's"},
	} {
		t.Run(name, func(t *testing.T) {
			e := uniform(t)
			test.change(e)
			dst := memory(t)
			if _, err := Prepare(dst, e.backup(), restore()); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %q", err, test.want)
			}
		})
	}
}

func TestPrepareRefusesFiles(t *testing.T) {
	cut := func(n int64) func(*os.File) error {
		return func(f *os.File) error {
			info, err := f.Stat()
			if err != nil {
				return err
			}
			return f.Truncate(info.Size() - n)
		}
	}
	change := func(at int64) func(*os.File) error {
		return func(f *os.File) error {
			_, err := f.WriteAt([]byte("x"), at)
			return err
		}
	}
	for name, test := range map[string]struct {
		damage func(*os.File) error
		want   string
	}{
		"without a trailer": {cut(32), "cut off"},
		"cut off":           {cut(1), "cut off"},
		"without a page":    {cut(4096), "SHA-256"},
		"empty":             {func(f *os.File) error { return f.Truncate(0) }, "cut off"},
		"a trailer only":    {func(f *os.File) error { return f.Truncate(32) }, "cut off"},
		"another byte":      {change(20000), "SHA-256"},
	} {
		src := uniform(t).backup()
		if err := test.damage(src); err != nil {
			t.Fatal(err)
		}
		if _, err := Prepare(memory(t), src, restore()); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: got %v, want %q", name, err, test.want)
		}
	}
	full := memory(t)
	if err := change(0)(full); err != nil {
		t.Fatal(err)
	}
	if _, err := Prepare(full, uniform(t).backup(), restore()); err == nil || !strings.Contains(err.Error(), "not empty") {
		t.Errorf("a file that holds something: %v", err)
	}
}

// The largest backup ends in its SHA-256, as every other one does.
func TestLargestBackup(t *testing.T) {
	check := newTrailer()
	check.size = wire.MaxSnapshot
	if n, err := check.Write(make([]byte, sha256.Size)); err != nil || n != sha256.Size || check.size != MaxSize {
		t.Errorf("%d bytes of %d, %v", check.size, int64(MaxSize), err)
	}
	if _, err := check.Write([]byte{0}); !errors.Is(err, errTooLarge) {
		t.Errorf("one byte more: %v", err)
	}
}

// FuzzEntry prepares backups with an entry that somebody else made up, in pages that are fine.
func FuzzEntry(f *testing.F) {
	value := func(key, object string) []byte {
		v, err := (&mvccpb.KeyValue{Key: []byte(key), Value: []byte(object)}).Marshal()
		if err != nil {
			f.Fatal(err)
		}
		return v
	}
	at := makeRevision(1000, 0)
	f.Add(at[:], value(podKeys+"default/p", `{"apiVersion":"v1","kind":"Pod"}`))
	f.Add(at[:], value(machineKeys+"x", "k8s\x00"))
	f.Add(at[:], value(nameKeys+"w1", `{"apiVersion":"v1","kind":"ConfigMap","data":{"node":"x"}}`))
	f.Add(append(at[:], 't'), value(configurationKey, ""))
	f.Fuzz(func(t *testing.T, k, v []byte) {
		e := newEtcd(t).cluster()
		e.machine(machine(1, "w1"))
		if len(k) == 0 || len(k) > 1<<10 || len(v) > 1<<20 {
			t.Skip("nothing that bbolt would store, or the API server")
		}
		e.buckets["key"][string(k)] = v
		if _, err := Prepare(memory(t), e.backup(), restore(rule(1, "w1"))); err != nil && strings.Contains(err.Error(), "pages are damaged") {
			t.Error(err)
		}
	})
}

// contentOf returns all of a file.
func contentOf(t *testing.T, f *os.File) []byte {
	t.Helper()
	content, err := io.ReadAll(io.NewSectionReader(f, 0, MaxSize))
	if err != nil {
		t.Fatal(err)
	}
	return content
}

// TestDamagedPagesAreAnError damages the headers of all pages but the first two, under a trailer that is right.
func TestDamagedPagesAreAnError(t *testing.T) {
	whole := contentOf(t, uniform(t).file())
	failed := 0
	for page := 2 * 4096; page < len(whole); page += 4096 {
		for at, value := range map[int]string{8: "\xff\xff", 10: "\xff\xff", 16: "\xff\xff\xff\x7f", 20: "\xff\xff\xff\x7f", 24: "\xff\xff"} {
			damaged := bytes.Clone(whole)
			copy(damaged[page+at:], value)
			f := memory(t)
			if _, err := f.Write(damaged); err != nil {
				t.Fatal(err)
			}
			if _, err := Prepare(memory(t), sealed(t, f), restore()); err != nil {
				failed++
			}
			_ = f.Close()
		}
	}
	if failed == 0 {
		t.Error("no damage was found: this tested nothing")
	}
}

// TestPagesOutsideAreAnError lets a bucket begin beyond the file's end, but where it is mapped: bbolt maps a power of two.
func TestPagesOutsideAreAnError(t *testing.T) {
	e := uniform(t)
	for i := range 1200 {
		e.put("/registry/things/"+strconv.Itoa(i), bytes.Repeat([]byte("v"), 100))
	}
	content := contentOf(t, e.file())
	pages := len(content) / 4096
	if bits.OnesCount(uint(pages)) == 1 {
		t.Fatalf("the file has %d pages: nothing is mapped behind it", pages)
	}
	// The bucket's name, and behind it the page that it begins in.
	for at := 2 * 4096; at < len(content)-16; at++ {
		if string(content[at:at+3]) == "key" && binary.LittleEndian.Uint64(content[at+3:]) < uint64(pages) {
			binary.LittleEndian.PutUint64(content[at+3:], uint64(pages+2))
		}
	}
	f := memory(t)
	if _, err := f.Write(content); err != nil {
		t.Fatal(err)
	}
	if _, err := Prepare(memory(t), sealed(t, f), restore()); err == nil || !strings.Contains(err.Error(), "pages are damaged: runtime error") {
		t.Errorf("got %v", err)
	}
}
