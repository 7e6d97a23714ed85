package hullmark

import (
	"bytes"
	"encoding/gob"
	"encoding/json"
	"encoding/xml"
	"fmt"
	"io"
	"log/slog"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"unsafe"

	goyaml "go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/proto"
	"sigs.k8s.io/yaml"
)

const canary = "canary-4711-canary-4711-canary-4"

func TestSecretIsNeverPrinted(t *testing.T) {
	holder := struct {
		Key, hidden Secret
		keys        map[int]Secret
	}{NewSecret([]byte(canary)), NewSecret([]byte(canary)), map[int]Secret{1: NewSecret([]byte(canary))}}
	hexed := fmt.Sprintf("%x", canary)
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%o", "%T %v"} {
		for _, value := range []any{holder, &holder, holder.Key, &holder.Key, []Secret{holder.Key}, reflect.ValueOf(holder).Field(1), fmt.Errorf("%w: %v", io.EOF, holder)} {
			checkHidden(t, verb, fmt.Sprintf(verb, value), hexed)
		}
	}
	if text := fmt.Sprint(holder.Key, &holder.Key); text != redacted+" "+redacted {
		t.Errorf("it prints as %q", text)
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
	if text, err := yaml.Marshal(map[string]Secret{"k": s}); err == nil {
		t.Errorf("sigs.k8s.io/yaml wrote a secret: %s", text)
	}
	if text, err := goyaml.Marshal(map[string]any{"k": s, "p": &s}); err == nil {
		t.Errorf("go.yaml.in/yaml wrote a secret: %s", text)
	}
	inner := struct {
		Name   string
		hidden Secret
	}{"n", s}
	if text, err := json.Marshal(inner); err != nil || string(text) != `{"Name":"n"}` {
		t.Errorf("encoding/json wrote %s, %v", text, err)
	}
	if _, ok := any(s).(proto.Message); ok {
		t.Error("a secret is a message")
	}
}

// Neither == nor reflection compares secrets: what they would take tells how far two are equal.
func TestSecretIsNotCompared(t *testing.T) {
	a, b := NewSecret([]byte(canary)), NewSecret([]byte(canary))
	if reflect.TypeFor[Secret]().Comparable() {
		t.Error("secrets can be compared by ==")
	}
	if reflect.DeepEqual(a, b) {
		t.Error("reflect.DeepEqual reads secrets")
	}
}

// The pages of a secret are locked into memory ("lo" among a mapping's flags, proc_pid_smaps(5)).
func TestSecretIsLocked(t *testing.T) {
	s := NewSecret([]byte(canary))
	smaps, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		t.Fatal(err)
	}
	at, inside := uint64(uintptr(unsafe.Pointer(unsafe.SliceData(s.Expose())))), false
	for line := range strings.Lines(string(smaps)) {
		var from, to uint64
		if n, _ := fmt.Sscanf(line, "%x-%x ", &from, &to); n == 2 {
			inside = from <= at && at < to
		}
		if flags, ok := strings.CutPrefix(line, "VmFlags:"); ok && inside {
			if !slices.Contains(strings.Fields(flags), "lo") {
				t.Errorf("the secret's pages have the flags%s: a limit of 64 KiB of locked memory would do (ulimit -l)", flags)
			}
			return
		}
	}
	t.Fatal("the secret lies in no mapping")
}

func TestSecretEqualAndWipe(t *testing.T) {
	a, b := NewSecret([]byte(canary)), NewSecret([]byte(canary))
	if !a.Equal(b) || a.Equal(NewSecret([]byte("canary"))) {
		t.Fatal("Equal does not compare")
	}
	if (Secret{}).Len() != 0 || (Secret{}).Equal(a) || !(Secret{}).Equal(NewSecret(nil)) {
		t.Error("the zero value is not empty")
	}
	Secret{}.Wipe()
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
