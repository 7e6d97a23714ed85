package hullmark_test

import (
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/hullmark/hullmark"
)

var encryptedText = hullmark.EncryptedText{Generation: 7, Purpose: "https://mirror.example:5000/v2/hub", Box: []byte(strings.Repeat("\xfb", 30))}

func TestDecrypted(t *testing.T) {
	text := `Authorization = "` + encryptedText.String() + "\"\nkey: " + encryptedText.String() + "\n"
	plain, err := hullmark.Decrypted(text, func(e hullmark.EncryptedText) (hullmark.Secret, error) {
		if !reflect.DeepEqual(e, encryptedText) {
			t.Errorf("opens %+v", e)
		}
		return hullmark.NewSecret([]byte("Basic dTpw")), nil
	})
	if want := "Authorization = \"Basic dTpw\"\nkey: Basic dTpw\n"; err != nil || string(plain) != want {
		t.Errorf("got %q, %v", plain, err)
	}
	if plain, err := hullmark.Decrypted("nothing in it", nil); err != nil || string(plain) != "nothing in it" {
		t.Errorf("got %q, %v", plain, err)
	}
	refused := errors.New("refused")
	if _, err := hullmark.Decrypted(text, func(hullmark.EncryptedText) (hullmark.Secret, error) { return hullmark.Secret{}, refused }); !errors.Is(err, refused) {
		t.Errorf("got %v", err)
	}
}

// What begins as an encrypted text and is none is no text that stays as it is.
func TestDamagedEncryptedText(t *testing.T) {
	good := encryptedText.String()
	for _, bad := range []string{
		"hullmark-encrypted:", "hullmark-encrypted:0:/f:" + good[len(good)-40:], "hullmark-encrypted:99999999999:/f:" + good[len(good)-40:],
		good[:len(good)-40] + "AAAA", strings.Replace(good, "https", "ht tps", 1), "hullmark-encrypted:1:" + strings.Repeat("p", 256) + ":" + good[len(good)-40:],
	} {
		if _, _, err := hullmark.EncryptedIn("x " + bad + " y"); err == nil {
			t.Errorf("%q is taken", bad)
		}
		if _, err := hullmark.ParseEncrypted(bad); err == nil {
			t.Errorf("%q is parsed", bad)
		}
	}
}

// Whatever a text holds: what is found in it has the form that it was written in, and all is found.
func FuzzEncryptedIn(f *testing.F) {
	f.Add("a " + encryptedText.String() + " b")
	f.Add("hullmark-encrypted:1:/f:AAAA")
	f.Fuzz(func(t *testing.T, text string) {
		found, where, err := hullmark.EncryptedIn(text)
		if err != nil {
			return
		}
		if len(found) != strings.Count(text, "hullmark-encrypted:") {
			t.Fatalf("%d found", len(found))
		}
		for i, e := range found {
			if e.String() != text[where[i][0]:where[i][1]] {
				t.Fatalf("%q is written as %q", text[where[i][0]:where[i][1]], e)
			}
		}
	})
}
