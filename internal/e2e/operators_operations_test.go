//go:build operations

package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/cluster"
	"github.com/hullmark/hullmark/cluster/operate"
	"github.com/hullmark/hullmark/internal/tooltest"
	"github.com/hullmark/hullmark/internal/vm"
)

// newTokensCluster makes a cluster file under a root whose key is in a token, and returns the node configuration that names it. From then
// on the token signs for the test's commands, unless it is pulled out.
func (b bench) newTokensCluster(t *testing.T, name string) ([]byte, tooltest.Token) {
	t.Helper()
	token := tooltest.NewToken(t, b.dir, "EC:prime256v1")
	token.Public(t, b.path("root.pub"))
	signer := "openssl dgst -sha256 -binary | " + token.Signer("ECDSA")
	config := b.newCluster(t, name, "--root-public-key", b.path("root.pub"), "--root-signer", signer)
	t.Setenv("HULLMARK_ROOT_SIGNER", signer)
	file, err := cluster.Open(b.path(name), b.passphrase(t))
	if err != nil {
		t.Fatal(err)
	}
	if !file.Cluster.RootElsewhere() || file.Cluster.Root.Key != nil {
		t.Error("the cluster file has the root's key")
	}
	return config, token
}

// grantee is an operator whom the policy names, by a file of his own.
type grantee struct {
	bench bench
	name  string
}

