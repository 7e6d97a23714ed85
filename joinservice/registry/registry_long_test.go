//go:build long

package registry

import (
	"bytes"
	"context"
	"crypto"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/internal/testenv"
	"github.com/hullmark/hullmark/joinservice"
	"github.com/hullmark/hullmark/measurements"
)

// api is one real API for all tests; service is a client with the service's own permissions, admin one with all.
var (
	api            *testenv.Environment
	service, admin *Registry
)

func TestMain(m *testing.M) {
	code, err := withAPI(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func withAPI(m *testing.M) (code int, err error) {
	dir, err := os.MkdirTemp("", "testenv-")
	if err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	// The bundle may have to be compiled.
	ctx, cancel := context.WithTimeout(context.Background(), 45*time.Minute)
	defer cancel()
	if api, err = testenv.Start(ctx, dir); err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, api.Stop()) }()
	if service, err = connectAs(User); err != nil {
		return 1, err
	}
	if admin, err = connectAs("hullmark-operator", "kubeadm:cluster-admins"); err != nil {
		return 1, err
	}
	if err := refusedWithoutManifest(ctx); err != nil {
		return 1, err
	}
	for range 2 { // applying it again changes nothing
		if err := api.Apply(ctx, Manifest()); err != nil {
			return 1, err
		}
	}
	return m.Run(), nil
}

func connectAs(user string, groups ...string) (*Registry, error) {
	config, err := api.Config(user, groups...)
	if err != nil {
		return nil, err
	}
	return New(config)
}

// refusedWithoutManifest is a test of the time before the manifest.
func refusedWithoutManifest(ctx context.Context) error {
	var c *hullmark.Condition
	if _, _, err := service.Load(ctx, hullmark.EKID{}); !errors.As(err, &c) || c.Code != "api-forbidden" || !c.Retry {
		return fmt.Errorf("before the manifest: got %w, want a condition", err)
	}
	return nil
}

// eventually waits for what another process is to do.
func eventually(t *testing.T, what string, done func() error) {
	t.Helper()
	var err error
	for end := time.Now().Add(2 * time.Minute); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if err = done(); err == nil {
			return
		}
	}
	t.Fatalf("%s: %v", what, err)
}

// forget removes what a test kept of a machine, so that it can run again.
func forget(t *testing.T, m joinservice.Machine) {
	t.Helper()
	t.Cleanup(func() {
		if _, err := admin.Delete(context.Background(), m, true); err != nil {
			t.Error(err)
		}
	})
}

func TestRecordsCompareAndSwap(t *testing.T) {
	ctx, m := t.Context(), testMachine(10, "swap")
	if got, v, err := service.Load(ctx, m.EKID); err != nil || v != "" || got.EKID != m.EKID || got.Name != "" {
		t.Fatalf("absent: %+v %q %v", got, v, err)
	}
	first, err := service.Store(ctx, m, "")
	if err != nil || first == "" {
		t.Fatal(first, err)
	}
	if _, err := service.Store(ctx, m, ""); !errors.Is(err, joinservice.ErrConflict) {
		t.Errorf("created twice: %v", err)
	}
	m.Record.Issued++
	second, err := service.Store(ctx, m, first)
	if err != nil || second == first {
		t.Fatal(second, err)
	}
	if _, err := service.Store(ctx, m, first); !errors.Is(err, joinservice.ErrConflict) {
		t.Errorf("an old version was replaced: %v", err)
	}
	got, v, err := service.Load(ctx, m.EKID)
	if err != nil || v != second || got.Record != m.Record {
		t.Errorf("got %+v %q %v", got, v, err)
	}
	if _, err := admin.Delete(ctx, m, false); err != nil {
		t.Fatal(err)
	}
	if _, err := service.Store(ctx, m, second); !errors.Is(err, joinservice.ErrConflict) {
		t.Errorf("a deleted record was replaced: %v", err)
	}
}

// replicas returns n clients with connections of their own.
func replicas(t *testing.T, n int) []*Registry {
	t.Helper()
	var all []*Registry
	for range n {
		r, err := connectAs(User)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, r)
	}
	return all
}

const writers = 32

