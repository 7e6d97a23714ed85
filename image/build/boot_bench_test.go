//go:build bench

package build

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/hullmark/hullmark/image/lock"
	"github.com/hullmark/hullmark/image/oci"
	"github.com/hullmark/hullmark/internal/cache"
	"github.com/hullmark/hullmark/internal/vm"
	"github.com/hullmark/hullmark/kubeadm"
	"github.com/hullmark/hullmark/pcrs/machine"
)

var rounds = flag.Int("rounds", 3, "how often BenchmarkBoot boots each side")

// The stock node is what people would pick instead: Debian with its cloud kernel and containerd, kubeadm's packages as Kubernetes
// builds them, on a writable ext4, with all images unpacked before. mkosi makes its disk and its initrd. Kubernetes, etcd, CoreDNS, the
// pod network and kube-proxy are of the same versions; the last two come by the same manifests.
// Its initrd has the modules that mkosi's own has, and nothing is asked on its console.
const (
	stockInitrd  = "KernelModulesInitrdExclude=.*\nKernelModulesInitrdInclude=default\n"
	stockContent = "KernelCommandLine=systemd.firstboot=no\n" + stockInitrd
)

// stockRepository is where the stock node's images are named to be from.
const stockRepository = "localhost/stock"

var stockPartitions = map[string]string{
	"00-esp.conf":  peerPartitions["00-esp.conf"],
	"10-root.conf": "[Partition]\nType=root\nFormat=ext4\nCopyFiles=/:/\nSizeMinBytes=8G\nSizeMaxBytes=8G\n",
}

// stockPackages are Kubernetes' own requirements, and dbus and logind, for the power button.
var stockPackages = []string{
	"ca-certificates", "conntrack", "containerd", "containernetworking-plugins", "dbus", "ethtool", "iproute2", "iptables", "kmod", "linux-image-cloud-amd64",
	"mount", "nftables", "runc", "socat", "systemd", "systemd-resolved", "systemd-sysv", "udev", "util-linux", "e2fsprogs", peerStub,
}

// upstream compiles Kubernetes' own programs, each by itself, of the sources that the bundle is of.
func upstream(b *testing.B, o Options, l lock.Lock) string {
	b.Helper()
	key, err := kubernetesKey(b.Context(), o, l.Go)
	if err != nil {
		b.Fatal(err)
	}
	dir, _, err := o.Store.Step("stock", cache.Key("1", key), func(dir string) error {
		of := bundle{release: l.Go, source: kubernetesSource(o), home: dir, objects: filepath.Join(o.Store.Root, "stock-objects"), progress: o.Progress}
		stamps, err := of.stamps(b.Context())
		if err != nil {
			return err
		}
		var packages []string
		for _, name := range kubePrograms {
			packages = append(packages, "k8s.io/kubernetes/cmd/"+name)
		}
		if err := of.compile(b.Context(), ".", stamps, append(packages, "./pause")); err != nil {
			return err
		}
		return os.RemoveAll(of.objects)
	})
	if err != nil {
		b.Fatal(err)
	}
	return filepath.Join(dir, "bin")
}

// stockImages writes the archives of a stock node's images, one for each program.
func stockImages(b *testing.B, programs, bundle, to string) {
	b.Helper()
	out, err := exec.CommandContext(b.Context(), filepath.Join(programs, "kubeadm"),
		"config", "images", "list", "--image-repository", stockRepository, "--kubernetes-version", kubeadm.Version).Output()
	if err != nil {
		b.Fatal(err)
	}
	if err := os.MkdirAll(to, 0o755); err != nil {
		b.Fatal(err)
	}
	write := func(name string, image oci.Image) {
		f, err := os.Create(filepath.Join(to, strings.ReplaceAll(strings.TrimPrefix(name, stockRepository+"/"), "/", "-")+".tar"))
		if err != nil {
			b.Fatal(err)
		}
		if err := errors.Join(oci.Write(f, image, []string{name}), f.Close()); err != nil {
			b.Fatal(err)
		}
	}
	pause, err := os.ReadFile(filepath.Join(programs, "pause"))
	if err != nil {
		b.Fatal(err)
	}
	for _, name := range strings.Fields(string(out)) {
		program := strings.Split(filepath.Base(name), ":")[0]
		if program == "kube-proxy" {
			continue
		}
		from := programs
		if program == "etcd" || program == "coredns" {
			from = bundle
		}
		content, err := os.ReadFile(filepath.Join(from, program))
		if err != nil {
			b.Fatal(err)
		}
		write(name, oci.Image{Files: []oci.File{{Name: program, Mode: 0o755, Content: content}}, Path: "/", Entrypoint: []string{"/" + program}})
	}
	write(kubeadm.NodeImage, kubernetesImage(pause))
}

