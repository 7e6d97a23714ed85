package kubeadmspec

import (
	"encoding/json"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

	bootstrapv1 "sigs.k8s.io/cluster-api/api/bootstrap/kubeadm/v1beta2"

	"github.com/hullmark/hullmark/kubeadm"
)

// words are values that mean something somewhere.
var words = []string{
	"", "x", "v", "4", "root:root", "0644", "640", "base64", "gzip", "gzip+base64", "Raw", "bWFya2Vy", "H4sIAAAAAAAA/0tMTEwEANdJ8oAEAAAA",
	"/etc/kubernetes/a", "/etc/kubernetes/a/b", "/var/lib/hullmark/b", "/etc/kubernetes/pki/ca.key", "../x", "node-labels", "node_labels",
	"a=b", "a=b,example.com/c=", "a=b,a=c", "authorization-mode", "runtime-config", "api/all=false", "NoSchedule", "NoExecute", "example.com/key",
	"unix:///run/containerd/containerd.sock", kubeadm.PatchesDir, kubeadm.EtcdData, "api.example", "192.0.2.7", "fe80::1%eth0", "{{ ds.x }}", "{{ x }}",
	"\xff", "\x00", "---\n", "a: b\n---\nc", "größer", "*", "- a", "true", "null", "1e3", "IfNotPresent", "ECDSA-P256", "File", "\u2028", "#", "'", "\"",
}

// choices are bytes that say how a spec is made; when they end, nothing more is set.
type choices struct{ left []byte }

func (c *choices) next(n int) int {
	if len(c.left) == 0 {
		return 0
	}
	b := int(c.left[0])
	c.left = c.left[1:]
	return b % n
}

// make sets a value and what is in it to what the bytes say.
func (c *choices) make(v reflect.Value, depth int) {
	switch v.Kind() {
	case reflect.String:
		v.SetString(words[c.next(len(words))])
	case reflect.Bool:
		v.SetBool(c.next(2) == 1)
	case reflect.Int32, reflect.Int64:
		v.SetInt([]int64{0, 5, -1, 6443, 1<<31 - 1}[c.next(5)])
	case reflect.Uint8:
		v.SetUint(uint64(c.next(256)))
	case reflect.Pointer:
		if c.next(2) == 1 {
			v.Set(reflect.New(v.Type().Elem()))
			c.make(v.Elem(), depth)
		}
	case reflect.Slice:
		n := c.next(4)
		v.Set(reflect.MakeSlice(v.Type(), n, n))
		for i := range n {
			c.make(v.Index(i), depth)
		}
	case reflect.Map:
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		if c.next(2) == 1 {
			c.make(key, depth)
			c.make(value, depth)
			v.Set(reflect.MakeMap(v.Type()))
			v.SetMapIndex(key, value)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			// Near the top most is left out, so that a spec with one thing in it is found.
			if v.Field(i).CanSet() && c.next(4-min(depth, 2)) == 1 {
				c.make(v.Field(i), depth+1)
			}
		}
	}
}

func (c *choices) spec() *bootstrapv1.KubeadmConfigSpec {
	spec := &bootstrapv1.KubeadmConfigSpec{}
	c.make(reflect.ValueOf(spec).Elem(), 0)
	return spec
}

// try maps a spec, and reports whether it was accepted.
func try(t testing.TB, spec *bootstrapv1.KubeadmConfigSpec, controlPlane bool) bool {
	t.Helper()
	before := spec.DeepCopy()
	pool, refusals := Map(spec, controlPlane)
	if again, more := Map(spec, controlPlane); !reflect.DeepEqual(again, pool) || !reflect.DeepEqual(more, refusals) {
		t.Fatalf("%+v gives %v, %v, and again %v, %v", spec, pool, refusals, again, more)
	}
	if !reflect.DeepEqual(spec, before) {
		t.Fatalf("%+v was changed into %+v", before, spec)
	}
	if len(refusals) == 0 {
		checkFound(t, asObject(t, spec), rendered(t, pool, controlPlane), "")
		return true
	}
	if !reflect.DeepEqual(pool, Pool{}) {
		t.Fatalf("%+v: with %v comes %v", spec, refusals, pool)
	}
	for _, r := range refusals {
		if r.Field == "" || r.Reason == "" {
			t.Fatalf("%+v: refused without a field or a reason: %+v", spec, r)
		}
		if !known(r.Field) {
			t.Fatalf("%+v: %s is no field: %s", spec, r.Field, r.Reason)
		}
	}
	return false
}

