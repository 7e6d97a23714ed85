package cluster

import (
	"bytes"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest/channel"
	"github.com/hullmark/hullmark/internal/nodetest"
	"github.com/hullmark/hullmark/joinservice"
)

// cheap keeps scrypt out of the tests' time; the passphrases here guard nothing.
const cheap = 4

func newFile(t *testing.T) *File {
	t.Helper()
	c, err := New()
	if err != nil {
		t.Fatal(err)
	}
	f, err := Create(filepath.Join(t.TempDir(), "cluster.age"), secret("correct"), c, cheap)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func secret(s string) hullmark.Secret { return hullmark.NewSecret([]byte(s)) }

func reopen(t *testing.T, f *File) *File {
	t.Helper()
	again, err := Open(f.store.(*onDisk).path, secret("correct"))
	if err != nil {
		t.Fatal(err)
	}
	if again.key.(passphrase).workFactor != cheap {
		t.Errorf("work factor %d, want %d", again.key.(passphrase).workFactor, cheap)
	}
	return again
}

func TestFileKeepsEverything(t *testing.T) {
	f := newFile(t)
	if err := f.Update(func(c *Cluster) error {
		document := nodetest.Document(t, "image")
		c.Settings = &joinservice.Settings{ControlPlaneEndpoint: "192.0.2.7:6443", Networks: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12"), netip.MustParsePrefix("10.244.0.0/16")}}
		c.KeepEpoch(hullmark.EKID{1}, DiskEpoch{Disk: hullmark.UUID{2}, Epoch: 3})
		if err := c.SetPolicy(accepting(t, 1, document), document); err != nil {
			return err
		}
		c.First = &joinservice.FirstRecord{EKID: hullmark.EKID{1}, Disk: hullmark.UUID{2}, Committed: 3, Issued: 4}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	again := reopen(t, f)
	want, err := f.Cluster.encode()
	if err != nil {
		t.Fatal(err)
	}
	got, err := again.Cluster.encode()
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Error("what was read is not what was written")
	}
	if again.Cluster.ID() != f.Cluster.ID() {
		t.Error("the cluster root changed")
	}
}

func TestFileIsEncryptedAndPrivate(t *testing.T) {
	f := newFile(t)
	info, err := os.Stat(f.store.(*onDisk).path)
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode() != 0o600 {
		t.Errorf("mode %v, want 0600", info.Mode())
	}
	content, err := os.ReadFile(f.store.(*onDisk).path)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(string(content), "age-encryption.org/v1\n-> scrypt ") {
		t.Errorf("the file does not begin as an age file: %.60q", content)
	}
	if bytes.Contains(content, []byte("keyset")) {
		t.Error("the file holds plain text")
	}
}

func TestOpenRefuses(t *testing.T) {
	f := newFile(t)
	if _, err := Open(f.store.(*onDisk).path, secret("wrong")); !errors.Is(err, ErrPassphrase) {
		t.Errorf("wrong passphrase: got %v", err)
	}
	content, err := os.ReadFile(f.store.(*onDisk).path)
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"no age file": "x", "a bomb": "age-encryption.org/v1\n-> scrypt c2FsdA 60\n"} {
		if _, err := readWorkFactor([]byte(text)); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	content[len(content)-1] ^= 1
	if err := os.WriteFile(f.store.(*onDisk).path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(f.store.(*onDisk).path, secret("correct")); err == nil {
		t.Error("a file with a flipped byte was opened")
	}
}

func TestCreateNeverOverwrites(t *testing.T) {
	f := newFile(t)
	if _, err := Create(f.store.(*onDisk).path, secret("correct"), f.Cluster, cheap); !errors.Is(err, fs.ErrExist) {
		t.Errorf("got %v, want an error that the file exists", err)
	}
	if left, _ := filepath.Glob(filepath.Join(filepath.Dir(f.store.(*onDisk).path), ".hullmark-*")); len(left) > 0 {
		t.Errorf("temporary files were left: %v", left)
	}
}

func TestUpdateComparesAndSwaps(t *testing.T) {
	f := newFile(t)
	other := reopen(t, f)
	issue := func(c *Cluster) error {
		c.First = &joinservice.FirstRecord{Issued: 1}
		return nil
	}
	if err := other.Update(issue); err != nil {
		t.Fatal(err)
	}
	if err := f.Update(issue); err == nil || !strings.Contains(err.Error(), "another process") {
		t.Errorf("a file that changed meanwhile was overwritten: %v", err)
	}
	if f.Cluster.First != nil {
		t.Error("a failed update changed the record in memory")
	}
}

func TestDecodeRefuses(t *testing.T) {
	f := newFile(t)
	plain, err := f.Cluster.encode()
	if err != nil {
		t.Fatal(err)
	}
	now, before := fmt.Appendf(nil, `"version":%d`, version), fmt.Appendf(nil, `"version":%d`, version-1)
	for name, data := range map[string][]byte{
		"unknown field": bytes.Replace(plain, now, append(bytes.Clone(now), `,"x":2`...), 1),
		"version":       bytes.Replace(plain, now, before, 1),
		"trailing":      append(bytes.Clone(plain), '1'),
		"swapped keys":  bytes.Replace(bytes.Replace(bytes.Replace(plain, []byte(`"root"`), []byte(`"?"`), 1), []byte(`"online"`), []byte(`"root"`), 1), []byte(`"?"`), []byte(`"online"`), 1),
	} {
		if _, err := decode(data); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	// A file of an earlier release says so itself, whatever else it lacks.
	if _, err := decode([]byte(`{"version":1,"frontProxy":{}}`)); err == nil || !strings.Contains(err.Error(), "version: want 2, got 1: the file is another release's") {
		t.Errorf("a file of version 1: %v", err)
	}
}

func FuzzDecode(f *testing.F) {
	c, err := New()
	if err != nil {
		f.Fatal(err)
	}
	plain, err := c.encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(plain)
	elsewhere, err := NewUnder(newToken(f).root())
	if err != nil {
		f.Fatal(err)
	}
	if plain, err = elsewhere.encode(); err != nil {
		f.Fatal(err)
	}
	f.Add(plain)
	f.Add([]byte(`{"version":1}`))
	f.Add(fmt.Appendf(nil, `{"version":%d}`, version))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := decode(data)
		if err != nil {
			return
		}
		encoded, err := c.encode()
		if err != nil {
			t.Fatal(err)
		}
		again, err := decode(encoded)
		if err != nil {
			t.Fatalf("took %q, but not what it says: %v", data, err)
		}
		if twice, err := again.encode(); err != nil || !bytes.Equal(twice, encoded) {
			t.Errorf("%q came back as %q, %v", encoded, twice, err)
		}
	})
}

func TestAuthoritiesServeTheExchange(t *testing.T) {
	c := newFile(t).Cluster
	operator, err := c.Operator(channel.VerbInit, hullmark.EKID{})
	if err != nil {
		t.Fatal(err)
	}
	if len(operator.Certificate) != 2 {
		t.Errorf("the operator's chain has %d certificates, want 2", len(operator.Certificate))
	}
	if err := channel.CheckOperator([]*x509.Certificate{operator.Leaf, c.Root.Certificate}, c.ID()); err != nil {
		t.Error(err)
	}
}
