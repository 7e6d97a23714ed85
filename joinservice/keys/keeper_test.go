package keys_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/joinservice/keys"
)

const fakeURL = "fake://key"

var ours = hullmark.ClusterRoot{7}

// fake is a keeper that inverts bits, or does what a test makes of it.
type fake struct {
	decrypt func(ctx context.Context, plaintext []byte) ([]byte, error)
	encrypt func(plaintext []byte) []byte
}

func invert(b []byte) []byte {
	out := make([]byte, len(b))
	for i := range b {
		out[i] = ^b[i]
	}
	return out
}

func (k fake) Encrypt(_ context.Context, plaintext []byte) ([]byte, error) {
	if k.encrypt != nil {
		return k.encrypt(plaintext), nil
	}
	return invert(plaintext), nil
}

func (k fake) Decrypt(ctx context.Context, ciphertext []byte) ([]byte, error) {
	if k.decrypt != nil {
		return k.decrypt(ctx, invert(ciphertext))
	}
	return invert(ciphertext), nil
}

func (fake) Close() error { return nil }

func access(k keys.Keeper) keys.Access {
	return keys.Access{Open: func(context.Context, string) (keys.Keeper, error) { return k, nil }}
}

func newKeyset(t *testing.T) keys.Keyset {
	t.Helper()
	k, err := keys.New(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func sealWithFake(t *testing.T, k keys.Keyset, root hullmark.ClusterRoot) []byte {
	t.Helper()
	sealed, err := access(fake{}).Seal(t.Context(), k, root, fakeURL)
	if err != nil {
		t.Fatal(err)
	}
	return sealed
}

// wantCondition checks the code of an error, and that no form of it shows the keyset.
func wantCondition(t *testing.T, err error, k keys.Keyset, code string, retry bool) {
	t.Helper()
	var c *hullmark.Condition
	if !errors.As(err, &c) || c.Code != code || c.Retry != retry {
		t.Fatalf("got %v, want a condition %s with retry %t", err, code, retry)
	}
	encoded, encodeErr := k.Encode()
	if encodeErr != nil {
		t.Fatal(encodeErr)
	}
	var d struct{ Masters map[string]string }
	if err := json.Unmarshal(encoded, &d); err != nil {
		t.Fatal(err)
	}
	said, marshalErr := json.Marshal(c)
	if marshalErr != nil {
		t.Fatal(marshalErr)
	}
	for _, master := range d.Masters {
		if strings.Contains(string(said)+err.Error(), master[:16]) {
			t.Errorf("the condition shows a master key: %s", said)
		}
	}
}

func sameKey(t *testing.T, a, b keys.Keyset) bool {
	t.Helper()
	one, err := a.DiskKey(1, ours, hullmark.EKID{}, hullmark.UUID{})
	if err != nil {
		t.Fatal(err)
	}
	two, err := b.DiskKey(1, ours, hullmark.EKID{}, hullmark.UUID{})
	if err != nil {
		t.Fatal(err)
	}
	return one.Equal(two)
}

func TestSealedKeysetRoundTrip(t *testing.T) {
	k := newKeyset(t)
	sealed := sealWithFake(t, k, ours)
	encoded, err := k.Encode()
	if err != nil {
		t.Fatal(err)
	}
	for _, secret := range [][]byte{encoded, []byte(base64.StdEncoding.EncodeToString(encoded)), encoded[30:60]} {
		if bytes.Contains(sealed, secret) {
			t.Error("the document holds the keyset in clear")
		}
	}
	again, err := access(fake{}).Load(t.Context(), sealed, ours)
	if err != nil {
		t.Fatal(err)
	}
	if !sameKey(t, k, again) {
		t.Error("the keyset changed")
	}
}

// TestLoadReadsAKeysetInClear asks no keeper.
func TestLoadReadsAKeysetInClear(t *testing.T) {
	k := newKeyset(t)
	encoded, err := k.Encode()
	if err != nil {
		t.Fatal(err)
	}
	again, err := keys.Access{}.Load(t.Context(), encoded, ours)
	if err != nil || !sameKey(t, k, again) {
		t.Errorf("the keyset in clear: %v", err)
	}
}

func TestLoadRefusesWrongAnswers(t *testing.T) {
	k := newKeyset(t)
	sealed := sealWithFake(t, k, ours)
	answers := map[string]func([]byte) []byte{
		"nothing":          func([]byte) []byte { return nil },
		"a cut keyset":     func(p []byte) []byte { return p[:len(p)-1] },
		"a cut root":       func(p []byte) []byte { return p[:40] },
		"more":             func(p []byte) []byte { return append(p, '}') },
		"garbage":          func(p []byte) []byte { return bytes.Repeat([]byte{0xa5}, len(p)) },
		"the keyset alone": func(p []byte) []byte { return p[19+32:] },
		"a huge answer":    func(p []byte) []byte { return append(p, make([]byte, 1<<20)...) },
		"a quoted secret":  func(p []byte) []byte { return bytes.Replace(p, []byte(`"1":"`), []byte(`"`), 1) },
		"another cluster's": func(p []byte) []byte {
			p[19] ^= 1
			return p
		},
	}
	for name, change := range answers {
		t.Run(name, func(t *testing.T) {
			keeper := fake{decrypt: func(_ context.Context, p []byte) ([]byte, error) { return change(p), nil }}
			_, err := access(keeper).Load(t.Context(), sealed, ours)
			wantCondition(t, err, k, keys.CodeAnswer, false)
		})
	}
	t.Run("a panic", func(t *testing.T) {
		keeper := fake{decrypt: func(_ context.Context, p []byte) ([]byte, error) { panic(string(p)) }}
		_, err := access(keeper).Load(t.Context(), sealed, ours)
		wantCondition(t, err, k, keys.CodeAnswer, false)
	})
}

func TestLoadRefusesAnotherClustersDocument(t *testing.T) {
	k := newKeyset(t)
	sealed := sealWithFake(t, k, hullmark.ClusterRoot{8})
	_, err := access(fake{}).Load(t.Context(), sealed, ours)
	wantCondition(t, err, k, keys.CodeAnswer, false)
	if !strings.Contains(err.Error(), ours.String()) {
		t.Errorf("the error does not name the cluster: %v", err)
	}
}

func TestSealRefusesWrongAnswers(t *testing.T) {
	k := newKeyset(t)
	for name, keeper := range map[string]fake{
		"the keyset itself":        {encrypt: bytes.Clone},
		"the keyset in base64":     {encrypt: func(p []byte) []byte { return []byte("vault:v1:" + base64.StdEncoding.EncodeToString(p)) }},
		"nothing":                  {encrypt: func([]byte) []byte { return nil }},
		"a huge answer":            {encrypt: func([]byte) []byte { return make([]byte, 1<<20) }},
		"what does not open again": {encrypt: func([]byte) []byte { return []byte("done") }},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := access(keeper).Seal(t.Context(), k, ours, fakeURL)
			wantCondition(t, err, k, keys.CodeAnswer, false)
		})
	}
}