// known reports whether a path is of the table, or leads there.
func known(field string) bool {
	path := pattern(field)
	for _, f := range fields {
		if f.Path == path || strings.HasPrefix(f.Path, path+".") || strings.HasPrefix(f.Path, path+"[") {
			return true
		}
	}
	return false
}

// pattern is a path as the table has it.
func pattern(field string) string {
	var out strings.Builder
	inside := false
	for _, r := range field {
		inside = inside && r != ']'
		if !inside {
			out.WriteRune(r)
		}
		inside = inside || r == '['
	}
	return out.String()
}

// checkFound looks for each value of an accepted spec where the table says that it is.
func checkFound(t testing.TB, spec any, documents object, path string) {
	t.Helper()
	f, ok := rows[path]
	if list, isList := spec.([]any); isList && (!ok || f.open) {
		for _, element := range list {
			checkFound(t, element, documents, path+"[]")
		}
		return
	}
	if fields, isObject := spec.(object); isObject && (!ok || f.open) {
		for name, value := range fields {
			checkFound(t, value, documents, strings.TrimPrefix(path+"."+name, "."))
		}
		return
	}
	if !ok {
		t.Fatalf("%s: accepted, but in no row", path)
	}
	if f.Where != "" && f.use == nil && !holds(documents, f.Where, spec) {
		text, err := json.MarshalIndent(documents, "", " ")
		t.Fatalf("%s: no %v at %s of\n%s\n%v", path, spec, f.Where, text, err)
	}
}

// random returns bytes of which a spec is made.
func random(seed uint64) []byte {
	r := rand.New(rand.NewPCG(seed, 0))
	text := make([]byte, r.IntN(400))
	for i := range text {
		text[i] = byte(r.Uint32())
	}
	return text
}

func TestRandomSpecs(t *testing.T) {
	accepted := 0
	for seed := range uint64(100) {
		for _, controlPlane := range []bool{true, false} {
			c := choices{random(seed)}
			if try(t, c.spec(), controlPlane) {
				accepted++
			}
		}
	}
	t.Logf("%d of 200 were accepted", accepted)
	if accepted < 10 {
		t.Errorf("only %d specs were accepted: the test sees little of those", accepted)
	}
}

// TestRandomHonouredSpecs sets only what is honoured: it is taken together, too.
func TestRandomHonouredSpecs(t *testing.T) {
	for seed := range uint64(60) {
		controlPlane := seed%2 == 0
		spec := honoured(t, rand.New(rand.NewPCG(seed, 1)), controlPlane)
		if !try(t, spec, controlPlane) {
			_, refusals := Map(spec, controlPlane)
			t.Errorf("%+v: %v", spec, refusals)
		}
	}
}

// honoured sets some rows to their samples.
func honoured(t testing.TB, r *rand.Rand, controlPlane bool) *bootstrapv1.KubeadmConfigSpec {
	t.Helper()
	spec := &bootstrapv1.KubeadmConfigSpec{}
	for _, f := range fields {
		if f.Where == "" || r.IntN(5) > 0 || !controlPlane && below(f.Path) || f.Path == "files[].encoding" {
			continue
		}
		setHonoured(t, spec, f, controlPlane)
	}
	return spec
}

func FuzzMap(f *testing.F) {
	for seed := range uint64(20) {
		f.Add(random(seed), seed%2 == 0)
	}
	f.Fuzz(func(t *testing.T, text []byte, controlPlane bool) {
		c := choices{text}
		try(t, c.spec(), controlPlane)
	})
}