// newStock has mkosi build the stock node's disk, and returns it as it is after its images were unpacked.
func newStock(b *testing.B, o Options, l lock.Lock, tools string) string {
	b.Helper()
	m, err := openMkosi(b.Context(), o, l)
	if err != nil {
		b.Fatal(err)
	}
	mirrors, err := o.mirrors()
	if err != nil {
		b.Fatal(err)
	}
	work := b.TempDir()
	p := peer{mkosi: mkosi{program: m.program, definitions: filepath.Join(work, "definitions")}, tools: peerToolsTree(b, o, mirrors, append(peerTools, "e2fsprogs")...), work: work}
	at := func(names ...string) string {
		return filepath.Join(append([]string{p.mkosi.definitions, "mkosi.extra"}, names...)...)
	}
	if err := os.CopyFS(p.mkosi.definitions, os.DirFS(filepath.Join("testdata", "stock"))); err != nil {
		b.Fatal(err)
	}
	params := kubeadm.Params{
		NodeName: "control-plane-1", AdvertiseAddress: netip.MustParseAddr("10.0.2.15"),
		ServiceSubnet: kubeadm.MustParseSubnets("10.96.0.0/12"), PodSubnet: kubeadm.MustParseSubnets("10.244.0.0/16"),
	}
	proxy, err := kubeadm.KubeProxy(params)
	if err != nil {
		b.Fatal(err)
	}
	network, err := kubeadm.Flannel(params)
	if err != nil {
		b.Fatal(err)
	}
	document, err := os.ReadFile(filepath.Join("testdata", "stock", "kubeadm.yaml"))
	if err != nil {
		b.Fatal(err)
	}
	put(b, p.mkosi.definitions, map[string]string{
		"mkosi.conf":                             fmt.Sprintf(diskConfig, "stock", stockContent, strings.Join(stockPackages, ","), ""),
		"mkosi.extra/usr/lib/stock/kubeadm.yaml": strings.ReplaceAll(string(document), "${VERSION}", kubeadm.Version),
		"mkosi.extra/usr/lib/stock/addons.yaml":  string(proxy) + "---\n" + string(network),
	})
	put(b, filepath.Join(p.mkosi.definitions, "mkosi.repart"), stockPartitions)
	p.sources(b, mirrors)
	programs, kubernetes := upstream(b, o, l), filepath.Join(kubernetesOf(b, o, l), kubernetesHome, "bin")
	stockImages(b, programs, kubernetes, at("usr/lib/stock/images"))
	for to, from := range map[string]string{
		"usr/bin/kubeadm": filepath.Join(programs, "kubeadm"), "usr/bin/kubelet": filepath.Join(programs, "kubelet"), "usr/bin/kubectl": filepath.Join(programs, "kubectl"),
		"usr/lib/kubernetes/bin/kube-proxy": filepath.Join(programs, "kube-proxy"), "usr/lib/kubernetes/bin/flannel": filepath.Join(kubernetes, "flannel"),
	} {
		if err := runQuiet(exec.CommandContext(b.Context(), "install", "-D", "--mode=755", from, at(to)), "install"); err != nil {
			b.Fatal(err)
		}
	}
	if err := os.Chmod(at("usr/lib/stock/node"), 0o755); err != nil {
		b.Fatal(err)
	}
	b.Logf("mkosi built the stock disk in %.0f s", p.build(b).Seconds())
	dir := b.TempDir()
	first := powerOn(b, vm.Config{Dir: dir, Image: filepath.Join(work, "stock.raw"), Hardware: hardwareOf(tools)})
	first.sees(b, "stock: images unpacked")
	select {
	case <-first.Done():
	case <-time.After(bootPatience):
		b.Fatal("the stock node did not switch itself off")
	}
	return dir
}

