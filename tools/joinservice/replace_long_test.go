//go:build long

package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest/wire"
	"github.com/hullmark/hullmark/firstboot/servicefiles"
	"github.com/hullmark/hullmark/internal/flood"
	"github.com/hullmark/hullmark/internal/testenv"
	"github.com/hullmark/hullmark/measurements"
)

// The steps of a control plane's join after which its service is killed.
const (
	memberRemoved = "the member's removal"
	nodeRemoved   = "the Node's removal"
	proceeded     = "Proceed"
	never         = "never"
)

// haltsVariable names, to a process of this test, the step after which it does nothing more; haltedFile is what it leaves in
// its state then.
const (
	haltsVariable = "HULLMARK_TEST_HALTS_AFTER"
	haltedFile    = "halted"
)

// TestMain makes of this program the service, in a process that can be killed, or what floods it, if the environment says so.
func TestMain(m *testing.M) {
	flood.Main()
	step, halts := os.LookupEnv(haltsVariable)
	_, flooded := os.LookupEnv(floodedVariable)
	var err error
	switch {
	case halts:
		err = serveUntil(step, os.Args[1:])
	case flooded:
		err = serveInMemory(os.Args[1:])
	default:
		os.Exit(m.Run())
	}
	if err != nil {
		slog.Error(err.Error())
		os.Exit(1)
	}
}

// serveUntil is the service at the addresses and URLs of its arguments; it halts after a step.
func serveUntil(step string, args []string) error {
	o := options{
		credentials: os.Getenv("CREDENTIALS_DIRECTORY"), files: servicefiles.Files{Folder: os.Getenv("STATE_DIRECTORY")}, listen: args[0], http: args[1], api: args[2], etcd: args[3],
		notify: func(string) {}, log: slog.Default(),
	}
	a, err := prepare(o)
	if err != nil {
		return err
	}
	halt := func(after string, err error) error {
		if err == nil && after == step {
			err = os.WriteFile(filepath.Join(o.files.Folder, haltedFile), nil, 0o600)
			if err == nil {
				select {}
			}
		}
		return err
	}
	planes := &a.service.ControlPlanes
	removeMember, removeNode := planes.RemoveMember, a.service.RemoveNode
	planes.RemoveMember = func(ctx context.Context, name string, address netip.Addr) error {
		return halt(memberRemoved, removeMember(ctx, name, address))
	}
	a.service.RemoveNode = func(ctx context.Context, name string) error { return halt(nodeRemoved, removeNode(ctx, name)) }
	return a.run(context.Background())
}

// launch starts the first control plane's service as a process, and returns once it serves.
func (s *threePlanes) launch(t *testing.T, halts string) (options, *testenv.Process) {
	t.Helper()
	o := options{listen: freeAddress(t), http: freeAddress(t), api: "https://" + s.api.Address, etcd: s.etcd.ClientURL(homes["control-plane-1"])}
	cmd := exec.Command(os.Args[0], o.listen, o.http, o.api, o.etcd)
	cmd.Env = []string{haltsVariable + "=" + halts, "CREDENTIALS_DIRECTORY=" + s.credentials, "STATE_DIRECTORY=" + s.state}
	p, err := testenv.Launch(t.TempDir(), cmd)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Stop(); err != nil {
			t.Error(err)
		}
	})
	err = p.Await(t.Context(), func() error {
		reply, err := http.Get("http://" + o.http + "/healthz")
		if err != nil {
			return err
		}
		return reply.Body.Close()
	})
	if err != nil {
		t.Fatal(err)
	}
	return o, p
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// joins has a machine do with Proceed what kubeadm join does: its member of etcd, and its Node.
func (s *threePlanes) joins(t *testing.T, name string) {
	s.machines[name].Join = func(*wire.Proceed) error {
		s.member(t, name)
		return s.request(t, http.MethodPost, "/api/v1/nodes", &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, nil)
	}
}

