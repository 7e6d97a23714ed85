package backup

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"math/big"
	"os"
	"sync"
	"testing"
	"time"

	"go.etcd.io/bbolt"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/joinservice"
	"github.com/hullmark/hullmark/joinservice/registry"
	"github.com/hullmark/hullmark/measurements"
)

// etcd is one as its file has it.
type etcd struct {
	t       testing.TB
	buckets map[string]map[string][]byte
	last    int64
	// created are the keys' first revisions.
	created map[string]int64
}

func newEtcd(t testing.TB) *etcd {
	t.Helper()
	e := &etcd{t: t, buckets: map[string]map[string][]byte{}, last: 1, created: map[string]int64{}}
	for _, name := range []string{"key", "meta", "lease", "alarm", "auth", "authUsers", "authRoles", "members", "members_removed", "cluster"} {
		e.buckets[name] = map[string][]byte{name + "-entry": []byte("of " + name)}
	}
	e.buckets["key"], e.buckets["meta"]["empty"] = map[string][]byte{}, []byte{}
	return e
}

// cluster adds what every cluster has.
func (e *etcd) cluster() *etcd {
	e.configMap("kube-system", "kubeadm-config", map[string]string{"ClusterConfiguration": "kind: ClusterConfiguration\n"})
	e.configMap("kube-system", "kube-root-ca.crt", map[string]string{"ca.crt": string(certificate(authority()))})
	return e
}

// entry adds an entry with the next revision.
func (e *etcd) entry(kv *mvccpb.KeyValue, suffix string) {
	e.t.Helper()
	e.last++
	key := string(kv.Key)
	if e.created[key] == 0 {
		e.created[key] = e.last
	}
	kv.CreateRevision, kv.ModRevision, kv.Version = e.created[key], e.last, 1
	value, err := kv.Marshal()
	if err != nil {
		e.t.Fatal(err)
	}
	at := makeRevision(e.last, 0)
	e.buckets["key"][string(at[:])+suffix] = value
}

func (e *etcd) put(key string, value []byte) {
	e.entry(&mvccpb.KeyValue{Key: []byte(key), Value: value}, "")
}

func (e *etcd) remove(key string) {
	e.entry(&mvccpb.KeyValue{Key: []byte(key)}, "t")
	delete(e.created, key)
}

func (e *etcd) object(key string, object runtime.Object, kind string) {
	e.t.Helper()
	object.GetObjectKind().SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind(kind))
	var out bytes.Buffer
	if err := encoder.Encode(object, &out); err != nil {
		e.t.Fatal(err)
	}
	e.put(key, out.Bytes())
}

func (e *etcd) configMap(namespace, name string, data map[string]string) {
	e.t.Helper()
	e.object("/registry/configmaps/"+namespace+"/"+name, &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID("uid of " + name), Labels: map[string]string{"kept": "yes"}}, Data: data,
	}, "ConfigMap")
}

// machine adds a machine's record, and the claim of its name.
func (e *etcd) machine(m joinservice.Machine) {
	e.t.Helper()
	var object corev1.ConfigMap
	if err := registry.PutMachine(&object, m); err != nil {
		e.t.Fatal(err)
	}
	e.configMap(registry.Namespace, object.Name, object.Data)
	e.claim(m.Name, m.EKID)
}

func (e *etcd) claim(name string, node hullmark.EKID) {
	e.t.Helper()
	e.configMap(registry.Namespace, registry.NameObject(name), map[string]string{"node": node.String()})
}

// node adds a Node and all that comes with it.
func (e *etcd) node(name string) {
	e.t.Helper()
	e.object(nodeKeys+name, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, "Node")
	e.put(csiNodeKeys+name, []byte("csinode"))
	e.put(nodeLeaseKeys+name, []byte("lease"))
	e.pod("on-"+name, name)
}

func (e *etcd) pod(name, node string) {
	e.t.Helper()
	e.object(podKeys+"default/"+name, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Spec: corev1.PodSpec{NodeName: node}}, "Pod")
}

// file returns the etcd's database.
func (e *etcd) file() *os.File {
	e.t.Helper()
	f := memory(e.t)
	if _, err := write(f, func(db *bbolt.DB) error {
		return db.Update(func(tx *bbolt.Tx) error {
			for name, entries := range e.buckets {
				bucket, err := tx.CreateBucket([]byte(name))
				if err != nil {
					return err
				}
				for k, v := range entries {
					if err := bucket.Put([]byte(k), v); err != nil {
						return err
					}
				}
			}
			return nil
		})
	}); err != nil {
		e.t.Fatal(err)
	}
	return f
}

// backup returns a backup of the etcd.
func (e *etcd) backup() *os.File {
	e.t.Helper()
	return sealed(e.t, e.file())
}

// memory returns a file that is on no disk, as the operator's program has it.
func memory(t testing.TB) *os.File {
	t.Helper()
	fd, err := unix.MemfdCreate("backup", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "backup")
	t.Cleanup(func() { _ = f.Close() })
	return f
}