// kubernetesOf is the folder of the bundle.
func kubernetesOf(b *testing.B, o Options, l lock.Lock) string {
	b.Helper()
	dir, _, err := Kubernetes(b.Context(), o, l)
	if err != nil {
		b.Fatal(err)
	}
	return dir
}

// hardwareOf is the machine that both sides have.
func hardwareOf(tools string) machine.Hardware {
	return machine.Hardware{Tools: tools, CPUs: 2, MemoryMiB: 4096}
}

// booted is a machine that runs.
type booted struct {
	*vm.Machine
	on time.Time // when it began to run: its disk and its TPM were there
}

func powerOn(b *testing.B, c vm.Config) booted {
	b.Helper()
	c.Accel, c.ExitOnReboot = vm.AccelTCG, true
	c.Forwards = []vm.Forward{{Guest: 7443}, {Guest: 6443}}
	m, err := vm.Start(b.Context(), c)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(m.Kill)
	return booted{m, time.Now()}
}

// port is where a forward is reached on this host.
func (m booted) port(i int) string { return "127.0.0.1:" + strconv.Itoa(int(m.Forwards()[i].Host)) }

// sees waits for a line of the console, and returns what it has in its first group.
func (m booted) sees(b *testing.B, want string) string {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.Context(), bootPatience)
	defer cancel()
	re := regexp.MustCompile(want)
	line, err := m.WaitConsole(ctx, re)
	if err != nil {
		console, _ := os.ReadFile(m.Console())
		b.Fatalf("the console does not show %q: %v\nits end:\n%s", want, err, console[max(0, len(console)-4000):])
	}
	if found := re.FindStringSubmatch(line); len(found) > 1 {
		return found[1]
	}
	return ""
}

// bootPatience bounds a boot.
const bootPatience = 40 * time.Minute

// processor is how many seconds of this host's processors the machine's QEMU has taken (proc_pid_stat(5), utime and stime).
func (m booted) processor(b *testing.B) float64 {
	b.Helper()
	all, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		b.Fatal(err)
	}
	for _, file := range all {
		command, err := os.ReadFile(file)
		if err != nil || !bytes.HasPrefix(command, []byte("qemu-system")) || !bytes.Contains(command, []byte(m.Dir()+"/")) {
			continue
		}
		stat, err := os.ReadFile(filepath.Join(filepath.Dir(file), "stat"))
		if err != nil {
			b.Fatal(err)
		}
		fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
		user, err1 := strconv.ParseFloat(fields[11], 64)
		system, err2 := strconv.ParseFloat(fields[12], 64)
		if err := errors.Join(err1, err2); err != nil {
			b.Fatal(err)
		}
		return (user + system) / 100
	}
	b.Fatalf("no QEMU runs in %s", m.Dir())
	return 0
}

// figures are what is wanted of a boot: seconds up to Ready and of processors, and, of an idle node, MiB and processors; zero where
// nobody waited for that.
type figures struct{ ready, processor, memory, idle float64 }

// A node that is just Ready has much to do yet, longer where its processors are emulated.
const (
	settles = 2 * time.Minute // before it is switched off
	idles   = 8 * time.Minute // before it counts as idle
	looked  = 2 * time.Minute // how long an idle one is looked at
)

// api is an API server as an administrator reaches it on this host.
type api struct {
	client *http.Client
	server string
}

func (m booted) api(b *testing.B, kubeconfig string) api {
	b.Helper()
	config, err := clientcmd.BuildConfigFromFlags("https://"+m.port(1), kubeconfig)
	if err != nil {
		b.Fatal(err)
	}
	config.ServerName, config.Timeout = "kubernetes", 10*time.Second
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		b.Fatal(err)
	}
	return api{client, config.Host}
}

