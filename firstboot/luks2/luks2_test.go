package luks2

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

const (
	testUUID = "00112233-4455-6677-8899-aabbccddeeff"
	salt     = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="
)

// metadata is the document that libcryptsetup writes for the profile.
const metadata = `{"keyslots":{"0":{"type":"luks2","key_size":96,"af":{"type":"luks1","stripes":4000,"hash":"sha256"},` +
	`"area":{"type":"raw","offset":"32768","size":"385024","encryption":"aes-xts-plain64","key_size":64},` +
	`"kdf":{"type":"pbkdf2","hash":"sha256","iterations":1000,"salt":"` + salt + `"}}},"tokens":{},` +
	`"segments":{"0":{"type":"crypt","offset":"16777216","size":"dynamic","iv_tweak":"0","encryption":"aes-xts-plain64","sector_size":4096,` +
	`"integrity":{"type":"hmac(sha256)","journal_encryption":"none","journal_integrity":"none"}}},` +
	`"digests":{"0":{"type":"pbkdf2","keyslots":["0"],"segments":["0"],"hash":"sha256","iterations":1000,"salt":"` + salt + `","digest":"` + salt + `"}},` +
	`"config":{"json_size":"12288","keyslots_size":"16744448"}}`

// area builds a header area around a metadata document, by the specification.
func area(document string) []byte {
	b := make([]byte, AreaSize)
	for i, magic := range [][]byte{primaryMagic, secondaryMagic} {
		h := b[i*HeaderSize : (i+1)*HeaderSize]
		copy(h, magic)
		binary.BigEndian.PutUint16(h[offVersion:], 2)
		binary.BigEndian.PutUint64(h[offSize:], HeaderSize)
		binary.BigEndian.PutUint64(h[offSequence:], 3)
		copy(h[offAlgorithm:], Hash)
		h[offSalt] = byte(7 + i)
		copy(h[offUUID:], testUUID)
		binary.BigEndian.PutUint64(h[offOffset:], uint64(i*HeaderSize))
		copy(h[binaryHeaderSize:], document)
		seal(h)
	}
	return b
}

func seal(h []byte) {
	clear(h[offChecksum : offChecksum+checksumSpace])
	sum := sha256.Sum256(h)
	copy(h[offChecksum:], sum[:])
}

func TestDecode(t *testing.T) {
	h, err := Decode(area(metadata))
	if err != nil {
		t.Fatal(err)
	}
	if want := (Header{UUID: testUUID, Sequence: 3}); h != want {
		t.Errorf("header = %+v, want %+v", h, want)
	}
}

