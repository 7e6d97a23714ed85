package cluster

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/asn1"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"math/big"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest/channel"
	"github.com/hullmark/hullmark/internal/nodetest"
	"github.com/hullmark/hullmark/measurements"
)

// token is a root's key that is not in a cluster file.
type token struct {
	key *ecdsa.PrivateKey
	// asked is what it was asked to sign.
	asked [][]byte
	// answer, if it is set, changes what the token answers.
	answer func(signature []byte) []byte
}

func newToken(t testing.TB) *token {
	t.Helper()
	key, err := newKey()
	if err != nil {
		t.Fatal(err)
	}
	return &token{key: key}
}

func (k *token) sign(message []byte) ([]byte, error) {
	digest := sha256.Sum256(message)
	k.asked = append(k.asked, bytes.Clone(message))
	signature, err := ecdsa.SignASN1(rand.Reader, k.key, digest[:])
	if err == nil && k.answer != nil {
		signature = k.answer(signature)
	}
	return signature, err
}

func (k *token) root() RemoteRoot { return RemoteRoot{Public: k.key.Public(), Sign: k.sign} }

// newRemoteFile is a cluster file whose root's key is the token's.
func newRemoteFile(t *testing.T, k *token) *File {
	t.Helper()
	c, err := NewUnder(k.root())
	if err != nil {
		t.Fatal(err)
	}
	f, err := Create(filepath.Join(t.TempDir(), "cluster.age"), secret("correct"), c, cheap)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// A root whose key is elsewhere does all that one does whose key is in the file, once somebody signs with it.
func TestRootElsewhere(t *testing.T) {
	k := newToken(t)
	f := newRemoteFile(t, k)
	obeys(t, f.Cluster, true, f.Cluster.ID())
	f = reopen(t, f)
	if !f.Cluster.RootElsewhere() || f.Cluster.Root.Key != nil {
		t.Fatal("the file does not say that the root's key is elsewhere")
	}

	// Nobody was named: nothing is signed, and what needs no signature goes on.
	signs := map[string]func(c *Cluster) error{
		"a policy":  func(c *Cluster) error { return c.SetPolicy(measurements.Policy{Version: 1}) },
		"an online": func(c *Cluster) error { return c.makeOnline() },
		"an operator": func(c *Cluster) error {
			_, err := c.Operator(channel.VerbStatus, hullmark.EKID{})
			return err
		},
	}
	for name, sign := range signs {
		if err := f.Update(sign); !errors.Is(err, ErrRootElsewhere) {
			t.Errorf("%s: got %v, want ErrRootElsewhere", name, err)
		}
	}
	if _, err := f.Cluster.Files(); err != nil {
		t.Error(err)
	}
	if err := f.Update(func(c *Cluster) error { c.KeepEpoch(hullmark.EKID{1}, DiskEpoch{Epoch: 1}); return nil }); err != nil {
		t.Error(err)
	}

	if err := f.Cluster.SignBy(k.sign); err != nil {
		t.Fatal(err)
	}
	for name, sign := range signs {
		if err := f.Update(sign); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := f.Update((*Cluster).RotateOnlineCA); err != nil {
		t.Fatal(err)
	}
	lent := mustLend(t, f, firstMachine, false)
	if lent.Cluster.RootElsewhere() || lent.Cluster.SignBy(k.sign) == nil {
		t.Error("whoever is lent the file can have it sign by somebody else")
	}
	if err := lent.Cluster.GiveUpRootKey(); !errors.Is(err, ErrLent) {
		t.Errorf("a root's key that is not lent is given up: %v", err)
	}
	if _, err := lent.Cluster.Operator(channel.VerbInit, firstMachine); err != nil {
		t.Error(err)
	}
	obeys(t, reopenSigned(t, f, k).Cluster, true, f.Cluster.ID())
	if newFile(t).Cluster.SignBy(k.sign) == nil {
		t.Error("somebody else signs for a file that has its root's key")
	}
}

// reopenSigned opens the file anew, and has the token sign for it.
func reopenSigned(t *testing.T, f *File, k *token) *File {
	t.Helper()
	again := reopen(t, f)
	if err := again.Cluster.SignBy(k.sign); err != nil {
		t.Fatal(err)
	}
	return again
}

// A cluster goes over to a root whose key is elsewhere, and back, and nodes obey all of them.
func TestRotateRootElsewhereAndBack(t *testing.T) {
	k := newToken(t)
	f := rotatable(t)
	roots := []hullmark.ClusterRoot{f.Cluster.ID()}
	private, err := f.Cluster.Root.Key.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Update(func(c *Cluster) error { return c.RotateRootTo(k.root()) }); err != nil {
		t.Fatal(err)
	}
	f = reopenSigned(t, f, k)
	roots = append(roots, f.Cluster.ID())
	obeys(t, f.Cluster, true, roots...)
	plain, err := f.Cluster.encode()
	if err != nil {
		t.Fatal(err)
	}
	var d map[string]any
	if err := json.Unmarshal(plain, &d); err != nil {
		t.Fatal(err)
	}
	own, err := k.key.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	if anyHolds(d, private) || anyHolds(d, own) || d["rootElsewhere"] != true {
		t.Error("a root's key is in the file, or the file does not say that it is elsewhere")
	}

	// The same key again would be no other root, which is found before anybody signs.
	refuse := func(name, says string) {
		t.Helper()
		asked := len(k.asked)
		if err := f.Update(func(c *Cluster) error { return c.RotateRootTo(k.root()) }); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", name, err)
		}
		if len(k.asked) != asked {
			t.Errorf("%s: the token was asked to sign %d times", name, len(k.asked)-asked)
		}
	}
	refuse("to itself", "the present root")
	if err := f.Update((*Cluster).RotateRoot); err != nil {
		t.Fatal(err)
	}
	f = reopen(t, f)
	obeys(t, f.Cluster, true, append(roots, f.Cluster.ID())...)
	if f.Cluster.RootElsewhere() || f.Cluster.Root.Key == nil {
		t.Error("the root's key is not back in the file")
	}
	if err := f.Update((*Cluster).ForgetRoot); err != nil {
		t.Fatal(err)
	}
	refuse("to a root before it", "still obey")
}

// What is not the root key's signature over the very message is refused, and nothing of it is kept.
func TestRootSignerThatLies(t *testing.T) {
	other := newToken(t)
	zero, err := asn1.Marshal(struct{ R, S *big.Int }{new(big.Int), new(big.Int)})
	if err != nil {
		t.Fatal(err)
	}
	for name, answer := range map[string]func(signature []byte) []byte{
		"nothing":               func([]byte) []byte { return nil },
		"junk":                  func([]byte) []byte { return []byte("not today") },
		"too much":              func(s []byte) []byte { return append(bytes.Clone(s), make([]byte, 60_000)...) },
		"a line's end":          func(s []byte) []byte { return append(bytes.Clone(s), '\n') },
		"less":                  func(s []byte) []byte { return s[:len(s)-1] },
		"in base64":             func(s []byte) []byte { return []byte(base64.StdEncoding.EncodeToString(s)) },
		"in hexadecimal digits": func(s []byte) []byte { return []byte(hex.EncodeToString(s)) },
		"zeros":                 func([]byte) []byte { return zero },
		"64 zeros":              func([]byte) []byte { return make([]byte, 64) },
		"a flipped bit":         func(s []byte) []byte { s[len(s)-1] ^= 1; return s },
		"another key's": func([]byte) []byte {
			signature, err := other.sign([]byte("whatever"))
			if err != nil {
				t.Error(err)
			}
			return signature
		},
	} {
		t.Run(name, func(t *testing.T) {
			k := newToken(t)
			f := newRemoteFile(t, k)
			k.answer = answer
			if err := f.Update(func(c *Cluster) error { return c.SetPolicy(measurements.Policy{Version: 1}) }); err == nil || !strings.Contains(err.Error(), "nothing was signed") {
				t.Errorf("a policy: %v", err)
			}
			if _, err := f.Cluster.Operator(channel.VerbInit, hullmark.EKID{}); err == nil {
				t.Error("an operator's certificate was made")
			}
			if err := f.Update(func(c *Cluster) error { return c.makeOnline() }); err == nil {
				t.Error("an online CA was made")
			}
			if len(f.Cluster.Policy) > 0 || len(reopen(t, f).Cluster.Policy) > 0 {
				t.Error("a policy was kept")
			}
			if _, err := NewUnder(k.root()); err == nil {
				t.Error("a cluster was made")
			}
			// The same token, once it is honest, signs: no answer before is remembered.
			k.answer = nil
			if err := f.Update(func(c *Cluster) error { return c.SetPolicy(measurements.Policy{Version: 1}) }); err != nil {
				t.Error(err)
			}
		})
	}
	t.Run("a signature of something else", func(t *testing.T) {
		k := newToken(t)
		f := newRemoteFile(t, k)
		something, err := k.sign([]byte("something else"))
		if err != nil {
			t.Fatal(err)
		}
		k.answer = func([]byte) []byte { return something }
		if err := f.Update(func(c *Cluster) error { return c.SetPolicy(measurements.Policy{Version: 1}) }); err == nil {
			t.Error("it was taken")
		}
	})
	t.Run("no answer", func(t *testing.T) {
		f := newRemoteFile(t, newToken(t))
		refused := errors.New("the token is gone")
		if err := f.Cluster.SignBy(func([]byte) ([]byte, error) { return nil, refused }); err != nil {
			t.Fatal(err)
		}
		if err := f.Update(func(c *Cluster) error { return c.SetPolicy(measurements.Policy{Version: 1}) }); !errors.Is(err, refused) {
			t.Errorf("got %v", err)
		}
	})
}

// A token answers with r and s as PKCS #11 has them, in 32 bytes each.
func TestRootSignatureOfAToken(t *testing.T) {
	k := newToken(t)
	f := newRemoteFile(t, k)
	k.answer = func(signature []byte) []byte {
		var pair struct{ R, S *big.Int }
		if _, err := asn1.Unmarshal(signature, &pair); err != nil {
			t.Error(err)
		}
		return append(pair.R.FillBytes(make([]byte, 32)), pair.S.FillBytes(make([]byte, 32))...)
	}
	if err := f.Update(func(c *Cluster) error { return c.SetPolicy(measurements.Policy{Version: 1}) }); err != nil {
		t.Fatal(err)
	}
	if policy, err := reopen(t, f).Cluster.OpenPolicy(); err != nil || policy.Version != 1 {
		t.Errorf("version %d, %v", policy.Version, err)
	}
}

// Whoever has the key is asked once for each thing, however often it is used.
func TestRootSignerIsAskedOnce(t *testing.T) {
	k := newToken(t)
	f := newRemoteFile(t, k)
	document := nodetest.Document(t, "image")
	policy := accepting(t, 1, document)
	k.asked = nil
	trial := *f.Cluster // As init tries whether a policy can be kept.
	if err := trial.SetPolicy(policy, document); err != nil {
		t.Fatal(err)
	}
	if err := f.Update(func(c *Cluster) error { return c.SetPolicy(policy, document) }); err != nil {
		t.Fatal(err)
	}
	if len(k.asked) != 1 {
		t.Errorf("the token was asked %d times for one policy", len(k.asked))
	}
	k.asked = nil
	var made [][]byte
	for _, scope := range []channel.Scope{{Verb: channel.VerbStatus}, {Verb: channel.VerbStatus}, {Verb: channel.VerbInit, EKID: hullmark.EKID{1}}, {Verb: channel.VerbInit, EKID: hullmark.EKID{2}}, {Verb: channel.VerbStatus}} {
		operator, err := f.Cluster.Operator(scope.Verb, scope.EKID)
		if err != nil {
			t.Fatal(err)
		}
		got, err := channel.LeafScope(operator.Leaf)
		if scope.Policy = 1; err != nil || got != scope {
			t.Errorf("a certificate for %+v, want %+v, %v", got, scope, err)
		}
		made = append(made, operator.Certificate[0])
	}
	if len(k.asked) != 3 || !bytes.Equal(made[0], made[4]) {
		t.Errorf("the token was asked %d times for operators of three scopes", len(k.asked))
	}
	// A policy of a higher version may refuse the operators before it.
	if err := f.Update(func(c *Cluster) error { return c.SetPolicy(accepting(t, 2, document)) }); err != nil {
		t.Fatal(err)
	}
	if operator, err := f.Cluster.Operator(channel.VerbStatus, hullmark.EKID{}); err != nil || bytes.Equal(operator.Certificate[0], made[0]) {
		t.Errorf("an operator of an earlier policy: %v", err)
	}
}

func TestRootOfAnotherKind(t *testing.T) {
	wide, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	long, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	k := newToken(t)
	for name, root := range map[string]RemoteRoot{
		"P-384": {Public: wide.Public(), Sign: k.sign}, "RSA": {Public: long.Public(), Sign: k.sign}, "none": {Sign: k.sign},
	} {
		if _, err := NewUnder(root); err == nil || !strings.Contains(err.Error(), "P-256") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if len(k.asked) > 0 {
		t.Error("the token was asked to sign for another key")
	}
}

// A file says one thing of its root's key, and strictly; one that has it says nothing new.
func TestDecodeOfRoots(t *testing.T) {
	k := newToken(t)
	remote := newRemoteFile(t, k)
	whole := newFile(t)
	lent := mustLend(t, whole, firstMachine, false).Cluster
	text := func(c *Cluster) string {
		plain, err := c.encode()
		if err != nil {
			t.Fatal(err)
		}
		return string(plain)
	}
	const says = `"rootElsewhere":true,`
	plain := text(remote.Cluster)
	if _, err := decode([]byte(plain)); err != nil || !strings.Contains(plain, says) {
		t.Fatalf("as it is: %v", err)
	}
	if strings.Contains(text(newFile(t).Cluster), "rootElsewhere") {
		t.Error("a file that has its root's key has another form than before")
	}
	add := func(text string) string { return strings.Replace(text, `"online":`, says+`"online":`, 1) }
	for name, changed := range map[string]string{
		"a key that is there":       add(text(whole.Cluster)),
		"a file that was lent":      add(text(lent)),
		"no key, and nothing said":  strings.Replace(plain, says, "", 1),
		"another root's online CA":  strings.Replace(plain, base64.StdEncoding.EncodeToString(remote.Cluster.Root.Certificate.Raw), base64.StdEncoding.EncodeToString(newFile(t).Cluster.Root.Certificate.Raw), 1),
		"a root that another signs": strings.Replace(plain, base64.StdEncoding.EncodeToString(remote.Cluster.Root.Certificate.Raw), base64.StdEncoding.EncodeToString(remote.Cluster.Online.Certificate.Raw), 1),
	} {
		if changed == plain {
			t.Fatalf("%s: nothing was changed", name)
		}
		if _, err := decode([]byte(changed)); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	broken := *whole.Cluster
	broken.Root.Key = nil
	if _, err := broken.encode(); err == nil {
		t.Error("a root's key that is lost in memory would be lost in the file")
	}
}

// Whoever has the root's key elsewhere names operators, and sees whom; the file that comes of it has nothing that signs.
func TestGrantOperatorUnderARootElsewhere(t *testing.T) {
	k := newToken(t)
	f := newRemoteFile(t, k)
	if err := f.Update(func(c *Cluster) error { return c.SetPolicy(measurements.Policy{Version: 1}) }); err != nil {
		t.Fatal(err)
	}
	asked := len(k.asked)
	opened, path := operatorFile(t, f, granting("alice", look))
	var said []string
	for _, message := range k.asked[asked:] {
		request, err := Asked(message)
		if err != nil {
			t.Error(err)
		}
		said = append(said, request.Text)
	}
	if len(said) != 2 || !strings.HasPrefix(said[0], "the certificate of operator alice, who may look until ") || !strings.Contains(said[1], " 1 operators,") {
		t.Errorf("the token was asked to sign %q", said)
	}
	if _, err := opened.Grant.Show(channel.VerbStatus, time.Now()); err != nil {
		t.Error(err)
	}
	if err := opened.Grant.Known.SetPolicy(measurements.Policy{Version: 3}); !errors.Is(err, ErrNotGranted) {
		t.Errorf("his file signs a policy: %v", err)
	}
	if _, err := Open(path, secret("his own")); !errors.Is(err, ErrNotGranted) {
		t.Errorf("his file as a cluster file: %v", err)
	}
	if _, err := grant(t, reopen(t, f), granting("bob", look)); !errors.Is(err, ErrRootElsewhere) {
		t.Errorf("without a signer: %v", err)
	}
}