func TestRecordsUnderConcurrentWriters(t *testing.T) {
	node, services := hullmark.EKID{11}, replicas(t, 2)
	forget(t, joinservice.Machine{EKID: node, Name: "many"})
	var conflicts atomic.Int64
	var all sync.WaitGroup
	for i := range writers {
		all.Go(func() {
			for {
				err := raise(t.Context(), services[i%len(services)], node)
				if err == nil {
					return
				}
				if !errors.Is(err, joinservice.ErrConflict) {
					t.Error(err)
					return
				}
				conflicts.Add(1)
			}
		})
	}
	all.Wait()
	m, _, err := service.Load(t.Context(), node)
	if err != nil || m.Record.Issued != writers {
		t.Errorf("issued %d, want %d: %v", m.Record.Issued, writers, err)
	}
	if conflicts.Load() == 0 {
		t.Error("no two writers met: this tested nothing")
	}
}

// raise counts a machine's tickets up by one.
func raise(ctx context.Context, r *Registry, node hullmark.EKID) error {
	m, v, err := r.Load(ctx, node)
	if err != nil {
		return err
	}
	m.Name, m.Role = "many", hullmark.Worker
	m.Record.Issued++
	_, err = r.Store(ctx, m, v)
	return err
}

func TestANameHasOneHolder(t *testing.T) {
	services := replicas(t, 2)
	var won, taken atomic.Int64
	var holder atomic.Value
	var all sync.WaitGroup
	for i := range writers {
		all.Go(func() {
			node := hullmark.EKID{12, byte(i)}
			err := services[i%2].Claim(t.Context(), "race", node)
			var c *hullmark.Condition
			switch {
			case err == nil:
				won.Add(1)
				holder.Store(node)
			case errors.As(err, &c) && c.Code == "name-taken" && !c.Retry:
				taken.Add(1)
			default:
				t.Error(err)
			}
		})
	}
	all.Wait()
	if won.Load() != 1 || taken.Load() != writers-1 {
		t.Fatalf("%d machines hold the name, %d were refused", won.Load(), taken.Load())
	}
	node := holder.Load().(hullmark.EKID)
	if err := service.Claim(t.Context(), "race", node); err != nil {
		t.Errorf("its own name again: %v", err)
	}
	// Another machine's removal does not free it; the holder's does.
	other := joinservice.Machine{EKID: hullmark.EKID{12, 99}, Name: "race"}
	forget(t, other)
	if _, err := admin.Delete(t.Context(), other, false); err != nil {
		t.Fatal(err)
	}
	if err := service.Claim(t.Context(), "race", other.EKID); err == nil {
		t.Error("another machine's removal freed the name")
	}
	if _, err := admin.Delete(t.Context(), joinservice.Machine{EKID: node, Name: "race"}, false); err != nil {
		t.Fatal(err)
	}
	if err := service.Claim(t.Context(), "race", other.EKID); err != nil {
		t.Errorf("a name that was given up: %v", err)
	}
}

// Of machines that join at once, a group has as many as it may, whichever those are; one that is forgotten makes room.
func TestAGroupHasItsLimit(t *testing.T) {
	const machines, most = 10, 4
	group := measurements.Group{Name: "cloud"}
	errs := make([]error, machines)
	enrol := func(i int) error {
		for {
			err := service.Enrol(t.Context(), group.Name, hullmark.EKID{42, byte(i)}, most)
			var c *hullmark.Condition
			if !errors.As(err, &c) || !c.Retry {
				return err
			}
		}
	}
	var all sync.WaitGroup
	for i := range machines {
		all.Go(func() { errs[i] = enrol(i) })
	}
	all.Wait()
	var in, out []int
	for i, err := range errs {
		var c *hullmark.Condition
		switch {
		case err == nil:
			in = append(in, i)
		case errors.As(err, &c) && c.Code == "group-full":
			out = append(out, i)
		default:
			t.Fatal(err)
		}
	}
	if len(in) != most {
		t.Fatalf("%d machines are in, want %d", len(in), most)
	}
	if err := enrol(in[0]); err != nil {
		t.Errorf("one that is in comes again: %v", err)
	}
	node := hullmark.EKID{42, byte(in[0])}
	counted, err := admin.Counted(t.Context())
	one := joinservice.Machine{EKID: node, Name: group.Member(node).Name, Role: hullmark.Worker}
	if err != nil || len(counted) != most || !slices.ContainsFunc(counted, func(m joinservice.Machine) bool { return reflect.DeepEqual(m, one) }) {
		t.Errorf("%+v are counted, %v; want %d with %+v", counted, err, most, one)
	}
	if _, err := admin.Delete(t.Context(), joinservice.Machine{EKID: node, Name: group.Member(node).Name}, false); err != nil {
		t.Fatal(err)
	}
	if err := enrol(out[0]); err != nil {
		t.Errorf("after one was forgotten: %v", err)
	}
	if err := enrol(in[0]); err == nil {
		t.Error("one that was forgotten is in still")
	}
}