// Each edit is one that a host could make to weaken or divert the disk.
func TestDecodeRefusesOtherMetadata(t *testing.T) {
	for name, edit := range map[string]struct{ old, replacement, says string }{
		"null cipher":              {`"encryption":"aes-xts-plain64","sector_size"`, `"encryption":"cipher_null-ecb","sector_size"`, `encryption: want "aes-xts-plain64", got "cipher_null-ecb"`},
		"plain segment":            {`"type":"crypt"`, `"type":"linear"`, `type: want "crypt", got "linear"`},
		"other offset":             {`"offset":"16777216"`, `"offset":"8388608"`, `offset: want "16777216", got "8388608"`},
		"fixed size":               {`"size":"dynamic"`, `"size":"4096"`, `size: want "dynamic", got "4096"`},
		"tweak":                    {`"iv_tweak":"0"`, `"iv_tweak":"8"`, `iv_tweak: want "0", got "8"`},
		"no integrity":             {`,"integrity":{"type":"hmac(sha256)","journal_encryption":"none","journal_integrity":"none"}`, ``, "segments.0.integrity"},
		"expensive KDF":            {`"iterations":1000,"salt":"` + salt + `"}}}`, `"iterations":4000000000,"salt":"` + salt + `"}}}`, "kdf.iterations: want 1000, got 4000000000"},
		"argon2":                   {`"type":"pbkdf2","hash"`, `"type":"argon2id","hash"`, `kdf.type: want "pbkdf2", got "argon2id"`},
		"token":                    {`"tokens":{}`, `"tokens":{"0":{"type":"x","keyslots":["0"]}}`, "tokens is missing"},
		"second keyslot":           {`"digests":{"0":{"type":"pbkdf2","keyslots":["0"]`, `"digests":{"0":{"type":"pbkdf2","keyslots":["0","1"]`, `want ["0"], got ["0","1"]`},
		"requirement":              {`"keyslots_size":"16744448"`, `"keyslots_size":"16744448","requirements":{"mandatory":["x"]}`, "unexpected config.requirements"},
		"flag":                     {`"keyslots_size":"16744448"`, `"keyslots_size":"16744448","flags":["no-journal"]`, "unexpected config.flags"},
		"repeated key":             {`"tokens":{}`, `"tokens":{},"tokens":{}`, `key "tokens" is repeated`},
		"other letters":            {`"tokens":{}`, `"Tokens":{}`, `key "Tokens" is repeated or not plain`},
		"key that looks like path": {`"tokens":{}`, `"tokens":{},"config.json_size":"12288"`, `key "config.json_size" is repeated or not plain`},
		"string for number":        {`"sector_size":4096`, `"sector_size":"4096"`, `sector_size: want 4096, got "4096"`},
		"short salt":               {salt + `"}},"config`, `AAEC"}},"config`, "want 32 bytes in base64"},
		"trailing data":            {`"keyslots_size":"16744448"}}`, `"keyslots_size":"16744448"}} {}`, "data after the end"},
		"cut":                      {`"config"`, "\x00\"config\"", "data after the end"},
	} {
		edited := strings.Replace(metadata, edit.old, edit.replacement, 1)
		if edited == metadata {
			t.Fatalf("%s: the edit changes nothing", name)
		}
		if _, err := Decode(area(edited)); err == nil || !strings.Contains(err.Error(), edit.says) {
			t.Errorf("%s: got %v, want an error with %q", name, err, edit.says)
		}
	}
	if _, err := Decode(area(strings.Repeat("[", 12000))); err == nil {
		t.Error("deep nesting: accepted")
	}
}

func TestDecodeRefusesOtherBinaryHeaders(t *testing.T) {
	for name, edit := range map[string]func(h []byte){
		"version":       func(h []byte) { h[offVersion+1] = 1 },
		"size":          func(h []byte) { h[offSize+5]++ },
		"label":         func(h []byte) { h[offLabel] = 'x' },
		"subsystem":     func(h []byte) { h[offSubsystem] = 'x' },
		"algorithm":     func(h []byte) { copy(h[offAlgorithm:], "sha512") },
		"offset":        func(h []byte) { h[offOffset+7]++ },
		"padding":       func(h []byte) { h[offPadding]++ },
		"more padding":  func(h []byte) { h[binaryHeaderSize-1]++ },
		"uuid":          func(h []byte) { h[offUUID] = 'z' },
		"behind uuid":   func(h []byte) { h[offUUID+38] = 'z' },
		"other copy":    func(h []byte) { h[offSequence+7]++ },
		"wide checksum": func(h []byte) { h[offChecksum+40]++ },
	} {
		for i := range 2 {
			b := area(metadata)
			h := b[i*HeaderSize : (i+1)*HeaderSize]
			edit(h)
			if name != "wide checksum" {
				seal(h)
			}
			if _, err := Decode(b); err == nil {
				t.Errorf("%s in copy %d: accepted", name, i+1)
			}
		}
	}
	b := area(metadata)
	b[HeaderSize-1] = 1
	if _, err := Decode(b); err == nil {
		t.Error("a changed byte without a new checksum was accepted")
	}
	if _, err := Decode(b[:AreaSize-1]); err == nil {
		t.Error("a short area was accepted")
	}
}

