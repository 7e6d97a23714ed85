package jointest

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/firstboot"
	"github.com/hullmark/hullmark/firstboot/statedisk"
	"github.com/hullmark/hullmark/internal/canary"
	"github.com/hullmark/hullmark/internal/nodump"
)

var bootstrapToken = regexp.MustCompile(`tlsBootstrapToken: [a-z0-9]{6}\.([a-z0-9]{16})`)

// secrets are the cluster's, and those of the machine's disk.
func (s *Site) secrets(t *testing.T, diskKey []byte) canary.Secrets {
	t.Helper()
	secrets, err := canary.OfCluster(s.Cluster)
	if err != nil {
		t.Fatal(err)
	}
	derived, err := statedisk.DeriveKeys(hullmark.NewSecret(diskKey))
	if err != nil {
		t.Fatal(err)
	}
	secrets["the disk key"], secrets["the LUKS key"], secrets["the header key"] = diskKey, derived.LUKS.Expose(), derived.Header.Expose()
	return secrets
}

// A node that joined shows no key: in its log, on its console, in its status, or in its record. A control plane's are on its
// state disk, and those of its manifest on the RAM disk where programs see them; a token is nowhere.
func TestAgentShowsNoKey(t *testing.T) {
	for role, held := range map[hullmark.Role]struct{ disk, ram []string }{
		hullmark.Worker: {},
		hullmark.ControlPlane: {
			[]string{"ca.key", "etcd/ca.key", "front-proxy-ca.key", "kubelet-serving-ca.key", "sa.key", "../../" + statedisk.ManifestFile},
			[]string{"../../files/keyset.json", "../../files/online-ca.key"},
		},
	} {
		t.Run(string(role), func(t *testing.T) {
			t.Parallel()
			s := New(t, role)
			s.Serve(t)
			end := s.Boot(t)
			s.Await(t, "Ready", func(d firstboot.Document) bool { return d.Ready })
			end()
			secrets := s.secrets(t, s.Disk.Key)
			token := bootstrapToken.FindStringSubmatch(s.Kubernetes.Joins[0])
			if token == nil {
				t.Fatal("kubeadm was given no token")
			}
			secrets["the token"] = []byte(token[1])
			search, err := canary.New(secrets)
			if err != nil {
				t.Fatal(err)
			}
			record, _, err := s.Records.Load(t.Context(), s.EKID)
			if err != nil {
				t.Fatal(err)
			}
			shown := fmt.Sprintf("%+v\n%#v", record, record) + s.Log.String() + s.Console.String()
			if found := search.Text("what the node and its service tell", []byte(shown)); len(found) > 0 || !strings.Contains(shown, "READY") {
				t.Errorf("%v in %s", found, shown)
			}
			checkTree(t, search, s.Agent.RunDir, held.ram)
			checkTree(t, search, filepath.Join(s.Agent.StateDir), held.disk)
		})
	}
}

// checkTree wants secrets in certain files of etc-kubernetes/pki, and in no others.
func checkTree(t *testing.T, search *canary.Search, dir string, held []string) {
	t.Helper()
	found, err := search.Tree(dir)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, f := range found {
		name, _ := filepath.Rel(filepath.Join(dir, "etc-kubernetes/pki"), f.Where)
		if seen[name] = true; !slices.Contains(held, name) {
			t.Error(f)
		}
	}
	if len(seen) != len(held) {
		t.Errorf("%s holds keys in %v, want in %q", dir, seen, held)
	}
}

// crashing is a state disk whose helper is asked when the agent crashes.
type crashing struct {
	*testing.T
	site *Site
	firstboot.Disk
}

// Open leaves the secrets to the test that waits for the crash.
func (c crashing) Open(_ context.Context, _ hullmark.DiskSelector, g hullmark.DiskGrant) (statedisk.Opened, error) {
	text, err := json.Marshal(c.site.secrets(c.T, g.Key.Expose()))
	if err == nil {
		err = os.WriteFile(os.Getenv(crashFile), text, 0o600)
	}
	if err == nil {
		err = syscall.Kill(os.Getpid(), syscall.SIGABRT)
	}
	c.Error(err)
	select {}
}

// crashFile names, in the environment of a test that is to crash, the file that the secrets are left in.
const crashFile = "JOINTEST_CRASH"

// The agent crashes while it has the ticket: it prints its goroutines and none of the keys, and there is no core file.
func TestCrashShowsNoKey(t *testing.T) {
	if os.Getenv(crashFile) != "" {
		if err := nodump.Process(); err != nil { // as the agent's main does
			t.Fatal(err)
		}
		s := New(t, hullmark.Worker)
		s.Agent.Disk = crashing{t, s, s.Disk}
		s.Serve(t)
		s.Boot(t)
		s.Await(t, "a crash", func(firstboot.Document) bool { return false })
	}
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "secrets")
	cmd := exec.CommandContext(t.Context(), "sh", "-c", `ulimit -c unlimited; exec "$@"`, "sh", program, "-test.run", "^TestCrashShowsNoKey$", "-test.v")
	cmd.Dir, cmd.Env = t.TempDir(), append(os.Environ(), crashFile+"="+file, "GOTRACEBACK=crash")
	printed, _ := cmd.CombinedOutput()
	status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus)
	if !ok || !status.Signaled() || status.CoreDump() {
		t.Errorf("it ended with %v", cmd.ProcessState)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatalf("%v\n%s", err, printed)
	}
	var secrets canary.Secrets
	if err := json.Unmarshal(text, &secrets); err != nil {
		t.Fatal(err)
	}
	search, err := canary.New(secrets)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(printed), "firstboot.(*ticketed).openDisk(") || len(secrets) != 11 {
		t.Errorf("of %d secrets nothing is known: the agent printed\n%s", len(secrets), printed)
	}
	for _, f := range search.Text("what the agent printed", printed) {
		t.Error(f)
	}
}
