//go:build long && bench

package load

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/csv"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/big"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"text/tabwriter"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/rest"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest/wire"
	"github.com/hullmark/hullmark/cluster"
	"github.com/hullmark/hullmark/internal/flood"
	"github.com/hullmark/hullmark/internal/nodetest"
	"github.com/hullmark/hullmark/internal/testenv"
	"github.com/hullmark/hullmark/joinservice"
	"github.com/hullmark/hullmark/joinservice/registry"
	"github.com/hullmark/hullmark/measurements"
)

var (
	grown   = flag.Int("grow", 3500, "how many machines BenchmarkGrowth ends with, each with a rule of its own in the policy")
	grouped = flag.Bool("group", false, "admit them all by one group of the policy, by the certificates of their endorsement keys")
	results = flag.String("out", "", "`folder` for the table of BenchmarkGrowth as growth.csv, or growth-group.csv")
)

const (
	// atOnce is how many machines join at a time.
	atOnce = 20
	// rested is how long a cluster is looked at in which no machine joins. Each node asks for its disk's next number meanwhile, and says
	// what its slots hold, as often as its agent does (firstboot.DefaultTiming).
	rested, epochs, updates = time.Minute, 12 * time.Minute, 40 * time.Second
	// tpmPause is how long a machine's TPM takes to read a challenge, and to quote; a chip on a board is like that.
	tpmPause = 500 * time.Millisecond
	// patience is how long all machines may take to join, or to come back, and callPatience is what one has with a call at rest.
	patience, callPatience = 60 * time.Minute, 30 * time.Second
	// mostRules is how many machines a policy can name each by a rule of its own.
	mostRules = 3900
)

// sizes are the numbers of machines at which a cluster is looked at.
var sizes = []int{0, 100, 1000, 2500}

// growth is a cluster of two control planes, with a join service each, behind a balancer.
type growth struct {
	*site
	b        *testing.B
	planes   []*testenv.Plane
	manager  *testenv.Environment
	scrapers []*client // of each API server
	all      []*machine
	version  uint64
	// failed counts the calls at rest that failed: an agent asks again when its turn comes.
	failed atomic.Int64
	// numbered and updated say whose turn it is to ask for a number, and to tell of its slots.
	numbered, updated int
	// background is how many calls of the API there are in a second without machines, and restTime how much processor time each kind of
	// program takes in one.
	background float64
	restTime   map[string]float64
	columns    []string
	rows       []map[string]float64
}

// BenchmarkGrowth lets a cluster grow, and looks at it at each of the sizes: what a join takes by then, what the cluster costs at rest, and
// what happens when all machines come back at once. At the end it looks how many members a policy may have.
func BenchmarkGrowth(b *testing.B) {
	if *grown > mostRules && !*grouped {
		b.Fatalf("-grow %d: a policy holds rules of their own for some %d machines: name -group, too", *grown, mostRules)
	}
	for range b.N {
		g := newGrowth(b)
		defer g.print() // A run that fails on its way still has what it saw.
		for _, n := range append(slices.DeleteFunc(slices.Clone(sizes), func(n int) bool { return n >= *grown }), *grown) {
			g.grow(n)
		}
		if !*grouped {
			g.overgrow()
		}
	}
}

