//go:build long

package measurements

import (
	"bytes"
	"crypto"
	"crypto/sha256"
	"crypto/x509"
	"encoding/pem"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/internal/buildtest"
	"github.com/hullmark/hullmark/internal/toolstree"
)

// cosignCommand is the command that docs/verify.md shows to strangers.
func cosignCommand(t *testing.T) string {
	t.Helper()
	page, err := os.ReadFile("../docs/verify.md")
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile("(?ms)^```console\n\\$ (cosign .*?)^```$").FindSubmatch(page)
	if found == nil {
		t.Fatal("docs/verify.md shows no cosign command")
	}
	return string(found[1])
}

// The real cosign accepts what is signed here, offline and with the public key alone, and nothing else.
func TestLongCosignAgrees(t *testing.T) {
	tree, command := buildtest.Tools(t), cosignCommand(t)
	disk := []byte("a small disk")
	digest := sha256.Sum256(disk)
	d := testDocument(t, "image")
	d.Image.Disk = digest[:]
	keys := releaseKeys(t)
	for name, key := range keys {
		good := sign(t, key, d)
		other := keys["Ed25519"]
		if name == "Ed25519" {
			other = keys["ECDSA P-256"]
		}
		payload, err := hullmark.CanonicalJSON(statementOf(d))
		if err != nil {
			t.Fatal(err)
		}
		predicate := bytes.Replace(payload, []byte(PredicateType), []byte(PredicateType+"2"), 1)
		changed := d
		changed.SVN++
		for _, c := range []struct {
			what   string
			signed []byte
			public crypto.PublicKey
			disk   []byte
			want   string
		}{
			{"as signed", good, key.Public(), disk, "Verified OK"},
			{"another disk", good, key.Public(), append([]byte("not "), disk...), "no matching subject digest"},
			{"another key", good, other.Public(), disk, "do not match threshold"},
			{"a changed document", graft(t, good, sign(t, key, changed)), key.Public(), disk, "do not match threshold"},
			{"another payload type", wrap(t, key, "application/json", payload), key.Public(), disk, "invalid payloadType"},
			{"another predicate", wrap(t, key, PayloadType, predicate), key.Public(), disk, "predicate"},
		} {
			out, err := runCosign(t, tree, command, c.signed, c.public, c.disk)
			if refused := err != nil; refused == (c.what == "as signed") || !strings.Contains(out, c.want) {
				t.Errorf("%s, %s: %v, want %q in\n%s", name, c.what, err, c.want, out)
			}
		}
	}
}

// graft puts the payload of one envelope under the signature of another.
func graft(t *testing.T, signature, payload []byte) []byte {
	t.Helper()
	var s, p envelope
	for _, c := range []struct {
		from []byte
		to   *envelope
	}{{signature, &s}, {payload, &p}} {
		if err := strict(c.from, MaxEnvelope, c.to); err != nil {
			t.Fatal(err)
		}
	}
	s.Payload = p.Payload
	out, err := hullmark.CanonicalJSON(s)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func runCosign(t *testing.T, tree, command string, signed []byte, public crypto.PublicKey, disk []byte) (string, error) {
	t.Helper()
	dir := t.TempDir()
	der, err := x509.MarshalPKIXPublicKey(public)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "out"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string][]byte{
		"out/fetched.dsse": signed, "out/fetched.raw": disk,
		"out/release.pub": pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var out bytes.Buffer
	s := toolstree.Sandbox{
		Tree: tree, Binds: []toolstree.Bind{{Host: dir, Tree: "/data"}}, Dir: "/data", Offline: true, Env: map[string]string{"HOME": "/tmp"},
	}
	cmd := s.Command(t.Context(), "sh", "-c", command)
	cmd.Stdout, cmd.Stderr = &out, &out
	err = cmd.Run()
	return out.String(), err
}