// realHeader lets cryptsetup write a header with our profile but without
// integrity, which it cannot format without a device mapper.
func realHeader(t testing.TB) []byte {
	t.Helper()
	if _, err := exec.LookPath("cryptsetup"); err != nil {
		t.Fatal("cryptsetup is missing: apt-get install cryptsetup-bin")
	}
	dir := t.TempDir()
	disk, key := filepath.Join(dir, "disk"), filepath.Join(dir, "key")
	for name, size := range map[string]int64{disk: 32 << 20, key: 32} {
		if err := os.WriteFile(name, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Truncate(name, size); err != nil {
			t.Fatal(err)
		}
	}
	out, err := exec.Command("cryptsetup", "luksFormat", "--batch-mode", "--type", "luks2", "--cipher", Cipher+"-"+Mode,
		"--key-size", "512", "--sector-size", "4096", "--pbkdf", "pbkdf2", "--pbkdf-force-iterations", "1000", "--hash", Hash,
		"--uuid", testUUID, "--offset", "32768", disk, key).CombinedOutput()
	if err != nil {
		t.Fatalf("cryptsetup luksFormat: %v\n%s", err, out)
	}
	b, err := os.ReadFile(disk)
	if err != nil {
		t.Fatal(err)
	}
	return b[:AreaSize]
}

// The real tool's binary headers and checksums pass; what is refused is only
// what its metadata lack: the integrity and the larger key that goes with it.
func TestDecodeRealHeaderWithoutIntegrity(t *testing.T) {
	b := realHeader(t)
	_, err := Decode(b)
	if err == nil || !strings.Contains(err.Error(), "metadata") {
		t.Fatalf("error = %v, want one about the metadata", err)
	}
	document, _, _ := bytes.Cut(b[binaryHeaderSize:HeaderSize], []byte{0})
	text := string(document)
	for _, edit := range [][2]string{
		{`"key_size":64,"af"`, `"key_size":96,"af"`},
		{`"size":"258048"`, `"size":"385024"`},
		{`"sector_size":4096`, `"sector_size":4096,"integrity":{"type":"hmac(sha256)","journal_encryption":"none","journal_integrity":"none"}`},
	} {
		text = strings.Replace(text, edit[0], edit[1], 1)
	}
	for i := range 2 {
		h := b[i*HeaderSize : (i+1)*HeaderSize]
		clear(h[binaryHeaderSize:])
		copy(h[binaryHeaderSize:], text)
		seal(h)
	}
	if _, err := Decode(b); err != nil {
		t.Errorf("with the profile's values in the real header: %v\n%s", err, text)
	}
}

func FuzzDecode(f *testing.F) {
	f.Add(area(metadata)[:2*HeaderSize])
	f.Add(realHeader(f)[:2*HeaderSize])
	f.Fuzz(func(t *testing.T, b []byte) {
		padded := make([]byte, AreaSize)
		copy(padded, b)
		h, err := Decode(padded)
		if err != nil {
			return
		}
		// What a header says beside the profile is its identity, and both copies say it.
		if _, text, err := decodeCopy(padded[HeaderSize:2*HeaderSize], secondaryMagic, HeaderSize); err != nil || checkMetadata(text) != nil || len(h.UUID) != 36 {
			t.Errorf("accepted as %+v: %v", h, err)
		}
	})
}

// Checksums keep a fuzzer away from the metadata, so they get a target of their own.
func FuzzMetadata(f *testing.F) {
	f.Add([]byte(metadata))
	f.Add([]byte(`{"a":{"b":["0"]}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		if checkMetadata(b) != nil {
			return
		}
		// One segment, one keyslot, one digest, and no requirement: a word of any other profile is refused.
		var m struct {
			Segments, Keyslots, Digests, Tokens map[string]json.RawMessage
			Config                              map[string]json.RawMessage
		}
		if err := json.Unmarshal(b, &m); err != nil || len(m.Segments) != 1 || len(m.Keyslots) != 1 || len(m.Digests) != 1 || len(m.Tokens) != 0 || m.Config["requirements"] != nil && string(m.Config["requirements"]) != "{}" {
			t.Errorf("accepted: %s (%v)", b, err)
		}
	})
}
