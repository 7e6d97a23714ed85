package statedisk

import (
	"bytes"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/hullmark/hullmark"
)

func testManifestKey(t testing.TB) hullmark.Secret {
	t.Helper()
	key, err := ManifestKey(hullmark.NewSecret(bytes.Repeat([]byte{7}, 32)))
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func testManifest() Manifest {
	return Manifest{Disk: hullmark.UUID{1, 2, 3}, Epoch: 9, Files: map[string]KeptFile{
		IntentFile: {Mode: 0o600, Content: []byte(IntentDone)}, "files/policy": {Mode: 0o644, Content: []byte("policy")}, "files/empty": {Mode: 0o600, Content: []byte{}},
	}}
}

// The vector is what docs/state-disk.md describes, of DK = 32 bytes of 7.
func TestManifestVector(t *testing.T) {
	key := testManifestKey(t)
	got, err := testManifest().Encode(key)
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile("testdata/manifest.hex")
	if err != nil {
		t.Fatal(err, "; made: ", hex.EncodeToString(got))
	}
	want, err := hex.DecodeString(strings.TrimSpace(string(text)))
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("encoded\n%x, want\n%x", got, want)
	}
	if m, err := DecodeManifest(want, key); err != nil || !reflect.DeepEqual(m, testManifest()) || !m.Joined() {
		t.Errorf("decoded %+v, %v", m, err)
	}
}

// Every bit is authenticated, and so is its length.
func TestManifestIsAuthenticated(t *testing.T) {
	key := testManifestKey(t)
	good, err := testManifest().Encode(key)
	if err != nil {
		t.Fatal(err)
	}
	for i := range good {
		bad := bytes.Clone(good)
		bad[i] ^= 1
		if _, err := DecodeManifest(bad, key); !errors.Is(err, ErrMAC) {
			t.Errorf("bit of byte %d: %v", i, err)
		}
		if _, err := DecodeManifest(good[:i], key); !errors.Is(err, ErrMAC) {
			t.Errorf("the first %d bytes: %v", i, err)
		}
	}
	if _, err := DecodeManifest(append(bytes.Clone(good), 0), key); !errors.Is(err, ErrMAC) {
		t.Error(err)
	}
	if _, err := DecodeManifest(good, hullmark.NewSecret(make([]byte, 32))); !errors.Is(err, ErrMAC) {
		t.Error(err)
	}
}

// Even under the key there is one form.
func TestManifestIsStrict(t *testing.T) {
	key := testManifestKey(t)
	seal := func(b []byte) []byte { return append(b, mac(key, b)...) }
	good, err := testManifest().Encode(key)
	if err != nil {
		t.Fatal(err)
	}
	body := good[:len(good)-32]
	edit := func(at int, to byte) []byte { b := bytes.Clone(body); b[at] = to; return seal(b) }
	for name, b := range map[string][]byte{
		"another magic": edit(0, 'x'), "another version": edit(19, 2), "one file fewer": edit(47, 2), "one file more": edit(47, 4),
		"a longer name": edit(49, 200), "a mode with more": edit(50, 2), "data at the end": seal(append(bytes.Clone(body), 0)),
		"names out of order": seal(bytes.Replace(bytes.Clone(body), []byte("agent/kubeadm"), []byte("zgent/kubeadm"), 1)),
		"a path out of it":   seal(bytes.Replace(bytes.Clone(body), []byte("agent/kubeadm"), []byte("agent/../eadm"), 1)),
	} {
		if _, err := DecodeManifest(b, key); err == nil || errors.Is(err, ErrMAC) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, name := range []string{"", ".", "/x", "a/../b", strings.Repeat("x", 256)} {
		if _, err := (Manifest{Files: map[string]KeptFile{name: {}}}).Encode(key); err == nil {
			t.Errorf("%q was encoded", name)
		}
	}
	if _, err := (Manifest{Files: map[string]KeptFile{"big": {Content: make([]byte, MaxManifest)}}}).Encode(key); err == nil {
		t.Error("a manifest that nobody would read was encoded")
	}
}

// The power goes after any part of what WriteManifest does: the old manifest is there, or the new one.
func TestManifestIsCutAnywhere(t *testing.T) {
	key := testManifestKey(t)
	old, next := testManifest(), testManifest()
	next.Epoch++
	whole, err := next.Encode(key)
	if err != nil {
		t.Fatal(err)
	}
	for written := -1; written <= len(whole)+1; written++ {
		root, err := os.OpenRoot(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		if err := root.Mkdir(AgentDir, 0o700); err != nil {
			t.Fatal(err)
		}
		if _, err := WriteManifest(root, key, old); err != nil {
			t.Fatal(err)
		}
		temporary, file := filepath.Join(root.Name(), AgentDir, ".manifest.new"), filepath.Join(root.Name(), ManifestFile)
		want := old.Epoch
		switch {
		case written > len(whole): // and renamed
			err, want = errors.Join(os.WriteFile(temporary, whole, 0o600), os.Rename(temporary, file)), next.Epoch
		case written >= 0:
			err = os.WriteFile(temporary, whole[:written], 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		if m, _, err := ReadManifest(root, key); err != nil || m.Epoch != want {
			t.Fatalf("cut after %d bytes: epoch %d, %v; want %d", written, m.Epoch, err, want)
		}
		if _, err := WriteManifest(root, key, next); err != nil {
			t.Fatalf("cut after %d bytes, and going on: %v", written, err)
		}
		if m, _, err := ReadManifest(root, key); err != nil || m.Epoch != next.Epoch {
			t.Fatalf("cut after %d bytes, and gone on: epoch %d, %v", written, m.Epoch, err)
		}
		_ = root.Close()
	}
}

func FuzzManifest(f *testing.F) {
	key := testManifestKey(f)
	good, err := testManifest().Encode(key)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good[:len(good)-32])
	f.Add([]byte(manifestMagic))
	f.Fuzz(func(t *testing.T, body []byte) {
		sealed := append(bytes.Clone(body), mac(key, body)...)
		m, err := DecodeManifest(sealed, key)
		if err != nil {
			return
		}
		if again, err := m.Encode(key); err != nil || !bytes.Equal(again, sealed) {
			t.Errorf("%x means another manifest: %x, %v", sealed, again, err)
		}
	})
}