func newGrowth(b *testing.B) *growth {
	ctx := b.Context()
	g := &growth{site: &site{dir: b.TempDir()}, b: b}
	c, err := cluster.New()
	must(b, err)
	at := []netip.Addr{netip.MustParseAddr("127.0.0.21"), netip.MustParseAddr("127.0.0.22")}
	g.planes, err = testenv.StartPlanes(ctx, g.dir, c, at...)
	must(b, err)
	b.Cleanup(func() {
		if err := testenv.StopPlanes(g.planes); err != nil {
			b.Error(err)
		}
	})
	g.Environment = g.planes[0].Environment
	balancer, err := testenv.NewBalancer()
	must(b, err)
	b.Cleanup(func() { _ = balancer.Close() })
	var addresses []string
	for _, p := range g.planes {
		addresses = append(addresses, p.Address)
		g.scrapers = append(g.scrapers, g.client(p.Address))
	}
	must(b, balancer.Serve(ctx, g.Anonymous(), addresses))
	endpoint := balancer.Addr().String()
	// No kubelet beats here: nobody is to take its Node for lost.
	g.manager, err = testenv.StartController(ctx, filepath.Join(g.dir, "controller"), g.planes[0], endpoint, "--node-monitor-grace-period=24h")
	must(b, err)
	b.Cleanup(func() {
		if err := g.manager.Stop(); err != nil {
			b.Error(err)
		}
	})
	must(b, g.Apply(ctx, registry.Manifest()))
	g.objects = g.client(endpoint)
	g.admin, err = registry.New(g.config(endpoint))
	must(b, err)
	g.Cluster.Settings = &joinservice.Settings{ControlPlaneEndpoint: endpoint, Networks: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12"), netip.MustParsePrefix("10.244.0.0/16")}}
	g.makePlayed(*grown)
	g.version = 1
	must(b, g.accept(g.version, images...))
	g.startReplicas(b, addresses...)
	return g
}

func (g *growth) config(address string) *rest.Config {
	config, err := g.Config("hullmark-operator", "kubeadm:cluster-admins")
	must(g.b, err)
	config.Host = "https://" + address
	return config
}

func (g *growth) client(address string) *client {
	c, err := newClient(g.config(address))
	must(g.b, err)
	g.b.Cleanup(c.close)
	return c
}

// makePlayed makes machines without emulators.
func (g *growth) makePlayed(n int) {
	for _, image := range images {
		documentOf[image] = nodetest.Document(g.b, image)
	}
	var keys nodetest.SoftwareKeys
	var ca *ekCA
	if *grouped {
		ca = newEKCA(g.b)
		g.group = &measurements.Group{
			Name: "worker", Authorities: [][]byte{ca.certificate.Raw}, Subject: []measurements.Attribute{{Type: "OU", Value: ekUnit}}, Max: n,
		}
	}
	for i := range n {
		ek, err := keys.Next()
		must(g.b, err)
		image := images[i%len(images)]
		played, err := nodetest.NewWithSoftware(ek, g.Cluster.ID(), image, tpmPause)
		must(g.b, err)
		m := &machine{Node: played, number: i, image: image, group: g.group}
		if ca != nil {
			certificate := ca.issue(g.b, &ek.PublicKey)
			m.EditHello = func(hello *wire.Hello) { hello.EkCertificate = certificate }
		}
		m.Observe, m.Dialer = m.note, flood.Dialer(1, i)
		m.wipe()
		g.all = append(g.all, m)
	}
}

// ekCA signs the certificates of endorsement keys, as a provider does.
type ekCA struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

// ekUnit is the OU of all that it signs.
const ekUnit = "my-project"

func newEKCA(b *testing.B) *ekCA {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(b, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "EK CA"}, NotBefore: time.Unix(0, 0), NotAfter: time.Now().Add(24 * time.Hour),
		BasicConstraintsValid: true, IsCA: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	must(b, err)
	certificate, err := x509.ParseCertificate(der)
	must(b, err)
	return &ekCA{certificate, key}
}

// issue makes the certificate of an endorsement key (TCG EK Credential Profile for TPM 2.0 §3.2).
func (ca *ekCA) issue(b *testing.B, ek *rsa.PublicKey) []byte {
	template := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{OrganizationalUnit: []string{ekUnit}}, NotBefore: time.Unix(0, 0), NotAfter: time.Now().Add(24 * time.Hour),
		KeyUsage: x509.KeyUsageKeyEncipherment, UnknownExtKeyUsage: []asn1.ObjectIdentifier{{2, 23, 133, 8, 1}},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, ca.certificate, ek, ca.key)
	must(b, err)
	return der
}