// TestLoadWaitsForAKeeperThatStalls runs on a clock of its own: two tries stall, the third is answered.
func TestLoadWaitsForAKeeperThatStalls(t *testing.T) {
	k := newKeyset(t)
	sealed := sealWithFake(t, k, ours)
	synctest.Test(t, func(t *testing.T) {
		var tries atomic.Int32
		a := access(fake{decrypt: func(ctx context.Context, p []byte) ([]byte, error) {
			if tries.Add(1) < 3 {
				<-ctx.Done()
				return p, errors.New("a text that a server wrote: " + string(p))
			}
			return p, nil
		}})
		var pauses []time.Duration
		a.Report = func(cause *hullmark.Condition, pause time.Duration) {
			wantCondition(t, cause, k, keys.CodeUnreachable, true)
			pauses = append(pauses, pause)
		}
		began := time.Now()
		again, err := a.Load(t.Context(), sealed, ours)
		if err != nil || !sameKey(t, k, again) {
			t.Fatalf("after two stalls: %v", err)
		}
		if len(pauses) != 2 || pauses[0] < 500*time.Millisecond || pauses[1] > 2*time.Second {
			t.Errorf("the pauses were %v", pauses)
		}
		if took := time.Since(began); took != 20*time.Second+pauses[0]+pauses[1] {
			t.Errorf("two stalls and pauses of %v took %v", pauses, took)
		}
	})
}

// TestADriverThatIgnoresItsContextIsGivenUp also sees that the late answer is wiped.
func TestADriverThatIgnoresItsContextIsGivenUp(t *testing.T) {
	k := newKeyset(t)
	sealed := sealWithFake(t, k, ours)
	synctest.Test(t, func(t *testing.T) {
		late := make(chan []byte, 2)
		a := access(fake{decrypt: func(_ context.Context, p []byte) ([]byte, error) {
			time.Sleep(time.Hour)
			late <- p
			return p, nil
		}})
		ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second)
		defer cancel()
		_, err := a.Load(ctx, sealed, ours)
		wantCondition(t, err, k, keys.CodeUnreachable, true)
		time.Sleep(2 * time.Hour)
		if len(late) == 0 {
			t.Fatal("no answer came too late")
		}
		synctest.Wait()
		if bytes.Contains(<-late, []byte("masters")) {
			t.Error("the answer that came too late is not wiped")
		}
	})
}

func TestLoadStopsAtARefusal(t *testing.T) {
	k := newKeyset(t)
	sealed := sealWithFake(t, k, ours)
	tries := 0
	_, err := access(fake{decrypt: func(context.Context, []byte) ([]byte, error) {
		tries++
		return nil, keys.Refused("no")
	}}).Load(t.Context(), sealed, ours)
	wantCondition(t, err, k, keys.CodeRefused, false)
	if tries != 1 {
		t.Errorf("a refusal was tried %d times", tries)
	}
}