func (a api) get(b *testing.B, path string, into any) error {
	request, err := http.NewRequestWithContext(b.Context(), http.MethodGet, a.server+path, nil)
	if err != nil {
		return err
	}
	response, err := a.client.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		return errors.New(response.Status)
	}
	return json.NewDecoder(response.Body).Decode(into)
}

// theNode is what both sides' is called.
const theNode = "/api/v1/nodes/control-plane-1"

// awaitReady asks every three seconds, as our agent does, until the node is Ready in another boot than before, and returns that boot's ID.
func (a api) awaitReady(b *testing.B, before string) string {
	b.Helper()
	var last error
	for began := time.Now(); time.Since(began) < bootPatience; time.Sleep(3 * time.Second) {
		var node corev1.Node
		if last = a.get(b, theNode, &node); last != nil || node.Status.NodeInfo.BootID == before {
			continue
		}
		for _, c := range node.Status.Conditions {
			if c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue {
				return node.Status.NodeInfo.BootID
			}
		}
	}
	b.Fatalf("the node did not get Ready: %v", last)
	return ""
}

// statsSummary is what a kubelet says its node, its own parts and its pods hold (k8s.io/kubelet/pkg/apis/stats/v1alpha1).
type statsSummary struct {
	Node struct {
		taken
		SystemContainers []struct {
			Name string `json:"name"`
			taken
		} `json:"systemContainers"`
	} `json:"node"`
	Pods []struct {
		Pod struct {
			Name string `json:"name"`
		} `json:"podRef"`
		taken
	} `json:"pods"`
}

// taken is what a control group takes.
type taken struct {
	Memory struct{ WorkingSetBytes, RSSBytes, UsageBytes float64 } `json:"memory"`
	CPU    struct{ UsageNanoCores float64 }                        `json:"cpu"`
}

// print tells where a node's processor time and memory are, the latter in MiB: all that is used, without pages of files that were read once,
// and of no file.
func (s statsSummary) print() {
	line := func(name string, t taken) {
		const mib = 1 << 20
		m := t.Memory
		fmt.Printf("  %-50s %.3f processors; used %5.0f, working set %5.0f, anonymous %5.0f MiB\n", name, t.CPU.UsageNanoCores/1e9, m.UsageBytes/mib, m.WorkingSetBytes/mib, m.RSSBytes/mib)
	}
	line("node", s.Node.taken)
	for _, c := range s.Node.SystemContainers {
		line(c.Name, c.taken)
	}
	for _, p := range s.Pods {
		line(p.Pod.Name, p.taken)
	}
}

// idle is what a node takes that has long been Ready, by its kubelet, and what of the host's processors.
func (m booted) idle(b *testing.B, a api, f *figures) {
	b.Helper()
	time.Sleep(idles)
	began, used := time.Now(), m.processor(b)
	time.Sleep(looked)
	f.idle = (m.processor(b) - used) / time.Since(began).Seconds()
	var summary statsSummary
	var err error
	for asked := time.Now(); time.Since(asked) < 2*time.Minute; time.Sleep(5 * time.Second) { // An emulated node may take long to answer.
		if err = a.get(b, theNode+"/proxy/stats/summary?only_cpu_and_memory=true", &summary); err == nil {
			break
		}
	}
	if err != nil {
		b.Fatal(err)
	}
	summary.print()
	f.memory = summary.Node.Memory.WorkingSetBytes / (1 << 20)
}

// end notes what a boot took up to Ready, and switches the node off: after its first boot soon, else once its idle figures are known.
func (m booted) end(b *testing.B, a api, first bool) (f figures) {
	b.Helper()
	f.ready, f.processor = time.Since(m.on).Seconds(), m.processor(b)
	if first {
		time.Sleep(settles)
	} else {
		m.idle(b, a, &f)
	}
	if !m.Stop(5 * time.Minute) {
		b.Error("the node did not switch itself off")
	}
	return f
}