// sealed adds to a file the SHA-256 that etcd streams after it.
func sealed(t testing.TB, f *os.File) *os.File {
	t.Helper()
	info, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.New()
	if _, err := io.Copy(sum, io.NewSectionReader(f, 0, info.Size())); err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt(sum.Sum(nil), info.Size()); err != nil {
		t.Fatal(err)
	}
	return f
}

var authority = sync.OnceValue(makeAuthority)

// makeAuthority makes a Kubernetes CA.
func makeAuthority() *x509.Certificate {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		panic(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "kubernetes"}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		panic(err)
	}
	made, err := x509.ParseCertificate(der)
	if err != nil {
		panic(err)
	}
	return made
}

func certificate(c *x509.Certificate) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})
}

// now is when backups are restored in these tests; from then on records have its number.
var now = time.Unix(2_000_000_000, 0)

func restore(members ...measurements.Member) Restore {
	return Restore{Policy: measurements.Policy{Members: members}, Authorities: []*x509.Certificate{authority()}, Now: now}
}

func machine(id byte, name string) joinservice.Machine {
	return joinservice.Machine{
		EKID: hullmark.EKID{id}, Name: name, Role: hullmark.Worker, State: joinservice.MachineReady,
		Record: joinservice.Record{Disk: hullmark.UUID{id}, Committed: 5, Issued: 6}, Seen: time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC),
	}
}

func rule(id byte, name string) measurements.Member {
	return measurements.Member{EKID: hullmark.EKID{id}, Role: hullmark.Worker, Name: name}
}

// prepared is a prepared snapshot as etcd reads it.
type prepared struct {
	Content
	values  map[string][]byte
	buckets map[string]int
}

// prepare prepares the etcd's backup, and reads what was made of it.
func (e *etcd) prepare(want Restore) prepared {
	e.t.Helper()
	dst := memory(e.t)
	content, err := Prepare(dst, e.backup(), want)
	if err != nil {
		e.t.Fatal(err)
	}
	p := prepared{Content: content, values: map[string][]byte{}, buckets: map[string]int{}}
	info, err := dst.Stat()
	if err != nil || info.Size() != content.Size || content.Size%sector != 0 {
		e.t.Errorf("%d bytes, want %d: %v", info.Size(), content.Size, err)
	}
	err = read(dst, func(d *database) error {
		for err := range d.tx.Check() {
			e.t.Error(err)
		}
		if err := d.tx.ForEach(func(name []byte, b *bbolt.Bucket) error {
			p.buckets[string(name)] = b.Stats().KeyN
			return nil
		}); err != nil {
			return err
		}
		s, err := d.index()
		if err != nil {
			return err
		}
		if s.revision != content.Revision {
			e.t.Errorf("revision %d, want %d", s.revision, content.Revision)
		}
		if n := p.buckets["key"]; n != len(s.live)+1 {
			e.t.Errorf("%d entries for %d keys and the last deletion", n, len(s.live))
		}
		for key := range s.live {
			if p.values[key], err = s.get(key); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		e.t.Fatal(err)
	}
	return p
}

// machine returns a machine's record, if it is there.
func (p prepared) machine(t *testing.T, id byte) (m joinservice.Machine, found bool) {
	t.Helper()
	key := machineKeys + hullmark.EKID{id}.String()
	value, found := p.values[key]
	if !found {
		return m, false
	}
	var object corev1.ConfigMap
	if err := decodeObject(key, value, &object); err != nil {
		t.Fatal(err)
	}
	m, err := registry.ParseMachine(&object)
	if err != nil {
		t.Fatal(err)
	}
	if object.Labels["kept"] != "yes" || object.UID == "" {
		t.Errorf("%s has lost what it had besides: %v", key, object.ObjectMeta)
	}
	return m, true
}

// counted returns the machines on a group's list, or none if there is no list.
func (p prepared) counted(t *testing.T, group string) []hullmark.EKID {
	t.Helper()
	value, found := p.values[groupKeys+group]
	if !found {
		return nil
	}
	var object corev1.ConfigMap
	if err := decodeObject(groupKeys+group, value, &object); err != nil {
		t.Fatal(err)
	}
	machines, err := registry.ParseCounted(&object)
	if err != nil {
		t.Fatal(err)
	}
	return machines
}

// holder returns who holds a name; the zero value means that nobody does.
func (p prepared) holder(t *testing.T, name string) hullmark.EKID {
	t.Helper()
	key := nameKeys + name
	value, found := p.values[key]
	if !found {
		return hullmark.EKID{}
	}
	var object corev1.ConfigMap
	if err := decodeObject(key, value, &object); err != nil {
		t.Fatal(err)
	}
	node, err := registry.ParseHolder(&object)
	if err != nil {
		t.Fatal(err)
	}
	return node
}
