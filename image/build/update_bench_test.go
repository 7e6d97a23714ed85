//go:build bench

package build

import (
	"crypto/sha256"
	"flag"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/hullmark/hullmark/firstboot/update"
	"github.com/hullmark/hullmark/image"
	"github.com/hullmark/hullmark/image/disk"
	"github.com/hullmark/hullmark/image/lock"
	"github.com/hullmark/hullmark/image/slot"
	"github.com/hullmark/hullmark/measurements"
	"github.com/hullmark/hullmark/measurements/publish"
)

// earlierKubernetes is the release that an update of Kubernetes begins with.
var earlierKubernetes = flag.String("kubernetes", "36.1", "minor and patch `VERSION` of Kubernetes to update from")

// updateRounds is how often each way is taken; the median counts.
const updateRounds = 3

// BenchmarkUpdate fetches releases, each by a machine that has another one, and compares with whole downloads and with casync. What moved
// in the archive since the packages were locked is what the releases differ in, and a patch release of Kubernetes.
func BenchmarkUpdate(b *testing.B) {
	if _, err := exec.LookPath("casync"); err != nil {
		b.Fatal("casync is missing: apt-get install casync")
	}
	o, l, _ := settled(b)
	o.WithoutKubernetes = false
	newest, err := Lock(b.Context(), o, l)
	if err != nil {
		b.Fatal(err)
	}
	base := buildRelease(b, o, l)
	t := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprint(t, "\nwhat moved\tway\tMB fetched\trequests\tseconds\t\n")
	for _, c := range updates(b, o, l, newest) {
		from, to := base, base
		if c.earlier {
			from = buildRelease(b, c.options, c.lock)
		} else {
			to = buildRelease(b, c.options, c.lock)
		}
		for _, w := range newShelf(b, from, to).measure(b) {
			fmt.Fprintf(t, "%s\t%s\t%.1f\t%d\t%.1f\t%s\n", c.what, w.name, float64(w.bytes)/1e6, w.requests, w.took.Seconds(), w.note)
		}
	}
	if err := t.Flush(); err != nil {
		b.Fatal(err)
	}
}

// change is a release that differs from the locked one in what its name says.
type change struct {
	what    string
	options Options
	lock    lock.Lock
	// earlier is set if the machine has it, and the locked one is fetched.
	earlier bool
}

// updates are four changes: of one source package, the largest that moved; of the kernel; of all that moved; and of Kubernetes, whose
// earlier release is compiled, which takes a quarter of an hour once.
func updates(b *testing.B, o Options, l, newest lock.Lock) []change {
	b.Helper()
	sources := map[string]int64{} // with the size of their packages in the image
	for _, m := range lock.Compare(l.For(), newest.For()) {
		if m.To.Set == lock.Root {
			sources[sourceOf(m.To)] += m.To.Size
			fmt.Printf("moved: %s %s to %s\n", m.To.Name, m.From.Version, m.To.Version)
		}
	}
	kernel := func(source string) bool { return strings.HasPrefix(source, "linux") }
	largest := ""
	for name, size := range sources {
		if !kernel(name) && (largest == "" || size > sources[largest] || size == sources[largest] && name < largest) {
			largest = name
		}
	}
	if largest == "" || !slices.ContainsFunc(slices.Collect(maps.Keys(sources)), kernel) {
		b.Fatal("since it was locked no kernel and no other package moved in the archive: measure later, or with an older lock")
	}
	earlier, k := l, o
	k.Source = withKubernetes(b, o, *earlierKubernetes)
	var err error
	if earlier.Kubernetes, err = kubernetesSources(b.Context(), k.Source); err != nil {
		b.Fatal(err)
	}
	return []change{
		{what: largest, options: o, lock: withMoved(l, newest, func(source string) bool { return source == largest })},
		{what: "the kernel", options: o, lock: withMoved(l, newest, kernel)},
		{what: fmt.Sprintf("all %d sources", len(sources)), options: o, lock: withMoved(l, newest, func(string) bool { return true })},
		{what: "Kubernetes from 1." + *earlierKubernetes, options: k, lock: earlier, earlier: true},
	}
}

// withMoved is a lock of another day in which only some of the image's packages moved. The tools stay as they are.
func withMoved(l, newest lock.Lock, moves func(source string) bool) lock.Lock {
	moved := newest
	moved.Kubernetes, moved.Go = l.Kubernetes, l.Go
	moved.Packages = nil
	for _, p := range l.Packages {
		if p.Set == lock.Tools || !moves(sourceOf(p)) {
			moved.Packages = append(moved.Packages, p)
		}
	}
	for _, p := range newest.Packages {
		if p.Set != lock.Tools && moves(sourceOf(p)) {
			moved.Packages = append(moved.Packages, p)
		}
	}
	moved.Sort()
	return moved
}

