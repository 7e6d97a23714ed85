package custody_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"filippo.io/age"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/cluster"
	"github.com/hullmark/hullmark/cluster/operate"
	"github.com/hullmark/hullmark/internal/nodetest"
	"github.com/hullmark/hullmark/joinservice/keys"
	"github.com/hullmark/hullmark/joinservice/keys/keeper"
	"github.com/hullmark/hullmark/tools/capi/custody"
)

var sealingKey = client.ObjectKey{Namespace: "system", Name: "hullmark-sealing-key"}

func newClient(t *testing.T) client.WithWatch {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := clientgoscheme.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	return fake.NewClientBuilder().WithScheme(scheme).Build()
}

// options are those of a local keeper with a key of its own.
func options(t *testing.T, filling byte) custody.Options {
	t.Helper()
	credentials, err := keeper.NewCredentials([]byte(base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{filling}, 32))), nil)
	if err != nil {
		t.Fatal(err)
	}
	return custody.Options{Secret: sealingKey, Keeper: "local://", Access: keys.Access{Open: credentials.Open}}
}

func open(t *testing.T, c client.Client, o custody.Options) *custody.Custody {
	t.Helper()
	opened, err := custody.Open(t.Context(), c, c, o)
	if err != nil {
		t.Fatal(err)
	}
	return opened
}

// The sealing key is made once, lies nowhere in clear, and is opened by its keeper alone.
func TestSealingKey(t *testing.T) {
	c := newClient(t)
	o := options(t, 1)
	none := o
	none.Keeper = ""
	if _, err := custody.Open(t.Context(), c, c, none); err == nil || !strings.Contains(err.Error(), "--keeper") {
		t.Errorf("without a keeper: %v", err)
	}
	recipient := open(t, c, o).Recipient()
	if again := open(t, c, none).Recipient(); again != recipient {
		t.Errorf("it was made anew: %s, want %s", again, recipient)
	}
	secret := &corev1.Secret{}
	if err := c.Get(t.Context(), sealingKey, secret); err != nil {
		t.Fatal(err)
	}
	for name, value := range secret.Data {
		if bytes.Contains(value, []byte("AGE-SECRET-KEY")) {
			t.Errorf("%s holds the key in clear", name)
		}
	}
	if _, err := custody.Open(t.Context(), c, c, options(t, 2)); err == nil {
		t.Error("another keeper's key opened it")
	}
	elsewhere := o
	elsewhere.Keeper = "hashivault://key?address=https://vault.example"
	if _, err := custody.Open(t.Context(), c, c, elsewhere); err == nil || !strings.Contains(err.Error(), "--keeper names") {
		t.Errorf("another keeper than the one that is named: %v", err)
	}
}

// name has the sealing key's Secret say something else.
func name(t *testing.T, c client.Client, key, value string) {
	t.Helper()
	secret := &corev1.Secret{}
	if err := c.Get(t.Context(), sealingKey, secret); err != nil {
		t.Fatal(err)
	}
	secret.Data[key] = []byte(value)
	if err := c.Update(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
}

// named is the recipient that people read.
func named(t *testing.T, c client.Client) string {
	t.Helper()
	secret := &corev1.Secret{}
	if err := c.Get(t.Context(), sealingKey, secret); err != nil {
		t.Fatal(err)
	}
	return string(secret.Data["recipient"])
}

// Who names a recipient of his own in the sealing key's Secret has it there for a minute at most, also across a start. A key that was put
// there is not written over: the manager ends, and the next one has its keeper open it.
func TestRecipientIsPutRight(t *testing.T) {
	stranger, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t)
		held := open(t, c, options(t, 1))
		name(t, c, "recipient", stranger.Recipient().String())
		if again := open(t, c, options(t, 1)); again.Recipient() != held.Recipient() || named(t, c) != held.Recipient() {
			t.Errorf("a manager that starts leaves the recipient %s", named(t, c))
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- held.Watch(ctx) }()
		for _, wrong := range []string{stranger.Recipient().String(), "", strings.Repeat("x", 1<<16)} {
			name(t, c, "recipient", wrong)
			time.Sleep(61 * time.Second)
			if named(t, c) != held.Recipient() {
				t.Errorf("the recipient is %.100s, want %s", named(t, c), held.Recipient())
			}
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		name(t, c, "sealed", "another")
		name(t, c, "recipient", stranger.Recipient().String())
		if err := held.Watch(t.Context()); err == nil || !strings.Contains(err.Error(), "another key") || named(t, c) != stranger.Recipient().String() {
			t.Errorf("%v; the recipient is %s", err, named(t, c))
		}
		if _, err := custody.Open(t.Context(), c, c, options(t, 1)); err == nil || named(t, c) != stranger.Recipient().String() {
			t.Errorf("a key that the keeper does not open: %v", err)
		}
	})
}

