package authenticode

import (
	"bytes"
	"encoding/binary"
	"strings"
	"testing"

	"github.com/hullmark/hullmark/image/efi"
)

// list is a signature list with entries of one size.
func list(kind efi.GUID, entries ...[]byte) []byte {
	b := bytes.Clone(kind[:])
	size := len(entries[0])
	for _, n := range []int{listHeader + size*len(entries), 0, size} {
		b = binary.LittleEndian.AppendUint32(b, uint32(n))
	}
	return append(b, bytes.Join(entries, nil)...)
}

func TestParseLists(t *testing.T) {
	hash := func(b byte) []byte { return bytes.Repeat([]byte{b}, ownerSize+32) }
	value := bytes.Join([][]byte{
		list(efi.CertX509, append(make([]byte, 16), "a certificate"...)), list(TypeSHA256, hash(1), hash(2)), list(efi.CertX509, append([]byte{15: 2}, "another"...)), list(efi.GUID{9}, make([]byte, 17)),
	}, nil)
	entries, err := ParseLists(value)
	if err != nil || len(entries) != 5 {
		t.Fatalf("%d entries, %v", len(entries), err)
	}
	if e := entries[2]; e.Type != TypeSHA256 || !bytes.Equal(e.Raw, hash(2)) {
		t.Errorf("%+v", e)
	}
	if e := entries[3]; e.Type != efi.CertX509 || string(e.Data()) != "another" || e.Raw[15] != 2 {
		t.Errorf("%+v", e)
	}
	if entries, err := ParseLists(nil); err != nil || len(entries) != 0 {
		t.Errorf("nothing: %v, %v", entries, err)
	}
}

func TestParseListsRefuses(t *testing.T) {
	good := list(TypeSHA256, make([]byte, 48), make([]byte, 48))
	edit := func(at int, v uint32) []byte {
		b := bytes.Clone(good)
		binary.LittleEndian.PutUint32(b[at:], v)
		return b
	}
	for name, c := range map[string]struct {
		value []byte
		want  string
	}{
		"cut off":           {good[:20], "at least"},
		"longer than it is": {edit(16, 1000), "left"},
		"shorter than any":  {edit(16, 27), "left"},
		"endless":           {edit(16, 0), "left"},
		"a header":          {edit(20, 16), "header"},
		"no owner":          {edit(24, 16), "do not fill"},
		"no size":           {edit(24, 0), "do not fill"},
		"half an entry":     {edit(24, 49), "do not fill"},
		"another size":      {edit(24, 32), "want 48"},
		"a time is missing": {list(TypeX509SHA256, make([]byte, 48)), "want 64"},
		"something after":   {append(bytes.Clone(good), 0), "list 2"},
		"too large":         {make([]byte, MaxLists+1), "at most"},
	} {
		if _, err := ParseLists(c.value); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want an error with %q", name, err, c.want)
		}
	}
}

func FuzzParseLists(f *testing.F) {
	f.Add(list(efi.CertX509, append(make([]byte, 16), "a certificate"...)))
	f.Add(list(TypeX509SHA256, make([]byte, 64), make([]byte, 64)))
	f.Fuzz(func(t *testing.T, value []byte) {
		entries, err := ParseLists(value)
		if err != nil {
			return
		}
		total := 0
		for _, e := range entries {
			total += len(e.Raw)
		}
		if total > len(value) {
			t.Errorf("entries of %d bytes in %d", total, len(value))
		}
	})
}