// A machine of a group that was handed over is counted no more; one that takes over was never.
func TestRebindLeavesTheGroup(t *testing.T) {
	group := measurements.Group{Name: "rebound"}
	old, heir := hullmark.EKID{43, 1}, hullmark.EKID{43, 2}
	m := testMachine(43, group.Member(old).Name)
	m.EKID = old
	if err := errors.Join(service.Enrol(t.Context(), group.Name, old, 1), service.Claim(t.Context(), m.Name, old)); err != nil {
		t.Fatal(err)
	}
	if _, err := service.Store(t.Context(), m, ""); err != nil {
		t.Fatal(err)
	}
	forget(t, joinservice.Machine{EKID: heir, Name: m.Name})
	for range 2 { // as after an interruption
		if err := admin.Rebind(t.Context(), m, heir); err != nil {
			t.Fatal(err)
		}
	}
	next := hullmark.EKID{43, 3}
	if err := service.Enrol(t.Context(), group.Name, next, 1); err != nil {
		t.Errorf("its place is taken still: %v", err)
	}
	forget(t, joinservice.Machine{EKID: next, Name: group.Member(next).Name})
}

func TestDeleteForgetsAMachine(t *testing.T) {
	ctx, m := t.Context(), testMachine(13, "gone")
	if err := service.Claim(ctx, m.Name, m.EKID); err != nil {
		t.Fatal(err)
	}
	id, _, err := issue(ctx, m)
	if err != nil {
		t.Fatal(err)
	}
	m.Token = id
	if _, err := service.Store(ctx, m, ""); err != nil {
		t.Fatal(err)
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: m.Name}}
	if _, err := admin.nodes.create(ctx, node); err != nil {
		t.Fatal(err)
	}
	if ready, err := service.NodeReady(ctx, m.Name); ready || err != nil {
		t.Errorf("a Node without status is Ready: %v, %v", ready, err)
	}
	eventually(t, "the Node's status", func() error { return makeReady(ctx, m.Name) })
	if ready, err := service.NodeReady(ctx, m.Name); !ready || err != nil {
		t.Errorf("a Ready Node: %v, %v", ready, err)
	}
	if _, err := service.Delete(ctx, m, false); err == nil {
		t.Error("the service deleted a record")
	}
	for range 2 {
		if _, err := admin.Delete(ctx, m, false); err != nil {
			t.Fatal(err)
		}
	}
	if _, v, err := service.Load(ctx, m.EKID); v != "" || err != nil {
		t.Errorf("record: %q, %v", v, err)
	}
	if _, err := admin.secrets.get(ctx, tokenPrefix+id); !apierrors.IsNotFound(err) {
		t.Errorf("token: %v", err)
	}
	if _, err := admin.nodes.get(ctx, m.Name); !apierrors.IsNotFound(err) {
		t.Errorf("Node: %v", err)
	}
}

// makeReady says what a kubelet says of its Node; controllers may change the Node at the same time.
func makeReady(ctx context.Context, name string) error {
	node, err := admin.nodes.get(ctx, name)
	if err != nil {
		return err
	}
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastHeartbeatTime: metav1.Now()}}
	_, err = admin.nodes.update(ctx, name, node, "status")
	return err
}

func TestListNamesWhatItCannotRead(t *testing.T) {
	ctx, good := t.Context(), testMachine(14, "good")
	forget(t, good)
	if _, err := service.Store(ctx, good, ""); err != nil {
		t.Fatal(err)
	}
	bad := machineObject(t, testMachine(15, "bad"))
	bad.Data[machineKey] = `{"unknown":1}`
	if _, err := admin.configMaps.create(ctx, bad); err != nil {
		t.Fatal(err)
	}
	machines, err := service.List(ctx)
	if err == nil || !strings.Contains(err.Error(), bad.Name) {
		t.Errorf("got %v, want an error that names %s", err, bad.Name)
	}
	if !holds(machines, good.EKID) {
		t.Errorf("one bad record hides the others: %+v", machines)
	}
	if _, _, err := service.Load(ctx, hullmark.EKID{15}); err == nil {
		t.Error("a bad record was read")
	}
	if err := admin.configMaps.delete(ctx, bad.Name); err != nil {
		t.Fatal(err)
	}
	if machines, err := service.List(ctx); err != nil || !holds(machines, good.EKID) {
		t.Errorf("got %+v, %v", machines, err)
	}
}