// A control plane whose disk is gone joins anew, in its old place. The service is killed at each step between, and the machine
// asks the next one: each time it is one member and one Node in the end, nothing of the old one is left, and etcd has a quorum
// all the time.
func TestReplacedControlPlane(t *testing.T) {
	const name = "control-plane-3"
	s := newThreePlanes(t)
	s.write(t, recoveredCredential, []byte(neverRecovered))
	o, service := s.launch(t, never)
	s.push(t, s.admin, o)
	for name := range s.machines {
		s.joins(t, name)
		s.persists(t, name, o)
	}
	s.wantPlanes(t)
	writer := s.startWriting(t)
	for _, step := range []string{memberRemoved, nodeRemoved, proceeded} {
		t.Log("the service is killed after " + step)
		member, node := s.memberOf(t, name), s.nodes(t)[name]
		s.losesDisk(t, name)
		if _, told := s.answered(t, name, o); told == nil || told.Code != "disk-replaced" {
			t.Fatalf("without a reset it was told %+v", told)
		}
		s.reset(t, name, o)
		must(t, service.Stop())

		o, service = s.launch(t, step)
		s.killedAfter(t, name, step, o, service)
		if got := s.memberOf(t, name); got == member || (got == 0) == (step == proceeded) {
			t.Errorf("in the place of the member %x is %x", member, got)
		}
		if got := s.nodes(t)[name]; (got == node) != (step == memberRemoved) {
			t.Errorf("in the place of the Node %s is %q", node, got)
		}

		o, service = s.launch(t, never)
		s.joins(t, name)
		s.persists(t, name, o)
		s.wantPlanes(t)
		if s.memberOf(t, name) == member || s.nodes(t)[name] == node {
			t.Error("the member, or the Node, is the old one")
		}
		if r := s.record(t, name); r.Disk != s.machines[name].Disk.UUID {
			t.Errorf("it is recorded as %+v", r)
		}
		if t.Failed() {
			return
		}
	}
	writer.report(t)
}

// losesDisk kills a machine's member of etcd, which leads the others and whose data is gone, and gives the machine an empty disk.
func (s *threePlanes) losesDisk(t *testing.T, name string) {
	t.Helper()
	s.leads(t, name)
	must(t, s.etcd.Forget(name))
	node := s.machines[name]
	node.Disk, node.Epoch, node.Unjoined = hullmark.DiskClaim{State: hullmark.DiskBlank}, 0, false
	_, _ = rand.Read(node.Disk.UUID[:]) // never fails
}

// leads has a machine's member lead: others cannot write before they have elected another.
func (s *threePlanes) leads(t *testing.T, name string) {
	t.Helper()
	member := s.memberOf(t, name)
	for _, at := range homes {
		url := s.etcd.ClientURL(at)
		client := s.client(t, url)
		status, err := client.Status(t.Context(), url)
		must(t, err)
		if status.Leader == status.Header.GetMemberId() && status.Leader != member {
			_, err := client.MoveLeader(t.Context(), member)
			must(t, err)
		}
	}
}

// reset lets a machine format the disk that it has now.
func (s *threePlanes) reset(t *testing.T, name string, o options) {
	t.Helper()
	m, _, err := s.admin.Load(t.Context(), s.machines[name].ID)
	must(t, err)
	s.policy.Resets = append(s.policy.Resets, measurements.Reset{EKID: m.EKID, OldUUID: m.Record.Disk})
	s.push(t, s.admin, o)
}

// killedAfter lets a machine ask a service that is killed after the step; after Proceed the machine dies with it, when it has
// announced its member to etcd.
func (s *threePlanes) killedAfter(t *testing.T, name, step string, o options, service *testenv.Process) {
	t.Helper()
	s.machines[name].Join = func(*wire.Proceed) error {
		s.announce(t, name)
		return errors.Join(service.Stop(), errors.New("the machine died"))
	}
	killed := make(chan error, 1)
	if step == proceeded {
		killed <- nil
	} else {
		go func() { killed <- s.killHalted(t.Context(), service) }()
	}
	for s.asks(t, name, o) == nil { // until its stream is lost
		if told := s.machines[name].Denied(); told == nil || !told.Retry {
			t.Fatalf("the service was to be killed after %s, and the exchange came to its end: %+v", step, told)
		}
		time.Sleep(time.Second)
	}
	must(t, <-killed)
	if got := s.machines[name].Proceed() != nil; got != (step == proceeded) {
		t.Errorf("the service was to be killed after %s; Proceed came: %t", step, got)
	}
}

// killHalted kills a service once it has halted.
func (s *threePlanes) killHalted(ctx context.Context, service *testenv.Process) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	halted := filepath.Join(s.state, haltedFile)
	err := service.Await(ctx, func() error {
		_, err := os.Stat(halted)
		return err
	})
	return errors.Join(err, service.Stop(), os.Remove(halted))
}

