//go:build long

package build

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/registry"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/cluster/render"
	"github.com/hullmark/hullmark/joinservice/keys"
)

// mirror is a registry over TLS that wants a user and a password.
type mirror struct {
	*httptest.Server
	// lies says that it has other bytes than those of the digest that is asked for.
	lies atomic.Bool
}

const mirrorUser = "puller:open sesame"

func newMirror(t *testing.T) *mirror {
	t.Helper()
	m := &mirror{}
	store := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	m.Server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if user, password, _ := r.BasicAuth(); user+":"+password != mirrorUser {
			w.Header().Set("WWW-Authenticate", `Basic realm="mirror"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		if m.lies.Load() && r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/manifests/") {
			honest := httptest.NewRecorder()
			store.ServeHTTP(honest, r)
			w.Header().Set("Content-Type", manifestType)
			_, _ = w.Write(append(honest.Body.Bytes()[:honest.Body.Len()-1], ' '))
			return
		}
		store.ServeHTTP(w, r)
	}))
	t.Cleanup(m.Close)
	return m
}

// push puts an image of one layer into the mirror, and returns its digest.
func (m *mirror) push(t *testing.T, repository, tag, layer string) string {
	t.Helper()
	put := func(method, path, kind string, content []byte) {
		request, err := http.NewRequestWithContext(t.Context(), method, m.URL+"/v2/"+repository+path, bytes.NewReader(content))
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Content-Type", kind)
		request.SetBasicAuth("puller", "open sesame")
		answer, err := m.Client().Do(request)
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		if answer.StatusCode != http.StatusCreated {
			t.Fatalf("%s %s: %s", method, path, answer.Status)
		}
	}
	blob := func(content string) string {
		digest := fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(content)))
		put(http.MethodPost, "/blobs/uploads/?digest="+digest, "application/octet-stream", []byte(content))
		return digest
	}
	const config = `{"architecture":"amd64","os":"linux","rootfs":{"type":"layers","diff_ids":[]}}`
	manifest := fmt.Sprintf(`{"schemaVersion":2,"mediaType":%q,"config":{"mediaType":"application/vnd.oci.image.config.v1+json","digest":%q,"size":%d},`+
		`"layers":[{"mediaType":"application/vnd.oci.image.layer.v1.tar","digest":%q,"size":%d}]}`, manifestType, blob(config), len(config), blob(layer), len(layer))
	put(http.MethodPut, "/manifests/"+tag, manifestType, []byte(manifest))
	return fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(manifest)))
}

const manifestType = "application/vnd.oci.image.manifest.v1+json"

// containerd is the root tree's own, which runs as this process does.
type containerd struct {
	t            *testing.T
	tree, folder string
}

func startContainerd(t *testing.T) *containerd {
	t.Helper()
	o, l, tools := settled(t)
	folder, _, err := Tree(t.Context(), o, l, tools)
	if err != nil {
		t.Fatal(err)
	}
	c := &containerd{t, t.TempDir(), t.TempDir()}
	out, err := exec.CommandContext(t.Context(), "tar", "-C", c.tree, "-xf", filepath.Join(folder, treeTar), "--wildcards", "--no-anchored",
		"usr/bin/containerd", "usr/bin/ctr", "usr/lib64/*", "usr/lib/x86_64-linux-gnu/lib*.so.*", "usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2").CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	changed := filepath.Join(folder, treeChanged)
	if _, err := os.Stat(changed); err == nil {
		if err := runQuiet(exec.CommandContext(t.Context(), "cp", "--archive", "--no-preserve=mode", changed+"/.", c.tree), "copy what changed"); err != nil {
			t.Fatal(err)
		}
	}
	config := filepath.Join(c.folder, "config.toml")
	text := fmt.Sprintf("version = 2\nroot = %q\nstate = %q\ndisabled_plugins = [\"io.containerd.grpc.v1.cri\"]\n[grpc]\naddress = %q\n[ttrpc]\naddress = %q\n",
		filepath.Join(c.folder, "root"), filepath.Join(c.folder, "state"), c.socket(), c.socket()+".ttrpc")
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	var said bytes.Buffer
	daemon := c.command("containerd", "--config", config)
	daemon.Stdout, daemon.Stderr = &said, &said
	if err := daemon.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = daemon.Process.Kill(); _ = daemon.Wait() })
	for range 300 {
		if c.command("ctr", "--address", c.socket(), "version").Run() == nil {
			return c
		}
		time.Sleep(100 * time.Millisecond)
	}
	t.Fatalf("containerd does not answer:\n%s", said.String())
	return nil
}

func (c *containerd) socket() string { return filepath.Join(c.folder, "socket") }

// command runs a program of the tree with the tree's libraries.
func (c *containerd) command(program string, args ...string) *exec.Cmd {
	libraries := filepath.Join(c.tree, "usr/lib/x86_64-linux-gnu")
	args = append([]string{"--library-path", libraries, filepath.Join(c.tree, "usr/bin", program)}, args...)
	return exec.CommandContext(c.t.Context(), filepath.Join(libraries, "ld-linux-x86-64.so.2"), args...)
}

// fetch has containerd fetch an image by the settings in a folder.
func (c *containerd) fetch(hosts, reference string) (string, error) {
	out, err := c.command("ctr", "--address", c.socket(), "content", "fetch", "--hosts-dir", hosts, reference).CombinedOutput()
	return string(out), err
}

// nodeSettings are what a node has of a cluster document's registries, in a folder of this machine, with what its join service decrypts.
func nodeSettings(t *testing.T, ks keys.Keyset, first hullmark.ClusterRoot, registries ...render.Registry) string {
	t.Helper()
	files, err := render.Surroundings{Registries: registries}.Files()
	if err != nil {
		t.Fatal(err)
	}
	folder := t.TempDir()
	for _, f := range files {
		content, err := hullmark.Decrypted(f.Content, func(e hullmark.EncryptedText) (hullmark.Secret, error) { return ks.Decrypt(first, e) })
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Contains(content, []byte("sesame")) || bytes.Contains(content, []byte("Basic ")) && f.Mode != "0600" {
			t.Errorf("%s with mode %s holds a password", f.Path, f.Mode)
		}
		path := filepath.Join(folder, strings.TrimPrefix(f.Path, hullmark.RegistriesFolder))
		content = bytes.ReplaceAll(content, []byte(hullmark.RegistriesFolder), []byte(folder+"/"))
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return folder
}

// TestContainerdAsksMirrors has the image's own containerd fetch by the settings that nodes get: from a mirror under an authority of its
// own, with credentials; and not if authority, credentials or bytes are others.
func TestContainerdAsksMirrors(t *testing.T) {
	c := startContainerd(t)
	ks, err := keys.New(constant{})
	if err != nil {
		t.Fatal(err)
	}
	first := hullmark.ClusterRoot{1}
	good, other := newMirror(t), newMirror(t)
	ca := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: good.Certificate().Raw}))
	foreign := newAuthorityPEM(t)
	entry := func(m *mirror, ca, user string) render.Registry {
		e, err := ks.Encrypt(first, m.URL, hullmark.NewSecret([]byte("Basic "+base64.StdEncoding.EncodeToString([]byte(user)))))
		if err != nil {
			t.Fatal(err)
		}
		return render.Registry{Host: "registry.invalid:5000", Mirrors: []render.Mirror{{URL: m.URL, CA: ca, Credentials: e.String()}}}
	}
	digest := good.push(t, "site/tool", "1", "no layer")
	pinned, tagged := "registry.invalid:5000/site/tool@"+digest, "registry.invalid:5000/site/tool:1"
	for name, x := range map[string]struct {
		registry        render.Registry
		reference, says string
	}{
		"another authority":    {entry(good, foreign, mirrorUser), tagged, "certificate signed by unknown authority"},
		"the system's alone":   {entry(good, "", mirrorUser), tagged, "certificate signed by unknown authority"},
		"another password":     {entry(good, ca, "puller:guess"), tagged, "no basic auth credentials"},
		"no such image":        {entry(good, ca, mirrorUser), "registry.invalid:5000/site/none:1", "not found"},
		"no upstream is asked": {entry(other, ca, mirrorUser), pinned, "not found"},
	} {
		out, err := c.fetch(nodeSettings(t, ks, first, x.registry), x.reference)
		if err == nil || !strings.Contains(out, x.says) {
			t.Errorf("%s: want %q:\n%s", name, x.says, out)
		}
	}
	promised := other.push(t, "site/other", "1", "another layer")
	other.lies.Store(true)
	out, err := c.fetch(nodeSettings(t, ks, first, entry(other, ca, mirrorUser)), "registry.invalid:5000/site/other@"+promised)
	if err == nil || !strings.Contains(out, "unexpected commit") {
		t.Errorf("other bytes than %s: %v\n%s", promised, err, out)
	}
	for _, reference := range []string{tagged, pinned} {
		if out, err := c.fetch(nodeSettings(t, ks, first, entry(good, ca, mirrorUser)), reference); err != nil || !strings.Contains(out, digest) {
			t.Errorf("%s: %v\n%s", reference, err, out)
		}
	}
	all := entry(good, ca, mirrorUser)
	all.Host = "*"
	if out, err := c.fetch(nodeSettings(t, ks, first, all), "whatever.invalid/site/tool@"+digest); err != nil {
		t.Errorf("by the entry for all others: %v\n%s", err, out)
	}
}

// constant is a source of keys that guard nothing.
type constant struct{}

func (constant) Read(b []byte) (int, error) {
	for i := range b {
		b[i] = 7
	}
	return len(b), nil
}

// newAuthorityPEM is the certificate of an authority that certified nothing here.
func newAuthorityPEM(t *testing.T) string {
	t.Helper()
	_, rest, _ := strings.Cut(readText(t, "../../cluster/render/testdata/rich.yaml"), "    ca: |\n")
	var lines []string
	for line := range strings.Lines(rest) {
		line = strings.TrimSpace(line)
		if lines = append(lines, line); line == "-----END CERTIFICATE-----" {
			break
		}
	}
	return strings.Join(lines, "\n") + "\n"
}
