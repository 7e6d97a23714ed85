package hullmark_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/hullmark/hullmark"

// arrow forbids an import, directly or through others, and says why.
type arrow struct{ from, to, why string }

// A trailing "/..." in from or to means the package and all below it.
var forbidden = []arrow{
	{".", module + "/...", "the root package holds nouns: it imports no room"},
	{".", "net", "the root package performs no I/O"},
	{".", "os/exec", "the root package performs no I/O"},
	{"./pcrs/...", "os/exec", "a prediction runs no program"},
	{"./pcrs/...", "net", "a prediction opens no network"},
	{"./pcrs/...", module + "/image", "prediction and assembly meet only in the formats, so that one checks the other"},
	{"./pcrs/...", module + "/internal/vm", "whoever starts a machine uses what describes it, never the other way"},
	{"./image", module + "/pcrs/...", "assembly does not know what will be measured"},
	{"./image/disk", "os/exec", "a format is pure"},
	{"./image/oci", "os/exec", "a format is pure"},
	{"./image/erofs", "os/exec", "a format is pure"},
	{"./image/erofs", "net", "a format is pure"},
	{"./image/secureboot", "os/exec", "a format is pure; whoever asks a signer runs it"},
	{"./image", "os/exec", "laying out a disk is pure; image/build runs programs"},
	{"./image", "net", "laying out a disk is pure"},
	{"./image/lock", "os/exec", "the lock is a format"},
	{"./measurements", "os/exec", "a verdict runs no program"},
	{"./measurements", "net", "a verdict opens no network"},
	{"./measurements/publish", "os/exec", "publishing runs no program"},
	{"./measurements", module + "/measurements/tlog/...", "a verdict does not know which log shows a document"},
	{"./measurements/tlog", "os/exec", "checking a log runs no program"},
	{"./measurements/tlog", "net", "a proof is checked offline; measurements/tlog/place reaches logs"},
	{"./measurements/export", "os/exec", "a format is pure"},
	{"./measurements/export", "net", "a format is pure"},
	{"./inspect/...", "os/exec", "inspecting runs no program: whoever asks hands in what unpacks a root file system"},
	{"./inspect/...", "net", "inspecting opens no network"},
	{"./measurements", module + "/measurements/publish", "a verdict does not know where documents come from"},
	{"./attest/...", module + "/measurements/...", "attest says whose registers, measurements says which boot: neither needs the other"},
	{"./measurements", module + "/attest/...", "measurements says which boot, attest says whose registers: neither needs the other"},
	{"./attest", "google.golang.org/grpc/...", "what both ends compute needs no channel: attest/channel has that"},
	{"./attest/channel", module + "/attest/wire", "how the ends know each other does not depend on what they say"},
	{"./internal/limit", module + "/...", "a listener is a leaf"},
	{"./attest/prover", module + "/attest/verifier", "producer and verifier meet only in the exchange"},
	{"./attest/verifier", module + "/attest/prover", "producer and verifier meet only in the exchange"},
	{"./joinservice/keys", "net", "keys are derived without a network; keys/keeper reaches the keepers"},
	{"./cluster/...", module + "/joinservice/keys/keeper", "the operator's records do not link the clouds' clients; the programs do"},
	{"./cluster", "k8s.io/client-go/...", "the cluster file is what tests of a join service begin with; cluster/operate speaks to its API"},
	{"./firstboot/...", module + "/joinservice/...", "a node never holds the code that decides over it"},
	{"./tools/hullmark", module + "/joinservice/etcd", "only a join service changes who is a member of etcd; the operator takes backups"},
	{"./joinservice", module + "/joinservice/etcd", "the authorizer decides without etcd; the program hands it in"},
	{"./tools/joinservice", module + "/cluster/...", "what a person does to a cluster is not a join service's to do"},
	{"./joinservice/...", module + "/cluster/...", "the authorizer decides over machines, not over what a person does to the cluster"},
	{"./cluster/backup", module + "/joinservice/etcd", "whoever takes backups removes no members"},
	{"./cluster/operate", "helm.sh/helm/v4/...", "Helm is half of the program's weight: cluster/addons alone reaches it"},
	{"./joinservice/...", "helm.sh/helm/v4/...", "what decides over machines runs no charts"},
	{"./firstboot/...", "helm.sh/helm/v4/...", "a node runs no charts"},
	{"./tools/joinservice", "helm.sh/helm/v4/...", "what decides over machines runs no charts"},
	{"./cluster/render", "helm.sh/helm/v4/...", "a document says where charts are, and opens none"},
	{"./cluster/addons", module + "/cluster/operate", "add-ons are told how the API is reached; what a person does to machines is none of theirs"},
	{"./cluster/render", module + "/joinservice", "what a document says does not depend on who decides"},
	{"./cluster/render", module + "/attest/...", "a document speaks to nobody"},
	{"./cluster/render", module + "/tools/...", "rendering is pure; the command reads, validates and writes"},
	{"./cluster/render", "net/http", "rendering is pure"},
	{"./cluster/render", "os/exec", "rendering is pure"},
	{"./kubeadm", "net/http", "kubeadm's documents are pure; kubeadm/run asks API servers"},
	{"./kubeadm", "os/exec", "kubeadm's documents are pure; kubeadm/run runs it"},
	{"./kubeadm/step", "os/exec", "judging a step runs no program; kubeadm/run asks them"},
	{"./kubeadm/step", "net", "judging a step asks nobody; kubeadm/run does"},
	{"./kubeadm/...", module + "/firstboot/...", "documents do not depend on who gives them to kubeadm"},
	{"./kubeadm/...", module + "/joinservice/...", "documents do not depend on who makes them"},
	{"./joinservice/...", module + "/kubeadm/run", "a join service runs no kubeadm"},
	{"./upgrade", module + "/joinservice/...", "the engine decides over what it sees; upgrade/kube speaks to the API"},
	{"./upgrade", module + "/cluster/...", "an upgrade needs nothing that a person holds"},
	{"./upgrade", "k8s.io/...", "the engine decides over what it sees; upgrade/kube speaks to the API"},
	{"./upgrade", "net/http", "the engine decides over what it sees; upgrade/kube speaks to the API"},
	{"./upgrade", "os/exec", "an upgrade runs no program"},
	{"./upgrade/...", "helm.sh/helm/v4/...", "add-ons are the operator's to bring; the engine moves nodes"},
	{"./joinservice/...", module + "/upgrade/...", "the authorizer decides over machines, not over the order in which they restart"},
	{"./firstboot/...", module + "/upgrade/...", "a node follows its own direction, and judges it by itself"},
	{"./firstboot/luks2", module + "/...", "a header decoder is a leaf"},
	{"./tools/firstboot", "github.com/martinjungblut/go-cryptsetup", "the agent is static: cgo stays in the short-lived disk helper"},
	{"./tools/firstboot", module + "/joinservice/...", "a node never holds the code that decides over it"},
	{"./firstboot/journal", module + "/attest/...", "who sends the journal on takes no part in how a node gets in"},
	{"./tools/journal", "k8s.io/client-go/...", "a forwarder knows the journal and its collector"},
	{"./tools/metrics", module + "/firstboot/...", "it reads what the agent has written, and holds nothing of the agent"},
	{"./tools/metrics", "k8s.io/client-go/...", "it is small: it asks the API by two requests of kubeadm/run's"},
	{"./tools/firstboot", "k8s.io/client-go/...", "the agent is small: it asks the API by a few requests of its own"},
	{"./joinservice/registry", "k8s.io/client-go/testing", "client-go's typed clients bring 12 MB of what tests of others need"},
	{"./tools/statedisk", module + "/joinservice/...", "a node never holds the code that decides over it"},
	{"./tools/statedisk", "net/http", "the disk helper speaks over one socket only"},
	{"./internal/debfile", "os/exec", "a format is pure"},
	{"./internal/debfile", "net", "a format is pure"},
	{"./internal/debfile", module + "/...", "a format is a leaf"},
	{"./launch", "os/exec", "a prediction runs no program"},
	{"./launch", "net", "a prediction opens no network"},
	{"./internal/test/secureprocessor", module + "/pcrs/...", "what plays the hardware measures by itself, so that one checks the other"},
	{"./internal/test/secureprocessor", module + "/launch", "what plays the hardware measures by itself, so that one checks the other"},
	{"./internal/test/secureprocessor", module + "/attest/...", "what plays the hardware shares nothing with who judges it"},
	{"./tools/initrd", module + "/attest/...", "the initrd opens the root and nothing else"},
	{"./internal/site", "os/exec", "a site is made of pages alone"},
	{"./tools/hullmark", "github.com/yuin/goldmark/...", "the program is given to people without its pages; tools/site makes their site"},
}

