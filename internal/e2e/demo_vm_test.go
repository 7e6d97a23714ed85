//go:build vm

package e2e

import (
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

var restores = flag.Bool("restore", false, "after all that let TestVMDemo lose the state disk, and begin the cluster anew with a backup")

// uidLine is what the demo's kubectl prints, as opposed to the command that asks for it.
var uidLine = regexp.MustCompile(`(?m)^node uid ([0-9a-f-]{36})$`)

// The README's first command ends with a Ready node; its state disk then shows none of the secrets that it holds;
// after a power-off the operator recovers it: the same disk opens, and the same node comes back;
// and when the disk is lost, a backup of etcd begins the same cluster anew (make test-restore). Nothing that is seen of all
// that shows a key.
func TestVMDemo(t *testing.T) {
	out := command(t, 0, "make", "demo")
	table, _, found := strings.Cut(out, "accepted as")
	if !found || strings.Count(table, "  equal") < 15 || strings.Contains(table, "differ") {
		t.Error("the table does not show every predicted register equal to the measured one")
	}
	if !strings.Contains(out, " Ready ") {
		t.Error("kubectl does not show a Ready node")
	}
	b := bench{out: filepath.Join(source(t), "out"), dir: filepath.Join(source(t), "out", "demo")}
	t.Cleanup(func() { b.keepLogs(t) })
	named := uidLine.FindStringSubmatch(out)
	if named == nil {
		t.Fatal("the demo does not name the node's uid")
	}
	needles, h := b.secrets(t), b.beginHunt(t)
	overhear(t, "make demo", out)
	var backup kept
	t.Run("the same node comes back", func(t *testing.T) { backup = b.comesBack(t, named[1], h) })
	t.Run("the state disk shows no secret", func(t *testing.T) { b.searchStateDisk(t, "vm", needles) })
	if *restores {
		t.Run("a lost cluster begins anew", func(t *testing.T) { b.beginsAnew(t, backup) })
		t.Run("its state disk shows no secret", func(t *testing.T) { b.searchStateDisk(t, "vm", b.secrets(t)) })
	}
	t.Run("no key is seen outside", h.end)
}

// noBootstrapToken checks that the running cluster has none: a token is made for one ticket, and a first node needs none.
func (b bench) noBootstrapToken(t *testing.T) {
	t.Helper()
	found := b.kubectl(t, "get", "secrets", "-n", "kube-system", "--field-selector", "type=bootstrap.kubernetes.io/token", "-o", "name")
	if strings.TrimSpace(found) != "" {
		t.Errorf("the cluster has bootstrap tokens that no ticket brought: %s", found)
	}
}

// demandBuilders has the policy demand two builders. The release that the machine booted is refused while one alone has signed it;
// afterwards both have.
func (b bench) demandBuilders(t *testing.T, m machine, file []string) {
	t.Helper()
	policy := func(args ...string) string { return cli(t, 0, append(append([]string{"policy"}, args...), file...)...) }
	named := []string{"builders", "--threshold", "2"}
	for _, name := range []string{"alice", "bob"} {
		command(t, 0, "openssl", "genpkey", "-algorithm", "ED25519", "-out", b.path(name+".key"))
		command(t, 0, "openssl", "pkey", "-in", b.path(name+".key"), "-pubout", "-out", b.path(name+".pub"))
		cli(t, 0, "sign", b.path("measurements.json"), "--key", b.path(name+".key"), "--out", b.path(name+".dsse"))
		named = append(named, name+"="+b.path(name+".pub"))
	}
	policy(named...)
	policy("add", "document", b.path("measurements.json"), "--attestation", b.path("alice.dsse"))
	out := cli(t, 4, append([]string{"recover", "--node", m.agent, "--yes"}, file...)...)
	if !strings.Contains(out, "builders-too-few") || !strings.Contains(out, "1 of 2 builders signed it, 2 have to: alice; not bob") {
		t.Error("a release that one builder alone signed was not refused for that")
	}
	if out := policy("add", "document", b.path("measurements.json"), "--attestation", b.path("bob.dsse")); strings.Contains(out, "warning") {
		t.Error("two builders signed, and there is a warning")
	}
}

// comesBack boots the demo's machine again, and takes a backup of its cluster.
func (b bench) comesBack(t *testing.T, uid string, h *hunt) kept {
	t.Helper()
	config, err := os.ReadFile(b.path("node.json"))
	if err != nil {
		t.Fatal(err)
	}
	m := b.boot(t, "vm", config, etcdGuest)
	file := []string{"--cluster", b.path("cluster"), "--passphrase-file", b.path("passphrase")}
	b.demandBuilders(t, m, file)
	cli(t, 0, append([]string{"recover", "--node", m.agent, "--yes"}, file...)...)
	if err := os.Remove(b.path("kubeconfig")); err != nil { // It names a port of the machine's boot before.
		t.Fatal(err)
	}
	cli(t, 0, append([]string{"cluster", "kubeconfig", b.path("kubeconfig"), "--endpoint", m.api}, file...)...)
	b.awaitAPI(t, append([]string{"node", "logs", "--node", m.agent}, file...))
	if after := b.kubectl(t, "get", "node", "control-plane-1", "-o", "jsonpath={.metadata.uid}"); after != uid || uid == "" {
		t.Errorf("the node's uid was %q, now it is %q", uid, after)
	}
	for _, verb := range []string{"status", "logs"} {
		out := cli(t, 0, append([]string{"node", verb, "--node", m.agent}, file...)...)
		if !strings.Contains(out, "READY") {
			t.Errorf("node %s does not say READY", verb)
		}
		if verb == "logs" {
			checkMemory(t, out)
		}
	}
	b.noBootstrapToken(t)
	b.runsNoPrograms(t)
	if out := cli(t, 0, append([]string{"node", "list", "--server", m.api, "--wait", "5m"}, file...)...); !strings.Contains(out, "control-plane-1") {
		t.Error("node list does not name the node")
	}
	h.objects(t)
	h.processes(t)
	backup := b.backUp(t, m, file)
	// The API server and etcd take their time to end where the processor is emulated.
	if !m.Stop(5 * time.Minute) {
		t.Error("the machine did not switch itself off when its power button was pressed")
	}
	return backup
}
