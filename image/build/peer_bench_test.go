//go:build bench

package build

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/hullmark/hullmark/image/gpt"
	"github.com/hullmark/hullmark/image/lock"
	"github.com/hullmark/hullmark/internal/cache"
	"github.com/hullmark/hullmark/internal/vm"
	"github.com/hullmark/hullmark/pcrs/machine"
)

// The peer is mkosi itself, which makes a disk of the same packages: ESP with a UKI, erofs root with the same compression,
// dm-verity. It has the same tools tree, which for its sake holds what it assembles disks with, too.
var peerTools = []string{"systemd-repart", "systemd-ukify", "zstd"}

// peerStub is the package that mkosi takes the UKI's stub from; Hullmark takes it from the tools tree.
const peerStub = "systemd-boot-efi"

// diskConfig is mkosi's definition of a disk: its name, further lines of what is in it, its packages, and further lines of how it is built.
const diskConfig = `[Distribution]
Distribution=debian
Release=` + release + `
Architecture=x86-64

[Output]
Format=disk
Output=%s

[Content]
Bootable=yes
Bootloader=uki
WithRecommends=no
Locale=C.UTF-8
KernelCommandLine=console=ttyS0 quiet
%sPackages=%s

[Build]
%sWithNetwork=no
`

// marker is a service that says on the console when it starts.
func marker(name, after string) map[string]string {
	return map[string]string{
		"mkosi.extra/usr/lib/systemd/system/bench-" + name + ".service": "[Unit]\n" + after + "\n[Service]\nType=oneshot\nExecStart=/usr/bin/echo bench: " + name + "\n" +
			"StandardOutput=tty\nTTYPath=/dev/console\n[Install]\nWantedBy=multi-user.target\n",
		"mkosi.extra/usr/lib/systemd/system-preset/10-bench-" + name + ".preset": "enable bench-" + name + ".service\n",
	}
}

var peerPartitions = map[string]string{
	"00-esp.conf":    "[Partition]\nType=esp\nFormat=vfat\nCopyFiles=/boot:/\nCopyFiles=/efi:/\nSizeMinBytes=512M\nSizeMaxBytes=512M\n",
	"10-root.conf":   "[Partition]\nType=root\nFormat=erofs\nCopyFiles=/:/\nMinimize=best\nVerity=data\nVerityMatchKey=root\nCompression=" + peerAlgorithm + "\nCompressionLevel=" + peerLevel + "\n",
	"11-verity.conf": "[Partition]\nType=root-verity\nVerity=hash\nVerityMatchKey=root\nMinimize=best\n",
}

// The peer's compression makes the same size of the same files as ours does.
const (
	peerAlgorithm = "lz4hc"
	peerLevel     = "6"
)

// peer is mkosi with that definition.
type peer struct {
	mkosi mkosi
	tools string
	work  string
}