// Lists that are longer than a page are read whole.
func TestListsComeInPages(t *testing.T) {
	want := page + 3
	for i := range want {
		m := testMachine(0, fmt.Sprintf("page-%d", i))
		m.EKID = hullmark.EKID{0xf0, byte(i >> 8), byte(i)}
		t.Cleanup(func() { _ = admin.configMaps.delete(context.Background(), MachineObject(m.EKID)) })
		if _, err := service.Store(t.Context(), m, ""); err != nil {
			t.Fatal(err)
		}
	}
	machines, err := service.List(t.Context())
	got := slices.IndexFunc(machines, func(m joinservice.Machine) bool { return m.EKID[0] == 0xf0 })
	if err != nil || got < 0 || len(machines)-got < want {
		t.Errorf("%d records, %v; want %d", len(machines), err, want)
	}
}

func holds(machines []joinservice.Machine, node hullmark.EKID) bool {
	for _, m := range machines {
		if m.EKID == node {
			return true
		}
	}
	return false
}

// whoAmI asks the API whom it takes a client for.
func whoAmI(ctx context.Context, config *rest.Config) (user string, groups []string, err error) {
	var answer struct {
		Status struct {
			UserInfo struct {
				Username string
				Groups   []string
			}
		}
	}
	err = ask(ctx, config, "/apis/authentication.k8s.io/v1/selfsubjectreviews", "SelfSubjectReview", nil, &answer)
	return answer.Status.UserInfo.Username, answer.Status.UserInfo.Groups, err
}

// ask creates one of the API's questions and reads the answer.
func ask(ctx context.Context, config *rest.Config, path, kind string, spec, answer any) error {
	r, err := New(config)
	if err != nil {
		return err
	}
	group := strings.Join(strings.Split(path, "/")[2:4], "/")
	body, err := json.Marshal(map[string]any{"apiVersion": group, "kind": kind, "spec": spec})
	if err != nil {
		return err
	}
	raw, err := r.requests.client.Post().AbsPath(path).Body(body).SetHeader("Content-Type", "application/json").Do(ctx).Raw()
	if err != nil {
		return err
	}
	return json.Unmarshal(raw, answer)
}

// bearer returns a client that shows a token.
func bearer(token hullmark.Secret) *rest.Config {
	config := api.Anonymous()
	config.BearerToken = string(token.Expose())
	return config
}

// issue makes a token and returns its public half, too.
func issue(ctx context.Context, m joinservice.Machine) (id string, token hullmark.Secret, err error) {
	token, err = service.Issue(ctx, m, func(noted string) error {
		id = noted
		return nil
	})
	return id, token, err
}

// Nothing is made of which the caller could take no note.
func TestNoTokenWithoutANote(t *testing.T) {
	ctx, id, full := t.Context(), "", errors.New("the record cannot be written")
	_, err := service.Issue(ctx, testMachine(16, "token"), func(noted string) error {
		id = noted
		return full
	})
	if !errors.Is(err, full) {
		t.Errorf("got %v", err)
	}
	if _, err := admin.secrets.get(ctx, tokenPrefix+id); !apierrors.IsNotFound(err) {
		t.Errorf("token %s: %v", id, err)
	}
}

func TestTokensLiveUntilRevoked(t *testing.T) {
	ctx, m := t.Context(), testMachine(16, "token")
	id, token, err := issue(ctx, m)
	if err != nil {
		t.Fatal(err)
	}
	user, groups, err := whoAmI(ctx, bearer(token))
	if err != nil || user != "system:bootstrap:"+id || !strings.Contains(strings.Join(groups, " "), tokenGroup) {
		t.Errorf("got %s in %s, %v", user, groups, err)
	}
	secret, err := admin.secrets.get(ctx, tokenPrefix+id)
	if err != nil {
		t.Fatal(err)
	}
	expires, err := time.Parse(time.RFC3339, string(secret.Data["expiration"]))
	if err != nil || time.Until(expires) > tokenLife || time.Until(expires) < tokenLife-time.Minute {
		t.Errorf("it expires at %v, %v", expires, err)
	}
	if node, ok := machineOfGroups(groups); node != m.EKID || !ok {
		t.Errorf("its groups %v name %v, %v", groups, node, ok)
	}
	for range 2 {
		if err := service.Revoke(ctx, id); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "the API forgets a revoked token", func() error {
		if user, _, err := whoAmI(ctx, bearer(token)); !apierrors.IsUnauthorized(err) {
			return fmt.Errorf("it still is %s, %w", user, err)
		}
		return nil
	})
}