// The sealing key's Secret that somebody deletes is there again within a minute: the next manager opens by it what was sealed to this one.
func TestSecretIsPutBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t)
		held := open(t, c, options(t, 1))
		go func() { _ = held.Watch(t.Context()) }()
		synctest.Wait()
		secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: sealingKey.Namespace, Name: sealingKey.Name}}
		if err := c.Delete(t.Context(), secret); err != nil {
			t.Fatal(err)
		}
		time.Sleep(61 * time.Second)
		if again := open(t, c, options(t, 1)); again.Recipient() != held.Recipient() || named(t, c) != held.Recipient() {
			t.Errorf("the next manager's key is %s, want %s", again.Recipient(), held.Recipient())
		}
	})
}

// A manager that cannot put it right does not start, and one that runs tries again.
func TestRecipientThatStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		refusals := 0
		c := interceptor.NewClient(newClient(t), interceptor.Funcs{Update: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.UpdateOption) error {
			if refusals--; refusals >= 0 {
				return errors.New("forbidden")
			}
			return c.Update(ctx, o, opts...)
		}})
		held := open(t, c, options(t, 1))
		name(t, c, "recipient", "another")
		refusals = 1
		if _, err := custody.Open(t.Context(), c, c, options(t, 1)); err == nil || !strings.Contains(err.Error(), held.Recipient()) {
			t.Errorf("it starts: %v", err)
		}
		refusals = 1
		go func() { _ = held.Watch(t.Context()) }()
		synctest.Wait()
		if named(t, c) != "another" {
			t.Error("nothing was refused")
		}
		time.Sleep(61 * time.Second)
		if named(t, c) != held.Recipient() {
			t.Errorf("the recipient is %s", named(t, c))
		}
	})
}

// late finds no Secret the first time it is asked, as a manager that starts beside another.
type late struct {
	client.Reader
	asked *int
}

func (l late) Get(ctx context.Context, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
	if *l.asked++; *l.asked == 1 {
		return l.Reader.Get(ctx, client.ObjectKey{Namespace: key.Namespace, Name: "absent"}, o, opts...)
	}
	return l.Reader.Get(ctx, key, o, opts...)
}

// Two managers that start at once have one key.
func TestTwoManagersStart(t *testing.T) {
	c := newClient(t)
	first := open(t, c, options(t, 1))
	second, err := custody.Open(t.Context(), c, late{c, new(int)}, options(t, 1))
	if err != nil || second.Recipient() != first.Recipient() {
		t.Errorf("%v, %v", second, err)
	}
}

func lend(t *testing.T, recipient, purpose string) []byte {
	t.Helper()
	whole, err := cluster.New()
	if err != nil {
		t.Fatal(err)
	}
	lent, err := whole.Lend(cluster.Loan{Document: nodetest.Document(t, "image"), Node: hullmark.EKID{1}, Name: "cp-1", For: purpose})
	if err != nil {
		t.Fatal(err)
	}
	to, err := age.ParseX25519Recipient(recipient)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "lent")
	if err := cluster.CreateSealed(path, to, lent); err != nil {
		t.Fatal(err)
	}
	sealed, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return sealed
}