// withKubernetes copies the checkout and lets it have another release of Kubernetes.
func withKubernetes(b *testing.B, o Options, version string) string {
	b.Helper()
	dir := b.TempDir()
	if err := copyFolder(o.Source, dir, plainMode, ".git", "out", "bin"); err != nil {
		b.Fatal(err)
	}
	modules := filepath.Join(dir, "tools", "kubernetes")
	required, err := directModules(b.Context(), modules)
	if err != nil {
		b.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(modules, "go.mod"))
	if err != nil {
		b.Fatal(err)
	}
	now := strings.TrimPrefix(required["k8s.io/kubernetes"], "v1.")
	changed := strings.NewReplacer(" v1."+now+"\n", " v1."+version+"\n", " v0."+now+"\n", " v0."+version+"\n").Replace(string(text))
	if err := os.WriteFile(filepath.Join(modules, "go.mod"), []byte(changed), 0o644); err != nil {
		b.Fatal(err)
	}
	cmd := exec.CommandContext(b.Context(), "go", "list", "-mod=mod", "-deps", "./kube", "./etcd", "./pause")
	cmd.Dir = modules
	if err := runQuiet(cmd, "go list"); err != nil { // It adds to go.sum.
		b.Fatal(err)
	}
	return dir
}

// builtRelease is a built image.
type builtRelease struct {
	update.Release
	path string
	size int64
}

func buildRelease(b *testing.B, o Options, l lock.Lock) builtRelease {
	b.Helper()
	o.Out = b.TempDir()
	o.LockFile = filepath.Join(o.Out, "hullmark.lock")
	if err := WriteLock(o.LockFile, l); err != nil {
		b.Fatal(err)
	}
	r, err := Build(b.Context(), o)
	if err != nil {
		b.Fatal(err)
	}
	f, err := os.Open(r.Image)
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	digest := sha256.New()
	if _, err := io.Copy(digest, f); err != nil {
		b.Fatal(err)
	}
	opened, err := image.Open(f, r.Size)
	if err != nil {
		b.Fatal(err)
	}
	return builtRelease{update.Release{RootHash: opened.RootHash, Disk: [sha256.Size]byte(digest.Sum(nil))}, r.Image, r.Size}
}

// shelf is a web server that shows a release in every form, and counts, for a machine that has another release.
type shelf struct {
	dir      string
	from, to builtRelease
	server   *httptest.Server
	bytes    atomic.Int64
	requests atomic.Int64
}

func newShelf(b *testing.B, from, to builtRelease) *shelf {
	b.Helper()
	s := &shelf{dir: b.TempDir(), from: from, to: to}
	files := http.FileServer(http.Dir(s.dir))
	s.server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		s.requests.Add(1)
		files.ServeHTTP(counting{w, &s.bytes}, q)
	}))
	b.Cleanup(s.server.Close)
	if err := os.Mkdir(filepath.Join(s.dir, "sha256"), 0o755); err != nil {
		b.Fatal(err)
	}
	if err := os.Symlink(to.path, filepath.Join(s.dir, "sha256", fmt.Sprintf("%x.raw", to.Disk))); err != nil {
		b.Fatal(err)
	}
	s.compress(b)
	s.used(b, from, filepath.Join(s.dir, "seed"))
	s.used(b, to, filepath.Join(s.dir, "used"))
	s.casync(b, "make", "--store", filepath.Join(s.dir, "store.castr"), filepath.Join(s.dir, "used.caibx"), filepath.Join(s.dir, "used"))
	return s
}

// counting counts the bytes of bodies.
type counting struct {
	http.ResponseWriter
	n *atomic.Int64
}

func (c counting) Write(b []byte) (int, error) {
	n, err := c.ResponseWriter.Write(b)
	c.n.Add(int64(n))
	return n, err
}

// compress writes the disk as a zstd stream, as hullmark convert does.
func (s *shelf) compress(b *testing.B) {
	b.Helper()
	in, err := os.Open(s.to.path)
	if err != nil {
		b.Fatal(err)
	}
	defer in.Close()
	out, err := os.Create(filepath.Join(s.dir, "disk.raw.zst"))
	if err != nil {
		b.Fatal(err)
	}
	defer out.Close()
	if err := disk.RawZst.Write(out, in, s.to.size); err != nil {
		b.Fatal(err)
	}
}

// used writes what is used of a disk, one part after the other: casync is spared the zeros between.
func (s *shelf) used(b *testing.B, r builtRelease, to string) {
	b.Helper()
	in, err := os.Open(r.path)
	if err != nil {
		b.Fatal(err)
	}
	defer in.Close()
	extents, err := image.Used(in)
	if err != nil {
		b.Fatal(err)
	}
	out, err := os.Create(to)
	if err != nil {
		b.Fatal(err)
	}
	defer out.Close()
	for _, e := range extents {
		if _, err := io.Copy(out, io.NewSectionReader(in, e.Offset, e.Size)); err != nil {
			b.Fatal(err)
		}
	}
}

