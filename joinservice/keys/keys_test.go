package keys_test

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"strings"
	"testing"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/joinservice/keys"
)

const encoded = `{"version":1,"masters":{"1":"AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=","7":"AgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgI="}}`

// TestDiskKeyIsTheSpecifiedHKDF computes RFC 5869 by hand with HMAC.
func TestDiskKeyIsTheSpecifiedHKDF(t *testing.T) {
	k, err := keys.Parse([]byte(encoded))
	if err != nil {
		t.Fatal(err)
	}
	root, owner, disk := hullmark.ClusterRoot{3}, hullmark.EKID{4}, hullmark.UUID{5}
	got, err := k.DiskKey(7, root, owner, disk)
	if err != nil {
		t.Fatal(err)
	}
	master := []byte(strings.Repeat("\x02", keys.Size))
	info := "hullmark/v1/disk\x00" + string(owner[:]) + string(disk[:])
	want := sum(sum(root[:], master), append([]byte(info), 1))
	if !got.Equal(hullmark.NewSecret(want)) {
		t.Error("the disk key is not HKDF-SHA256(master, root, label)")
	}
}

// A new generation serves new disks, and the disks of the earlier ones keep their keys.
func TestNextGeneration(t *testing.T) {
	k, err := keys.Parse([]byte(encoded))
	if err != nil {
		t.Fatal(err)
	}
	next, err := k.Next(rand.Reader)
	if err != nil || next.Current() != 8 || k.Current() != 7 {
		t.Fatalf("after generation %d comes %d: %v", k.Current(), next.Current(), err)
	}
	seen := map[string]bool{}
	for _, generation := range []uint32{1, 7, 8} {
		key, err := next.DiskKey(generation, hullmark.ClusterRoot{3}, hullmark.EKID{4}, hullmark.UUID{5})
		if err != nil {
			t.Fatal(err)
		}
		seen[string(key.Expose())] = true
		if before, err := k.DiskKey(generation, hullmark.ClusterRoot{3}, hullmark.EKID{4}, hullmark.UUID{5}); (err == nil) != (generation < 8) || err == nil && !before.Equal(key) {
			t.Errorf("generation %d: the key changed, or %v", generation, err)
		}
	}
	if len(seen) != 3 {
		t.Errorf("three generations have %d keys", len(seen))
	}
	for range 1000 - 2 {
		if k, err = k.Next(rand.Reader); err != nil {
			t.Fatal(err)
		}
	}
	full, err := k.Encode()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := keys.Parse(full); err != nil {
		t.Errorf("a keyset of as many generations as it takes: %v", err)
	}
	if _, err := k.Next(rand.Reader); err == nil {
		t.Error("a keyset takes more generations than can be read again")
	}
	if _, err := k.Next(strings.NewReader("short")); err == nil {
		t.Error("a generation was made of too few random bytes")
	}
}

func sum(key, message []byte) []byte {
	h := hmac.New(sha256.New, key)
	h.Write(message)
	return h.Sum(nil)
}

func TestDiskKeyDependsOnEveryInput(t *testing.T) {
	k, err := keys.Parse([]byte(encoded))
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, in := range []struct {
		generation uint32
		root       hullmark.ClusterRoot
		owner      hullmark.EKID
		disk       hullmark.UUID
	}{{generation: 1}, {generation: 7}, {generation: 1, root: [32]byte{1}}, {generation: 1, owner: [32]byte{1}}, {generation: 1, disk: [16]byte{1}}} {
		key, err := k.DiskKey(in.generation, in.root, in.owner, in.disk)
		if err != nil {
			t.Fatal(err)
		}
		seen[string(key.Expose())] = true
	}
	if len(seen) != 5 {
		t.Errorf("5 different inputs gave %d keys", len(seen))
	}
	if _, err := k.DiskKey(2, hullmark.ClusterRoot{}, hullmark.EKID{}, hullmark.UUID{}); err == nil {
		t.Error("an unknown generation gave a key")
	}
}

func TestEncodeRoundTrip(t *testing.T) {
	k, err := keys.New(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	text, err := k.Encode()
	if err != nil {
		t.Fatal(err)
	}
	again, err := keys.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	one, _ := k.DiskKey(1, hullmark.ClusterRoot{}, hullmark.EKID{}, hullmark.UUID{})
	two, _ := again.DiskKey(1, hullmark.ClusterRoot{}, hullmark.EKID{}, hullmark.UUID{})
	if !one.Equal(two) || again.Current() != 1 {
		t.Error("the keyset changed on its way through Encode and Parse")
	}
}

func TestParseRefuses(t *testing.T) {
	for name, text := range map[string]string{
		"unknown field": `{"version":1,"masters":{"1":"AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE="},"x":1}`,
		"version":       strings.Replace(encoded, `"version":1`, `"version":2`, 1),
		"generation 0":  strings.Replace(encoded, `"7"`, `"0"`, 1),
		"short key":     `{"version":1,"masters":{"1":"AQE="}}`,
		"zero key":      `{"version":1,"masters":{"1":"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="}}`,
		"none":          `{"version":1,"masters":{}}`,
		"trailing":      encoded + "x",
		"oversize":      strings.Repeat(" ", 64<<10) + encoded,
	} {
		if _, err := keys.Parse([]byte(text)); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(encoded))
	f.Fuzz(func(t *testing.T, data []byte) {
		k, err := keys.Parse(data)
		if err == nil && k.Current() == 0 {
			t.Error("an empty keyset was accepted")
		}
		if err != nil {
			return
		}
		written, err := k.Encode()
		if err != nil {
			t.Fatal(err)
		}
		if again, err := keys.Parse(written); err != nil || again.Current() != k.Current() {
			t.Errorf("a keyset does not come back: %v", err)
		}
	})
}
