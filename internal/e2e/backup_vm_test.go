//go:build vm

package e2e

import (
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hullmark/hullmark/internal/vm"
)

// etcdGuest lets a machine's member of etcd be reached from this host; its port is the third forward.
func etcdGuest(c *vm.Config) {
	c.StateDisk = 10 << 30
	c.Forwards = append(c.Forwards, vm.Forward{Guest: 2379})
}

// kept is what a backup holds of the cluster, by the question for it.
type kept map[string]string

// Questions whose answers a cluster that begins anew gives as before.
var keptQuestions = []string{
	"get namespace kube-system -o jsonpath={.metadata.uid}",
	"get serviceaccount default -o jsonpath={.metadata.uid}",
	"get configmap before -o jsonpath={.metadata.uid}{.data.said}",
	"get deployment coredns -n kube-system -o jsonpath={.metadata.uid}",
}

// backUp takes a backup of the running cluster, between two changes of it.
func (b bench) backUp(t *testing.T, m machine, file []string) kept {
	t.Helper()
	b.kubectl(t, "create", "configmap", "before", "--from-literal=said=something")
	cli(t, 0, append([]string{"etcd", "backup", b.path("monday.backup"), "--member", "127.0.0.1:" + strconv.Itoa(int(m.Forwards()[2].Host))}, file...)...)
	b.kubectl(t, "create", "configmap", "after")
	answers := kept{}
	for _, question := range keptQuestions {
		answers[question] = b.kubectl(t, strings.Fields(question)...)
	}
	return answers
}

// beginsAnew loses the only control plane's disk, and begins the cluster anew on an empty one with the backup.
func (b bench) beginsAnew(t *testing.T, before kept) {
	if len(before) == 0 {
		t.Fatal("there is no backup")
	}
	if err := os.Remove(b.path("vm", "state.raw")); err != nil {
		t.Fatal(err)
	}
	config, err := os.ReadFile(b.path("node.json"))
	if err != nil {
		t.Fatal(err)
	}
	m := b.boot(t, "vm", config, etcdGuest)
	ek, err := os.ReadFile(b.path("vm", vm.EKIDFile))
	if err != nil {
		t.Fatal(err)
	}
	file := []string{"--cluster", b.path("cluster"), "--passphrase-file", b.path("passphrase")}
	out := cli(t, 0, append([]string{
		"init", "--new-disk", "--etcd-backup", b.path("monday.backup"), "--node", m.agent, "--measurements", b.path("measurements.json"),
		"--ekid", strings.TrimSpace(string(ek)), "--ek-ca", filepath.Join(m.Dir(), vm.CAFile), "--endpoint", m.api, "--kubeconfig", b.path("kubeconfig"), "--profile", "slow",
	}, file...)...)
	for _, want := range []string{"nodes that are given up: control-plane-1", "making etcd's data of it", "control-plane-1 is Ready"} {
		if !strings.Contains(out, want) {
			t.Errorf("init does not say %q", want)
		}
	}
	logs := append([]string{"node", "logs", "--node", m.agent}, file...)
	b.awaitAPI(t, logs)
	for question, answer := range before {
		if again := b.kubectl(t, strings.Fields(question)...); again != answer || answer == "" {
			t.Errorf("%s: %q, and %q before", question, again, answer)
		}
	}
	if late := b.kubectl(t, "get", "configmap", "after", "--ignore-not-found"); late != "" {
		t.Errorf("what was made after the backup is there: %s", late)
	}
	b.noBootstrapToken(t)
	checkMemory(t, cli(t, 0, logs...))
	list := cli(t, 0, append([]string{"node", "list", "--server", m.api, "--wait", "5m"}, file...)...)
	if rows := regexp.MustCompile(`(?m)^control-plane-1 +control-plane +(\S+)`).FindAllStringSubmatch(list, -1); len(rows) != 1 || rows[0][1] != "ready" {
		t.Errorf("node list has not one row of the node, as ready: %q", rows)
	}
	if !m.Stop(5 * time.Minute) {
		t.Error("the machine did not switch itself off when its power button was pressed")
	}
}
