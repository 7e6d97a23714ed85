package addons

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	ocireg "github.com/google/go-containerregistry/pkg/registry"
	"k8s.io/client-go/rest"

	"github.com/hullmark/hullmark/cluster/render"
)

// packed makes an archive of a chart in testdata, and its digest.
func packed(t *testing.T, chart string) ([]byte, string) {
	t.Helper()
	var out bytes.Buffer
	zip := gzip.NewWriter(&out)
	files := tar.NewWriter(zip)
	err := fs.WalkDir(os.DirFS("testdata"), chart, func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		text, err := os.ReadFile(filepath.Join("testdata", name))
		if err != nil {
			return err
		}
		err = files.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(text))})
		_, err2 := files.Write(text)
		return errors.Join(err, err2)
	})
	if err := errors.Join(err, files.Close(), zip.Close()); err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(out.Bytes())
	return out.Bytes(), hex.EncodeToString(sum[:])
}

// registryWith serves a blob in a repository, and returns the repository's address.
func registryWith(t *testing.T, blob []byte, digest string) string {
	t.Helper()
	server := httptest.NewServer(ocireg.New(ocireg.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(server.Close)
	answer, err := http.Post(server.URL+"/v2/charts/demo/blobs/uploads/?digest=sha256:"+digest, "application/octet-stream", bytes.NewReader(blob))
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusCreated {
		t.Fatal(answer.Status)
	}
	return render.OCIScheme + strings.TrimPrefix(server.URL, "http://") + "/charts/demo:1.0.0"
}

// A chart is the same from a folder, an archive and a registry; another one than the document's digest is refused.
func TestChartSources(t *testing.T) {
	archive, digest := packed(t, "demo-1")
	o := Options{Folder: t.TempDir()}
	if err := os.WriteFile(filepath.Join(o.Folder, "demo.tgz"), archive, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(filepath.Join(o.Folder, "demo"), os.DirFS("testdata/demo-1")); err != nil {
		t.Fatal(err)
	}
	address := registryWith(t, archive, digest)
	for _, a := range []render.Addon{{Chart: "demo"}, {Chart: "demo.tgz", SHA256: digest}, {Chart: address, SHA256: digest}} {
		ch, err := o.chart(t.Context(), a)
		if err != nil || chartName(ch) != "demo-1.0.0" || len(ch.CRDObjects()) != 1 {
			t.Errorf("%s: %v, %v", a.Chart, ch, err)
		}
	}
	other := strings.Repeat("0", 64)
	for _, test := range []struct {
		a    render.Addon
		says string
	}{
		{render.Addon{Chart: "demo.tgz", SHA256: other}, "the document names the archive with sha256 " + other},
		{render.Addon{Chart: address, SHA256: other}, "the registry has no blob " + other},
		{render.Addon{Chart: "none"}, "no such file"},
		{render.Addon{Chart: "oci://127.0.0.1:1/x:1", SHA256: digest}, "127.0.0.1:1"},
	} {
		if _, err := o.chart(t.Context(), test.a); err == nil || !strings.Contains(err.Error(), test.says) {
			t.Errorf("%s: %v, want %q", test.a.Chart, err, test.says)
		}
	}
}

// A registry gives other bytes than it was asked for.
func TestChartOfALyingRegistry(t *testing.T) {
	archive, digest := packed(t, "demo-1")
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/octet-stream")
		w.Header().Set("Docker-Content-Digest", "sha256:"+digest)
		w.Header().Set("Content-Length", fmt.Sprint(len(archive)))
		if r.Method == http.MethodGet {
			_, _ = w.Write(append(archive[:len(archive)-1:len(archive)-1], archive[len(archive)-1]^1))
		}
	}))
	defer server.Close()
	o := Options{}
	_, err := o.chart(t.Context(), render.Addon{Chart: render.OCIScheme + strings.TrimPrefix(server.URL, "http://") + "/demo:1", SHA256: digest})
	if err == nil || !strings.Contains(err.Error(), "wanted is the blob with sha256 "+digest) {
		t.Errorf("got %v", err)
	}
}