func newPeer(b *testing.B, o Options, l lock.Lock) peer {
	b.Helper()
	m, err := openMkosi(b.Context(), o, l)
	if err != nil {
		b.Fatal(err)
	}
	work := b.TempDir()
	asked, err := m.summary(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	mirrors, err := o.mirrors()
	if err != nil {
		b.Fatal(err)
	}
	p := peer{mkosi: mkosi{program: m.program, definitions: filepath.Join(work, "definitions")}, work: work}
	put(b, p.mkosi.definitions, map[string]string{"mkosi.conf": fmt.Sprintf(diskConfig, "peer", stockInitrd+"InitrdPackages=systemd-cryptsetup\n", strings.Join(append(asked.Packages, peerStub), ","), "Environment=SYSTEMD_REPART_MKFS_OPTIONS_EROFS=-C65536\n"), "mkosi.extra/etc/probe": "1"})
	put(b, filepath.Join(p.mkosi.definitions, "mkosi.repart"), peerPartitions)
	p.sources(b, mirrors)
	put(b, p.mkosi.definitions, marker("network", "After=network.target"))
	p.tools = peerToolsTree(b, o, mirrors, peerTools...)
	return p
}

// sources names the archive that mkosi takes packages from.
func (p peer) sources(b *testing.B, mirrors map[string]string) {
	b.Helper()
	var sources strings.Builder
	for _, s := range aptSources(mirrors) {
		fmt.Fprintf(&sources, "Types: deb\nURIs: %s\nSuites: %s\nComponents: main\nSigned-By: %s\n\n", s.url, strings.Join(s.suites, " "), ArchiveKeyring)
	}
	put(b, p.mkosi.definitions, map[string]string{"mkosi.sandbox/etc/apt/sources.list.d/mkosi.sources": sources.String()})
}

// peerToolsTree is the tools tree with more in it, and with a dpkg that nobody watches, which would cost the peer time.
func peerToolsTree(b *testing.B, o Options, mirrors map[string]string, more ...string) string {
	b.Helper()
	a, err := newApt(b.TempDir(), aptSources(mirrors), "")
	if err == nil {
		err = a.update(b.Context())
	}
	if err != nil {
		b.Fatal(err)
	}
	packages, err := a.resolve(b.Context(), lock.Tools, append(toolPackages(), more...))
	if err == nil {
		err = newFetcher(o, mirrors).fetch(b.Context(), lock.Lock{}, packages)
	}
	if err != nil {
		b.Fatal(err)
	}
	with := lock.Lock{Packages: packages}
	dir, _, err := o.Store.Step("tools", cache.Key("with plain dpkg", toolsFormat, with.Digest(lock.Tools)), func(dir string) error { return unpackTools(b.Context(), o.Store, packages, dir) })
	if err != nil {
		b.Fatal(err)
	}
	return dir
}

// build makes the disk, and returns how long that took.
func (p peer) build(b *testing.B, args ...string) time.Duration {
	b.Helper()
	cache := filepath.Join(p.work, "cache")
	if slices.Contains(args, "--incremental") {
		cache += "-incremental" // A build without would remove what it keeps.
	}
	began := time.Now()
	argv := p.mkosi.argv(append([]string{
		"--tools-tree", p.tools, "--output-dir", p.work, "--workspace-dir", p.work, "--cache-dir", cache,
		"--package-cache-dir", filepath.Join(p.work, "packages"), "--force",
	}, append(args, "build")...)...)
	cmd := exec.CommandContext(b.Context(), argv[0], argv[1:]...)
	cmd.Dir, cmd.Env = p.mkosi.definitions, []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C.UTF-8"}
	for name, value := range p.mkosi.environment(p.work) {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	if err := errors.Join(os.MkdirAll(cache, 0o755), runQuiet(cmd, "mkosi")); err != nil {
		b.Fatal(err)
	}
	return time.Since(began)
}

// buildFigures are those of one side.
type buildFigures struct {
	inert, full, file, unchanged, agent, network, root []float64
	// empty are builds from nothing but packages and the tools tree.
	empty, memory, disk []float64
}

// fromNothing adds such a build.
func (f *buildFigures) fromNothing(w watched) {
	f.empty, f.memory, f.disk = append(f.empty, w.seconds), append(f.memory, w.memory), append(f.disk, w.disk)
}

// BenchmarkBuild compares what people wait for: a build from nothing, with what was downloaded at hand; one after a package changed; one
// after a file of the tree changed; and one after nothing changed. The sides build in turn; who goes first changes by round. mkosi resolves
// its packages in each build, and Hullmark did when it made the lock, which is not counted.
func BenchmarkBuild(b *testing.B) {
	if *rounds < 1 || *rounds%2 == 0 {
		b.Fatalf("-rounds %d: want an odd number", *rounds)
	}
	o, l, tools := settled(b)
	o.Config = b.TempDir()
	o.Store = storeBeside(b, o.Store)
	p := newPeer(b, o, l)
	p.build(b)
	p.build(b, "--cache-only", "always", "--incremental", "yes")
	put(b, o.Config, map[string]string{"mkosi.extra/etc/probe": "1"})
	put(b, o.Config, marker("agent", agentOrder(b, o)))
	put(b, o.Config, marker("network", "After=network.target"))
	ours(b, o)
	program := filepath.Join(b.TempDir(), "hullmark")
	if err := runQuiet(exec.CommandContext(b.Context(), "go", "build", "-o", program, "../../tools/hullmark"), "go build"); err != nil {
		b.Fatal(err)
	}
	own, theirs := &buildFigures{}, &buildFigures{}
	for i := range *rounds {
		probe := map[string]string{"mkosi.extra/etc/probe": fmt.Sprint(i + 2)}
		changed := o
		sides := []func(){
			func() {
				nothing := o
				nothing.Store, nothing.Out = storeBeside(b, o.Store), b.TempDir()
				own.fromNothing(watch(b, nothing.Out, func() { byProgram(b, program, nothing) }))
				changed.LockFile = withNewVersion(b, o, l, "sed")
				own.full = append(own.full, ours(b, changed).Seconds())
				changed.LockFile = withNewVersion(b, o, l, "containerd")
				own.inert = append(own.inert, ours(b, changed).Seconds())
				put(b, o.Config, probe)
				own.file = append(own.file, ours(b, changed).Seconds())
			},
			func() {
				w := watch(b, p.work, func() { p.build(b, "--cache-only", "always") })
				theirs.full = append(theirs.full, w.seconds)
				theirs.fromNothing(w)
				put(b, p.mkosi.definitions, probe)
				theirs.file = append(theirs.file, p.build(b, "--cache-only", "always", "--incremental", "yes").Seconds())
			},
		}
		if i%2 == 1 {
			slices.Reverse(sides)
		}
		for _, side := range sides {
			side()
		}
		own.unchanged = append(own.unchanged, unchangedTime(b, program, changed))
		disk, peers := filepath.Join(o.Out, o.ID+".raw"), filepath.Join(p.work, "peer.raw")
		boots := bootTimes(b, disk, tools, "agent", "network")
		own.agent, own.network = append(own.agent, boots[0]), append(own.network, boots[1])
		theirs.network = append(theirs.network, bootTimes(b, peers, tools, "network")...)
		own.root, theirs.root = append(own.root, float64(rootSize(b, disk))/1e6), append(theirs.root, float64(rootSize(b, peers))/1e6)
	}
	theirs.inert, theirs.agent = theirs.full, theirs.network
	t := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "\nof %d packages, erofs in LZ4 clusters of 64 KiB, mkosi's by %s,%s; median of %d\thullmark\t\tmkosi\t\tratio\ttarget\t\n", len(l.For().Of(lock.Root)), peerAlgorithm, peerLevel, *rounds)
	for _, row := range []struct {
		what   string
		of     func(*buildFigures) []float64
		unit   string
		target float64
	}{
		// To mkosi any package is like any other.
		{"build after a package changed that no script reads (containerd), and mkosi's after any", func(f *buildFigures) []float64 { return f.inert }, "s", 0.2},
		{"build after a package changed that scripts run (sed), and mkosi's after any", func(f *buildFigures) []float64 { return f.full }, "s", 0.2},
		{"build from packages and the tools tree alone, our programs compiled", func(f *buildFigures) []float64 { return f.empty }, "s", 0.6},
		{"memory of no file's at most, meanwhile", func(f *buildFigures) []float64 { return f.memory }, "MiB", 1},
		{"disk at most, meanwhile", func(f *buildFigures) []float64 { return f.disk }, "MB", 1},
		{"build after a file of the tree changed", func(f *buildFigures) []float64 { return f.file }, "s", 0.05},
		{"power-on to the agent, and to an ordinary service of the peer's, emulated", func(f *buildFigures) []float64 { return f.agent }, "s", 0.25},
		{"power-on to an ordinary service after network.target, emulated", func(f *buildFigures) []float64 { return f.network }, "s", 1},
		{"root file system", func(f *buildFigures) []float64 { return f.root }, "MB", 0.7},
	} {
		a, z := slices.Sorted(slices.Values(row.of(own))), slices.Sorted(slices.Values(row.of(theirs)))
		half, last := len(a)/2, len(a)-1
		ratio, verdict := a[half]/z[half], "met"
		if ratio > row.target {
			verdict = "missed"
		}
		fmt.Fprintf(t, "%s\t%.1f %s\t%.1f to %.1f\t%.1f %s\t%.1f to %.1f\t%.2f\tat most %.3g\t%s\n", row.what,
			a[half], row.unit, a[0], a[last], z[half], row.unit, z[0], z[last], ratio, row.target, verdict)
	}
	unchanged := slices.Sorted(slices.Values(own.unchanged))
	fmt.Fprintf(t, "build after nothing changed\t%.2f s\t%.2f to %.2f\n", unchanged[len(unchanged)/2], unchanged[0], unchanged[len(unchanged)-1])
	if err := t.Flush(); err != nil {
		b.Fatal(err)
	}
}

// agentOrder is what our agent waits for, as its unit says.
func agentOrder(b *testing.B, o Options) string {
	b.Helper()
	text, err := os.ReadFile(filepath.Join(o.Source, "systemd/system/hullmark-firstboot.service"))
	if err != nil {
		b.Fatal(err)
	}
	order := "DefaultDependencies=no"
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "After=") {
			order += "\n" + strings.TrimSpace(line)
		}
	}
	return order
}

