package build

import (
	"archive/tar"
	"bytes"
	"testing"
)

// Authorities are those of the package's folder alone, one after another by their names.
func TestReadAuthorities(t *testing.T) {
	contents := func(names ...string) *bytes.Buffer {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		for _, name := range names {
			if err := w.WriteHeader(&tar.Header{Name: name, Size: int64(len(name)), Mode: 0o644}); err != nil {
				t.Fatal(err)
			}
			if _, err := w.Write([]byte(name)); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		return &b
	}
	const folder = "./usr/share/ca-certificates/mozilla/"
	got, err := readAuthorities(contents("./usr/share/doc/c.crt", folder+"b.crt", folder+"a.crt", folder+"a.txt"))
	if want := folder + "a.crt" + folder + "b.crt"; err != nil || string(got) != want {
		t.Errorf("%q, %v, want %q", got, err, want)
	}
	for name, b := range map[string]*bytes.Buffer{"none": contents("./usr/share/doc/c.crt"), "no archive": bytes.NewBufferString("x")} {
		if got, err := readAuthorities(b); err == nil {
			t.Errorf("%s: %q", name, got)
		}
	}
}
