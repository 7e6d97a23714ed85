//go:build long

package main

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest/wire"
	"github.com/hullmark/hullmark/cluster"
	"github.com/hullmark/hullmark/firstboot/statedisk"
	"github.com/hullmark/hullmark/internal/canary"
	"github.com/hullmark/hullmark/internal/nodetest"
	"github.com/hullmark/hullmark/internal/testenv"
	"github.com/hullmark/hullmark/joinservice"
	"github.com/hullmark/hullmark/joinservice/registry"
)

// canaries are the keys of the cluster file as it is by now, its passphrase, and the keys of the node's disk once it was granted.
func (s *site) canaries(t *testing.T) canary.Secrets {
	t.Helper()
	passphrase, err := readPassphraseFile(s.path("passphrase"))
	if err != nil {
		t.Fatal(err)
	}
	secrets, err := canary.OfCluster(s.open(t))
	if err != nil {
		t.Fatal(err)
	}
	secrets["the passphrase"] = passphrase.Expose()
	if ticket := s.node.Ticket(); ticket != nil {
		derived, err := statedisk.DeriveKeys(ticket.Disk.Key)
		if err != nil {
			t.Fatal(err)
		}
		secrets["the disk key"] = ticket.Disk.Key.Expose()
		secrets["the LUKS key"], secrets["the header key"] = derived.LUKS.Expose(), derived.Header.Expose()
	}
	return secrets
}

func newSearch(t *testing.T, secrets canary.Secrets) *canary.Search {
	t.Helper()
	search, err := canary.New(secrets)
	if err != nil {
		t.Fatal(err)
	}
	return search
}

// wantOnly fails for each finding that is not in one of these files, and for each of these in which nothing is.
func wantOnly(t *testing.T, found []canary.Finding, where ...string) {
	t.Helper()
	held := map[string]bool{}
	for _, f := range found {
		if !slices.Contains(where, f.Where) {
			t.Error(f)
		}
		held[f.Where] = true
	}
	for _, path := range where {
		if !held[path] {
			t.Errorf("%s holds no secret, so the search finds none", path)
		}
	}
}

func tree(t *testing.T, search *canary.Search, dir string) []canary.Finding {
	t.Helper()
	found, err := search.Tree(dir)
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// wantSeen ends a watch, which must have seen programs and no secret.
func wantSeen(t *testing.T, watch *canary.Watch, programs ...string) {
	t.Helper()
	found, seen := watch.End()
	wantOnly(t, found)
	for _, program := range programs {
		if seen[program] == 0 {
			t.Errorf("%s was not seen among the processes %v", program, seen)
		}
		t.Logf("%s: looked at its arguments and environment %d times", program, seen[program])
	}
}

// objects returns what the API has of some kinds, or of all that it lists.
func (s *apiSite) objects(t *testing.T, kinds ...string) []byte {
	t.Helper()
	config, err := s.open(t).Kubeconfig(s.env.Address, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(file, config, 0o600); err != nil {
		t.Fatal(err)
	}
	kubectl := func(args ...string) []byte {
		out, err := exec.CommandContext(t.Context(), filepath.Join(s.env.Programs(), "kubectl"), append([]string{"--kubeconfig", file}, args...)...).Output()
		if err != nil {
			t.Fatalf("kubectl %v: %v", args, err)
		}
		return out
	}
	if len(kinds) == 0 {
		if kinds = strings.Fields(string(kubectl("api-resources", "--verbs", "list", "-o", "name"))); len(kinds) < 40 {
			t.Errorf("the API has the kinds %v", kinds)
		}
	}
	return kubectl("get", strings.Join(kinds, ","), "--all-namespaces", "-o", "json", "--show-managed-fields")
}

// program is one that runs with the leave to make core files, and writes what it prints to a file in its folder.
type program struct {
	path string
	cmd  *exec.Cmd
	log  string
}

func startProgram(t *testing.T, dir string, cmd *exec.Cmd) *program {
	t.Helper()
	p := &program{path: cmd.Path, cmd: exec.CommandContext(t.Context(), "sh", append([]string{"-c", `ulimit -c unlimited; exec "$@"`, "sh"}, cmd.Args...)...)}
	p.log = filepath.Join(dir, filepath.Base(cmd.Path)+".log")
	log, err := os.Create(p.log)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	p.cmd.Dir, p.cmd.Env, p.cmd.Stdin, p.cmd.Stdout, p.cmd.Stderr = dir, append(os.Environ(), cmd.Env...), cmd.Stdin, log, log
	// All goroutines, and then the signal once more, which makes the kernel write a core file.
	p.cmd.Env = append(p.cmd.Env, "GOTRACEBACK=crash")
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return p
}

// await waits until the program printed a text.
func (p *program) await(t *testing.T, text string) {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		said, err := os.ReadFile(p.log)
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Contains(said, []byte(text)) {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%s does not say %q:\n%s", p.cmd.Args, text, said)
		}
	}
}

// crash ends the program by a signal, and reports whether the kernel wrote a core file of it.
func (p *program) crash(t *testing.T, signal syscall.Signal) (dumped bool) {
	t.Helper()
	if err := p.cmd.Process.Signal(signal); err != nil {
		t.Fatal(err)
	}
	_ = p.cmd.Wait() // The signal is its error.
	status, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus)
	if !ok || !status.Signaled() {
		t.Errorf("%s did not end by a signal: %v", p.cmd.Args, p.cmd.ProcessState)
	}
	return status.CoreDump()
}

