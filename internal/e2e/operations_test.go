//go:build operations

package e2e

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/registry"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/cluster"
	"github.com/hullmark/hullmark/internal/vm"
	"github.com/hullmark/hullmark/kubeadm"
)

// hostAddress is this host's, as a machine with QEMU's own network sees it, and guestAddress the machine's.
const hostAddress, guestAddress = "10.0.2.2", "10.0.2.15"

// authority is one that certifies this host.
type authority struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

func newAuthority(t *testing.T, name string) authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return authority{certificate, key}
}

// block is the certificate in PEM, as a block of YAML that stands so far to the right.
func (a authority) block(indent int) string {
	var b strings.Builder
	b.WriteString("|\n")
	for line := range strings.Lines(string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.certificate.Raw}))) {
		b.WriteString(strings.Repeat(" ", indent) + line)
	}
	return b.String()
}

// listen is a port of this host with a certificate for its address and a name.
func (a authority) listen(t *testing.T, name string) (l net.Listener, port string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(2), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		DNSNames: []string{name}, IPAddresses: []net.IP{net.ParseIP(hostAddress)}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.certificate, key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	l, err = tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	_, port, err = net.SplitHostPort(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return l, port
}

// The credentials of the mirror; the program in its image says helloText.
const (
	mirrorUser, mirrorPassword = "puller", "open-sesame-4711"
	helloText                  = "an image from the mirror runs"
)

// serveMirror serves a registry that wants credentials, with one image, and returns that image's digest.
func serveMirror(t *testing.T, l net.Listener) (digest string) {
	t.Helper()
	store := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	digest = pushHello(t, store)
	server := &http.Server{ReadHeaderTimeout: time.Minute, ErrorLog: log.New(io.Discard, "", 0), Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if user, password, _ := r.BasicAuth(); user != mirrorUser || password != mirrorPassword {
			w.Header().Set("WWW-Authenticate", `Basic realm="mirror"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		store.ServeHTTP(w, r)
	})}
	go func() { _ = server.Serve(l) }()
	t.Cleanup(func() { _ = server.Close() })
	return digest
}

// pushHello puts an image of one static program into a registry.
func pushHello(t *testing.T, store http.Handler) (digest string) {
	t.Helper()
	dir := t.TempDir()
	text := "#include <stdio.h>\nint main(void) { puts(\"" + helloText + "\"); return 0; }\n"
	if err := os.WriteFile(filepath.Join(dir, "hello.c"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	command(t, 0, "gcc", "-static", "-Os", "-s", "-o", filepath.Join(dir, "hello"), filepath.Join(dir, "hello.c"))
	program, err := os.ReadFile(filepath.Join(dir, "hello"))
	if err != nil {
		t.Fatal(err)
	}
	var layer bytes.Buffer
	w := tar.NewWriter(&layer)
	if err := w.WriteHeader(&tar.Header{Name: "hello", Mode: 0o755, Size: int64(len(program))}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(program); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	put := func(method, path, kind string, content []byte) string {
		digest := fmt.Sprintf("sha256:%x", sha256.Sum256(content))
		request, err := http.NewRequestWithContext(t.Context(), method, "http://mirror/v2/site/hello"+strings.Replace(path, "DIGEST", digest, 1), bytes.NewReader(content))
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Content-Type", kind)
		answer := recorder{header: http.Header{}}
		if store.ServeHTTP(&answer, request); answer.status != http.StatusCreated {
			t.Fatalf("%s %s: %d", method, path, answer.status)
		}
		return digest
	}
	config := fmt.Appendf(nil, `{"architecture":"amd64","os":"linux","config":{"Cmd":["/hello"]},"rootfs":{"type":"layers","diff_ids":["sha256:%x"]}}`, sha256.Sum256(layer.Bytes()))
	const kind = "application/vnd.oci.image."
	manifest := fmt.Appendf(nil, `{"schemaVersion":2,"mediaType":%q,"config":{"mediaType":%q,"digest":%q,"size":%d},"layers":[{"mediaType":%q,"digest":%q,"size":%d}]}`,
		kind+"manifest.v1+json", kind+"config.v1+json", put(http.MethodPost, "/blobs/uploads/?digest=DIGEST", "", config), len(config),
		kind+"layer.v1.tar", put(http.MethodPost, "/blobs/uploads/?digest=DIGEST", "", layer.Bytes()), layer.Len())
	return put(http.MethodPut, "/manifests/1", kind+"manifest.v1+json", manifest)
}

// recorder keeps a handler's status.
type recorder struct {
	header http.Header
	status int
}

func (r *recorder) Header() http.Header         { return r.header }
func (r *recorder) Write(b []byte) (int, error) { return len(b), nil }
func (r *recorder) WriteHeader(status int)      { r.status = status }

// collected is what a receiver of syslog over TLS got.
type collected struct {
	mutex    sync.Mutex
	messages []string
	bad      []string
}

func serveCollector(l net.Listener) *collected {
	c := &collected{}
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go c.read(conn)
		}
	}()
	return c
}

// read takes messages in frames (RFC 5425, 4.3).
func (c *collected) read(conn net.Conn) {
	defer conn.Close()
	in := bufio.NewReader(conn)
	for {
		length, err := in.ReadString(' ')
		if err != nil {
			return
		}
		n, err := strconv.Atoi(strings.TrimSpace(length))
		message := make([]byte, max(0, min(n, 1<<20)))
		if err == nil {
			_, err = io.ReadFull(in, message)
		}
		c.mutex.Lock()
		if err != nil {
			c.bad = append(c.bad, fmt.Sprintf("%q: %v", length, err))
			c.mutex.Unlock()
			return
		}
		c.messages = append(c.messages, string(message))
		c.mutex.Unlock()
	}
}

// await waits for a message that matches, among those that came after the first so many, and returns how many there are.
func (c *collected) await(t *testing.T, after int, pattern string) int {
	t.Helper()
	want := regexp.MustCompile(pattern)
	for began := time.Now(); time.Since(began) < 5*time.Minute; time.Sleep(time.Second) {
		c.mutex.Lock()
		messages, bad := c.messages[min(after, len(c.messages)):], c.bad
		c.mutex.Unlock()
		if len(bad) > 0 {
			t.Fatalf("what came is no syslog: %q", bad)
		}
		for _, m := range messages {
			if want.MatchString(m) {
				t.Logf("the collector got: %.300s", m)
				return after + len(messages)
			}
		}
	}
	t.Fatalf("the collector got no %q", pattern)
	return 0
}

// TestOperations takes one machine to Ready whose signed policy names a mirror under an authority of its own, with credentials, a
// collector of the journal, and time servers; looks at what each does; and boots it once more. What signs that policy is a token, which has
// the root's key. Of three operators, whom the policy names, one may look, one recover, and one change the policy: each does what he was
// granted, is refused all else, and the next boot is by the one who recovers. Withdrawn, he is refused, too, in the boot after that.
func TestOperations(t *testing.T) {
	b := newBench(t)
	config, token := b.newTokensCluster(t, "cluster")
	file := []string{"--cluster", b.path("cluster"), "--passphrase-file", b.path("passphrase")}
	ours, foreign := newAuthority(t, "ours"), newAuthority(t, "foreign")
	mirror, mirrorPort := ours.listen(t, "mirror.example")
	logs, logsPort := ours.listen(t, "logs.example")
	digest, got := serveMirror(t, mirror), serveCollector(logs)
	shape := func(c *vm.Config) {
		c.StateDisk = 10 << 30
		c.Forwards = append(c.Forwards, vm.Forward{Guest: 7446})
	}
	m := b.boot(t, "vm", config, shape)
	b.signSurroundings(t, m, "https://"+hostAddress+":"+mirrorPort, hostAddress+":"+logsPort, ours, foreign)
	m.init(t, 0, "cluster", "--workloads")
	b.awaitAPI(t, append([]string{"node", "logs", "--node", m.agent}, file...))
	alice, bob, dora := b.grant(t, "alice", "look", file), b.grant(t, "bob", "recover", file), b.grant(t, "dora", "change", file)
	cli(t, 0, append([]string{"policy", "push", "--server", m.api, "--wait", "5m"}, file...)...)
	t.Run("an image from the mirror runs", func(t *testing.T) { b.runsFromMirror(t, digest) })
	t.Run("a mirror of another authority is refused", func(t *testing.T) { b.pullFails(t, digest) })
	t.Run("metrics", func(t *testing.T) { b.scrapes(t, m) })
	var before int
	t.Run("the journal reaches its collector", func(t *testing.T) {
		before = got.await(t, 0, `^<\d+>1 \S+ control-plane-1 systemd 1 - \[meta sequenceId="\d+"\] .*hullmark-firstboot|Started .*first-boot agent`)
		before = got.await(t, 0, ` kubelet \d+ - \[meta `)
	})
	t.Run("the status says no more than READY", func(t *testing.T) {
		if out := cli(t, 0, append([]string{"node", "status", "--node", m.agent}, file...)...); !strings.Contains(out, "READY") || strings.Contains(out, "journal-") || strings.Contains(out, "service-down") {
			t.Errorf("%s", out)
		}
	})
	for _, o := range []grantee{alice, bob} {
		t.Run("operator "+o.name+" looks", func(t *testing.T) { o.looks(t, m) })
		t.Run("operator "+o.name+" only reads the API", func(t *testing.T) { o.readsAPI(t, m) })
	}
	t.Run("operator dora changes the policy", func(t *testing.T) { dora.changesPolicy(t, m, file, alice, bob) })
	t.Run("no operator needs the token, and the root does", func(t *testing.T) { b.withoutToken(t, m, token, file, alice) })
	first := strings.TrimSpace(b.kubectl(t, "get", "node", "control-plane-1", "-o", "jsonpath={.status.nodeInfo.bootID}"))
	if !m.Stop(5 * time.Minute) {
		t.Error("the machine did not switch itself off when its power button was pressed")
	}
	m = b.boot(t, "vm", config, shape)
	t.Run("operators are refused what is the cluster file's", func(t *testing.T) { b.refuseReserved(t, m, alice, bob) })
	t.Run("operator alice does not recover", func(t *testing.T) { alice.mayNotRecover(t, m) })
	if out := bob.by(t, 0, "recover", "--node", m.agent, "--yes"); !strings.Contains(out, "control-plane-1 is Ready") {
		t.Error("operator bob's recover does not say that the node is Ready")
	}
	if err := os.Remove(b.path("kubeconfig")); err != nil { // It names a port of the machine's boot before.
		t.Fatal(err)
	}
	cli(t, 0, append([]string{"cluster", "kubeconfig", b.path("kubeconfig"), "--endpoint", m.api}, file...)...)
	b.awaitAPI(t, append([]string{"node", "logs", "--node", m.agent}, file...))
	t.Run("operators' names are told", func(t *testing.T) { b.tellsWho(t, m, alice, bob) })
	t.Run("operators' names reach the collector", func(t *testing.T) { got.await(t, before, bob.called("recover", "permitted").String()) })
	t.Run("the next boot's journal reaches it, too", func(t *testing.T) { got.await(t, before, `Started .*first-boot agent|hullmark-firstboot`) })
	t.Run("the journal of both boots is on the disk", func(t *testing.T) { b.bothBoots(t, first) })
	t.Run("no secret is in the journal", func(t *testing.T) {
		got.mutex.Lock()
		defer got.mutex.Unlock()
		for _, message := range got.messages {
			if strings.Contains(message, mirrorPassword) || strings.Contains(message, "cHVsbGVyOm9wZW4tc2VzYW1lLTQ3MTE") {
				t.Errorf("%s", message)
			}
		}
		t.Logf("the collector got %d messages", len(got.messages))
	})
	t.Run("operator bob is withdrawn", func(t *testing.T) { b.withdraw(t, m, file, bob, alice) })
	if !m.Stop(5 * time.Minute) {
		t.Error("the machine did not switch itself off when its power button was pressed")
	}
	m = b.boot(t, "vm", config, shape)
	t.Run("operator bob recovers no more", func(t *testing.T) { bob.refused(t, "operator-withdrawn", "recover", "--node", m.agent, "--yes") })
}

// signSurroundings renders a cluster document with the machine as its one member, and puts what comes of it in force.
func (b bench) signSurroundings(t *testing.T, m machine, mirror, collector string, ours, foreign authority) {
	t.Helper()
	file, err := cluster.Open(b.path("cluster"), b.passphrase(t))
	if err != nil {
		t.Fatal(err)
	}
	encrypt := exec.CommandContext(t.Context(), filepath.Join(source(t), "bin", "hullmark"), "cluster", "encrypt", mirror, "--cluster", b.path("cluster"), "--passphrase-file", b.path("passphrase"))
	encrypt.Stdin = strings.NewReader(mirrorUser + ":" + mirrorPassword + "\n")
	credentials, err := encrypt.Output()
	if err != nil {
		t.Fatal(err)
	}
	ek, err := os.ReadFile(filepath.Join(m.Dir(), vm.EKIDFile))
	if err != nil {
		t.Fatal(err)
	}
	document := fmt.Sprintf(`schema: hullmark.cluster/v1
clusterRoot: %s
kubernetesVersion: %s
profile: slow
controlPlane: {endpoint: "%s:6443", advertiseAddress: %s}
timeServers: [%s]
registries:
- host: registry.invalid
  mirrors:
  - url: %s
    credentials: %s
    ca: %s- host: foreign.invalid
  mirrors:
  - url: %s
    ca: %sjournal:
  collector: %s
  name: logs.example
  ca: %spools:
- name: control
  role: control-plane
  stateDisk: {serial: %s}
  members:
  - {name: control-plane-1, ekid: %s}
`, file.Cluster.ID(), kubeadm.Version, guestAddress, guestAddress, hostAddress, mirror, strings.TrimSpace(string(credentials)), ours.block(6), mirror, foreign.block(6), collector, ours.block(4),
		"hullmark-state", strings.TrimSpace(string(ek)))
	if err := os.WriteFile(b.path("prod.yaml"), []byte(document), 0o600); err != nil {
		t.Fatal(err)
	}
	cli(t, 0, "render", b.path("prod.yaml"), "--out", b.path("rendered"), "--kubeadm", b.kubeadm(t))
	cli(t, 0, "policy", "sign", b.path("rendered", "policy.json"), "--cluster", b.path("cluster"), "--passphrase-file", b.path("passphrase"))
}

// kubeadm is the image's own.
func (b bench) kubeadm(t *testing.T) string {
	t.Helper()
	programs, err := filepath.EvalSymlinks(filepath.Join(b.out, "kubectl"))
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(filepath.Dir(programs), "kubeadm")
}

func (b bench) passphrase(t *testing.T) hullmark.Secret {
	t.Helper()
	text, err := os.ReadFile(b.path("passphrase"))
	if err != nil {
		t.Fatal(err)
	}
	return hullmark.NewSecret(bytes.TrimSpace(text))
}

// pod runs an image on the node.
func (b bench) pod(t *testing.T, name, image string) {
	t.Helper()
	manifest := fmt.Sprintf(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":%q},"spec":{"restartPolicy":"Never","automountServiceAccountToken":false,"tolerations":[{"operator":"Exists"}],`+
		`"containers":[{"name":"main","image":%q}]}}`, name, image)
	if err := os.WriteFile(b.path(name+".json"), []byte(manifest), 0o600); err != nil {
		t.Fatal(err)
	}
	b.kubectl(t, "apply", "-f", b.path(name+".json"))
}

func (b bench) runsFromMirror(t *testing.T, digest string) {
	b.pod(t, "hello", "registry.invalid/site/hello@"+digest)
	b.kubectl(t, "wait", "--for", "jsonpath={.status.phase}=Succeeded", "pod/hello", "--timeout", "5m")
	if out := b.kubectl(t, "logs", "hello"); !strings.Contains(out, helloText) {
		t.Errorf("it says %q", out)
	}
}

func (b bench) pullFails(t *testing.T, digest string) {
	b.pod(t, "foreign", "foreign.invalid/site/hello@"+digest)
	for began := time.Now(); ; time.Sleep(5 * time.Second) {
		why := b.kubectl(t, "get", "events", "--field-selector", "involvedObject.name=foreign,type=Warning", "-o", "jsonpath={.items[*].message}")
		if strings.Contains(why, "certificate signed by unknown authority") {
			break
		}
		if time.Since(began) > 5*time.Minute {
			t.Fatalf("the node does not say why: %q", why)
		}
	}
	b.kubectl(t, "delete", "pod", "foreign", "--grace-period", "0")
}

// scrapes asks for metrics as nobody, as one who may not, and as Prometheus does.
func (b bench) scrapes(t *testing.T, m machine) {
	b.kubectl(t, "create", "serviceaccount", "prometheus")
	b.kubectl(t, "create", "serviceaccount", "other")
	b.kubectl(t, "create", "clusterrole", "read-node-metrics", "--verb", "get", "--resource", "nodes/metrics")
	b.kubectl(t, "create", "clusterrolebinding", "prometheus", "--clusterrole", "read-node-metrics", "--serviceaccount", "default:prometheus")
	token := func(account string) string {
		out, err := exec.CommandContext(t.Context(), filepath.Join(b.out, "kubectl"), "--kubeconfig", b.path("kubeconfig"), "create", "token", account).Output()
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(string(out))
	}
	file, err := cluster.Open(b.path("cluster"), b.passphrase(t))
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(file.Cluster.KubeletServing.Certificate)
	client := &http.Client{Timeout: time.Minute, Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, ServerName: guestAddress}}}
	get := func(token, path string) (int, string, error) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("https://127.0.0.1:%d%s", m.Forwards()[2].Host, path), nil)
		if err != nil {
			return 0, "", err
		}
		if token != "" {
			request.Header.Set("Authorization", "Bearer "+token)
		}
		answer, err := client.Do(request)
		if err != nil {
			return 0, "", err
		}
		defer answer.Body.Close()
		body, err := io.ReadAll(answer.Body)
		return answer.StatusCode, string(body), err
	}
	may := token("prometheus")
	for began := time.Now(); ; time.Sleep(5 * time.Second) { // The kubelet's certificate takes its time.
		status, text, err := get(may, "/metrics")
		if status == http.StatusOK {
			for _, want := range []string{"hullmark_node_ready 1", "hullmark_node_epoch ", "hullmark_node_release_info{", "hullmark_journal_sent_total ", `certificate="kubelet-serving"`, "hullmark_state_disk_available_bytes "} {
				if !strings.Contains(text, want) {
					t.Errorf("no %s in\n%s", want, text)
				}
			}
			break
		}
		if time.Since(began) > 10*time.Minute {
			t.Fatalf("no metrics: %d, %v", status, err)
		}
	}
	if status, text, err := get(may, "/metrics/join-service"); status != http.StatusOK || !strings.Contains(text, "hullmark_policy_version") {
		t.Errorf("the join service's: %d, %v", status, err)
	}
	for who, want := range map[string]int{"": http.StatusUnauthorized, "made-up": http.StatusUnauthorized, token("other"): http.StatusForbidden} {
		if status, text, err := get(who, "/metrics"); status != want || strings.Contains(text, "hullmark_") {
			t.Errorf("%.8s: %d, want %d (%v)", who, status, want, err)
		}
	}
}

