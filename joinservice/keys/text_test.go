package keys_test

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"strings"
	"testing"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/joinservice/keys"
)

const forMirror = "https://mirror.example:5000/v2/hub"

// TestTextIsTheSpecifiedGCM opens a text by hand.
func TestTextIsTheSpecifiedGCM(t *testing.T) {
	k, err := keys.Parse([]byte(encoded))
	if err != nil {
		t.Fatal(err)
	}
	root := hullmark.ClusterRoot{3}
	e, err := k.Encrypt(root, forMirror, hullmark.NewSecret([]byte("Basic dTpw")))
	if err != nil {
		t.Fatal(err)
	}
	if e.Generation != 7 {
		t.Errorf("generation %d, want the newest", e.Generation)
	}
	block, err := aes.NewCipher(sum(sum(root[:], []byte(strings.Repeat("\x02", keys.Size))), append([]byte("hullmark/v1/text\x00"), 1)))
	if err != nil {
		t.Fatal(err)
	}
	gcm, err := cipher.NewGCM(block)
	if err != nil {
		t.Fatal(err)
	}
	plain, err := gcm.Open(nil, e.Box[:12], e.Box[12:], []byte(forMirror))
	if err != nil || string(plain) != "Basic dTpw" {
		t.Errorf("%q, %v", plain, err)
	}
	secret, err := k.Decrypt(root, e)
	if err != nil || string(secret.Expose()) != "Basic dTpw" {
		t.Errorf("decrypted: %v", err)
	}
	again, err := k.Encrypt(root, forMirror, hullmark.NewSecret([]byte("Basic dTpw")))
	if err != nil || bytes.Equal(again.Box, e.Box) {
		t.Errorf("the same text twice: %v", err)
	}
}

// What was changed, belongs elsewhere, or is another cluster's opens nothing.
func TestTextThatIsNotOurs(t *testing.T) {
	k, err := keys.Parse([]byte(encoded))
	if err != nil {
		t.Fatal(err)
	}
	root := hullmark.ClusterRoot{3}
	good, err := k.Encrypt(root, forMirror, hullmark.NewSecret([]byte("secret")))
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		root   hullmark.ClusterRoot
		change func(*hullmark.EncryptedText)
	}{
		"another purpose":      {root, func(e *hullmark.EncryptedText) { e.Purpose = "https://evil.example" }},
		"another generation":   {root, func(e *hullmark.EncryptedText) { e.Generation = 1 }},
		"a generation of none": {root, func(e *hullmark.EncryptedText) { e.Generation = 9 }},
		"another cluster":      {hullmark.ClusterRoot{4}, func(*hullmark.EncryptedText) {}},
		"a bit":                {root, func(e *hullmark.EncryptedText) { e.Box[len(e.Box)-1] ^= 1 }},
		"cut":                  {root, func(e *hullmark.EncryptedText) { e.Box = e.Box[:10] }},
	} {
		e := good
		e.Box = bytes.Clone(good.Box)
		c.change(&e)
		if secret, err := k.Decrypt(c.root, e); err == nil {
			t.Errorf("%s: decrypted %d bytes", name, secret.Len())
		}
	}
	for purpose, secret := range map[string]string{"": "x", "a b": "x", strings.Repeat("a", 256): "x", "/f": ""} {
		if _, err := k.Encrypt(root, purpose, hullmark.NewSecret([]byte(secret))); err == nil {
			t.Errorf("encrypted %q for %.20q", secret, purpose)
		}
	}
}