// wantCrash wants the goroutines printed, and no core file. What was printed stays in its file.
func (p *program) wantCrash(t *testing.T, signal syscall.Signal) {
	t.Helper()
	if p.crash(t, signal) {
		t.Errorf("there is a core file of %s", p.cmd.Args)
	}
	said, err := os.ReadFile(p.log)
	if err != nil || bytes.Count(said, []byte("\ngoroutine ")) < 2 {
		t.Errorf("%s printed no goroutines when it crashed: %v\n%s", p.cmd.Args, err, said)
	}
}

// compile returns a program of ours as it runs on a node.
func compile(t *testing.T, name string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), name)
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", file, "../"+name).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return file
}

// A core file would be made here of a program that does not prevent it.
func TestCoreFilesCanBeMade(t *testing.T) {
	pattern, err := os.ReadFile("/proc/sys/kernel/core_pattern")
	if err != nil {
		t.Fatal(err)
	}
	p := startProgram(t, t.TempDir(), exec.Command("sh", "-c", "echo ready; exec sleep 60"))
	p.await(t, "ready")
	if !p.crash(t, syscall.SIGABRT) {
		t.Errorf("the kernel wrote no core file of sleep: the pattern is %q; sysctl kernel.core_pattern=core and a hard limit that is not 0 (ulimit -Hc) let it", pattern)
	}
}

// A machine joins at the join service as a process, whose API is a real one, and the operator's commands change its policy.
// Then service, command and disk helper crash while they hold keys. Of all that is left only what has to hold a key does.
func TestJoinShowsNoKey(t *testing.T) {
	work := t.TempDir()
	s, envDir := newCanarySite(t, work)
	search := newSearch(t, s.canaries(t))
	watch := search.Watch()
	for _, line := range []string{
		"policy add document " + s.path("document.json"), "policy add member --role worker --name worker-1 --ekid " + s.node.ID.String(), "policy push",
	} {
		s.process(t, work, line)
	}
	service := s.startService(t, work)
	token := s.joins(t, service)
	for _, line := range []string{"node list", "policy show", "cluster kubeconfig " + s.path("kubeconfig") + " --endpoint " + s.env.Address} {
		s.process(t, work, line)
	}
	all := s.objects(t)
	t.Logf("%d bytes of objects", len(all))
	wantOnly(t, append(search.Text("the API's objects", all), token.Text("the API's objects", all)...))

	t.Run("crash", func(t *testing.T) { s.crashes(t, work, service.program) })
	wantSeen(t, watch, service.path, filepath.Join(work, "bin", "hullmark"), filepath.Join(s.env.Programs(), "kube-apiserver"))

	held := []string{s.path("passphrase")}
	for _, file := range []string{"ca.key", "etcd/ca.key", "front-proxy-ca.key", "kubelet-serving-ca.key", "sa.key"} {
		held = append(held, filepath.Join(envDir, "etc/kubernetes/pki", file), filepath.Join(service.credentials, strings.ReplaceAll(file, "/", "-")))
	}
	for _, file := range []string{"online-ca.key", "keyset.json"} {
		held = append(held, filepath.Join(envDir, "var/lib/hullmark", file), filepath.Join(service.credentials, file))
	}
	now := s.canaries(t)
	found := tree(t, newSearch(t, now), work)
	wantOnly(t, found, held...)
	if slices.ContainsFunc(found, func(f canary.Finding) bool { return f.Secret == "the root key" }) || len(now) != 12 {
		t.Errorf("the root key is somewhere, or was not looked for among %v", slices.Collect(maps.Keys(now)))
	}
	// What etcd keeps of a token that was revoked is on encrypted disks alone.
	for _, f := range tree(t, token, work) {
		if !strings.HasPrefix(f.Where, filepath.Join(envDir, "etcd")+"/") {
			t.Error(f)
		}
	}
}

