package main

import (
	"bytes"
	"io"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/cluster"
)

// What is printed opens by the cluster file alone, for its one purpose, and does not show the secret.
func TestClusterEncrypt(t *testing.T) {
	dir, _ := keeperSite(t)
	o := operatorOptions{cluster: filepath.Join(dir, "cluster"), passphraseFile: filepath.Join(dir, "passphrase")}
	file, err := cluster.Open(o.cluster, hullmark.NewSecret([]byte("correct horse")))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ purpose, in, secret string }{
		{"https://mirror.example:5000", "puller:open sesame\n", "Basic cHVsbGVyOm9wZW4gc2VzYW1l"},
		{hullmark.CollectorKey, "-----BEGIN PRIVATE KEY-----\n", "-----BEGIN PRIVATE KEY-----\n"},
	} {
		var out bytes.Buffer
		if err := o.encrypt(c.purpose, strings.NewReader(c.in), &out, io.Discard); err != nil {
			t.Fatal(err)
		}
		e, err := hullmark.ParseEncrypted(strings.TrimSuffix(out.String(), "\n"))
		if err != nil || e.Purpose != c.purpose {
			t.Fatalf("%q: %v", out.String(), err)
		}
		secret, err := file.Cluster.Keys.Decrypt(file.Cluster.ID(), e)
		if err != nil || string(secret.Expose()) != c.secret {
			t.Errorf("%s: %v", c.purpose, err)
		}
	}
	for purpose, in := range map[string]string{
		"mirror.example": "a:b", "http://mirror.example": "a:b", "https://mirror.example ": "a:b", "https://a.example": "no colon", "https://b.example": ":b", "https://c.example": "a:b\nc:d", "/f": "",
	} {
		var out bytes.Buffer
		if err := o.encrypt(purpose, strings.NewReader(in), &out, io.Discard); err == nil || out.Len() > 0 {
			t.Errorf("%q for %q: %q, %v", in, purpose, out.String(), err)
		}
	}
}