// stockNode is a stock node over its boots.
type stockNode struct{ dir, tools, kubeconfig, boot string }

func (s *stockNode) bootOnce(b *testing.B) figures {
	b.Helper()
	first := s.boot == ""
	m := powerOn(b, vm.Config{Dir: s.dir, Hardware: hardwareOf(s.tools)})
	if s.kubeconfig == "" {
		text, err := base64.StdEncoding.DecodeString(m.sees(b, `stock: kubeconfig ([A-Za-z0-9+/=]+) end`))
		s.kubeconfig = filepath.Join(s.dir, "kubeconfig")
		if err := errors.Join(err, os.WriteFile(s.kubeconfig, text, 0o600)); err != nil {
			b.Fatal(err)
		}
	}
	a := m.api(b, s.kubeconfig)
	s.boot = a.awaitReady(b, s.boot)
	return m.end(b, a, first)
}

// ownNode is a node of ours over its boots.
type ownNode struct {
	dir, image, tools, boot string
	program                 string // hullmark
}

func (o *ownNode) file(name string) string { return filepath.Join(o.dir, name) }

// hullmark runs a command with the cluster file.
func (o *ownNode) hullmark(b *testing.B, args ...string) error {
	args = append(args, "--cluster", o.file("cluster"), "--passphrase-file", o.file("passphrase"))
	return runQuiet(exec.CommandContext(b.Context(), o.program, args...), "hullmark "+args[0])
}

// bootOnce has the operator make the cluster in the first boot, and recover it in those that follow.
func (o *ownNode) bootOnce(b *testing.B) figures {
	b.Helper()
	first := o.boot == ""
	config, err := os.ReadFile(o.file("node.json"))
	if err != nil {
		b.Fatal(err)
	}
	c := vm.Config{Dir: o.file("vm"), Image: o.image, Hardware: hardwareOf(o.tools), NodeConfig: config}
	c.StateDisk = 8 << 30
	m := powerOn(b, c)
	args := []string{"recover", "--node", m.port(0), "--yes"}
	if first {
		ek, err := os.ReadFile(filepath.Join(m.Dir(), vm.EKIDFile))
		if err != nil {
			b.Fatal(err)
		}
		args = []string{
			"init", "--node", m.port(0), "--measurements", strings.TrimSuffix(o.image, ".raw") + ".json", "--ekid", strings.TrimSpace(string(ek)),
			"--ek-ca", filepath.Join(m.Dir(), vm.CAFile), "--endpoint", m.port(1), "--kubeconfig", o.file("kubeconfig"), "--profile", "slow",
		}
	}
	if err := o.hullmark(b, args...); err != nil {
		b.Fatal(err)
	}
	a := m.api(b, o.file("kubeconfig"))
	o.boot = a.awaitReady(b, o.boot)
	return m.end(b, a, first)
}

// newOwn is a node of ours that never booted.
func newOwn(b *testing.B, dir, image, tools, program string) *ownNode {
	b.Helper()
	o := &ownNode{dir: dir, image: image, tools: tools, program: program}
	if err := os.WriteFile(o.file("passphrase"), []byte("correct horse battery staple\n"), 0o600); err != nil {
		b.Fatal(err)
	}
	made := exec.CommandContext(b.Context(), program, "cluster", "new", o.file("cluster"), "--passphrase-file", o.file("passphrase"), "--node-config", o.file("node.json"))
	if err := runQuiet(made, "hullmark cluster new"); err != nil {
		b.Fatal(err)
	}
	return o
}

// boots are those of a round.
var boots = []string{"first boot", "reboot"}