// grow lets machines join until there are n, and notes what is seen.
func (g *growth) grow(n int) {
	b, ctx := g.b, g.b.Context()
	fresh := g.all[len(g.machines):n]
	g.machines = g.all[:n]
	row := map[string]float64{}
	g.rows = append(g.rows, row)
	put := func(column string, value float64) {
		if !slices.Contains(g.columns, column) {
			g.columns = append(g.columns, column)
		}
		row[column] = value
	}
	put("machines", float64(n))
	g.progress("%d machines: policy", n)
	if n > 0 {
		began := time.Now()
		g.version++
		must(b, g.push(ctx, g.version, images...))
		put("policy KiB", float64(len(g.Cluster.Policy))/1024)
		put("policy s", time.Since(began).Seconds())
		g.progress("%d machines: %d join", n, len(fresh))
		used, calls, began := g.used(), g.calls(), time.Now()
		var all errgroup.Group
		all.SetLimit(atOnce)
		ctx, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		for _, m := range fresh {
			all.Go(func() error { return m.join(ctx, g.site) })
		}
		must(b, all.Wait())
		g.progress("%d machines: joined, and were told %v", n, g.told())
		took, each := time.Since(began), float64(len(fresh))
		put("joins/s", each/took.Seconds())
		put("ticket p50 ms", g.waited(fresh, "Hello", "Ticket", 50))
		put("ticket p99 ms", g.waited(fresh, "Hello", "Ticket", 99))
		put("with all attempts p99 ms", g.waited(fresh, "begin", "Ticket", 99))
		put("attempts a join", attempts(fresh))
		g.write()
		g.settle()
		for _, m := range fresh {
			all.Go(func() error { return persist(ctx, func() error { return g.tell(ctx, m, g.replicas[0].Listen) }) }) // what is news is kept, and is no rest
		}
		must(b, all.Wait())
		put("API calls a join", (g.calls()-calls-g.background*time.Since(began).Seconds())/each)
		for name, spent := range g.since(used) {
			put(name+" ms a join", (spent-g.restTime[name]*time.Since(began).Seconds())*1000/each)
		}
	}
	g.progress("%d machines: rest", n)
	g.rest(put)
	g.write()
	if n > 0 {
		g.progress("%d machines: all come back", n)
		g.comeBack(put)
	}
	began := time.Now()
	records, err := g.admin.List(ctx)
	must(b, err)
	put("list s", time.Since(began).Seconds())
	if len(records) != n {
		b.Fatalf("%d records of %d machines", len(records), n)
	}
	put("registry KiB", g.size("/api/v1/namespaces/"+registry.Namespace+"/configmaps")/1024)
	put("etcd's file MiB", g.metric("apiserver_storage_size_bytes{", func(a, b float64) float64 { return max(a, b) })/(1<<20))
	g.write()
	g.progress("%d machines: %v", n, row)
}

// waited is how long so many of a hundred machines waited at most between two notes, in ms. Of a note that came more than once, the last
// counts.
func (g *growth) waited(machines []*machine, from, to string, percent int) float64 {
	var all []time.Duration
	for _, m := range machines {
		all = append(all, m.took(from, to))
	}
	slices.Sort(all)
	return float64(rank(all, percent)) / float64(time.Millisecond)
}

// attempts is how often machines asked, on average.
func attempts(machines []*machine) float64 {
	sum := len(machines)
	for _, m := range machines {
		for _, times := range m.told {
			sum += times
		}
	}
	return float64(sum) / float64(len(machines))
}

// settle waits until no token is left.
func (g *growth) settle() {
	const tokens = "/api/v1/namespaces/kube-system/secrets?fieldSelector=type%3Dbootstrap.kubernetes.io/token&limit=1"
	must(g.b, testenv.Poll(g.b.Context(), time.Second, func() error {
		var list struct{ Items []struct{} }
		err := g.objects.do(g.b.Context(), http.MethodGet, tokens, nil, &list)
		if err == nil && len(list.Items) > 0 {
			err = errors.New("tokens are left")
		}
		return err
	}))
}

// rest looks at a cluster of nodes that say what their slots hold and ask for their numbers, as often as nodes do, and do nothing else.
func (g *growth) rest(put func(string, float64)) {
	g.failed.Store(0)
	used, calls, began := g.used(), g.calls(), time.Now()
	ctx, cancel := context.WithTimeout(g.b.Context(), rested)
	defer cancel()
	var all errgroup.Group
	all.Go(func() error {
		return g.calling(ctx, epochs, &g.numbered, func(ctx context.Context, m *machine, service string) error {
			call := m.EpochCall()
			if err := call.Do(ctx, service, g.Cluster.ID()); err != nil || !call.Committed {
				return fmt.Errorf("%s got no number: %v, %v", m.name(), err, call.Denied)
			}
			return nil
		})
	})
	all.Go(func() error {
		return g.calling(ctx, updates, &g.updated, g.tell)
	})
	must(g.b, all.Wait())
	<-ctx.Done()
	seconds := time.Since(began).Seconds()
	perSecond := (g.calls() - calls) / seconds
	put("API calls/s at rest", perSecond)
	put("calls at rest, failed", float64(g.failed.Load()))
	spentBy := g.since(used)
	if len(g.machines) == 0 {
		g.background, g.restTime = perSecond, map[string]float64{}
		for name, spent := range spentBy {
			g.restTime[name] = spent / seconds
		}
	}
	for name, spent := range spentBy {
		put(name+" % at rest", spent*100/seconds)
	}
	for name, bytes := range g.memory(testenv.Held) {
		put(name+" MiB at rest", bytes/(1<<20))
	}
}