// newCanarySite makes a cluster file under a passphrase that is found nowhere by chance, its API, and a machine; all files are below work.
func newCanarySite(t *testing.T, work string) (s *apiSite, envDir string) {
	t.Helper()
	s, envDir = &apiSite{site: site{dir: filepath.Join(work, "out")}}, filepath.Join(work, "testenv")
	for _, dir := range []string{s.dir, envDir, filepath.Join(work, "home"), filepath.Join(work, "tmp")} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	r, err := testenv.Start(t.Context(), envDir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Stop(); err != nil {
			t.Error(err)
		}
	})
	if err := r.Apply(t.Context(), registry.Manifest()); err != nil {
		t.Fatal(err)
	}
	s.env, s.cluster = r, r.Cluster
	passphrase := []byte(rand.Text())
	s.write(t, "passphrase", append(passphrase, '\n'))
	const cheap = 4 // It is random.
	if _, err := cluster.Create(s.path("cluster"), hullmark.NewSecret(passphrase), r.Cluster, cheap); err != nil {
		t.Fatal(err)
	}
	s.node = nodetest.New(t, r.Cluster.ID())
	s.node.Boot(t, "image")
	document, err := nodetest.Document(t, "image").Encode()
	if err != nil {
		t.Fatal(err)
	}
	s.write(t, "document.json", document)
	return s, envDir
}

// command is the program that `make bin/hullmark` left, as a process with folders of its own for what it keeps.
func (s *apiSite) command(t *testing.T, work, line string) *exec.Cmd {
	t.Helper()
	linked := filepath.Join(work, "bin")
	if _, err := os.Lstat(linked); err != nil {
		linkProgram(t, work)
	}
	args := append(strings.Fields(line), "--cluster", s.path("cluster"), "--passphrase-file", s.path("passphrase"))
	if line == "policy push" || line == "node list" {
		args = append(args, "--server", s.env.Address)
	}
	cmd := exec.CommandContext(t.Context(), filepath.Join(linked, "hullmark"), args...)
	cmd.Env = []string{"HOME=" + filepath.Join(work, "home"), "TMPDIR=" + filepath.Join(work, "tmp")}
	return cmd
}

// process runs a command, and keeps what it says for the search.
func (s *apiSite) process(t *testing.T, work, line string) {
	t.Helper()
	cmd := s.command(t, work, line)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("hullmark %s: %v\n%s", line, err, out)
	}
	if err := os.WriteFile(filepath.Join(work, strings.Fields(line)[1]+".said"), out, 0o600); err != nil {
		t.Fatal(err)
	}
}

// service is a join service that runs.
type service struct {
	*program
	address, credentials string
}