func put(t *testing.T, c client.Client, name, key string, value []byte) client.ObjectKey {
	t.Helper()
	s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: name}, Data: map[string][]byte{key: value, "other": []byte("stays")}}
	if err := c.Create(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	return client.ObjectKeyFromObject(s)
}

// What a lent file is changed to is in its Secret before it counts, and never written over somebody else's change.
func TestLentFile(t *testing.T) {
	c := newClient(t)
	held := open(t, c, options(t, 1))
	key := put(t, c, custody.LentName("prod"), custody.ClusterKey, lend(t, held.Recipient(), "fleet/prod"))
	file, err := held.OpenCluster(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	note := func(epoch uint64) error {
		return file.Update(func(c *cluster.Cluster) error {
			c.Epochs = map[hullmark.EKID]cluster.DiskEpoch{{1}: {Epoch: epoch}}
			return nil
		})
	}
	for epoch := range uint64(3) {
		if err := note(epoch); err != nil {
			t.Fatal(err)
		}
		again, err := held.OpenCluster(t.Context(), key)
		if err != nil || again.Cluster.Epochs[hullmark.EKID{1}].Epoch != epoch {
			t.Errorf("epoch %d is not in the Secret: %v, %v", epoch, again, err)
		}
	}
	secret := &corev1.Secret{}
	if err := c.Get(t.Context(), key, secret); err != nil || string(secret.Data["other"]) != "stays" {
		t.Errorf("what else is in the Secret is gone: %v", err)
	}
	secret.Labels = map[string]string{"changed": "by somebody"}
	if err := c.Update(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	if err := note(9); err == nil || file.Cluster.Epochs[hullmark.EKID{1}].Epoch != 2 {
		t.Errorf("a Secret that somebody changed was written over, or counts: %v", err)
	}
	// A copy of it, in the Secret of another Cluster or in another namespace, is of no use.
	for name, sealed := range map[string][]byte{"other": lend(t, held.Recipient(), "fleet/prod"), "unnamed": lend(t, held.Recipient(), "")} {
		if _, err := held.OpenCluster(t.Context(), put(t, c, custody.LentName(name), custody.ClusterKey, sealed)); err == nil || !strings.Contains(err.Error(), "fleet/"+name) {
			t.Errorf("what is sealed for another Cluster was opened: %v", err)
		}
	}
	stranger := open(t, newClient(t), options(t, 1)).Recipient()
	for name, sealed := range map[string][]byte{"theirs": lend(t, stranger, "fleet/theirs"), "garbage": []byte("age?"), "empty": nil} {
		if _, err := held.OpenCluster(t.Context(), put(t, c, name, custody.ClusterKey, sealed)); err == nil || !strings.Contains(err.Error(), "fleet/"+name) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := held.OpenCluster(t.Context(), put(t, c, "keyless", "cluster-file", nil)); err == nil {
		t.Error("a Secret without the key was opened")
	}
}

func TestEnrollerKey(t *testing.T) {
	c := newClient(t)
	held := open(t, c, options(t, 1))
	to, err := age.ParseX25519Recipient(held.Recipient())
	if err != nil {
		t.Fatal(err)
	}
	private, _, err := operate.NewSealedEnrollerKey(to, "fleet/prod")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := held.OpenEnroller(t.Context(), put(t, c, custody.EnrollerName("prod"), custody.EnrollerKey, private)); err != nil {
		t.Error(err)
	}
	if _, err := held.OpenEnroller(t.Context(), put(t, c, custody.EnrollerName("other"), custody.EnrollerKey, private)); err == nil || !strings.Contains(err.Error(), "fleet/other") {
		t.Errorf("a key that is sealed for another Cluster was opened: %v", err)
	}
	stranger := open(t, newClient(t), options(t, 1))
	if _, err := stranger.OpenEnroller(t.Context(), client.ObjectKey{}); err == nil {
		t.Error("a Secret that is not there was opened")
	}
	if _, err := held.OpenEnroller(t.Context(), put(t, c, "lent-in-its-place", custody.EnrollerKey, lend(t, held.Recipient(), "fleet/prod"))); err == nil {
		t.Error("a lent file was taken for an enroller's key")
	}
}