// ours builds with Hullmark, whose steps it shows, and returns how long that took.
func ours(b *testing.B, o Options) time.Duration {
	b.Helper()
	began := time.Now()
	o.Progress = NewProgress(os.Stdout, time.Now)
	if _, err := Build(b.Context(), o); err != nil {
		b.Fatal(err)
	}
	o.Progress.Summary()
	return time.Since(began)
}

// withNewVersion writes a lock in which one package has another version, and other programs and texts, and returns its file.
func withNewVersion(b *testing.B, o Options, l lock.Lock, name string) string {
	b.Helper()
	l.Packages = slices.Clone(l.Packages)
	for i, p := range l.Packages {
		if p.Name == name && p.Set == lock.Root {
			version := p.Version + "+changed" + fmt.Sprint(time.Now().Unix())
			l.Packages[i] = changePackage(b, o.Store, p, version, func(files string) { editPrograms(b, files, version) })
		}
	}
	file := filepath.Join(b.TempDir(), "hullmark.lock")
	if err := WriteLock(file, l); err != nil {
		b.Fatal(err)
	}
	return file
}

// editPrograms changes what most updates do: each program and library, and no unit or setting. Each version has its own bytes, or a later
// round would change nothing that a script runs.
func editPrograms(b *testing.B, files, version string) {
	b.Helper()
	err := filepath.WalkDir(files, func(file string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		content, err := os.ReadFile(file)
		if err != nil || !bytes.HasPrefix(content, []byte("\x7fELF")) {
			return err
		}
		return os.WriteFile(file, append(content, "\n# "+version+"\n"...), 0o644) // keeps the mode
	})
	if err != nil {
		b.Fatal(err)
	}
}