func TestChartsThatCannotBeInstalled(t *testing.T) {
	o := Options{Folder: t.TempDir()}
	for name, test := range map[string]struct{ chart, says string }{
		"library":  {"apiVersion: v2\nname: x\nversion: 1.0.0\ntype: library\n", "its type is library"},
		"requires": {"apiVersion: v2\nname: x\nversion: 1.0.0\ndependencies: [{name: other, version: 1.0.0, repository: 'https://charts.example'}]\n", "missing in charts/ directory: other; next: helm dependency build"},
	} {
		if err := errors.Join(os.Mkdir(filepath.Join(o.Folder, name), 0o700), os.WriteFile(filepath.Join(o.Folder, name, "Chart.yaml"), []byte(test.chart), 0o600)); err != nil {
			t.Fatal(err)
		}
		if _, err := o.chart(t.Context(), render.Addon{Chart: name}); err == nil || !strings.Contains(err.Error(), test.says) {
			t.Errorf("%s: %v, want %q", name, err, test.says)
		}
	}
}

func TestValues(t *testing.T) {
	o := Options{Folder: t.TempDir()}
	for name, text := range map[string]string{"a.yaml": "a: {x: 1, z: 1}\nb: 1\n", "b.yaml": "a: {z: 2}\nc: secret\n", "bad.yaml": "a: [\n"} {
		if err := os.WriteFile(filepath.Join(o.Folder, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	inline := map[string]any{"b": int64(3)}
	got, err := o.values(render.Addon{ValuesFiles: []string{"a.yaml", "b.yaml"}, Values: inline})
	want := map[string]any{"a": map[string]any{"x": 1.0, "z": 2.0}, "b": 3.0, "c": "secret"}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, %v", got, err)
	}
	if len(inline) != 1 {
		t.Error("the document's values were changed")
	}
	for _, name := range []string{"none.yaml", "bad.yaml"} {
		if _, err := o.values(render.Addon{ValuesFiles: []string{name}}); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestManifestFiles(t *testing.T) {
	o := Options{Folder: t.TempDir()}
	if err := os.Mkdir(filepath.Join(o.Folder, "all"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"b.yaml", "a.json", "readme.md"} {
		text := `{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "` + name + `"}}`
		if err := os.WriteFile(filepath.Join(o.Folder, "all", name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	all, err := o.manifests(render.Addon{Manifests: []string{"all"}})
	if err != nil || len(all) != 2 || all[0].GetName() != "a.json" {
		t.Errorf("%v, %v", all, err)
	}
	if _, err := o.manifests(render.Addon{Manifests: []string{"none"}}); err == nil {
		t.Error("a missing file is none")
	}
}

// Once the gate is shut nothing is on its way that changes something, and nothing more passes; questions do.
func TestGate(t *testing.T) {
	var mutex sync.Mutex
	begun, finish := make(chan struct{}), make(chan struct{})
	ended := false
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			close(begun)
			<-finish
			mutex.Lock()
			ended = true
			mutex.Unlock()
		}
	}))
	defer server.Close()
	g := &gate{}
	client, err := rest.HTTPClientFor(g.wrap(&rest.Config{Host: server.URL}))
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		answer, err := client.Post(server.URL, "", nil)
		if err != nil {
			t.Error(err)
			return
		}
		_ = answer.Body.Close()
	}()
	<-begun
	time.AfterFunc(50*time.Millisecond, func() { close(finish) })
	g.shut()
	mutex.Lock()
	if !ended {
		t.Error("it shut while something was on its way")
	}
	mutex.Unlock()
	if _, err := client.Post(server.URL, "", nil); !errors.Is(err, errShut) {
		t.Errorf("got %v", err)
	}
	answer, err := client.Get(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	_ = answer.Body.Close()
}