// tell has a node tell a service what its slots hold.
func (g *growth) tell(ctx context.Context, m *machine, service string) error {
	call := m.UpdateCall(hullmark.UpdateStatus{Running: "a", Default: "a", A: nodetest.RootHash(m.image), Phase: hullmark.UpdateIdle})
	if err := call.Do(ctx, service, g.Cluster.ID()); err != nil || call.Answer.GetDenied() != nil {
		return fmt.Errorf("%s was not heard: %v, %v", m.name(), err, call.Answer.GetDenied())
	}
	return nil
}

// calling has nodes call a service, each once in a period, until ctx ends; turn says whose turn it is. Those that fail are counted.
func (g *growth) calling(ctx context.Context, period time.Duration, turn *int, call func(context.Context, *machine, string) error) error {
	n := len(g.machines)
	if n == 0 {
		return nil
	}
	var all errgroup.Group
	for tick := time.NewTicker(period / time.Duration(n)); ; *turn++ {
		select {
		case <-ctx.Done():
			tick.Stop()
			return all.Wait()
		case <-tick.C:
		}
		m, r := g.machines[*turn%n], g.replicas[*turn%len(g.replicas)]
		all.Go(func() error {
			ctx, cancel := context.WithTimeout(g.b.Context(), callPatience)
			defer cancel()
			if err := call(ctx, m, r.Listen); err != nil && g.failed.Add(1) == 1 {
				g.progress("the first call at rest that failed: %v", err)
			}
			return nil
		})
	}
}

// comeBack restarts all machines at once, as after a power cut.
func (g *growth) comeBack(put func(string, float64)) {
	for _, m := range g.machines {
		m.restart()
	}
	for _, all := range g.programs() {
		for _, p := range all {
			must(g.b, p.ForgetPeak())
		}
	}
	began, calls, used := time.Now(), g.calls(), g.used()
	ctx, cancel := context.WithTimeout(g.b.Context(), patience)
	defer cancel()
	var all errgroup.Group
	for _, m := range g.machines {
		all.Go(func() error { return m.join(ctx, g.site) })
	}
	ended := make(chan error, 1)
	go func() { ended <- all.Wait() }()
	for tick := time.NewTicker(20 * time.Second); ; {
		select {
		case <-tick.C:
			g.progress("%d of %d are not back, and were told %v", g.underWay(), len(g.machines), g.told())
			continue
		case err := <-ended:
			tick.Stop()
			must(g.b, err)
		}
		break
	}
	each := float64(len(g.machines))
	put("half are back s", g.waited(g.machines, "begin", "end", 50)/1000)
	put("all are back s", time.Since(began).Seconds())
	put("API calls a reboot", (g.calls()-calls-g.background*time.Since(began).Seconds())/each)
	put("attempts a reboot", attempts(g.machines))
	for name, spent := range g.since(used) {
		put(name+" ms a reboot", (spent-g.restTime[name]*time.Since(began).Seconds())*1000/each)
	}
	for name, bytes := range g.memory(testenv.Peak) {
		put(name+" MiB peak", bytes/(1<<20))
	}
}

// programs are all that serve, by what they are.
func (g *growth) programs() map[string][]*testenv.Process {
	all := map[string][]*testenv.Process{}
	for _, p := range g.planes {
		for _, process := range p.Processes() {
			name := map[string]string{"etcd": "etcd", "kube-apiserver": "API server"}[process.Name()]
			all[name] = append(all[name], process)
		}
	}
	for _, r := range g.replicas {
		all["join service"] = append(all["join service"], r.Process)
	}
	all["controllers"] = g.manager.Processes()
	return all
}

// used is the processor time of all programs of a kind together, in seconds; the machines and the balancer are this process.
func (g *growth) used() map[string]float64 {
	all := g.each(func(p *testenv.Process) (float64, error) {
		d, err := p.CPU()
		return d.Seconds(), err
	}, func(a, b float64) float64 { return a + b })
	all["machines"] = ownTime(g.b).Seconds()
	return all
}

func (g *growth) since(before map[string]float64) map[string]float64 {
	now := g.used()
	for name := range now {
		now[name] -= before[name]
	}
	return now
}

