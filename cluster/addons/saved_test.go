package addons

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/cluster"
	"github.com/hullmark/hullmark/measurements"
)

// example writes a saved state of two objects and an absence.
func example(t testing.TB) []byte {
	t.Helper()
	var out bytes.Buffer
	w, err := newSavedWriter(&out, header{Run: "20260101-000000-abcdefgh", Time: time.Unix(1, 0).UTC(), Cluster: strings.Repeat("ab", 32), Addons: []string{"demo"}, Definitions: []string{"widgets.demo.example"}})
	if err != nil {
		t.Fatal(err)
	}
	custom := parsed(t, `{apiVersion: demo.example/v1, kind: Widget, metadata: {name: one, namespace: ns, uid: u, resourceVersion: "7"}, spec: {size: 9007199254740993}, status: {seen: 3}}`)
	for _, err := range []error{
		w.object(partObject, parsed(t, "apiVersion: v1\nkind: Secret\nmetadata: {name: s, namespace: ns}\ndata: {a: Yg==}\n")),
		w.absent(Name{APIVersion: "v1", Kind: "ConfigMap", Namespace: "ns", Name: "c"}),
		w.object(partCustom, custom), w.close(),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	return out.Bytes()
}

func anyHeader(header) error { return nil }

func TestSavedReadsBack(t *testing.T) {
	var all []saved
	h, err := readSaved(bytes.NewReader(example(t)), anyHeader, func(s saved) error { all = append(all, s); return nil })
	if err != nil || h.Format != SavedFormat || h.Run != "20260101-000000-abcdefgh" || !reflect.DeepEqual(h.Definitions, []string{"widgets.demo.example"}) {
		t.Fatalf("%+v, %v", h, err)
	}
	if len(all) != 3 || all[1].object != nil || all[1].name.String() != "ConfigMap ns/c" || all[0].part != partObject || all[2].part != partCustom {
		t.Fatalf("got %+v", all)
	}
	if o := all[2].object; o.GetUID() != "u" || o.GetResourceVersion() != "7" || o.Object["spec"].(map[string]any)["size"] != int64(9007199254740993) {
		t.Errorf("what it was is not kept: %v", o)
	}
}

// relined writes lines as a saved state is packed.
func relined(t testing.TB, lines ...string) []byte {
	t.Helper()
	var out bytes.Buffer
	zip := gzip.NewWriter(&out)
	if _, err := io.WriteString(zip, strings.Join(lines, "\n")+"\n"); err != nil {
		t.Fatal(err)
	}
	if err := zip.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func linesOf(t testing.TB, packed []byte) []string {
	t.Helper()
	zip, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(zip)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(strings.TrimSpace(string(text)), "\n")
}

func TestReadSavedRefuses(t *testing.T) {
	whole := example(t)
	l := linesOf(t, whole)
	change := func(i int, old, new string) []byte {
		c := append([]string(nil), l...)
		if !strings.Contains(c[i], old) {
			t.Fatalf("line %d has no %q: %s", i, old, c[i])
		}
		c[i] = strings.Replace(c[i], old, new, 1)
		return relined(t, c...)
	}
	for says, packed := range map[string][]byte{
		"it holds no saved state":                   []byte("age or nothing"),
		"its end is missing":                        relined(t, l[:4]...),
		"it goes on after its end":                  relined(t, append(append([]string(nil), l...), l[1])...),
		"line 5: it ends after 4 lines, and says 3": change(4, "4", "3"),
		"the header is not the first line":          relined(t, l[1:]...),
		"line 2: the header is not the first line":  relined(t, append([]string{l[0]}, l...)...),
		`format "hullmark.addons/v9"`:               change(0, SavedFormat, "hullmark.addons/v9"),
		`unknown field "colour"`:                    change(1, `"part"`, `"colour":1,"part"`),
		"line 2: it is neither a header":            change(1, `"object","object"`, `"other","object"`),
		"line 3: it is neither a header":            change(2, `"part":"object",`, ``),
		"a saved object: a Secret without a name":   change(1, `"name":"s",`, ``),
		"token too long":                            relined(t, l[0], strings.Repeat("x", maxLine+1)),
		"unexpected EOF":                            whole[:len(whole)-9],
	} {
		if _, err := readSaved(bytes.NewReader(packed), anyHeader, func(saved) error { return nil }); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("got %v, want %q", err, says)
		}
	}
}

// FuzzReadSaved wants no panic, and of what is accepted the same when it is written anew.
func FuzzReadSaved(f *testing.F) {
	f.Add([]byte(strings.Join(linesOf(f, example(f)), "\n")))
	f.Add([]byte(`{"header":{"format":"hullmark.addons/v1"}}` + "\n" + `{"end":1}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		var all []saved
		h, err := readSaved(bytes.NewReader(relined(t, string(text))), anyHeader, func(s saved) error { all = append(all, s); return nil })
		if err != nil {
			return
		}
		var out bytes.Buffer
		w, err := newSavedWriter(&out, h)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range all {
			if s.object == nil {
				name := s.name
				err = w.put(line{Part: s.part, Absent: &name})
			} else {
				err = w.object(s.part, s.object)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		if err := w.close(); err != nil {
			t.Fatal(err)
		}
		n := 0
		if _, err := readSaved(&out, anyHeader, func(s saved) error {
			if fmt.Sprint(s.name) != fmt.Sprint(all[n].name) {
				t.Errorf("%v became %v", all[n].name, s.name)
			}
			n++
			return nil
		}); err != nil || n != len(all) {
			t.Errorf("%d of %d, %v", n, len(all), err)
		}
	})
}

// FuzzParse wants no panic, and of what is accepted the same when it is written anew.
func FuzzParse(f *testing.F) {
	f.Add([]byte("apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: ConfigMap, metadata: {name: a}}\n---\n{\"apiVersion\":\"v1\",\"kind\":\"Pod\",\"metadata\":{\"name\":\"b\"}}"))
	f.Add([]byte("a: &a [*a]\n---\nb"))
	f.Fuzz(func(t *testing.T, text []byte) {
		all, err := parse(text)
		if err != nil {
			return
		}
		for _, o := range all {
			text, err := json.Marshal(o)
			if err != nil {
				t.Fatal(err)
			}
			if again, err := parse(text); err != nil || len(again) != 1 || nameOf(again[0]) != nameOf(o) {
				t.Errorf("%s became %v, %v", text, again, err)
			}
		}
	})
}

// FuzzParseInventory wants no panic, and names that can be found.
func FuzzParseInventory(f *testing.F) {
	f.Add(`[{"apiVersion":"v1","kind":"ConfigMap","namespace":"n","name":"a"}]`)
	f.Add(`[{"apiVersion":"a/b/c","kind":"x","name":"a"},{}]`)
	f.Fuzz(func(t *testing.T, text string) {
		names, err := parseInventory(text)
		for _, n := range names {
			if err == nil && (n.Kind == "" || n.Name == "") {
				t.Errorf("%q is accepted", text)
			}
			_ = n.key()
		}
	})
}

// stored writes a saved state as a run does, under a passphrase and for a cluster.
func stored(t *testing.T, a *Addons) string {
	t.Helper()
	h := header{Run: newRun()}
	var err error
	if h.Cluster, err = a.cluster(); err != nil {
		t.Fatal(err)
	}
	path := a.file(h.Run)
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	encrypted, err := a.File.Encrypt(f)
	if err != nil {
		t.Fatal(err)
	}
	w, err := newSavedWriter(encrypted, h)
	if err != nil {
		t.Fatal(err)
	}
	secret := parsed(t, "apiVersion: v1\nkind: Secret\nmetadata: {name: s, namespace: ns}\ndata: {password: aHVudGVyMg==}\n")
	if err := errors.Join(w.object(partObject, secret), w.close(), encrypted.Close()); err != nil {
		t.Fatal(err)
	}
	return path
}

// operatorOf is an operator of a cluster, with a cluster file under a passphrase.
func operatorOf(t *testing.T, c *cluster.Cluster, passphrase string) *Addons {
	t.Helper()
	const cheap = 4 // This passphrase guards nothing.
	dir := t.TempDir()
	file, err := cluster.Create(filepath.Join(dir, "cluster"), hullmark.NewSecret([]byte(passphrase)), c, cheap)
	if err != nil {
		t.Fatal(err)
	}
	return New(Options{Config: &rest.Config{TLSClientConfig: rest.TLSClientConfig{CAData: c.KubernetesCA()}}, File: file, Saved: dir})
}

// What is saved is opened under its passphrase alone, whole, and for its own cluster; nothing of it can be read on the disk.
func TestOpenRefuses(t *testing.T) {
	one, err := cluster.New()
	if err != nil {
		t.Fatal(err)
	}
	two, err := cluster.New()
	if err != nil {
		t.Fatal(err)
	}
	a := operatorOf(t, one, "passphrase")
	path := stored(t, a)
	n := 0
	if _, err := a.open(path, "", func(s saved) error { n++; return nil }); err != nil || n != 1 {
		t.Fatalf("%d objects, %v", n, err)
	}
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"Secret", "aHVudGVyMg", "hunter2", SavedFormat} {
		if bytes.Contains(whole, []byte(text)) {
			t.Errorf("%q can be read on the disk", text)
		}
	}
	damaged := bytes.Clone(whole)
	damaged[len(damaged)-1] ^= 1
	for name, content := range map[string][]byte{"damaged": damaged, "cut": whole[:len(whole)-1], "none": []byte("none")} {
		other := filepath.Join(a.Saved, name)
		if err := os.WriteFile(other, content, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := a.open(other, "", func(saved) error { return nil }); err == nil || !strings.Contains(err.Error(), other) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for says, other := range map[string]*Addons{"the passphrase does not open it": operatorOf(t, one, "another"), "it is another cluster's": operatorOf(t, two, "passphrase")} {
		if _, err := other.open(path, "", func(saved) error { return nil }); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("got %v, want %q", err, says)
		}
	}
}

// What was saved while the Kubernetes CA was exchanged is opened as long as the CA of then is trusted.
func TestOpenInAnExchange(t *testing.T) {
	c, err := cluster.New()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.SetPolicy(measurements.Policy{Version: 1}); err != nil {
		t.Fatal(err)
	}
	a := operatorOf(t, c, "passphrase")
	path := stored(t, a)
	for i, step := range []func(cluster.CAName) error{c.TrustCA, c.SignWithCA, c.DropCA} {
		if err := step(cluster.KubernetesCA); err != nil {
			t.Fatal(err)
		}
		a.Config.CAData = c.KubernetesCA()
		if _, err := a.open(path, "", func(saved) error { return nil }); (err == nil) != (i < 2) || err != nil && !strings.Contains(err.Error(), "of before the Kubernetes CA was exchanged") {
			t.Errorf("after step %d: %v", i+1, err)
		}
	}
}

// Whoever may write in the folder, and has no passphrase, gives an older saved state the name of the one that a run left: it is not put
// back.
func TestSwappedSavedState(t *testing.T) {
	c, err := cluster.New()
	if err != nil {
		t.Fatal(err)
	}
	a := operatorOf(t, c, "passphrase")
	older, newer := stored(t, a), stored(t, a)
	run := strings.TrimSuffix(filepath.Base(newer), savedEnding)
	lease := &object{Object: map[string]any{}}
	lease.SetAnnotations(map[string]string{unfinished: run})
	l := &lock{lease: lease}
	if path, of, err := a.choose(l, ""); err != nil || path != newer || of != run {
		t.Fatalf("%s, %s, %v", path, of, err)
	}
	if s, err := a.read(newer, run); err != nil || s.Run != run {
		t.Fatalf("the positive control: %+v, %v", s.header, err)
	}
	if err := os.Rename(older, newer); err != nil {
		t.Fatal(err)
	}
	if restored, err := a.restore(t.Context(), nil, l, newer, run); err == nil || !strings.Contains(err.Error(), "is what run") {
		t.Errorf("%+v, %v", restored, err)
	}
	n := 0
	if _, err := a.open(newer, run, func(saved) error { n++; return nil }); err == nil || n > 0 {
		t.Errorf("%d objects of it were read, %v", n, err)
	}
}