// byProgram builds as a user does, and returns how long that took.
func byProgram(b *testing.B, program string, o Options) time.Duration {
	b.Helper()
	cmd := exec.CommandContext(b.Context(), program, append(o.buildArgs(o.Source, o.Out), "-o", "json")...)
	cmd.Env = append(os.Environ(), "HULLMARK_CACHE="+o.Store.Root)
	began := time.Now()
	if err := runQuiet(cmd, "hullmark build"); err != nil {
		b.Fatal(err)
	}
	return time.Since(began)
}

// unchangedTime returns how many seconds the program takes to see that nothing changed.
func unchangedTime(b *testing.B, program string, o Options) float64 {
	b.Helper()
	byProgram(b, program, o)
	return byProgram(b, program, o).Seconds()
}

// bootTimes returns how many seconds after power-on an image's markers start, in the order in which they do.
func bootTimes(b *testing.B, disk, tools string, markers ...string) (seconds []float64) {
	b.Helper()
	m, err := vm.Start(b.Context(), vm.Config{Dir: b.TempDir(), Image: disk, Accel: vm.AccelTCG, Hardware: machine.Hardware{Tools: tools, MemoryMiB: 2048}})
	if err != nil {
		b.Fatal(err)
	}
	on := time.Now() // The TPM was made, and the disk copied, before.
	defer m.Kill()
	ctx, cancel := context.WithTimeout(b.Context(), 10*time.Minute)
	defer cancel()
	for _, marker := range markers {
		if line, err := m.WaitConsole(ctx, regexp.MustCompile("bench: "+marker)); err != nil {
			b.Fatalf("%s: %q, %v", disk, line, err)
		}
		seconds = append(seconds, time.Since(on).Seconds())
	}
	return seconds
}

// rootSize returns the length of a disk's root file system, in bytes, by its superblock: ours lies in a slot with room for later ones.
func rootSize(b *testing.B, disk string) int64 {
	b.Helper()
	f, err := os.Open(disk)
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		b.Fatal(err)
	}
	table, err := gpt.Read(f, info.Size())
	if err != nil {
		b.Fatal(err)
	}
	for _, p := range table.Partitions {
		if p.Type != gpt.TypeRootAMD64 {
			continue
		}
		super := make([]byte, 64) // Linux' fs/erofs/erofs_fs.h, struct erofs_super_block: magic, blkszbits, blocks
		if _, err := f.ReadAt(super, p.Offset()+1024); err != nil || binary.LittleEndian.Uint32(super) != 0xe0f5e1e2 {
			b.Fatalf("%s: the root is no erofs: %v", disk, err)
		}
		return int64(binary.LittleEndian.Uint32(super[36:])) << super[12]
	}
	b.Fatalf("%s has no root partition", disk)
	return 0
}