// memory is that of the larger program of each kind, in bytes.
func (g *growth) memory(which testenv.Memory) map[string]float64 {
	return g.each(func(p *testenv.Process) (float64, error) {
		bytes, err := p.Memory(which)
		return float64(bytes), err
	}, func(a, b float64) float64 { return max(a, b) })
}

func (g *growth) each(of func(*testenv.Process) (float64, error), add func(a, b float64) float64) map[string]float64 {
	all := map[string]float64{}
	for name, processes := range g.programs() {
		for _, p := range processes {
			value, err := of(p)
			must(g.b, err)
			all[name] = add(all[name], value)
		}
	}
	return all
}

// calls is how many requests both API servers have answered, their own among them.
func (g *growth) calls() float64 {
	return g.metric("apiserver_request_total{", func(a, b float64) float64 { return a + b })
}

// metric puts the values of a metric's lines together, those of both API servers.
func (g *growth) metric(prefix string, add func(a, b float64) float64) (all float64) {
	seen := false
	for _, c := range g.scrapers {
		for line := range strings.Lines(string(g.page(c, "/metrics"))) {
			if strings.HasPrefix(line, prefix) {
				value, err := strconv.ParseFloat(strings.TrimSpace(line[strings.LastIndexByte(line, ' '):]), 64)
				must(g.b, err)
				all, seen = add(all, value), true
			}
		}
	}
	if !seen {
		g.b.Fatalf("no API server has a metric %s", prefix)
	}
	return all
}

func (g *growth) page(c *client, path string) []byte {
	answer, err := c.open(g.b.Context(), http.MethodGet, path, nil)
	must(g.b, err)
	defer func() { _ = answer.Close() }()
	text, err := io.ReadAll(answer)
	must(g.b, err)
	return text
}

// size is that of an answer in bytes.
func (g *growth) size(path string) float64 { return float64(len(g.page(g.objects, path))) }

func (g *growth) progress(format string, values ...any) {
	_, _ = fmt.Fprintf(os.Stderr, "%s  %s\n", time.Now().Format(time.TimeOnly), fmt.Sprintf(format, values...))
}

// lines are the table: a quantity each, with its name and a value for each size.
func (g *growth) lines() (lines [][]string) {
	slices.Sort(g.columns[1:]) // behind the number of machines
	for _, column := range g.columns {
		line := []string{column}
		for _, row := range g.rows {
			text := ""
			if value, ok := row[column]; ok {
				text = strconv.FormatFloat(value, 'g', 4, 64)
			}
			line = append(line, text)
		}
		lines = append(lines, line)
	}
	return lines
}

// print prints the table.
func (g *growth) print() {
	table := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight) // a benchmark's log has ten lines at most
	for _, line := range g.lines() {
		_, _ = fmt.Fprintln(table, strings.Join(line, "\t")+"\t")
	}
	must(g.b, table.Flush())
}

// write writes growth.csv, or growth-group.csv, with a row for each size, for programs that draw.
func (g *growth) write() {
	if *results == "" {
		return
	}
	name := "growth.csv"
	if *grouped {
		name = "growth-group.csv"
	}
	f, err := os.Create(filepath.Join(*results, name))
	must(g.b, err)
	w, lines := csv.NewWriter(f), g.lines()
	for i := range len(g.rows) + 1 {
		var row []string
		for _, line := range lines {
			row = append(row, line[i])
		}
		must(g.b, w.Write(row))
	}
	w.Flush()
	must(g.b, errors.Join(w.Error(), f.Close()))
}

// overgrow pushes policies with more and more members, of machines that nobody has, and says which is the first that does not come into
// force.
func (g *growth) overgrow() {
	for n := len(g.machines) + 1000; n <= 12000; n += 1000 {
		for i := len(g.all); i < n; i++ {
			m := &machine{Node: &nodetest.Node{ID: hullmark.EKID{0xff, byte(i >> 8), byte(i)}}, number: i, image: images[0]}
			g.all = append(g.all, m)
		}
		g.machines = g.all[:n]
		g.version++
		began := time.Now()
		err := g.push(g.b.Context(), g.version, images...)
		if err != nil {
			fmt.Printf("a policy of %d members: %v\n", n, err)
			return
		}
		fmt.Printf("a policy of %d members, %d KiB: in force after %.1f s\n", n, len(g.Cluster.Policy)>>10, time.Since(began).Seconds())
	}
}