// bothBoots reads the journal on the state disk, by the verity root's own program, in a pod.
func (b bench) bothBoots(t *testing.T, first string) {
	manifest := `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"boots"},"spec":{"restartPolicy":"Never","automountServiceAccountToken":false,"tolerations":[{"operator":"Exists"}],
"containers":[{"name":"main","image":"IMAGE","command":["/usr/bin/journalctl","--directory=/var/log/journal","--list-boots","--no-pager"],"securityContext":{"privileged":true},
"volumeMounts":[{"name":"usr","mountPath":"/usr","readOnly":true},{"name":"journal","mountPath":"/var/log/journal","readOnly":true}]}],
"volumes":[{"name":"usr","hostPath":{"path":"/usr"}},{"name":"journal","hostPath":{"path":"/var/log/journal"}}]}}`
	image := b.kubectl(t, "get", "deployment", "coredns", "--namespace", "kube-system", "-o", "jsonpath={.spec.template.spec.containers[0].image}")
	if err := os.WriteFile(b.path("boots.json"), []byte(strings.Replace(manifest, "IMAGE", strings.TrimSpace(image), 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	b.kubectl(t, "apply", "-f", b.path("boots.json"))
	b.kubectl(t, "wait", "--for", "jsonpath={.status.phase}=Succeeded", "pod/boots", "--timeout", "5m")
	boots := b.kubectl(t, "logs", "boots")
	if !strings.Contains(boots, strings.ReplaceAll(first, "-", "")) || strings.Count(boots, "\n") < 2 {
		t.Errorf("the boot before, %s, is not among:\n%s", first, boots)
	}
}
