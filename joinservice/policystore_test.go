package joinservice_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest/channel"
	"github.com/hullmark/hullmark/cluster"
	"github.com/hullmark/hullmark/firstboot/servicefiles"
	"github.com/hullmark/hullmark/internal/nodetest"
	"github.com/hullmark/hullmark/internal/policytest"
	"github.com/hullmark/hullmark/joinservice"
	"github.com/hullmark/hullmark/measurements"
	"github.com/hullmark/hullmark/pcrs"
)

func newCluster(t testing.TB) *cluster.Cluster {
	t.Helper()
	c, err := cluster.New()
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// signed returns a policy of the cluster that accepts the documents of images and has members.
func signed(t testing.TB, c *cluster.Cluster, p measurements.Policy, images ...string) joinservice.SignedPolicy {
	t.Helper()
	s := joinservice.SignedPolicy{Documents: map[measurements.DocumentID][]byte{}}
	for _, image := range images {
		document := nodetest.Document(t, image)
		id, err := document.Digest()
		if err != nil {
			t.Fatal(err)
		}
		if s.Documents[id], err = document.Encode(); err != nil {
			t.Fatal(err)
		}
		p.Documents = append(p.Documents, measurements.Accepted{Document: id, Enforce: []pcrs.Register{1}})
	}
	var err error
	if s.Envelope, err = measurements.SignPolicy(c.Root.Key, c.ID(), p); err != nil {
		t.Fatal(err)
	}
	return s
}

func version(n uint64, members ...measurements.Member) measurements.Policy {
	return measurements.Policy{Version: n, Members: members}
}

func openStore(t testing.TB, c *cluster.Cluster, installed joinservice.SignedPolicy, cache servicefiles.File) *joinservice.PolicyStore {
	t.Helper()
	store, warning, err := joinservice.OpenPolicyStore(c.ID(), installed, cache)
	if err != nil || warning != nil {
		t.Fatal(err, warning)
	}
	return store
}

func TestPolicyStoreTakesAHigherVersion(t *testing.T) {
	c, cache := newCluster(t), servicefiles.Plain(filepath.Join(t.TempDir(), "policy.json"))
	store := openStore(t, c, signed(t, c, version(3), "image"), cache)
	if store.Policy().Version != 3 {
		t.Fatalf("version %d is in force", store.Policy().Version)
	}
	if taken, err := store.Offer(signed(t, c, version(4), "image", "newer")); !taken || err != nil {
		t.Fatal(taken, err)
	}
	if p := store.Policy(); p.Version != 4 || len(p.Documents) != 2 {
		t.Errorf("%+v is in force", p)
	}
	// Another signature over the same policy is the same policy.
	if taken, err := store.Offer(signed(t, c, version(4), "image", "newer")); taken || err != nil {
		t.Error("the policy in force was not recognised:", taken, err)
	}
	if again := openStore(t, c, signed(t, c, version(3), "image"), cache); again.Policy().Version != 4 {
		t.Errorf("after a restart version %d is in force, want that of the cache", again.Policy().Version)
	}
	if newer := openStore(t, c, signed(t, c, version(5), "image"), cache); newer.Policy().Version != 5 {
		t.Errorf("version %d is in force, want the installed one", newer.Policy().Version)
	}
}

func TestPolicyStoreRefuses(t *testing.T) {
	c := newCluster(t)
	noDocument, wrongDocument, changed := signed(t, c, version(9), "image"), signed(t, c, version(9), "image"), signed(t, c, version(9), "image")
	clear(noDocument.Documents)
	other, err := nodetest.Document(t, "other").Encode()
	if err != nil {
		t.Fatal(err)
	}
	for id := range wrongDocument.Documents {
		wrongDocument.Documents[id] = other
	}
	if changed.Envelope, err = policytest.WithWrongSignature(changed.Envelope); err != nil {
		t.Fatal(err)
	}
	unknown := signed(t, c, version(9), "image")
	if unknown.Envelope, err = policytest.WithUnknownField(c.Root.Key, c.ID(), version(9)); err != nil {
		t.Fatal(err)
	}
	half := signed(t, c, version(9), "image")
	half.Envelope = half.Envelope[:len(half.Envelope)/2]
	for name, offer := range map[string]struct {
		policy joinservice.SignedPolicy
		says   string // as the event does
	}{
		"a lower version":              {signed(t, c, version(4), "image"), "5 is in force"},
		"another one of the same":      {signed(t, c, version(5), "image", "newer"), "another policy"},
		"another cluster's":            {signed(t, newCluster(t), version(9), "image"), "signed by the root key of another cluster"},
		"a changed signature":          {changed, "the signature is not by the root key; the policy was changed"},
		"no envelope":                  {joinservice.SignedPolicy{}, "open policy: it is empty"},
		"half an envelope":             {half, "open policy: it was cut off"},
		"a field that is not known":    {unknown, `open policy: read policy: json: unknown field "tolerance"`},
		"a document that is missing":   {noDocument, ": missing"},
		"a document of another digest": {wrongDocument, "its content has the digest"},
	} {
		t.Run(name, func(t *testing.T) {
			store := openStore(t, c, signed(t, c, version(5), "image"), servicefiles.Plain(filepath.Join(t.TempDir(), "policy.json")))
			taken, err := store.Offer(offer.policy)
			if taken || err == nil || !strings.Contains(err.Error(), offer.says) {
				t.Errorf("got %v, %v, want %q", taken, err, offer.says)
			}
			if store.Policy().Version != 5 {
				t.Error("the refused policy is in force")
			}
			if taken, err := store.Offer(signed(t, c, version(9), "image")); !taken || err != nil {
				t.Error("the legal one was refused:", err)
			}
		})
	}
}

func TestPolicyStoreSurvivesATornCache(t *testing.T) {
	c, cache := newCluster(t), servicefiles.Plain(filepath.Join(t.TempDir(), "policy.json"))
	installed := signed(t, c, version(3), "image")
	if _, err := openStore(t, c, installed, cache).Offer(signed(t, c, version(4), "image")); err != nil {
		t.Fatal(err)
	}
	whole, err := cache.Read()
	if err != nil {
		t.Fatal(err)
	}
	for _, torn := range [][]byte{{}, whole[:len(whole)/2], append(bytes.Clone(whole), whole...)} {
		if err := cache.Write(torn); err != nil {
			t.Fatal(err)
		}
		store, warning, err := joinservice.OpenPolicyStore(c.ID(), installed, cache)
		if err != nil || warning == nil || store.Policy().Version != 3 {
			t.Fatalf("a cache of %d bytes: %v, %v", len(torn), warning, err)
		}
		if taken, err := store.Offer(signed(t, c, version(4), "image")); !taken || err != nil {
			t.Fatal(err)
		}
	}
	if store, warning, err := joinservice.OpenPolicyStore(c.ID(), joinservice.SignedPolicy{}, cache); err != nil || warning == nil || store.Policy().Version != 4 {
		t.Errorf("without an installed policy: %v, %v", warning, err)
	}
	if _, _, err := joinservice.OpenPolicyStore(c.ID(), joinservice.SignedPolicy{}, cache+".none"); err == nil {
		t.Error("a store was opened without any policy")
	}
}

// A removed release is refused at once, even where the disk is full, and what could not be kept is tried again.
func TestPolicyStoreWithoutRoomForItsCache(t *testing.T) {
	c, dir := newCluster(t), filepath.Join(t.TempDir(), "absent")
	store := openStore(t, c, signed(t, c, version(3), "image"), servicefiles.Plain(filepath.Join(dir, "policy.json")))
	taken, err := store.Offer(signed(t, c, version(4), "image"))
	if !taken || err == nil || store.Policy().Version != 4 {
		t.Fatalf("got %v, %v, version %d", taken, err, store.Policy().Version)
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if taken, err := store.Offer(signed(t, c, version(4), "image")); taken || err != nil {
		t.Fatal(taken, err)
	}
	if again := openStore(t, c, signed(t, c, version(3), "image"), servicefiles.Plain(filepath.Join(dir, "policy.json"))); again.Policy().Version != 4 {
		t.Error("the policy was not kept by the second try")
	}
}

func TestPolicyStoreConcurrently(t *testing.T) {
	c := newCluster(t)
	store := openStore(t, c, signed(t, c, version(1), "image"), servicefiles.Plain(filepath.Join(t.TempDir(), "policy.json")))
	const last = 12
	var group sync.WaitGroup
	for n := uint64(2); n <= last; n++ {
		// Version n has n members: a reader never sees a mixture.
		var members []measurements.Member
		for i := range n {
			members = append(members, measurements.Member{EKID: hullmark.EKID{byte(i + 1)}, Role: hullmark.Worker, Name: "worker-" + string(rune('a'+i))})
		}
		offer := signed(t, c, version(n, members...), "image")
		group.Go(func() { _, _ = store.Offer(offer) }) // lower ones that come late are refused
		group.Go(func() {
			for range 100 {
				if p := store.Policy(); p.Version > 1 && uint64(len(p.Members)) != p.Version {
					t.Errorf("version %d with %d members", p.Version, len(p.Members))
				}
			}
		})
	}
	group.Wait()
	if store.Policy().Version != last {
		t.Errorf("version %d is in force, want the highest", store.Policy().Version)
	}
}

// handedOver is the cluster with another root, of which the old one knows nothing.
func handedOver(t *testing.T, c *cluster.Cluster) *cluster.Cluster {
	t.Helper()
	next := new(*c)
	if err := next.RotateRoot(); err != nil {
		t.Fatal(err)
	}
	return next
}

// held is the cluster's last policy.
func held(c *cluster.Cluster) joinservice.SignedPolicy {
	return joinservice.SignedPolicy{Envelope: c.Policy, Documents: c.Documents}
}

// A service takes the policy of a root to which its own has handed over, and admits and shows the roots that lead to its own.
func TestPolicyStoreFollowsCrossCertificates(t *testing.T) {
	a := newCluster(t)
	if err := a.SetPolicy(version(1)); err != nil {
		t.Fatal(err)
	}
	b := handedOver(t, a)
	c := handedOver(t, b)
	forgot := new(*c)
	if err := forgot.ForgetRoot(); err != nil {
		t.Fatal(err)
	}
	cache := servicefiles.Plain(filepath.Join(t.TempDir(), "policy.json"))
	stale, taken := openStore(t, a, held(a), cache), openStore(t, b, held(b), servicefiles.Plain(filepath.Join(t.TempDir(), "policy.json")))
	for _, step := range []struct {
		store            *joinservice.PolicyStore
		offered          *cluster.Cluster
		version          uint64
		crossCertificate int
	}{
		{stale, b, 2, 0}, {stale, c, 3, 0}, {taken, b, 2, 2}, {taken, c, 3, 2}, {taken, forgot, 4, 0},
	} {
		if _, err := step.store.Offer(held(step.offered)); err != nil || step.store.Policy().Version != step.version || len(step.store.CrossCertificates()) != step.crossCertificate {
			t.Errorf("version %d with %d certificates is in force, want %d with %d: %v", step.store.Policy().Version, len(step.store.CrossCertificates()), step.version, step.crossCertificate, err)
		}
	}
	if _, err := stale.Offer(held(forgot)); err == nil || stale.Policy().Version != 3 {
		t.Errorf("the policy of a root by which this one was given up is in force: %v", err)
	}
	again, warning, err := joinservice.OpenPolicyStore(a.ID(), joinservice.SignedPolicy{}, cache)
	if err != nil || again.Policy().Version != 3 {
		t.Errorf("the cached one is not in force after a restart: %v, %v", warning, err)
	}
}

// Nobody but a service's own root hands over for it.
func TestPolicyStoreRefusesRoots(t *testing.T) {
	a, stranger := newCluster(t), newCluster(t)
	if err := a.SetPolicy(version(1)); err != nil {
		t.Fatal(err)
	}
	b := handedOver(t, a)
	policy, err := b.OpenPolicy()
	if err != nil {
		t.Fatal(err)
	}
	byStranger, err := channel.NewCrossCertificate(stranger.Root.Certificate, stranger.Root.Key, stranger.Root.Key.Public())
	if err != nil {
		t.Fatal(err)
	}
	store := openStore(t, a, held(a), servicefiles.Plain(filepath.Join(t.TempDir(), "policy.json")))
	for name, crossCertificates := range map[string][][]byte{
		"none":                            nil,
		"the one to another key":          policy.CrossCertificates,
		"its own, under the true root":    {byStranger.Raw, a.Root.Certificate.Raw},
		"what is no certificate":          {{1}, {2}},
		"the true root as one of its own": {a.Root.Certificate.Raw, a.Root.Certificate.Raw},
	} {
		p := version(9)
		p.CrossCertificates, p.FirstRoot = crossCertificates, a.ID()
		if taken, err := store.Offer(signed(t, stranger, p)); taken || err == nil {
			t.Errorf("a stranger's policy with %s was taken: %v", name, err)
		}
	}
	if taken, err := store.Offer(held(b)); !taken || err != nil {
		t.Errorf("the positive control: %v", err)
	}
	later := openStore(t, b, held(b), servicefiles.Plain(filepath.Join(t.TempDir(), "policy.json")))
	if taken, err := later.Offer(signed(t, a, version(9))); taken || err == nil || !strings.Contains(err.Error(), "has not handed over") {
		t.Errorf("the earlier root's policy was taken after the exchange: %v", err)
	}
}