// approving runs n approvers until the test ends.
func approving(t *testing.T, n int) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	for _, r := range replicas(t, n) {
		a := &Approver{Registry: r, Admits: everyone, Claim: claims(t, r).ClaimAddresses}
		all.Go(func() {
			if err := a.Run(ctx); !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		})
	}
	t.Cleanup(func() {
		cancel()
		all.Wait()
	})
}

// A first certificate is decided by the replica that has its machine's exchange, and after a while by any.
func TestFirstCertificateIsLeftToTheReplicaOfTheExchange(t *testing.T) {
	token, _ := admitted(t, testMachine(19, "w19"))
	both := replicas(t, 2)
	decisions := make(chan int, 4)
	run := func(i int) (stop func()) {
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		a := &Approver{Registry: both[i], Admits: everyone, Here: func(node hullmark.EKID) bool { return i == 0 && node == testMachine(19, "w19").EKID }}
		a.Report = func(d Decision, err error) {
			if err != nil || d.Outcome != Approved {
				t.Errorf("replica %d: %s %s, %v", i, d.Outcome, d.Reason, err)
			}
			decisions <- i
		}
		go func() {
			defer close(ended)
			_ = a.Run(ctx)
		}()
		return func() { cancel(); <-ended }
	}
	stopOther := run(1)
	defer func() { stopOther() }()
	stopOwn := run(0)
	text := requestPEM(t, template("w19"))
	for range 2 {
		wantSigned(t, request(t, bearer(token), clientSigner, text, certificatesv1.UsageClientAuth))
		if i := <-decisions; i != 0 {
			t.Errorf("replica %d decided, which has not the exchange", i)
		}
	}
	stopOwn()
	wantSigned(t, request(t, bearer(token), clientSigner, text, certificatesv1.UsageClientAuth))
	if i := <-decisions; i != 1 {
		t.Errorf("replica %d decided, which was stopped", i)
	}
}

// request asks a signer for a certificate and returns the request's name.
func request(t *testing.T, config *rest.Config, signer string, text []byte, usages ...certificatesv1.KeyUsage) string {
	t.Helper()
	name, err := tryRequest(t, config, signer, text, usages...)
	if err != nil {
		t.Fatal(err)
	}
	return name
}

func tryRequest(t *testing.T, config *rest.Config, signer string, text []byte, usages ...certificatesv1.KeyUsage) (name string, err error) {
	t.Helper()
	r, err := New(config)
	if err != nil {
		t.Fatal(err)
	}
	csr, err := r.requests.create(t.Context(), &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "csr-"},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			Request: text, SignerName: signer, Usages: append(usages, certificatesv1.UsageDigitalSignature),
		},
	})
	return csr.GetName(), err
}

// decided waits until a request was denied, or approved and signed.
func decided(t *testing.T, name string) *certificatesv1.CertificateSigningRequest {
	t.Helper()
	var csr *certificatesv1.CertificateSigningRequest
	eventually(t, "a decision over "+name, func() (err error) {
		csr, err = admin.requests.get(t.Context(), name)
		if err != nil {
			return err
		}
		c := csr.Status.Conditions
		if len(c) == 0 || c[0].Type == certificatesv1.CertificateApproved && len(csr.Status.Certificate) == 0 {
			return fmt.Errorf("conditions %v", c)
		}
		return nil
	})
	return csr
}

func wantDenied(t *testing.T, name, says string) {
	t.Helper()
	csr := decided(t, name)
	c := csr.Status.Conditions[0]
	if c.Type != certificatesv1.CertificateDenied || c.Reason != "HullmarkDenied" || !strings.Contains(c.Message, says) || len(csr.Status.Certificate) > 0 {
		t.Errorf("got %s %s %q, want a denial that says %q", c.Type, c.Reason, c.Message, says)
	}
}

func wantSigned(t *testing.T, name string) []byte {
	t.Helper()
	csr := decided(t, name)
	if c := csr.Status.Conditions[0]; c.Type != certificatesv1.CertificateApproved || c.Reason != "HullmarkApproved" {
		t.Fatalf("got %s %s %q", c.Type, c.Reason, c.Message)
	}
	return csr.Status.Certificate
}

// template asks for a node's certificate.
func template(name string, addresses ...string) *x509.CertificateRequest {
	r := &x509.CertificateRequest{Subject: pkix.Name{CommonName: "system:node:" + name, Organization: []string{"system:nodes"}}}
	for _, a := range addresses {
		r.IPAddresses = append(r.IPAddresses, net.ParseIP(a))
	}
	return r
}