func (s *shelf) casync(b *testing.B, args ...string) {
	b.Helper()
	if err := runQuiet(exec.CommandContext(b.Context(), "casync", args...), "casync"); err != nil {
		b.Fatal(err)
	}
}

// way is one of fetching a release, and what it cost.
type way struct {
	name            string
	bytes, requests int64
	took            time.Duration
	note            string
}

// measure takes each way in turn, several times.
func (s *shelf) measure(b *testing.B) []way {
	b.Helper()
	var note string
	ways := []struct {
		name string
		take func(dir string)
	}{
		{"whole disk", func(string) { s.whole(b, "sha256/"+fmt.Sprintf("%x.raw", s.to.Disk), false) }},
		{"whole disk, zstd", func(string) { s.whole(b, "disk.raw.zst", true) }},
		{"hullmark fetch", func(dir string) { s.fetch(b, dir) }},
		{"casync", func(dir string) {
			s.casync(b, "extract", "--store", s.server.URL+"/store.castr", "--seed", filepath.Join(s.dir, "seed"), s.server.URL+"/used.caibx", filepath.Join(dir, "used"))
		}},
		{"stage", func(dir string) { note = s.stage(b, dir) }},
	}
	result := make([]way, len(ways))
	times := make([][]time.Duration, len(ways))
	for range updateRounds {
		for i, w := range ways {
			dir := b.TempDir()
			if w.name == "stage" {
				s.install(b, dir)
			}
			s.bytes.Store(0)
			s.requests.Store(0)
			began := time.Now()
			w.take(dir)
			times[i] = append(times[i], time.Since(began))
			result[i] = way{name: w.name, bytes: s.bytes.Load(), requests: s.requests.Load()}
			if err := os.RemoveAll(dir); err != nil {
				b.Fatal(err)
			}
		}
	}
	for i := range result {
		slices.Sort(times[i])
		result[i].took = times[i][updateRounds/2]
	}
	result[len(result)-1].note = note
	return result
}

// whole downloads a disk and checks it.
func (s *shelf) whole(b *testing.B, name string, packed bool) {
	b.Helper()
	response, err := http.Get(s.server.URL + "/" + name)
	if err != nil {
		b.Fatal(err)
	}
	defer response.Body.Close()
	in := io.Reader(response.Body)
	if packed {
		z, err := zstd.NewReader(in)
		if err != nil {
			b.Fatal(err)
		}
		defer z.Close()
		in = z
	}
	out, err := os.Create(filepath.Join(b.TempDir(), "disk"))
	if err != nil {
		b.Fatal(err)
	}
	defer out.Close()
	digest := sha256.New()
	_, err = io.Copy(io.MultiWriter(out, digest), in)
	if err != nil || [sha256.Size]byte(digest.Sum(nil)) != s.to.Disk {
		b.Fatalf("%s: another disk came: %v", name, err)
	}
	if err := os.Remove(out.Name()); err != nil {
		b.Fatal(err)
	}
}

// fetch downloads a disk as hullmark fetch --image does.
func (s *shelf) fetch(b *testing.B, dir string) {
	b.Helper()
	source, err := publish.Web(s.server.URL)
	if err != nil {
		b.Fatal(err)
	}
	document := measurements.Document{Image: measurements.Image{Disk: s.to.Disk[:]}}
	if err := publish.FetchImage(b.Context(), source, document, filepath.Join(dir, "disk"), nil); err != nil {
		b.Fatal(err)
	}
}

// install makes the machine's disk.
func (s *shelf) install(b *testing.B, dir string) {
	b.Helper()
	if err := runQuiet(exec.CommandContext(b.Context(), "cp", "--sparse=always", s.from.path, filepath.Join(dir, "disk")), "cp"); err != nil {
		b.Fatal(err)
	}
}

// stage has the machine stage the release, and says how much of it was there.
func (s *shelf) stage(b *testing.B, dir string) string {
	b.Helper()
	dev, err := os.OpenFile(filepath.Join(dir, "disk"), os.O_RDWR, 0)
	if err != nil {
		b.Fatal(err)
	}
	defer dev.Close()
	d, err := update.Open(dev, s.from.size, slot.A)
	if err != nil {
		b.Fatal(err)
	}
	source, err := update.OpenSource(s.server.URL, s.to.Disk)
	if err != nil {
		b.Fatal(err)
	}
	fetched, err := d.Stage(b.Context(), s.to.Release, []update.Source{source}, nil)
	if err != nil {
		b.Fatal(err)
	}
	return fmt.Sprintf("copied %.1f MB", float64(fetched.Copied)/1e6)
}