// forbiddenDirectly are arrows out of packages that may import others with such needs, for what those compute, but must not do
// such things themselves.
var forbiddenDirectly = []arrow{
	{"./pcrs/machine", "os", "a machine's description opens no file; whoever uses it reads"},
	{"./image/disk", "os", "a format is pure; the command reads and writes files"},
	{"./image/disk", "time", "the same disk gives the same bytes at any time"},
	{"./internal/debfile", "os", "a format is pure; image/build reads and writes files"},
	{"./kubeadm", "os", "kubeadm's documents are pure"},
	{"./cluster/render", "os", "rendering is pure: a document is all that counts"},
	{"./cluster/render", "time", "the same document gives the same bytes at any time"},
	{"./cluster/addons", "os/exec", "Helm is a library here, and runs no program for us"},
	{"./internal/site", "os", "the same pages give the same bytes; tools/site reads and writes files"},
	{"./internal/site", "time", "the same pages give the same bytes at any time"},
	{"./measurements/tlog", "os", "what a log consists of is computed; measurements/tlog/place reads and writes its files"},
	{"./tools/hullmark", "google.golang.org/grpc/...", "a verb has flags, one call and printing; cluster/operate speaks to nodes"},
	{"./tools/hullmark", "k8s.io/client-go/...", "a verb has flags, one call and printing; cluster/operate speaks to the API"},
	{"./tools/hullmark", module + "/joinservice/registry", "a verb has flags, one call and printing; cluster/operate speaks to the API"},
	{"./tools/hullmark", "helm.sh/helm/v4/...", "a verb has flags, one call and printing; cluster/addons reaches Helm"},
	{"./tools/hullmark", module + "/attest/wire", "a verb has flags, one call and printing; cluster/operate speaks to nodes"},
}