func TestKubeletsCertificates(t *testing.T) {
	ctx := t.Context()
	approving(t, 2)
	token, id := admitted(t, testMachine(17, "w17"))
	strange, _ := admitted(t, testMachine(18, "w18"))

	first, key := signingRequest(t, template("w17"))
	client := certificatesv1.UsageClientAuth
	wantDenied(t, request(t, bearer(strange), clientSigner, first, client), "common name: want system:node:w18")
	wantDenied(t, request(t, bearer(token), clientSigner, requestPEM(t, template("w18")), client), "common name: want system:node:w17")
	wantDenied(t, request(t, bearer(token), servingSigner, requestPEM(t, template("w17", "10.0.0.1")), certificatesv1.UsageServerAuth), "client certificate only")
	administrator := template("w17")
	administrator.Subject.Organization = []string{"system:masters"}
	wantDenied(t, request(t, bearer(token), clientSigner, requestPEM(t, administrator), client), "organization: want system:nodes alone")
	certificate := wantSigned(t, request(t, bearer(token), clientSigner, first, client))
	// The token is good for one key, however often its certificate is asked for.
	wantDenied(t, request(t, bearer(token), clientSigner, requestPEM(t, template("w17")), client), "was used already, for another key")
	wantSigned(t, request(t, bearer(token), clientSigner, first, client))

	node := api.Anonymous()
	node.CertData, node.KeyData = certificate, key
	if user, groups, err := whoAmI(ctx, node); err != nil || user != "system:node:w17" || !strings.Contains(strings.Join(groups, " "), "system:nodes") {
		t.Fatalf("the certificate is for %s in %s, %v", user, groups, err)
	}
	// From here on the token is gone, as when the node is Ready.
	if err := service.Revoke(ctx, id); err != nil {
		t.Fatal(err)
	}
	wantSigned(t, request(t, node, clientSigner, requestPEM(t, template("w17")), client))
	// Another node's name does not even get as far as to us: the API server's NodeRestriction refuses it.
	if _, err := tryRequest(t, node, clientSigner, requestPEM(t, template("w18")), client); !apierrors.IsForbidden(err) {
		t.Errorf("another node's certificate: %v", err)
	}
	serving := wantSigned(t, request(t, node, servingSigner, requestPEM(t, template("w17", "10.0.0.1")), certificatesv1.UsageServerAuth))
	checkServing(t, serving)
	wantDenied(t, request(t, node, servingSigner, requestPEM(t, template("w17", "127.0.0.1")), certificatesv1.UsageServerAuth), "address-reserved")
	// An administrator is another matter: the controller manager approves whatever one asks for.
	person, err := api.Config("mallory", tokenGroup)
	if err != nil {
		t.Fatal(err)
	}
	wantDenied(t, request(t, person, clientSigner, requestPEM(t, template("w17")), client), "requester")
}

// admitted stores a machine with a token of its own.
func admitted(t *testing.T, m joinservice.Machine) (token hullmark.Secret, id string) {
	t.Helper()
	forget(t, m)
	id, token, err := issue(t.Context(), m)
	if err != nil {
		t.Fatal(err)
	}
	m.Token = id
	if err := service.Claim(t.Context(), m.Name, m.EKID); err != nil {
		t.Fatal(err)
	}
	if _, err := service.Store(t.Context(), m, ""); err != nil {
		t.Fatal(err)
	}
	return token, id
}

// listed makes a certificate that no request brought one of those that its machine was seen to get.
func listed(t *testing.T, config *rest.Config, name string) {
	t.Helper()
	certificate, err := parseIssued(config.CertData)
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the note of a certificate", func() error {
		node, _, err := service.holder(t.Context(), name)
		if err != nil {
			return err
		}
		m, version, err := service.Load(t.Context(), node)
		if err != nil {
			return err
		}
		m.NoteCredential(joinservice.Credential{Fingerprint: fingerprintOf(certificate), Ends: certificate.NotAfter}, time.Now())
		_, err = service.Store(t.Context(), m, version)
		return err
	})
}

// signingRequest also returns the key that it was made with, in PEM.
func signingRequest(t *testing.T, template *x509.CertificateRequest) (request, key []byte) {
	t.Helper()
	private := newKey(t)
	der, err := x509.CreateCertificateRequest(nil, template, private)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(crypto.PrivateKey(private))
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER})
}