// grant names an operator in the policy of the cluster file, which is named by flags, and makes his file.
func (b bench) grant(t *testing.T, name, may string, flags []string) grantee {
	t.Helper()
	o := grantee{b, name}
	if err := os.WriteFile(b.path(name+".passphrase"), []byte("a passphrase of "+name+"'s own\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	named := []string{"operator", "new", name, "--may", may, "--out", b.path(name + ".operator"), "--operator-passphrase-file", b.path(name + ".passphrase")}
	if out := cli(t, 0, slices.Concat(named, flags)...); !strings.Contains(out, "operator "+name+" may ") {
		t.Errorf("operator new does not say what %s may", name)
	}
	return o
}

// flags name his file in the place of the cluster file.
func (o grantee) flags() []string {
	return []string{"--cluster", o.bench.path(o.name + ".operator"), "--passphrase-file", o.bench.path(o.name + ".passphrase")}
}

// by runs hullmark with his file.
func (o grantee) by(t *testing.T, code int, args ...string) string {
	t.Helper()
	return cli(t, code, slices.Concat(args, o.flags())...)
}

// refused runs hullmark with his file, which is refused, and says why.
func (o grantee) refused(t *testing.T, says string, args ...string) {
	t.Helper()
	if out := o.by(t, 4, args...); !strings.Contains(out, says) || !strings.Contains(out, o.name) {
		t.Errorf("the refusal does not say %q of %s", says, o.name)
	}
}

// open reads his file.
func (o grantee) open(t *testing.T) *cluster.OperatorFile {
	t.Helper()
	passphrase, err := os.ReadFile(o.bench.path(o.name + ".passphrase"))
	if err != nil {
		t.Fatal(err)
	}
	_, file, err := cluster.OpenAny(o.bench.path(o.name+".operator"), hullmark.NewSecret(bytes.TrimSpace(passphrase)))
	if err != nil || file == nil {
		t.Fatalf("the file of operator %s: %v", o.name, err)
	}
	return file
}

// policyTime is how long a policy may take from a push to the node's disk and to the API server's memory, where both are emulated.
const policyTime = 5 * time.Minute

// until runs hullmark again and again until it ends with the code and says something.
func until(t *testing.T, code int, says string, args ...string) {
	t.Helper()
	for began := time.Now(); ; time.Sleep(3 * time.Second) {
		cmd := exec.CommandContext(t.Context(), filepath.Join(source(t), "bin", "hullmark"), args...)
		cmd.Dir = source(t)
		out, err := cmd.CombinedOutput()
		var exit *exec.ExitError
		if err != nil && !errors.As(err, &exit) {
			t.Fatal(err)
		}
		if cmd.ProcessState.ExitCode() == code && strings.Contains(string(out), says) {
			t.Logf("$ hullmark %s: after %v it ends with exit code %d:\n%s", strings.Join(args, " "), time.Since(began).Round(time.Second), code, out)
			return
		}
		if time.Since(began) > policyTime {
			t.Fatalf("hullmark %s: after %v it does not end with exit code %d and %q, but with %d:\n%s", strings.Join(args, " "), policyTime, code, says, cmd.ProcessState.ExitCode(), out)
		}
	}
}

// looks does all that whoever may look does, once the node and the API have taken up the policy that names him.
func (o grantee) looks(t *testing.T, m machine) {
	t.Helper()
	until(t, 0, `"READY"`, slices.Concat([]string{"node", "status", "--node", m.agent}, o.flags())...)
	until(t, 0, "control-plane-1", slices.Concat([]string{"node", "list", "--server", m.api}, o.flags())...)
	until(t, 0, "policy version", slices.Concat([]string{"report", "--server", m.api}, o.flags())...) // Records are made while the node is Ready.
	o.by(t, 0, "update", "status", "--node", m.agent)
	if out := o.by(t, 0, "operator", "list"); !strings.Contains(out, "this is the file of operator "+o.name) {
		t.Error("operator list does not say whose file it is")
	}
	if out := o.by(t, 0, "node", "logs", "--node", m.agent); !o.called("status", "permitted").MatchString(out) {
		t.Errorf("the node's journal does not say that %s looked at its status", o.name)
	}
}

// called is the line of a node's journal that says that he called it.
func (o grantee) called(verb, outcome string) *regexp.Regexp {
	return regexp.MustCompile(`call: ` + verb + ` by operator ` + o.name + ` \(key [0-9a-f]{16}\) from \S+: ` + outcome)
}

// kubectl runs kubectl by what his file shows the API.
func (o grantee) kubectl(t *testing.T, m machine, code int, args ...string) string {
	t.Helper()
	grant := o.open(t).Grant
	certificate, key, err := grant.Client()
	if err != nil {
		t.Fatal(err)
	}
	for end, content := range map[string][]byte{".crt": certificate, ".key": key, ".ca": grant.Known.KubernetesCA()} {
		if err := os.WriteFile(o.bench.path(o.name+end), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	shows := []string{
		"--kubeconfig", os.DevNull, "--server", "https://" + m.api, "--tls-server-name", "kubernetes",
		"--certificate-authority", o.bench.path(o.name + ".ca"), "--client-certificate", o.bench.path(o.name + ".crt"), "--client-key", o.bench.path(o.name + ".key"),
	}
	return command(t, code, filepath.Join(o.bench.out, "kubectl"), append(shows, args...)...)
}

// readsAPI has him read what he may at the API, where he is known by his name and key, and nothing else; and write nothing.
func (o grantee) readsAPI(t *testing.T, m machine) {
	t.Helper()
	who := o.open(t).Grant.Who
	user := hullmark.Operator{Name: who.Name, Key: who.Key}.User()
	if out := o.kubectl(t, m, 0, "auth", "whoami", "-o", "jsonpath={.status.userInfo.username}"); !strings.Contains(out, user) {
		t.Errorf("the API does not know %s as %s", o.name, user)
	}
	if out := o.kubectl(t, m, 0, "get", "configmaps", "--namespace", "hullmark", "-o", "name"); !strings.Contains(out, "configmap/") {
		t.Errorf("%s reads no record", o.name)
	}
	for _, verb := range []string{
		"get secrets --namespace kube-system", "get nodes", "create configmap mine --namespace hullmark", "create configmap mine --namespace default",
		"create clusterrolebinding mine --clusterrole cluster-admin --user " + user,
	} {
		if out := o.kubectl(t, m, 1, strings.Fields(verb)...); !strings.Contains(strings.ToLower(out), "forbidden") {
			t.Errorf("kubectl %s is not forbidden to %s", verb, o.name)
		}
	}
}

// reserved are verbs that no permission opens: they change the cluster, its keys or its policy, or take from it what is the cluster file's.
// What they would make are the files of that name.
func (b bench) reserved(t *testing.T, m machine) (verbs [][]string, made []string) {
	t.Helper()
	ek, err := os.ReadFile(filepath.Join(m.Dir(), vm.EKIDFile))
	if err != nil {
		t.Fatal(err)
	}
	made = []string{"carol.operator", "carol.kubeconfig", "carol.backup"}
	return [][]string{
		{"policy", "sign", b.path("rendered", "policy.json")},
		{"policy", "builders", "--none"},
		{"policy", "revoke-operators"},
		{"operator", "new", "carol", "--may", "look", "--out", b.path(made[0]), "--operator-passphrase-file", b.path("passphrase")},
		{"operator", "withdraw", "alice"},
		{"cluster", "rotate", "keyset", "--server", m.api},
		{"cluster", "rotate", "root", "--server", m.api},
		{"cluster", "kubeconfig", b.path(made[1]), "--endpoint", m.api},
		{"etcd", "backup", b.path(made[2])},
		{"init", "--node", m.agent, "--measurements", b.measurements(), "--ekid", strings.TrimSpace(string(ek))},
		{"node", "remove", "control-plane-1", "--server", m.api},
		{"node", "reset", "control-plane-1", "--server", m.api},
		{"update", "restart", "--node", m.agent},
		{"upgrade", "status", "--server", m.api},
	}, made
}

// unchanged returns what says later which of these files are not as they were, or are there and were not.
func (b bench) unchanged(t *testing.T, names ...string) func() {
	t.Helper()
	read := func(name string) string {
		content, err := os.ReadFile(b.path(name))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
		return fmt.Sprint(err == nil) + string(content)
	}
	before := map[string]string{}
	for _, name := range names {
		before[name] = read(name)
	}
	return func() {
		t.Helper()
		for _, name := range names {
			if read(name) != before[name] {
				t.Errorf("%s was changed", name)
			}
		}
	}
}

// refuseReserved tries all verbs that no permission opens with each of some operators' files. None reaches the node, or the API.
func (b bench) refuseReserved(t *testing.T, m machine, all ...grantee) {
	verbs, made := b.reserved(t, m)
	files := append([]string{"cluster"}, made...)
	for _, o := range all {
		files = append(files, o.name+".operator")
	}
	defer b.unchanged(t, files...)()
	for _, verb := range verbs {
		for _, o := range all {
			t.Run(o.name+" "+strings.Join(verb[:2], " "), func(t *testing.T) { o.refused(t, "needs the cluster file itself", verb...) })
		}
	}
}

// changesPolicy has her admit a worker, which the cluster and then the cluster file take up, and be refused what is the root's. Others, who
// may not change the policy, are refused that.
func (o grantee) changesPolicy(t *testing.T, m machine, flags []string, others ...grantee) {
	push := []string{"policy", "push", "--server", m.api, "--wait", "5m"}
	for _, other := range others {
		for _, verb := range [][]string{{"policy", "minimum-svn", "7"}, {"policy", "add", "document", o.bench.measurements()}, {"policy", "remove", "member", "control-plane-1"}, push} {
			other.refused(t, `needs the permission "change"`, verb...)
		}
	}
	for _, verb := range [][]string{
		{"policy", "remove", "member", "control-plane-1"}, {"policy", "add", "member", "--ekid", strings.Repeat("33", 32), "--role", "control-plane", "--name", "control-plane-9"},
	} {
		if out := o.by(t, 4, verb...); !strings.Contains(out, "whoever holds the root key") {
			t.Errorf("hullmark %s: the refusal does not say whose it is", strings.Join(verb, " "))
		}
	}
	o.by(t, 0, "policy", "add", "member", "--ekid", strings.Repeat("22", 32), "--role", "worker", "--name", "worker-9")
	o.by(t, 0, push...)
	want := "signed by operator " + o.name
	for began := time.Now(); ; time.Sleep(5 * time.Second) {
		told := o.bench.kubectl(t, "get", "events", "--namespace", "hullmark", "--field-selector", "reason=PolicyChanged", "-o", `jsonpath={range .items[*]}{.message}{"\n"}{end}`)
		if strings.Contains(told, want) {
			break
		}
		if time.Since(began) > policyTime {
			t.Fatalf("the cluster has no event that says %q: %s", want, told)
		}
	}
	if out := cli(t, 0, slices.Concat(push, flags)...); !strings.Contains(out, "takes up what operator "+o.name+" changed") {
		t.Error("policy push does not say that it takes her change up")
	}
	if out := cli(t, 0, slices.Concat([]string{"policy", "show"}, flags)...); !strings.Contains(out, "worker-9") {
		t.Error("the cluster file does not know her change")
	}
}

// withoutToken pulls the root's token out: whatever the root has to sign says so, and changes nothing; all else goes on.
func (b bench) withoutToken(t *testing.T, m machine, token tooltest.Token, flags []string, looker grantee) {
	defer b.unchanged(t, "cluster", "carol.operator")()
	defer token.PullOut(t)()
	for _, verb := range [][]string{
		{"policy", "add", "member", "--ekid", strings.Repeat("11", 32), "--role", "worker", "--name", "worker-1"},
		{"policy", "revoke-operators"},
		{"operator", "withdraw", looker.name},
		{"operator", "new", "carol", "--may", "look", "--out", b.path("carol.operator"), "--operator-passphrase-file", b.path("passphrase")},
		{"cluster", "rotate", "keyset", "--server", m.api, "--wait", "5m"},
		{"node", "status", "--node", m.agent},
		{"node", "logs", "--node", m.agent},
		{"recover", "--node", m.agent, "--yes"},
	} {
		t.Run(strings.Join(verb[:2], " "), func(t *testing.T) {
			if out := cli(t, 1, slices.Concat(verb, flags)...); !strings.Contains(out, "nothing was signed") {
				t.Error("it does not say that nothing was signed")
			}
		})
	}
	t.Run("nobody says who signs", func(t *testing.T) {
		t.Setenv("HULLMARK_ROOT_SIGNER", "")
		if out := cli(t, 2, slices.Concat([]string{"policy", "revoke-operators"}, flags)...); !strings.Contains(out, "--root-signer") {
			t.Error("it does not say what names a signer")
		}
	})
	for _, verb := range [][]string{
		{"policy", "show"}, {"operator", "list"}, {"policy", "push", "--server", m.api, "--wait", "5m"}, {"node", "list", "--server", m.api, "--wait", "5m"},
	} {
		cli(t, 0, slices.Concat(verb, flags)...)
	}
	looker.by(t, 0, "node", "status", "--node", m.agent)
}

// overreaches has a program that does not look at what his file grants ask the node for a recovery: the node looks.
func (o grantee) overreaches(t *testing.T, m machine) {
	t.Helper()
	file := o.open(t)
	file.Grant.Who.May = []hullmark.Permission{hullmark.MayLook, hullmark.MayRecover}
	ctx, cancel := context.WithTimeout(t.Context(), bootTime)
	defer cancel()
	err := operate.RecoverByOperator(ctx, file, operate.RecoverOptions{Target: operate.Target{Node: operate.Node{Address: m.agent, Wait: bootTime}}})
	if !errors.Is(err, operate.ErrDenied) || !strings.Contains(err.Error(), "operator-not-permitted") {
		t.Errorf("the node says %v to %s, who may not recover it", err, o.name)
	}
}

// mayNotRecover has him try to recover a node that waits: by the program, and by one that does not look at what he may.
func (o grantee) mayNotRecover(t *testing.T, m machine) {
	until(t, 0, `"step"`, slices.Concat([]string{"node", "status", "--node", m.agent, "--wait", "5m"}, o.flags())...)
	out := o.by(t, 4, "recover", "--node", m.agent, "--yes")
	for _, want := range []string{"operator-not-permitted", `recover needs the permission "recover", which operator ` + o.name + ` does not have`} {
		if !strings.Contains(out, want) {
			t.Errorf("the refusal does not say %q", want)
		}
	}
	o.overreaches(t, m)
}

// tellsWho looks for the names of both at the node and in the cluster, after one could not recover the node and the other one did.
func (b bench) tellsWho(t *testing.T, m machine, looker, recoverer grantee) {
	journal := looker.by(t, 0, "node", "logs", "--node", m.agent)
	for _, want := range []*regexp.Regexp{looker.called("recover", "refused: operator-not-permitted"), recoverer.called("recover", "permitted")} {
		if !want.MatchString(journal) {
			t.Errorf("the node's journal has no line %s", want)
		}
	}
	want := "operator " + recoverer.name + " opened the state disk of control-plane-1"
	for began := time.Now(); ; time.Sleep(5 * time.Second) {
		told := b.kubectl(t, "get", "events", "--namespace", "hullmark", "--field-selector", "reason=ControlPlaneRecovered", "-o", `jsonpath={range .items[*]}{.message}{"\n"}{end}`)
		if strings.Contains(told, want) {
			if strings.Count(told, "opened the state disk") != 1 {
				t.Errorf("one recovery is told more than once: %s", told)
			}
			return
		}
		if time.Since(began) > 2*policyTime {
			t.Fatalf("the cluster has no event that says %q: %s", want, told)
		}
	}
}

// withdraw takes an operator out of the policy: the node and the API refuse him as soon as they have that, and go on with others.
func (b bench) withdraw(t *testing.T, m machine, flags []string, o, other grantee) {
	if out := cli(t, 0, slices.Concat([]string{"operator", "withdraw", o.name}, flags)...); !strings.Contains(out, "operator "+o.name+" may do nothing any more") {
		t.Error("operator withdraw does not say so")
	}
	cli(t, 0, slices.Concat([]string{"policy", "push", "--server", m.api, "--wait", "5m"}, flags)...)
	until(t, 4, "operator-withdrawn", slices.Concat([]string{"node", "status", "--node", m.agent}, o.flags())...)
	o.refused(t, "operator-withdrawn", "node", "logs", "--node", m.agent)
	o.refused(t, "operator-withdrawn", "update", "status", "--node", m.agent)
	until(t, 4, "the API does not let operator "+o.name+" look", slices.Concat([]string{"node", "list", "--server", m.api}, o.flags())...)
	o.refused(t, "operator-not-permitted", "report", "--server", m.api)
	if out := cli(t, 0, slices.Concat([]string{"operator", "list"}, flags)...); strings.Contains(out, o.name) || !strings.Contains(out, other.name) {
		t.Errorf("operator list does not show %s alone", other.name)
	}
	other.looks(t, m)
	if out := other.by(t, 0, "node", "logs", "--node", m.agent); !o.called("status", "refused: operator-withdrawn").MatchString(out) {
		t.Errorf("the node's journal does not say that %s was refused", o.name)
	}
}
