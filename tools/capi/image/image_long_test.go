//go:build long

package main

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

// TestReproducible: two checkouts in folders of other names give the same digest and the same bytes; what is in the image is a static
// program that runs without anything beside it, and authorities.
func TestReproducible(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 25*time.Minute)
	defer cancel()
	var outs, digests []string
	for _, folder := range []string{"a", "another/folder"} {
		source, out := filepath.Join(t.TempDir(), folder), t.TempDir()
		checkout(ctx, t, source)
		digest, err := write(ctx, source, out, "registry.example/hullmark-capi:v0.1.0", []string{"amd64"})
		if err != nil {
			t.Fatal(err)
		}
		outs, digests = append(outs, out), append(digests, digest)
	}
	if digests[0] != digests[1] {
		t.Errorf("digests %q", digests)
	}
	if said, err := exec.CommandContext(ctx, "diff", "-r", outs[0], outs[1]).CombinedOutput(); err != nil {
		t.Errorf("%v: %.500s", err, said)
	}
	checkImage(ctx, t, outs[0])
}

// checkout copies the files of this checkout that git knows or would take, as they are now.
func checkout(ctx context.Context, t *testing.T, to string) {
	t.Helper()
	if err := os.MkdirAll(to, 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(ctx, "sh", "-ec", `git ls-files -z --cached --others --exclude-standard | tar --null --ignore-failed-read -cf - -T - | tar -xf - -C "$0"`, to)
	cmd.Dir = "../../.."
	if said, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, said)
	}
}

func checkImage(ctx context.Context, t *testing.T, out string) {
	t.Helper()
	layout := os.DirFS(filepath.Join(out, layoutFolder))
	read := func(name string, into any) []byte {
		t.Helper()
		f, err := layout.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		var b bytes.Buffer
		if _, err := b.ReadFrom(f); err != nil {
			t.Fatal(err)
		}
		if into != nil {
			if err := json.Unmarshal(b.Bytes(), into); err != nil {
				t.Fatal(err)
			}
		}
		return b.Bytes()
	}
	blob := func(d v1.Descriptor) string { return "blobs/sha256/" + d.Digest.Encoded() }
	var top, index v1.Index
	var manifest v1.Manifest
	read("index.json", &top)
	read(blob(top.Manifests[0]), &index)
	read(blob(index.Manifests[0]), &manifest)
	root := t.TempDir()
	cmd := exec.CommandContext(ctx, "tar", "-xf", "-", "-C", root)
	cmd.Stdin = bytes.NewReader(read(blob(manifest.Layers[0]), nil))
	if said, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, said)
	}
	if said, err := exec.CommandContext(ctx, filepath.Join(root, "manager"), "bootstrap", "--help").CombinedOutput(); err != nil || !strings.Contains(string(said), "--watch-filter") {
		t.Errorf("%v: %s", err, said)
	}
	if said, _ := exec.CommandContext(ctx, "ldd", filepath.Join(root, "manager")).CombinedOutput(); !strings.Contains(string(said), "not a dynamic executable") {
		t.Errorf("the program wants libraries: %s", said)
	}
	trusted, err := os.ReadFile(filepath.Join(root, "etc/ssl/certs/ca-certificates.crt"))
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for block, rest := pem.Decode(trusted); block != nil; block, rest = pem.Decode(rest) {
		if _, err := x509.ParseCertificate(block.Bytes); err != nil {
			t.Errorf("authority %d: %v", n, err)
		}
		n++
	}
	if n < 100 {
		t.Errorf("%d authorities", n)
	}
	if sbom, err := os.ReadFile(filepath.Join(out, "manager_linux_amd64.spdx.json")); err != nil || !strings.Contains(string(sbom), "pkg:golang/sigs.k8s.io/controller-runtime@") {
		t.Errorf("the SBOM lacks a module: %v", err)
	}
}