// BenchmarkBoot compares a first boot and a reboot of the first control plane, up to a Ready node, with a stock one's. Ours is attested, and its
// disk encrypted. The stock node unpacked its images in a boot before, which is not counted. Who goes first changes by round.
func BenchmarkBoot(b *testing.B) {
	if *rounds < 1 || *rounds%2 == 0 {
		b.Fatalf("-rounds %d: want an odd number", *rounds)
	}
	o, l, tools := settled(b)
	o.WithoutKubernetes = false
	o.Progress = NewProgress(os.Stdout, time.Now)
	stock := newStock(b, o, l, tools)
	out, program := b.TempDir(), filepath.Join(b.TempDir(), "hullmark")
	build := exec.CommandContext(b.Context(), "go", "build", "-o", program, "../../tools/hullmark")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if err := runQuiet(build, "go build"); err != nil {
		b.Fatal(err)
	}
	if err := runQuiet(exec.CommandContext(b.Context(), program, "build", "--relock", "--source", o.Source, "--out", out), "hullmark build"); err != nil {
		b.Fatal(err)
	}
	seen := map[string][2][]figures{} // by boot: ours, the stock node's
	for i := range *rounds {
		dir := b.TempDir()
		theirs := &stockNode{dir: filepath.Join(dir, "stock"), tools: tools}
		if err := errors.Join(runQuiet(exec.CommandContext(b.Context(), "cp", "--archive", "--sparse=always", stock, theirs.dir), "cp"), os.Mkdir(filepath.Join(dir, "own"), 0o700)); err != nil {
			b.Fatal(err)
		}
		own := newOwn(b, filepath.Join(dir, "own"), filepath.Join(out, "hullmark.raw"), tools, program)
		for _, boot := range boots {
			both := seen[boot]
			sides := []func(){
				func() { both[0] = append(both[0], own.bootOnce(b)) },
				func() { both[1] = append(both[1], theirs.bootOnce(b)) },
			}
			if i%2 == 1 {
				slices.Reverse(sides)
			}
			for _, side := range sides {
				side()
			}
			seen[boot] = both
			fmt.Printf("round %d, %s: ours %+v, the stock node's %+v\n", i+1, boot, both[0][i], both[1][i])
		}
		if err := os.RemoveAll(dir); err != nil {
			b.Fatal(err)
		}
	}
	bootTable(b, seen)
}

// bootTable prints medians, side by side, with the least and the most of each side.
func bootTable(b *testing.B, seen map[string][2][]figures) {
	b.Helper()
	t := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "\nof %d rounds, two emulated processors, 4 GiB\thullmark\t\tstock\t\tratio\ttarget\t\n", *rounds)
	for _, boot := range boots {
		for _, row := range []struct {
			what   string
			of     func(figures) float64
			unit   string
			target float64
		}{
			{"power-on to Ready", func(f figures) float64 { return f.ready }, "s", 0.7},
			{"QEMU's processor time up to there", func(f figures) float64 { return f.processor }, "s", 0.9},
			{"working set, idle", func(f figures) float64 { return f.memory }, "MiB", 0.9},
			{"processors taken, idle", func(f figures) float64 { return f.idle }, "", 0.9},
		} {
			if row.of(seen[boot][1][0]) == 0 {
				continue
			}
			sorted := func(all []figures) (list []float64) {
				for _, f := range all {
					list = append(list, row.of(f))
				}
				slices.Sort(list)
				return list
			}
			own, theirs := sorted(seen[boot][0]), sorted(seen[boot][1])
			half, last := len(own)/2, len(own)-1
			ratio, verdict := own[half]/theirs[half], "met"
			if ratio > row.target {
				verdict = "missed"
			}
			fmt.Fprintf(t, "%s: %s\t%.2f %s\t%.2f to %.2f\t%.2f %s\t%.2f to %.2f\t%.2f\tat most %.2f\t%s\n", boot, row.what,
				own[half], row.unit, own[0], own[last], theirs[half], row.unit, theirs[0], theirs[last], ratio, row.target, verdict)
		}
	}
	if err := t.Flush(); err != nil {
		b.Fatal(err)
	}
	fmt.Println("Ours alone has readiness probes every 10 s instead of 1 s, 0.3 processor for etcd instead of 0.1, the kubelet as SCHED_BATCH, and\n" +
		"fewer Linux security modules: anybody could set these. Its TPM's processor time is not counted.")
}
