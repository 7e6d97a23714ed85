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

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/image/lock"
	"github.com/hullmark/hullmark/image/oci"
	"github.com/hullmark/hullmark/internal/cache"
	"github.com/hullmark/hullmark/internal/vm"
	"github.com/hullmark/hullmark/kubeadm"
	"github.com/hullmark/hullmark/pcrs/machine"
)

var (
	rounds      = flag.Int("rounds", 3, "how often BenchmarkBoot boots each side")
	journals    = flag.String("journals", "", "`folder` for the journal of each of our boots in BenchmarkBoot, which tells where the seconds go")
	againRounds = flag.Int("again", 3, "in how many of these rounds, the last ones, it boots each side once more and has a worker join")
	idleRounds  = flag.Int("idle", 3, "in how many of those, the last ones, it looks at nodes that have long been Ready")
)

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
		NodeName: "control-plane-1", AdvertiseAddress: firstAddress,
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
	join, err := os.ReadFile(filepath.Join("testdata", "stock", "join.yaml"))
	if err != nil {
		b.Fatal(err)
	}
	put(b, p.mkosi.definitions, map[string]string{
		"mkosi.conf":                             fmt.Sprintf(diskConfig, "stock", stockContent, strings.Join(stockPackages, ","), ""),
		"mkosi.extra/usr/lib/stock/kubeadm.yaml": strings.NewReplacer("${VERSION}", kubeadm.Version, "${ADDRESS}", firstAddress.String()).Replace(string(document)),
		"mkosi.extra/usr/lib/stock/join.yaml":    strings.ReplaceAll(string(join), "${ADDRESS}", firstAddress.String()),
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

// hardwareOf is the machine that both sides' control planes have.
func hardwareOf(tools string) machine.Hardware {
	return machine.Hardware{Tools: tools, CPUs: 2, MemoryMiB: 4096}
}

// workerOf is the machine that both sides' workers have: an emulated processor takes a whole one of this host, and the control plane needs
// the other.
func workerOf(tools string) machine.Hardware {
	return machine.Hardware{Tools: tools, CPUs: 1, MemoryMiB: 2048}
}

// The addresses of both sides' machines: the first that the network's DHCP server gives out.
var firstAddress, workerAddress = netip.MustParseAddr("10.0.2.100"), netip.MustParseAddr("10.0.2.101")

// wires are the network of a control plane and a worker.
type wires struct {
	*vm.Network
	cut context.CancelFunc
}

func newWires(b *testing.B, dir, tools string) wires {
	b.Helper()
	ctx, cut := context.WithCancel(b.Context())
	n, err := vm.StartNetwork(ctx, vm.NetworkConfig{
		Dir: filepath.Join(dir, "network"), Tools: tools, Forwards: []vm.Forward{{Address: firstAddress, Guest: 7443}, {Address: firstAddress, Guest: 6443}, {Address: workerAddress, Guest: 7443}},
	})
	if err != nil {
		b.Fatal(err)
	}
	return wires{n, cut}
}

// end ends the network, whose machines are off.
func (w wires) end() {
	w.cut()
	_ = w.Wait() // It says that it was ended.
}

// agent and server are where the control plane's agent and API server are reached on this host.
func (w wires) agent() string  { return w.port(0) }
func (w wires) server() string { return w.port(1) }

func (w wires) port(i int) string { return "127.0.0.1:" + strconv.Itoa(int(w.Forwards()[i].Host)) }

// booted is a machine that runs.
type booted struct {
	*vm.Machine
	on time.Time // when it began to run: its disk and its TPM were there
}

func powerOn(b *testing.B, c vm.Config) booted {
	b.Helper()
	c.Accel, c.ExitOnReboot = vm.AccelTCG, true
	m, err := vm.Start(b.Context(), c)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(m.Kill)
	return booted{m, time.Now()}
}

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

// figures are what is wanted of a boot: seconds up to Ready and of processors, seconds until the pod network has started, too, and, of an
// idle node, MiB and processors; zero where nobody waited for that.
type figures struct{ ready, processor, network, memory, idle float64 }

// A node that is just Ready has much to do yet, longer where its processors are emulated.
const (
	settles = time.Minute     // before it is switched off
	idles   = 8 * time.Minute // before it counts as idle
	looked  = 2 * time.Minute // how long an idle one is looked at
)

// api is an API server as an administrator reaches it on this host.
type api struct {
	client *http.Client
	server string
}

func (w wires) api(b *testing.B, kubeconfig string) api {
	b.Helper()
	config, err := clientcmd.BuildConfigFromFlags("https://"+w.server(), kubeconfig)
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

// What both sides' nodes are called.
const (
	theNode   = "control-plane-1"
	theWorker = "worker-1"

	nodesPath = "/api/v1/nodes/"
)

// awaitReady asks every three seconds, as our agent does, until a node is Ready in another boot than before, and returns that boot's ID.
func (a api) awaitReady(b *testing.B, name, before string) string {
	b.Helper()
	var last error
	for began := time.Now(); time.Since(began) < bootPatience; time.Sleep(3 * time.Second) {
		var node corev1.Node
		if last = a.get(b, nodesPath+name, &node); last != nil || node.Status.NodeInfo.BootID == before {
			continue
		}
		for _, c := range node.Status.Conditions {
			if c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue {
				return node.Status.NodeInfo.BootID
			}
		}
	}
	b.Fatalf("%s did not get Ready: %v", name, last)
	return ""
}

// awaitNetwork waits until a node's pod network has started in the boot that began at that time. A stock node's kubelet is Ready before, in
// any boot but the first: it finds the settings of an earlier boot's. Those of ours go with the boot.
func (a api) awaitNetwork(b *testing.B, node string, began time.Time) {
	b.Helper()
	path := "/api/v1/namespaces/kube-system/pods?labelSelector=k8s-app%3Dflannel&fieldSelector=spec.nodeName%3D" + node
	var last error
	for asked := time.Now(); time.Since(asked) < bootPatience; time.Sleep(3 * time.Second) {
		var pods corev1.PodList
		if last = a.get(b, path, &pods); last != nil {
			continue
		}
		for _, p := range pods.Items {
			for _, c := range p.Status.ContainerStatuses {
				if running := c.State.Running; running != nil && running.StartedAt.After(began) {
					return
				}
			}
		}
	}
	b.Fatalf("the pod network of %s did not start: %v", node, last)
}

// statsSummary is what a kubelet says its node, its own parts and its pods hold (k8s.io/kubelet/pkg/apis/stats/v1alpha1).
type statsSummary struct {
	Node struct {
		load
		SystemContainers []struct {
			Name string `json:"name"`
			load
		} `json:"systemContainers"`
	} `json:"node"`
	Pods []struct {
		Pod struct {
			Name string `json:"name"`
		} `json:"podRef"`
		load
	} `json:"pods"`
}

// load is what a control group takes.
type load struct {
	Memory struct{ WorkingSetBytes, RSSBytes, UsageBytes float64 } `json:"memory"`
	CPU    struct{ UsageNanoCores float64 }                        `json:"cpu"`
}

// print tells where a node's processor time and memory are, the latter in MiB: all that is used, without pages of files that were read once,
// and of no file.
func (s statsSummary) print() {
	line := func(name string, t load) {
		const mib = 1 << 20
		m := t.Memory
		fmt.Printf("  %-50s %.3f processors; used %5.0f, working set %5.0f, anonymous %5.0f MiB\n", name, t.CPU.UsageNanoCores/1e9, m.UsageBytes/mib, m.WorkingSetBytes/mib, m.RSSBytes/mib)
	}
	line("node", s.Node.load)
	for _, c := range s.Node.SystemContainers {
		line(c.Name, c.load)
	}
	for _, p := range s.Pods {
		line(p.Pod.Name, p.load)
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
		if err = a.get(b, nodesPath+theNode+"/proxy/stats/summary?only_cpu_and_memory=true", &summary); err == nil {
			break
		}
	}
	if err != nil {
		b.Fatal(err)
	}
	summary.print()
	f.memory = summary.Node.Memory.WorkingSetBytes / (1 << 20)
}

// taken is what a boot took whose node got Ready just now.
func (m booted) taken(b *testing.B, a api, node string) figures {
	b.Helper()
	f := figures{ready: time.Since(m.on).Seconds(), processor: m.processor(b)}
	a.awaitNetwork(b, node, m.on)
	f.network = time.Since(m.on).Seconds()
	return f
}

func (m booted) switchOff(b *testing.B) {
	b.Helper()
	if !m.Stop(5 * time.Minute) {
		b.Error("the node did not switch itself off")
	}
}

// node is one side: a control plane over its boots, and a worker.
type node interface {
	// boot has the control plane booted, up to Ready.
	boot(*testing.B) (booted, api)
	// worker has a worker booted that joins, up to Ready; the control plane runs.
	worker(*testing.B, api) booted
	// keep keeps the journal of a boot under its name, where the side has a way to ask for it.
	keep(b *testing.B, boot string)
}

// firstly boots a side's control plane for the first time.
func firstly(b *testing.B, n node) figures {
	b.Helper()
	m, a := n.boot(b)
	f := m.taken(b, a, theNode)
	n.keep(b, boots[0])
	time.Sleep(settles)
	m.switchOff(b)
	return f
}

// again boots it once more, and then has a worker join.
func again(b *testing.B, n node, look bool) (reboot, join figures) {
	b.Helper()
	m, a := n.boot(b)
	reboot = m.taken(b, a, theNode)
	n.keep(b, boots[1])
	if look {
		m.idle(b, a, &reboot)
	} else {
		time.Sleep(settles)
	}
	w := n.worker(b, a)
	join = w.taken(b, a, theWorker)
	n.keep(b, boots[2])
	w.switchOff(b)
	m.switchOff(b)
	return reboot, join
}

// stockNode is a stock node over its boots.
type stockNode struct {
	wires                                  wires
	dir, workerDir, tools, kubeconfig, was string
}

func (s *stockNode) boot(b *testing.B) (booted, api) {
	b.Helper()
	m := powerOn(b, vm.Config{Dir: s.dir, Hardware: hardwareOf(s.tools), Networks: []string{s.wires.Dir()}})
	if s.kubeconfig == "" {
		text, err := base64.StdEncoding.DecodeString(m.sees(b, `stock: kubeconfig ([A-Za-z0-9+/=]+) end`))
		s.kubeconfig = filepath.Join(s.dir, "kubeconfig")
		if err := errors.Join(err, os.WriteFile(s.kubeconfig, text, 0o600)); err != nil {
			b.Fatal(err)
		}
	}
	a := s.wires.api(b, s.kubeconfig)
	s.was = a.awaitReady(b, theNode, s.was)
	return m, a
}

// worker is told what it is by the firmware's configuration device.
func (s *stockNode) worker(b *testing.B, a api) booted {
	b.Helper()
	m := powerOn(b, vm.Config{
		Dir: s.workerDir, Hardware: workerOf(s.tools), Networks: []string{s.wires.Dir()}, FwCfg: map[string]string{"opt/stock/worker": "yes"},
	})
	a.awaitReady(b, theWorker, "")
	return m
}

func (*stockNode) keep(*testing.B, string) {}

// ownNode is a node of ours over its boots.
type ownNode struct {
	wires                  wires
	dir, image, tools, was string
	program                string // hullmark
	round                  int
}

func (o *ownNode) file(name string) string { return filepath.Join(o.dir, name) }

// hullmark runs a command with the cluster file.
func (o *ownNode) hullmark(b *testing.B, args ...string) {
	b.Helper()
	args = append(args, "--cluster", o.file("cluster"), "--passphrase-file", o.file("passphrase"))
	if err := runQuiet(exec.CommandContext(b.Context(), o.program, args...), "hullmark "+args[0]); err != nil {
		b.Fatal(err)
	}
}

// powerOn switches a machine on that has a configuration of this name.
func (o *ownNode) powerOn(b *testing.B, name string, hardware machine.Hardware) (booted, string) {
	b.Helper()
	config, err := os.ReadFile(o.file(name + ".json"))
	if err != nil {
		b.Fatal(err)
	}
	c := vm.Config{Dir: o.file(name), Image: o.image, Hardware: hardware, NodeConfig: config, Networks: []string{o.wires.Dir()}}
	c.StateDisk = 8 << 30
	m := powerOn(b, c)
	ek, err := os.ReadFile(filepath.Join(m.Dir(), vm.EKIDFile))
	if err != nil {
		b.Fatal(err)
	}
	return m, strings.TrimSpace(string(ek))
}

// boot has the operator make the cluster in the first boot, and recover it in those that follow.
func (o *ownNode) boot(b *testing.B) (booted, api) {
	b.Helper()
	m, ek := o.powerOn(b, "node", hardwareOf(o.tools))
	if o.was == "" {
		o.hullmark(b, "init", "--node", o.wires.agent(), "--measurements", strings.TrimSuffix(o.image, ".raw")+".json", "--ekid", ek,
			"--ek-ca", filepath.Join(m.Dir(), vm.CAFile), "--endpoint", o.wires.server(), "--kubeconfig", o.file("kubeconfig"), "--profile", "slow")
	} else {
		o.hullmark(b, "recover", "--node", o.wires.agent(), "--yes")
	}
	a := o.wires.api(b, o.file("kubeconfig"))
	o.was = a.awaitReady(b, theNode, o.was)
	return m, a
}

// worker has the operator name the machine in the policy once it is switched on, whose TPM is new.
func (o *ownNode) worker(b *testing.B, a api) booted {
	b.Helper()
	m, ek := o.powerOn(b, "worker", workerOf(o.tools))
	o.hullmark(b, "policy", "add", "member", "--ekid", ek, "--role", "worker", "--name", "worker-1")
	o.hullmark(b, "policy", "push", "--server", o.wires.server(), "--wait", "10m")
	a.awaitReady(b, theWorker, "")
	return m
}

// keep asks the control plane's agent, or the worker's.
func (o *ownNode) keep(b *testing.B, boot string) {
	b.Helper()
	if *journals == "" {
		return
	}
	at := o.wires.agent()
	if boot == boots[2] {
		at = o.wires.port(2)
	}
	cmd := exec.CommandContext(b.Context(), o.program, "node", "logs", "--node", at, "--cluster", o.file("cluster"), "--passphrase-file", o.file("passphrase"), "--wait", "3m")
	journal, err := cmd.Output()
	err = errors.Join(err, os.WriteFile(filepath.Join(*journals, fmt.Sprintf("%d %s.log", o.round, boot)), journal, 0o600))
	if err != nil {
		b.Logf("the journal of %s: %v", boot, err)
	}
}

// newOwn is a node of ours that never booted.
func newOwn(b *testing.B, w wires, round int, dir, image, tools, program string) *ownNode {
	b.Helper()
	o := &ownNode{wires: w, dir: dir, image: image, tools: tools, program: program, round: round}
	if err := os.WriteFile(o.file("passphrase"), []byte("correct horse battery staple\n"), 0o600); err != nil {
		b.Fatal(err)
	}
	made := exec.CommandContext(b.Context(), program, "cluster", "new", o.file("cluster"), "--passphrase-file", o.file("passphrase"), "--node-config", o.file("node.json"))
	if err := runQuiet(made, "hullmark cluster new"); err != nil {
		b.Fatal(err)
	}
	text, err := os.ReadFile(o.file("node.json"))
	if err != nil {
		b.Fatal(err)
	}
	config, err := hullmark.ParseNodeConfig(text)
	if err != nil {
		b.Fatal(err)
	}
	config.Endpoints = []string{netip.AddrPortFrom(firstAddress, 7444).String()}
	if text, err = json.Marshal(config); err != nil {
		b.Fatal(err)
	}
	if err := os.WriteFile(o.file("worker.json"), text, 0o600); err != nil {
		b.Fatal(err)
	}
	return o
}

// boots are those of a round, in the table's order.
var boots = []string{"first boot", "reboot", "worker joins"}

// BenchmarkBoot compares a first boot and a reboot of the first control plane, and the join of a worker, each from power-on to a Ready node,
// with a stock one's. Ours is attested, and its disk encrypted. The stock node unpacked its images in a boot before, which is not counted.
// Who goes first changes by round.
func BenchmarkBoot(b *testing.B) {
	if *rounds < 1 || *rounds%2 == 0 {
		b.Fatalf("-rounds %d: want an odd number", *rounds)
	}
	if *againRounds > *rounds || *idleRounds > *againRounds {
		b.Fatalf("-rounds %d -again %d -idle %d: none may be above the one before", *rounds, *againRounds, *idleRounds)
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
		sides, networks := [2]node{}, [2]wires{}
		for side, name := range []string{"own", "stock"} {
			dir := filepath.Join(dir, name)
			if err := os.Mkdir(dir, 0o700); err != nil {
				b.Fatal(err)
			}
			networks[side] = newWires(b, dir, tools)
			if name == "own" {
				sides[side] = newOwn(b, networks[side], i+1, dir, filepath.Join(out, "hullmark.raw"), tools, program)
				continue
			}
			s := &stockNode{wires: networks[side], dir: filepath.Join(dir, "node"), workerDir: filepath.Join(dir, "worker"), tools: tools}
			for _, machine := range []string{s.dir, s.workerDir} {
				if err := runQuiet(exec.CommandContext(b.Context(), "cp", "--archive", "--sparse=always", stock, machine), "cp"); err != nil {
					b.Fatal(err)
				}
			}
			sides[side] = s
		}
		note := func(boot string, side int, f figures) {
			both := seen[boot]
			both[side] = append(both[side], f)
			seen[boot] = both
			fmt.Printf("round %d, %s, %s: %+v\n", i+1, boot, [2]string{"ours", "the stock node's"}[side], f)
		}
		order := []int{0, 1}
		if i%2 == 1 {
			slices.Reverse(order)
		}
		for _, side := range order {
			note(boots[0], side, firstly(b, sides[side]))
		}
		for _, side := range order {
			if left := *rounds - i; left <= *againRounds {
				reboot, join := again(b, sides[side], left <= *idleRounds)
				note(boots[1], side, reboot)
				note(boots[2], side, join)
			}
		}
		for _, n := range networks {
			n.end()
		}
		if err := os.RemoveAll(dir); err != nil {
			b.Fatal(err)
		}
		bootTable(b, seen)
	}
}

// bootTable prints medians of the rounds so far, side by side, with the least and the most of each side.
func bootTable(b *testing.B, seen map[string][2][]figures) {
	b.Helper()
	t := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "\nmedians; two emulated processors and 4 GiB, a worker one and 2 GiB\trounds\thullmark\t\tstock\t\tratio\ttarget\t\n")
	for _, boot := range boots {
		for _, row := range []struct {
			what   string
			of     func(figures) float64
			unit   string
			target float64
		}{
			{"power-on to Ready", func(f figures) float64 { return f.ready }, "s", 0.7},
			{"the same, and the pod network has started", func(f figures) float64 { return f.network }, "s", 0.7},
			{"QEMU's processor time up to Ready", func(f figures) float64 { return f.processor }, "s", 0.9},
			{"working set, idle", func(f figures) float64 { return f.memory }, "MiB", 0.9},
			{"processors taken, idle", func(f figures) float64 { return f.idle }, "", 0.9},
		} {
			sorted := func(all []figures) (list []float64) {
				for _, f := range all {
					if value := row.of(f); value != 0 { // Somebody looked.
						list = append(list, value)
					}
				}
				slices.Sort(list)
				return list
			}
			own, theirs := sorted(seen[boot][0]), sorted(seen[boot][1])
			if len(own) == 0 {
				continue
			}
			half, last := len(own)/2, len(own)-1
			ratio, verdict := own[half]/theirs[half], "met"
			if ratio > row.target {
				verdict = "missed"
			}
			fmt.Fprintf(t, "%s: %s\t%d\t%.2f %s\t%.2f to %.2f\t%.2f %s\t%.2f to %.2f\t%.2f\tat most %.2f\t%s\n", boot, row.what, len(own),
				own[half], row.unit, own[0], own[last], theirs[half], row.unit, theirs[0], theirs[last], ratio, row.target, verdict)
		}
	}
	if err := t.Flush(); err != nil {
		b.Fatal(err)
	}
	fmt.Println("Ours alone has readiness probes every 10 s instead of 1 s, 0.3 processor for etcd instead of 0.1, the kubelet as SCHED_BATCH,\n" +
		"fewer plugins of containerd, and fewer Linux security modules: anybody could set these. Its TPM's processor time is not counted.")
}