// wantPlanes fails the test unless there are three members of etcd, which vote and answer, and one Node for each machine.
func (s *threePlanes) wantPlanes(t *testing.T) {
	t.Helper()
	client := s.client(t)
	list, err := client.MemberList(t.Context())
	must(t, err)
	var names []string
	for _, m := range list.Members {
		if _, err := client.Status(t.Context(), m.ClientURLs[0]); err != nil || m.IsLearner {
			t.Errorf("member %x (%s): learner %t: %v", m.ID, m.Name, m.IsLearner, err)
		}
		names = append(names, m.Name)
	}
	if slices.Sort(names); !slices.Equal(names, []string{"control-plane-1", "control-plane-2", "control-plane-3"}) {
		t.Errorf("the members are %q", names)
	}
	if nodes := s.nodes(t); len(nodes) != len(s.machines) || nodes["control-plane-2"] == "" || nodes["control-plane-3"] == "" {
		t.Errorf("the Nodes are %v", nodes)
	}
}

// memberOf returns the identity of the member at a machine's address, started or not, and 0 if there is none.
func (s *threePlanes) memberOf(t *testing.T, name string) uint64 {
	t.Helper()
	list, err := s.client(t).MemberList(t.Context())
	must(t, err)
	for _, m := range list.Members {
		if slices.Contains(m.PeerURLs, s.etcd.PeerURL(homes[name])) {
			return m.ID
		}
	}
	return 0
}

// nodes returns the identities of all Nodes by name.
func (s *threePlanes) nodes(t *testing.T) map[string]string {
	t.Helper()
	var list corev1.NodeList
	must(t, s.request(t, http.MethodGet, "/api/v1/nodes", nil, &list))
	all := map[string]string{}
	for _, n := range list.Items {
		all[n.Name] = string(n.UID)
	}
	return all
}

// request speaks with the API as its administrator.
func (s *threePlanes) request(t *testing.T, method, path string, send, receive any) error {
	client, err := rest.HTTPClientFor(s.config)
	if err != nil {
		return err
	}
	body, err := json.Marshal(send)
	if err != nil {
		return err
	}
	request, err := http.NewRequestWithContext(t.Context(), method, s.config.Host+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/json")
	reply, err := client.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = reply.Body.Close() }()
	content, err := io.ReadAll(reply.Body)
	if err != nil || reply.StatusCode >= http.StatusMultipleChoices {
		return errors.Join(err, errors.New(method+" "+path+": "+reply.Status+": "+string(content)))
	}
	if receive == nil {
		return nil
	}
	return json.Unmarshal(content, receive)
}

// longestElection is how long etcd may take no write: some elections of a busy machine (testenv.Etcd's take 2 to 4 s each), but not
// the rest of the test.
const longestElection = 30 * time.Second

// writer writes to etcd until the test ends.
type writer struct {
	stop func()
	// done and failed count the writes; longest is the longest time from one that was done to the next.
	done, failed int
	longest      time.Duration
}

// startWriting writes ten times a second from now on.
func (s *threePlanes) startWriting(t *testing.T) *writer {
	t.Helper()
	client := s.client(t)
	ctx, cancel := context.WithCancel(t.Context())
	w, ended := &writer{}, make(chan struct{})
	w.stop = func() { cancel(); <-ended }
	t.Cleanup(w.stop)
	go func() {
		defer close(ended)
		for last := time.Now(); ctx.Err() == nil; time.Sleep(100 * time.Millisecond) {
			err := w.write(ctx, client)
			w.longest = max(w.longest, time.Since(last))
			switch {
			case err == nil:
				w.done++
				last = time.Now()
			case ctx.Err() == nil:
				w.failed++
			}
		}
	}()
	return w
}

func (w *writer) write(ctx context.Context, client *clientv3.Client) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	_, err := client.Put(ctx, "/test", "written")
	return err
}

// report ends the writing and says how it went.
func (w *writer) report(t *testing.T) {
	t.Helper()
	w.stop()
	t.Logf("%d writes, %d more failed; the longest time without one was %v", w.done, w.failed, w.longest.Round(time.Millisecond))
	if w.done == 0 || w.longest > longestElection {
		t.Errorf("etcd took %d writes, and none for %v", w.done, w.longest)
	}
}