// maxVerb is how many lines a file of the command may have: a verb that needs more does what others cannot call.
const maxVerb = 250

func TestVerbsAreShort(t *testing.T) {
	files, err := filepath.Glob("tools/hullmark/*.go")
	if err != nil || len(files) == 0 {
		t.Fatal("no files", err)
	}
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if lines := bytes.Count(text, []byte("\n")); lines > maxVerb && !strings.HasSuffix(name, "_test.go") {
			t.Errorf("%s has %d lines, more than %d: move what it does where others can call it", name, lines, maxVerb)
		}
	}
}

// formats are leaves: they import nothing of ours.
var formats = []string{"efi", "pe", "uki", "gpt", "fat", "cpio", "verity", "erofs", "secureboot", "authenticode", "disk"}

func TestArrows(t *testing.T) {
	for _, a := range forbidden {
		a.check(t, "Deps", "directly or through others")
	}
	for _, a := range forbiddenDirectly {
		a.check(t, "Imports", "directly")
	}
}

// check looks for the arrow in one of the lists that go list has.
func (a arrow) check(t *testing.T, list, how string) {
	t.Helper()
	for pkg, deps := range dependencies(t, a.from, list) {
		for _, dep := range deps {
			if matches(dep, a.to) && dep != pkg {
				t.Errorf("%s imports %s, %s: %s", pkg, dep, how, a.why)
			}
		}
	}
}

