//go:build vm || cluster || powercut || network || install || operations

package e2e

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hullmark/hullmark/internal/vm"
)

// bootTime bounds a boot up to the agent: some 20 seconds on an idle machine that emulates the processor, so this
// is for a busy one.
const bootTime = 5 * time.Minute

// bench is where a test works: the built image and a folder whose logs stay when the test fails.
type bench struct {
	out string // hullmark.raw, hullmark.json, tools, kubectl
	dir string
}

// built says that the image of all benches is there: the first one builds it, and no test changes it.
var (
	building sync.Mutex
	built    bool
)

// newBench builds the image, which is a matter of seconds when the cache is warm.
func newBench(t *testing.T) bench {
	t.Helper()
	b := bench{out: filepath.Join(source(t), "out", "test"), dir: t.TempDir()}
	t.Cleanup(func() { b.keepLogs(t) })
	building.Lock()
	defer building.Unlock()
	if !built {
		cli(t, 0, "build", "--relock", "--out", b.out)
		built = true
	}
	return b
}

func (b bench) path(elements ...string) string {
	return filepath.Join(append([]string{b.dir}, elements...)...)
}

func (b bench) image() string        { return filepath.Join(b.out, "hullmark.raw") }
func (b bench) measurements() string { return filepath.Join(b.out, "hullmark.json") }
func (b bench) tools() string        { return filepath.Join(b.out, "tools") }

// keepLogs copies every log of a failed test to out/failed, where it outlives the test's folder.
func (b bench) keepLogs(t *testing.T) {
	if !t.Failed() {
		return
	}
	keep := filepath.Join(source(t), "out", "failed", strings.ReplaceAll(t.Name(), "/", "-"))
	logs, _ := filepath.Glob(b.path("*", "*.log"))
	for _, log := range logs {
		to := filepath.Join(keep, filepath.Base(filepath.Dir(log))+"-"+filepath.Base(log))
		if err := errors.Join(os.MkdirAll(keep, 0o755), copyFile(to, log)); err != nil {
			t.Log(err)
			continue
		}
		t.Logf("console kept: %s", to)
	}
}

// ovmf is a file of the firmware in the tools tree.
func (b bench) ovmf(name string) string { return filepath.Join(b.tools(), "usr/share/OVMF", name) }