func checkServing(t *testing.T, text []byte) {
	t.Helper()
	block, _ := pem.Decode(text)
	certificate, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(api.Cluster.KubeletServing.Certificate)
	if _, err := certificate.Verify(x509.VerifyOptions{Roots: roots, DNSName: "10.0.0.1", KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}); err != nil {
		t.Error(err)
	}
}

// TestApproverWaitsAndSurvivesAnOutage is the first node: its kubelet asks before a service could make its record.
func TestApproverWaitsAndSurvivesAnOutage(t *testing.T) {
	ctx, m := t.Context(), testMachine(19, "w19")
	m.Role = hullmark.ControlPlane
	forget(t, m)
	node, err := api.Config("system:node:w19", "system:nodes")
	if err != nil {
		t.Fatal(err)
	}
	approving(t, 1)
	name := request(t, node, servingSigner, requestPEM(t, template("w19", "10.0.0.7")), certificatesv1.UsageServerAuth)
	if err := api.StopAPI(); err != nil {
		t.Fatal(err)
	}
	if err := api.StartAPI(ctx); err != nil {
		t.Fatal(err)
	}
	csr, err := admin.requests.get(ctx, name)
	if err != nil || len(csr.Status.Conditions) > 0 {
		t.Fatalf("before its record: %+v, %v", csr.Status, err)
	}
	if err := service.Claim(ctx, m.Name, m.EKID); err != nil {
		t.Fatal(err)
	}
	if _, err := service.Store(ctx, m, ""); err != nil {
		t.Fatal(err)
	}
	wantSigned(t, name)
}

// delivery is what WatchPolicy delivered last.
type delivery struct {
	sync.Mutex
	envelope  string
	documents map[measurements.DocumentID][]byte
}

func (d *delivery) want(envelope string, documents map[measurements.DocumentID][]byte) error {
	d.Lock()
	defer d.Unlock()
	if d.envelope != envelope || len(d.documents) != len(documents) {
		return fmt.Errorf("delivered %q with %d documents", d.envelope, len(d.documents))
	}
	for id, content := range documents {
		if !bytes.Equal(d.documents[id], content) {
			return fmt.Errorf("document %s: %q", id, d.documents[id])
		}
	}
	return nil
}

