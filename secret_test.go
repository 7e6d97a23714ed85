package hullmark

import (
	"bytes"
	"encoding/gob"
	"encoding/json"
	"encoding/xml"
	"fmt"
	"log/slog"
	"strings"
	"testing"
)

const canary = "canary-4711-canary-4711-canary-4"

func TestSecretIsNeverPrinted(t *testing.T) {
	holder := struct{ Key Secret }{NewSecret([]byte(canary))}
	hexed := fmt.Sprintf("%x", canary)
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%o", "%T %v"} {
		for _, value := range []any{holder, &holder, holder.Key, &holder.Key, []Secret{holder.Key}} {
			checkHidden(t, verb, fmt.Sprintf(verb, value), hexed)
		}
	}
	var log bytes.Buffer
	slog.New(slog.NewTextHandler(&log, nil)).Info("x", "key", holder.Key, "holder", holder)
	slog.New(slog.NewJSONHandler(&log, nil)).Info("x", "key", holder.Key, "holder", holder)
	checkHidden(t, "slog", log.String(), hexed)
}

func checkHidden(t *testing.T, how, text, hexed string) {
	t.Helper()
	if strings.Contains(text, canary) || strings.Contains(strings.ToLower(text), hexed[:16]) || strings.Contains(text, "99 97 110") {
		t.Errorf("%s shows the secret: %s", how, text)
	}
}

func TestSecretIsNeverMarshalled(t *testing.T) {
	s := NewSecret([]byte(canary))
	if _, err := json.Marshal(s); err == nil {
		t.Error("encoding/json wrote a secret")
	}
	if _, err := json.Marshal(map[string]Secret{"k": s}); err == nil {
		t.Error("encoding/json wrote a secret in a map")
	}
	if _, err := xml.Marshal(s); err == nil {
		t.Error("encoding/xml wrote a secret")
	}
	if err := gob.NewEncoder(&bytes.Buffer{}).Encode(s); err == nil {
		t.Error("encoding/gob wrote a secret")
	}
}

func TestSecretEqualAndWipe(t *testing.T) {
	a, b := NewSecret([]byte(canary)), NewSecret([]byte(canary))
	if !a.Equal(b) || a.Equal(NewSecret([]byte("canary"))) {
		t.Fatal("Equal does not compare")
	}
	a.Wipe()
	if !bytes.Equal(a.Expose(), make([]byte, len(canary))) || a.Equal(b) {
		t.Fatal("Wipe left bytes")
	}
}

func TestDerive(t *testing.T) {
	// HKDF-Expand, RFC 5869 appendix A.1, with the PRK and info given there.
	prk := []byte("\x07\x77\x09\x36\x2c\x2e\x32\xdf\x0d\xdc\x3f\x0d\xc4\x7b\xba\x63\x90\xb6\xc7\x3b\xb5\x0f\x9c\x31\x22\xec\x84\x4a\xd7\xc2\xb3\xe5")
	got, err := NewSecret(prk).Derive("\xf0\xf1\xf2\xf3\xf4\xf5\xf6\xf7\xf8\xf9", 42)
	if err != nil {
		t.Fatal(err)
	}
	want := "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865"
	if h := fmt.Sprintf("%x", got.Expose()); h != want {
		t.Errorf("got %s, want %s", h, want)
	}
	if _, err := NewSecret([]byte("short")).Derive("x", 32); err == nil {
		t.Error("a short key was accepted")
	}
}