// newKeys makes a folder of Secure Boot keys.
func (b bench) newKeys(t *testing.T, name string) string {
	t.Helper()
	if err := os.WriteFile(b.path("keys.passphrase"), []byte("correct horse battery staple\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	cli(t, 0, "keys", "create", b.path(name), "--passphrase-file", b.path("keys.passphrase"))
	return b.path(name)
}

// sign signs a disk with a folder's key for images.
func (b bench) sign(t *testing.T, disk, keys, out string, more ...string) string {
	t.Helper()
	cli(t, 0, append([]string{
		"keys", "sign", disk, "--certificate", filepath.Join(keys, "db.pem"), "--key", filepath.Join(keys, "db.key"),
		"--passphrase-file", b.path("keys.passphrase"), "--out", b.path(out),
	}, more...)...)
	return b.path(out)
}

// newCluster makes a cluster file, with more flags, and returns the node configuration that names it.
func (b bench) newCluster(t *testing.T, name string, more ...string) []byte {
	t.Helper()
	if err := os.WriteFile(b.path("passphrase"), []byte("correct horse battery staple\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	cli(t, 0, append([]string{"cluster", "new", b.path(name), "--passphrase-file", b.path("passphrase"), "--node-config", b.path(name + ".json")}, more...)...)
	config, err := os.ReadFile(b.path(name + ".json"))
	if err != nil {
		t.Fatal(err)
	}
	return config
}

// machine is a running machine of a test.
type machine struct {
	*vm.Machine
	bench bench
	agent string // the agent's address on this host
	api   string
}

// boot starts a machine named name; edit changes its usual shape.
func (b bench) boot(t *testing.T, name string, config []byte, edit func(*vm.Config)) machine {
	t.Helper()
	c := vm.Config{
		Dir: b.path(name), Image: b.image(), NodeConfig: config, ExitOnReboot: true, Forwards: []vm.Forward{{Guest: 7443}, {Guest: 6443}},
	}
	c.Tools, c.StateDisk, c.MemoryMiB = b.tools(), 4<<30, 4096
	if edit != nil {
		edit(&c)
	}
	m, err := vm.Start(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Kill)
	address := func(i int) string { return "127.0.0.1:" + strconv.Itoa(int(m.Forwards()[i].Host)) }
	return machine{Machine: m, bench: b, agent: address(0), api: address(1)}
}

// sees waits until the console shows pattern.
func (m machine) sees(t *testing.T, pattern string) string {
	t.Helper()
	return m.seesWithin(t, bootTime, pattern)
}

func (m machine) seesWithin(t *testing.T, most time.Duration, pattern string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), most)
	defer cancel()
	line, err := m.WaitConsole(ctx, regexp.MustCompile(pattern))
	if err != nil {
		console, _ := os.ReadFile(m.Console())
		t.Fatalf("the console does not show %q: %v\nits end:\n%s", pattern, err, tail(console))
	}
	return line
}

// console is what the machine wrote on its serial line.
func (m machine) console(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(m.Console())
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// init runs `hullmark init` against the machine with the cluster file of the given name; it must end with the code.
func (m machine) init(t *testing.T, code int, cluster string, more ...string) string {
	t.Helper()
	ek, err := os.ReadFile(filepath.Join(m.Dir(), vm.EKIDFile))
	if err != nil {
		t.Fatal(err)
	}
	args := []string{
		"init", "--cluster", m.bench.path(cluster), "--passphrase-file", m.bench.path("passphrase"),
		"--node", m.agent, "--measurements", m.bench.measurements(), "--ekid", strings.TrimSpace(string(ek)),
		"--endpoint", m.api, "--kubeconfig", m.bench.path("kubeconfig"), "--profile", "slow",
	}
	if !slices.Contains(more, "--ek-ca") { // Of several, any CA will do.
		args = append(args, "--ek-ca", filepath.Join(m.Dir(), vm.CAFile))
	}
	return cli(t, code, append(args, more...)...)
}

// awaitAPI waits until the API server is ready from here, too. It was when the node became Ready, and may end once more on a
// machine whose processors are taken from it for long. If it never is, the node's journal says why.
func (b bench) awaitAPI(t *testing.T, logs []string) {
	t.Helper()
	const patience = 5 * time.Minute
	for began := time.Now(); ; time.Sleep(5 * time.Second) {
		out, err := exec.CommandContext(t.Context(), filepath.Join(b.out, "kubectl"), "--kubeconfig", b.path("kubeconfig"), "get", "--raw", "/readyz").CombinedOutput()
		if err == nil {
			return
		}
		t.Logf("%v after Ready the API server is not ready: %.200s", time.Since(began).Round(time.Second), out)
		if time.Since(began) > patience {
			cli(t, 0, logs...)
			t.Fatalf("the API server did not answer within %v after the node was Ready", patience)
		}
	}
}

// kubectl runs the image's own kubectl as the administrator whose kubeconfig init wrote.
func (b bench) kubectl(t *testing.T, args ...string) string {
	t.Helper()
	return command(t, 0, filepath.Join(b.out, "kubectl"), append([]string{"--kubeconfig", b.path("kubeconfig")}, args...)...)
}

// cli runs the hullmark program, whose output is shown, and fails the test unless it ends with the code.
func cli(t *testing.T, code int, args ...string) string {
	t.Helper()
	return command(t, code, filepath.Join(source(t), "bin", "hullmark"), args...)
}

func command(t *testing.T, code int, program string, args ...string) string {
	t.Helper()
	t.Logf("$ %s %s", filepath.Base(program), strings.Join(args, " "))
	var out bytes.Buffer
	cmd := exec.CommandContext(t.Context(), program, args...)
	cmd.Dir = source(t)
	cmd.Stdout = io.MultiWriter(&out, t.Output())
	cmd.Stderr = cmd.Stdout
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	if got := cmd.ProcessState.ExitCode(); got != code {
		t.Fatalf("%s ended with exit code %d, want %d", filepath.Base(program), got, code)
	}
	if overhear != nil {
		overhear(t, filepath.Base(program)+" "+strings.Join(args, " "), out.String())
	}
	return out.String()
}

// overhear, if it is set, is told what each command said.
var overhear func(t *testing.T, what, said string)

// source is the root of the checkout.
func source(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs(filepath.Join("..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// tookLine is what the agent says of itself when its node is Ready.
var tookLine = regexp.MustCompile(`the agent took (\d+) ms of processor time, (\d+) MiB of memory at most`)

// checkMemory holds the agent to 30 MiB.
func checkMemory(t *testing.T, journal string) {
	t.Helper()
	all := tookLine.FindAllStringSubmatch(journal, -1)
	if len(all) != 2 {
		t.Fatalf("the agent says %d times what it took, want before Kubernetes and at the end", len(all))
	}
	for _, m := range all {
		t.Log(m[0])
		if mib, err := strconv.Atoi(m[2]); err != nil || mib > 30 {
			t.Errorf("%s: want 30 MiB at most", m[0])
		}
	}
}

func copyFile(to, from string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }()
	out, err := os.Create(to)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

// tail returns the last part of a console log.
func tail(b []byte) []byte { return b[max(0, len(b)-3000):] }
