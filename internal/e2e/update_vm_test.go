//go:build vm && update

package e2e

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/internal/vm"
	"github.com/hullmark/hullmark/measurements"
)

// The demo's machine comes back by its operator, is given another release while it runs, tries that, and keeps it.
func TestUpdateInAMachine(t *testing.T) {
	command(t, 0, "make", "demo")
	b := bench{out: filepath.Join(source(t), "out"), dir: filepath.Join(source(t), "out", "demo")}
	t.Cleanup(func() { b.keepLogs(t) })
	config, err := os.ReadFile(b.path("node.json"))
	if err != nil {
		t.Fatal(err)
	}
	m := b.boot(t, "vm", config, func(c *vm.Config) { c.ExitOnReboot = false })
	file := []string{"--cluster", b.path("cluster"), "--passphrase-file", b.path("passphrase")}
	cli(t, 0, append([]string{"recover", "--node", m.agent, "--yes"}, file...)...)
	if err := os.Remove(b.path("kubeconfig")); err != nil { // It names a port of the machine's boot before.
		t.Fatal(err)
	}
	cli(t, 0, append([]string{"cluster", "kubeconfig", b.path("kubeconfig"), "--endpoint", m.api}, file...)...)
	b.awaitAPI(t, append([]string{"node", "logs", "--node", m.agent}, file...))
	b.updates(t, m, file)
}

// updates gives the machine another release while it runs, as its operator does: accepted, staged, tried, committed by the node itself,
// which then is the same node. What it boots is held to what was predicted before: recover gives it its disk for that alone.
func (b bench) updates(t *testing.T, m machine, file []string) {
	t.Helper()
	next, published := b.otherRelease(t, "next", 1), b.path("published")
	document := b.path("next.json")
	cli(t, 0, "measure", next, "--machine", b.path("machine.json"), "--out", document)
	refused := append([]string{"update", "stage", document, "--node", m.agent, "--from", b.publish(t, next, document, published)}, file...)
	cli(t, 4, refused...) // No policy accepts it yet.
	cli(t, 0, append([]string{"policy", "add", "document", document}, file...)...)
	cli(t, 0, append([]string{"policy", "push", "--server", m.api, "--wait", "5m"}, file...)...)
	cli(t, 0, refused...)
	before := b.updateStatus(t, m, file)
	if before.Phase != hullmark.UpdateStaged || before.Running != "a" || before.Default != "a" || before.B != b.rootHash(t, document) {
		t.Fatalf("after staging: %+v", before)
	}
	cli(t, 0, append([]string{"update", "try", document, "--node", m.agent}, file...)...)
	cli(t, 0, append([]string{"recover", "--node", m.agent, "--yes", "--wait", "10m"}, file...)...)
	b.awaitAPI(t, append([]string{"node", "logs", "--node", m.agent}, file...))
	after := b.updateStatus(t, m, file)
	if after.Phase != hullmark.UpdateIdle || after.Running != "b" || after.Default != "b" || after.B != before.B || after.A != before.A || after.Failed != nil {
		t.Errorf("after the trial: %+v", after)
	}
}

// publish lays a release out in a folder that a web server of this machine shows, and returns where a guest finds it.
func (b bench) publish(t *testing.T, image, document, folder string) string {
	t.Helper()
	digests := filepath.Join(folder, "sha256")
	if err := os.MkdirAll(digests, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(image, filepath.Join(digests, b.documentOf(t, document).Image.Disk.String()+".raw")); err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(http.FileServer(http.Dir(folder)))
	t.Cleanup(server.Close)
	address, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	return "http://10.0.2.2:" + address.Port()
}

func (b bench) documentOf(t *testing.T, file string) measurements.Document {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	document, err := measurements.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return document
}

func (b bench) rootHash(t *testing.T, document string) hullmark.RootHash {
	t.Helper()
	return hullmark.RootHash(b.documentOf(t, document).Image.RootHash)
}

// updateStatus asks the node what its slots hold. A node whose API server is Ready may not have said so itself yet.
func (b bench) updateStatus(t *testing.T, m machine, file []string) (s hullmark.UpdateStatus) {
	t.Helper()
	for range 60 {
		text := quiet(t, append([]string{"update", "status", "--node", m.agent, "-o", "json"}, file...)...)
		if err := json.Unmarshal([]byte(text), &s); err != nil {
			t.Fatalf("%v: %s", err, text)
		}
		if s.Phase != hullmark.UpdateTrial && s.Phase != hullmark.UpdateStaging {
			return s
		}
		time.Sleep(5 * time.Second)
	}
	return s
}