// startService starts the join service with the files of a control plane's disk.
func (s *apiSite) startService(t *testing.T, work string) service {
	t.Helper()
	v := service{credentials: filepath.Join(work, "credentials")}
	state := filepath.Join(work, "state")
	for _, dir := range []string{v.credentials, state} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	settings, err := joinservice.Settings{ControlPlaneEndpoint: s.env.Address, Networks: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12"), netip.MustParsePrefix("10.244.0.0/16")}}.Encode()
	if err != nil {
		t.Fatal(err)
	}
	files, err := s.open(t).Files()
	if err != nil {
		t.Fatal(err)
	}
	files = append(files, &wire.File{Path: "settings.json", Content: settings}, &wire.File{Path: "initialising.json", Content: []byte("null")})
	for _, f := range files {
		name := filepath.Base(f.GetPath()) // as the unit names its credentials
		for folder, prefix := range map[string]string{"etcd": "etcd-", "documents": "documents_"} {
			if filepath.Base(filepath.Dir(f.GetPath())) == folder {
				name = prefix + name
			}
		}
		if err := os.WriteFile(filepath.Join(v.credentials, name), f.GetContent(), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	address, err := testenv.FreeAddress()
	if err != nil {
		t.Fatal(err)
	}
	metrics, err := testenv.FreeAddress()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(compile(t, "joinservice"), "-listen", address, "-metrics", metrics, "-api", "https://"+s.env.Address, "-etcd", s.env.EtcdURL())
	cmd.Env = []string{"CREDENTIALS_DIRECTORY=" + v.credentials, "STATE_DIRECTORY=" + state}
	v.address, v.program = address, startProgram(t, work, cmd)
	v.await(t, "waiting for nodes")
	v.await(t, "the keyset is open")
	return v
}

var bootstrapToken = regexp.MustCompile(`tlsBootstrapToken: [a-z0-9]{6}\.([a-z0-9]{16})`)

// joins lets the machine join, and returns a search for its token. While it lives, the token is in its Secret, and in no other object.
func (s *apiSite) joins(t *testing.T, at service) (token *canary.Search) {
	t.Helper()
	s.node.Join = func(proceed *wire.Proceed) error {
		secret := bootstrapToken.FindSubmatch(proceed.GetKubeadmDocuments())
		if secret == nil {
			t.Fatal("the machine was brought no token")
		}
		token = newSearch(t, canary.Secrets{"the token": secret[1]})
		wantOnly(t, token.Text("the Secrets", s.objects(t, "secrets")), "the Secrets")
		wantOnly(t, token.Text("other objects", s.objects(t, "configmaps", "events", "serviceaccounts", "certificatesigningrequests", "leases", "nodes")))
		return nil
	}
	if err := s.node.Dial(t.Context(), at.address, s.cluster.ID()); err != nil {
		t.Fatal(err)
	}
	if token == nil || s.node.Denied() != nil {
		t.Fatalf("the machine did not join: %+v", s.node.Denied())
	}
	return token
}

// crashes ends programs while they hold keys. What they print stays below work.
func (s *apiSite) crashes(t *testing.T, work string, service *program) {
	service.wantCrash(t, syscall.SIGQUIT)

	nobody, err := testenv.FreeAddress()
	if err != nil {
		t.Fatal(err)
	}
	command := startProgram(t, work, s.command(t, work, "init --node "+nobody+" --measurements "+s.path("document.json")+" --ekid "+s.node.ID.String()))
	command.await(t, "waiting for "+nobody)
	command.wantCrash(t, syscall.SIGABRT)

	key := s.node.Ticket().Disk.Key.Expose()
	request, err := json.Marshal(statedisk.Request{Op: statedisk.OpOpen, Grant: &statedisk.Grant{}})
	if err != nil {
		t.Fatal(err)
	}
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	defer writer.Close()
	cmd := exec.Command(compile(t, "statedisk"))
	cmd.Stdin = reader
	helper := startProgram(t, work, cmd)
	// All but the key's last byte, for which it waits.
	if _, err := writer.Write(slices.Concat(request, []byte("\n"), key[:len(key)-1])); err != nil {
		t.Fatal(err)
	}
	for unread := 1; unread > 0; time.Sleep(20 * time.Millisecond) {
		if unread, err = unix.IoctlGetInt(int(reader.Fd()), unix.TIOCINQ); err != nil {
			t.Fatal(err)
		}
	}
	helper.wantCrash(t, syscall.SIGABRT)

	if cores, err := filepath.Glob(filepath.Join(work, "core*")); err != nil || len(cores) != 0 {
		t.Errorf("there are core files: %v, %v", cores, err)
	}
}