func watching(t *testing.T) *delivery {
	t.Helper()
	d := &delivery{}
	ctx, cancel := context.WithCancel(context.Background())
	var ended sync.WaitGroup
	ended.Go(func() {
		err := service.WatchPolicy(ctx, func(envelope []byte, documents map[measurements.DocumentID][]byte) {
			d.Lock()
			defer d.Unlock()
			d.envelope, d.documents = string(envelope), documents
		})
		if !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
	t.Cleanup(func() {
		cancel()
		ended.Wait()
	})
	return d
}

func documents(contents ...string) map[measurements.DocumentID][]byte {
	all := map[measurements.DocumentID][]byte{}
	for _, c := range contents {
		all[sha256.Sum256([]byte(c))] = []byte(c)
	}
	return all
}

func TestPolicyIsPushedAndWatched(t *testing.T) {
	ctx := t.Context()
	early := watching(t)
	push := func(envelope string, with map[measurements.DocumentID][]byte) {
		t.Helper()
		if err := admin.PushPolicy(ctx, "", AnyVersion, []byte(envelope), with); err != nil {
			t.Fatal(err)
		}
		eventually(t, "delivery of "+envelope, func() error { return early.want(envelope, with) })
	}
	push("one", documents("a", "b"))
	push("one", documents("a", "b"))
	push("two", documents("b", "c\x00\xff"))
	late := watching(t)
	eventually(t, "delivery at the start", func() error { return late.want("two", documents("b", "c\x00\xff")) })

	if err := api.StopAPI(); err != nil {
		t.Fatal(err)
	}
	if err := api.StartAPI(ctx); err != nil {
		t.Fatal(err)
	}
	push("three", documents("c\x00\xff"))
	eventually(t, "delivery after an outage", func() error { return late.want("three", documents("c\x00\xff")) })

	// What somebody wrote by hand is refused whole, with an event; pushing again mends it.
	push("largest", documents(strings.Repeat("x", maxObject)))
	content := time.Now().String()
	id, wrong := documentOf(content)
	wrong.BinaryData[documentKind] = []byte("e")
	wrong.Data = map[string]string{"x": "y"}
	if _, err := admin.configMaps.create(ctx, wrong); err != nil {
		t.Fatal(err)
	}
	eventually(t, "an event", func() error { return wantEvent(ctx, wrong.Name) })
	push("four", map[measurements.DocumentID][]byte{id: []byte(content)})
}

// Who brought a policy stands beside it, for people, and is gone with the next one that says nothing.
func TestPolicyNotesWhoBroughtIt(t *testing.T) {
	ctx := t.Context()
	for _, by := range []string{"revision 1 of a file", "revision 2 of a file", "", "revision 3 of a file"} {
		if err := admin.PushPolicy(ctx, by, AnyVersion, []byte("noted"), nil); err != nil {
			t.Fatal(err)
		}
		envelope, noted, version, err := admin.PushedBy(ctx)
		if err != nil || string(envelope) != "noted" || noted != by || version == "" {
			t.Errorf("the policy %q of version %q is noted as %q, want %q, %v", envelope, version, noted, by, err)
		}
	}
}

// Who pushes what he made of a policy that is another one by now is refused, and what came meanwhile stays.
func TestPolicyThatWasPushedMeanwhile(t *testing.T) {
	ctx := t.Context()
	push := func(version joinservice.Version, envelope string) error {
		return admin.PushPolicy(ctx, "", version, []byte(envelope), nil)
	}
	pushed := func(want string) joinservice.Version {
		t.Helper()
		envelope, _, version, err := admin.PushedBy(ctx)
		if err != nil || string(envelope) != want {
			t.Fatalf("the policy is %q, want %q, %v", envelope, want, err)
		}
		return version
	}
	if err := push(AnyVersion, "seen"); err != nil {
		t.Fatal(err)
	}
	seen := pushed("seen")
	if err := push(seen, "first"); err != nil {
		t.Fatal(err)
	}
	for _, version := range []joinservice.Version{seen, ""} {
		if err := push(version, "second"); !errors.Is(err, ErrPushedMeanwhile) {
			t.Errorf("in the place of version %q: %v", version, err)
		}
	}
	first := pushed("first")
	if err := admin.configMaps.delete(ctx, policyObject); err != nil {
		t.Fatal(err)
	}
	if err := push(first, "second"); !errors.Is(err, ErrPushedMeanwhile) {
		t.Errorf("in the place of one that is gone: %v", err)
	}
	if _, _, version, err := admin.PushedBy(ctx); err != nil || version != "" {
		t.Errorf("version %q of no policy, %v", version, err)
	}
	if err := push("", "third"); err != nil {
		t.Error(err)
	}
	pushed("third")
}

// wantEvent looks for a refusal that says something.
func wantEvent(ctx context.Context, says string) error {
	n, err := countEvents(ctx, says)
	if err == nil && n != 1 {
		err = fmt.Errorf("%d events say %q", n, says)
	}
	return err
}

func countEvents(ctx context.Context, says string) (n int, err error) {
	config, err := api.Config("testenv", "system:masters")
	if err != nil {
		return 0, err
	}
	r, err := New(config)
	if err != nil {
		return 0, err
	}
	var list corev1.EventList
	raw, err := r.requests.client.Get().AbsPath("/api/v1/namespaces/" + Namespace + "/events").Do(ctx).Raw()
	if err != nil {
		return 0, err
	}
	if err := json.Unmarshal(raw, &list); err != nil {
		return 0, err
	}
	for _, e := range list.Items {
		if e.Reason == "PolicyRefused" && e.InvolvedObject.Name == policyObject && strings.Contains(e.Message, says) {
			n++
		}
	}
	return n, nil
}

func TestRefusedTellsOnce(t *testing.T) {
	ctx := t.Context()
	if err := admin.PushPolicy(ctx, "", AnyVersion, []byte("refused"), nil); err != nil {
		t.Fatal(err)
	}
	first, second := "lower version, at "+time.Now().String(), "bad signature, at "+time.Now().String()
	for _, r := range append(replicas(t, 3), service) {
		for _, reason := range []string{first, second} {
			if err := r.Refused(ctx, reason); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, reason := range []string{first, second} {
		if err := wantEvent(ctx, reason); err != nil {
			t.Error(err)
		}
	}
}

func TestAPIOutageIsACondition(t *testing.T) {
	if err := api.StopAPI(); err != nil {
		t.Fatal(err)
	}
	for call, err := range everyCall(t.Context(), service) {
		var c *hullmark.Condition
		if !errors.As(err, &c) || c.Code != "api-unreachable" || !c.Retry {
			t.Errorf("%s: got %v", call, err)
		}
	}
	if err := api.StartAPI(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, _, err := service.Load(t.Context(), hullmark.EKID{20}); err != nil {
		t.Errorf("after the outage: %v", err)
	}
}