func TestFormatsAreLeaves(t *testing.T) {
	for _, f := range formats {
		pattern := "./image/" + f
		for pkg, deps := range dependencies(t, pattern, "Deps") {
			for _, dep := range deps {
				ours := strings.HasPrefix(dep, module) && dep != pkg
				if ours && dep != module+"/image/pe" && dep != module+"/image/efi" {
					t.Errorf("%s imports %s: a format imports nothing of ours (but pe and efi, which uki and secureboot are built on)", pkg, dep)
				}
			}
		}
	}
}

func matches(dep, pattern string) bool {
	if prefix, ok := strings.CutSuffix(pattern, "/..."); ok {
		return dep == prefix || strings.HasPrefix(dep, prefix+"/")
	}
	return dep == pattern
}

// dependencies returns, for each package that the pattern names, what it imports: directly (Imports) or transitively (Deps).
func dependencies(t *testing.T, pattern, list string) map[string][]string {
	t.Helper()
	out, err := exec.Command("go", "list", "-f", `{{.ImportPath}} {{join .`+list+` " "}}`, pattern).CombinedOutput()
	if err != nil {
		t.Fatalf("go list %s: %v\n%s", pattern, err, out)
	}
	found := map[string][]string{}
	for line := range strings.Lines(string(out)) {
		words := strings.Fields(line)
		found[words[0]] = words[1:]
	}
	if len(found) == 0 {
		t.Fatalf("go list %s: no packages", pattern)
	}
	return found
}

// forTests lists the packages below internal/ that no program holds: what tests share, and tests of several rooms.
var forTests = []string{
	"agenttest", "bench", "browsertest", "buildtest", "canary", "e2e", "endorsetest", "explore", "explore/seam", "explore/search", "flood", "fulldisk", "hcltest", "imagetest", "jointest", "load", "lukstest", "memrecords", "memtest", "nitrotest", "nodetest",
	"policytest", "powercut", "probe", "probe/slotnode", "providertest", "rolling", "romtest", "sevtest", "tdxtest", "testenv", "tooltest", "test/secureprocessor", "test/slotnode", "tpmtest", "upgradetest", "vaulttest", "vectors", "waltest",
}

// TestOnlyToolsStartMachines wants nobody but programs, and what tests share, to import what starts virtual machines.
func TestOnlyToolsStartMachines(t *testing.T) {
	for pkg, deps := range dependencies(t, "./...", "Imports") {
		name := strings.TrimPrefix(pkg, module+"/")
		shared := slices.Contains(forTests, strings.TrimPrefix(name, "internal/"))
		if slices.Contains(deps, module+"/internal/vm") && !strings.HasPrefix(name, "tools/") && !shared {
			t.Errorf("%s imports internal/vm: a room describes machines (pcrs/machine), a program starts them", pkg)
		}
	}
}

// TestInternalPackages holds the list to the code: a package is on it, or a program of tools/ is built of it.
func TestInternalPackages(t *testing.T) {
	built := map[string]bool{}
	for _, deps := range dependencies(t, "./tools/...", "Deps") {
		for _, dep := range deps {
			built[dep] = true
		}
	}
	for pkg := range dependencies(t, "./internal/...", "Deps") {
		name := strings.TrimPrefix(pkg, module+"/internal/")
		if listed := slices.Contains(forTests, name); listed == built[pkg] {
			t.Errorf("%s is listed as one for tests: %t; a program is built of it: %t", pkg, listed, built[pkg])
		}
	}
}

// TestMainsAreTools wants programs where people look for them, and those for tests below internal/test.
func TestMainsAreTools(t *testing.T) {
	out, err := exec.Command("go", "list", "-f", "{{if eq .Name \"main\"}}{{.ImportPath}}{{end}}", "./...").Output()
	if err != nil {
		t.Fatal(err)
	}
	mains := strings.Fields(string(out))
	if len(mains) == 0 {
		t.Fatal("go list names no program")
	}
	for _, pkg := range mains {
		if !strings.HasPrefix(pkg, module+"/tools/") && !strings.HasPrefix(pkg, module+"/internal/test/") {
			t.Errorf("%s is a program outside of tools/, and none for tests", pkg)
		}
	}
}