func TestSealRefusesURLs(t *testing.T) {
	k := newKeyset(t)
	for _, url := range []string{"", "key", "fake:key", "fake://user:password@key", "fake://key#x", "fake://" + strings.Repeat("k", 2<<10), "fake://\x00"} {
		if _, err := access(fake{}).Seal(t.Context(), k, ours, url); err == nil || strings.Contains(err.Error(), "password@") {
			t.Errorf("%.40q: %v", url, err)
		}
	}
}

func TestLoadRefusesDocuments(t *testing.T) {
	const legal = `{"version":2,"keeper":"fake://key","ciphertext":"AQ=="}`
	a := keys.Access{Open: func(context.Context, string) (keys.Keeper, error) { return nil, keys.Refused("asked") }}
	if _, err := a.Load(t.Context(), []byte(legal), ours); !strings.Contains(err.Error(), keys.CodeRefused) {
		t.Fatalf("the keeper was not asked: %v", err)
	}
	for name, text := range map[string]string{
		"unknown field": strings.Replace(legal, `"version"`, `"x":1,"version"`, 1),
		"version 3":     strings.Replace(legal, "2", "3", 1),
		"no version":    `{"keeper":"fake://key","ciphertext":"AQ=="}`,
		"no keeper":     strings.Replace(legal, "fake://key", "", 1),
		"no ciphertext": strings.Replace(legal, "AQ==", "", 1),
		"not base64":    strings.Replace(legal, "AQ==", "A", 1),
		"masters":       strings.Replace(legal, `"ciphertext"`, `"masters":{},"ciphertext"`, 1),
		"trailing":      legal + "{}",
		"a password":    strings.Replace(legal, "//key", "//me:secret@key", 1),
		"oversize":      strings.Repeat(" ", 512<<10) + legal,
		"no JSON":       "AQ==",
	} {
		_, err := a.Load(t.Context(), []byte(text), ours)
		if err == nil || strings.Contains(err.Error(), keys.CodeRefused) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// FuzzLoad asks a keeper that answers the ciphertext: whatever comes, only a keyset of this cluster is loaded.
func FuzzLoad(f *testing.F) {
	plaintext := append([]byte("hullmark/v1/keyset\x00"), ours[:]...)
	plaintext = append(plaintext, encoded...)
	text := base64.StdEncoding.EncodeToString(plaintext)
	f.Add([]byte(`{"version":2,"keeper":"fake://key","ciphertext":"` + text + `"}`))
	f.Add([]byte(`{"version":2,"keeper":"fake://key","ciphertext":"` + text[:80] + `"}`))
	f.Add([]byte(encoded))
	a := access(fake{decrypt: func(_ context.Context, p []byte) ([]byte, error) { return invert(p), nil }})
	f.Fuzz(func(t *testing.T, data []byte) {
		k, err := a.Load(t.Context(), data, ours)
		var c *hullmark.Condition
		switch {
		case err == nil && k.Current() == 0:
			t.Error("an empty keyset was loaded")
		case errors.As(err, &c) && (c.Code != keys.CodeAnswer || c.Retry):
			t.Errorf("%v", err)
		}
	})
}

// What is wrapped for one use is opened for that alone, and by the keeper alone.
func TestWrappedSecret(t *testing.T) {
	secret := []byte("AGE-SECRET-KEY-1 of somebody")
	a := access(fake{})
	document, err := a.Wrap(t.Context(), "sealing-key", secret, fakeURL)
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(document, secret) {
		t.Error("the document holds the secret")
	}
	if opened, err := a.Unwrap(t.Context(), "sealing-key", document); err != nil || !bytes.Equal(opened, secret) {
		t.Errorf("%q, %v", opened, err)
	}
	keyset := newKeyset(t)
	for name, refused := range map[string]func() error{
		"another use": func() error { _, err := a.Unwrap(t.Context(), "other", document); return err },
		"a keyset's":  func() error { _, err := a.Load(t.Context(), document, ours); return err },
		"of a keyset": func() error {
			_, err := a.Unwrap(t.Context(), "sealing-key", sealWithFake(t, keyset, ours))
			return err
		},
		"nothing":     func() error { _, err := a.Wrap(t.Context(), "sealing-key", nil, fakeURL); return err },
		"too long":    func() error { _, err := a.Wrap(t.Context(), "sealing-key", make([]byte, 5000), fakeURL); return err },
		"no URL":      func() error { _, err := a.Wrap(t.Context(), "sealing-key", secret, "a b"); return err },
		"no document": func() error { _, err := a.Unwrap(t.Context(), "sealing-key", []byte(`{"version":1}`)); return err },
		"a plain keeper": func() error {
			_, err := access(fake{encrypt: bytes.Clone}).Wrap(t.Context(), "u", secret, fakeURL)
			return err
		},
		"a keeper's other": func() error {
			_, err := access(fake{encrypt: func([]byte) []byte { return invert([]byte("x")) }}).Wrap(t.Context(), "u", secret, fakeURL)
			return err
		},
	} {
		if err := refused(); err == nil {
			t.Errorf("%s: accepted", name)
		} else if strings.Contains(err.Error(), "AGE-SECRET") {
			t.Errorf("%s: the error holds the secret: %v", name, err)
		}
	}
}
