package probe

import (
	"bytes"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/binary"
	"encoding/pem"
	"maps"
	"math/big"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"
	"unicode/utf16"

	"github.com/hullmark/hullmark/image/efi"
	"github.com/hullmark/hullmark/pcrs/firmware"
)

// Keys are Secure Boot keys of a test's own: one certificate that is platform key, key exchange key and the only entry of db.
type Keys struct {
	key, certificate string // files
	der              []byte
}

// NewKeys makes a key and a certificate for it.
func NewKeys(t testing.TB) Keys {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "Secure Boot of a test"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	k := Keys{key: filepath.Join(dir, "key.pem"), certificate: filepath.Join(dir, "certificate.pem"), der: der}
	for path, block := range map[string]*pem.Block{
		k.key:         {Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)},
		k.certificate: {Type: "CERTIFICATE", Bytes: der},
	} {
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return k
}

// Sign signs a PE image with sbsign.
func (k Keys) Sign(t testing.TB) func([]byte) []byte {
	return func(image []byte) []byte {
		t.Helper()
		program, err := exec.LookPath("sbsign")
		if err != nil {
			t.Fatal("sbsign is missing: apt-get install sbsigntool")
		}
		in, out := filepath.Join(t.TempDir(), "in.efi"), filepath.Join(t.TempDir(), "out.efi")
		if err := os.WriteFile(in, image, 0o600); err != nil {
			t.Fatal(err)
		}
		if text, err := exec.Command(program, "--key", k.key, "--cert", k.certificate, "--output", out, in).CombinedOutput(); err != nil {
			t.Fatalf("sbsign: %v\n%s", err, text)
		}
		signed, err := os.ReadFile(out)
		if err != nil {
			t.Fatal(err)
		}
		return signed
	}
}

// Snakeoil is the key whose private half everybody has, in Debian's package ovmf: its OVMF_VARS_4M.snakeoil.fd has it in db.
func Snakeoil(t testing.TB) Keys {
	t.Helper()
	const folder = "/usr/share/ovmf/PkKek-1-snakeoil"
	k := Keys{key: filepath.Join(t.TempDir(), "key.pem"), certificate: folder + ".pem"}
	out, err := exec.Command("openssl", "rsa", "-in", folder+".key", "-passin", "pass:snakeoil", "-out", k.key).CombinedOutput()
	if err != nil {
		t.Fatalf("openssl: %v: apt-get install openssl ovmf\n%s", err, out)
	}
	return k
}

// Allow appends the certificate to db, in a copy of a variable file that has one, as firmware that replaces a variable does.
func (k Keys) Allow(t testing.TB, file []byte) []byte {
	t.Helper()
	v, err := firmware.OpenVars(file)
	if err != nil {
		t.Fatal(err)
	}
	db, ok := v.Lookup(efi.ImageSecurity, "db")
	if !ok {
		t.Fatal("the variable file has no db")
	}
	return Replace(t, file, efi.ImageSecurity, "db", slices.Concat(db, k.list()))
}

// Replace gives a variable of a file another value, or adds it: the old one is marked as deleted, and the new one written behind all
// others.
func Replace(t testing.TB, file []byte, vendor efi.GUID, name string, data []byte) []byte {
	t.Helper()
	const first, deleted = 0x64, 0x3c
	out, at, attributes := bytes.Clone(file), first, uint32(0x07)
	wide := append(efi.UTF16(name), 0, 0)
	for out[at] == 0xaa && out[at+1] == 0x55 {
		le := binary.LittleEndian
		names, size := int(le.Uint32(out[at+36:])), int(le.Uint32(out[at+40:]))
		if out[at+2] == 0x3f && bytes.Equal(out[at+44:at+60], vendor[:]) && bytes.Equal(out[at+60:at+60+names], wide) {
			out[at+2], attributes = deleted, le.Uint32(out[at+4:])
		}
		at = (at + 60 + names + size + 3) &^ 3
	}
	added := variable(vendor[:], name, attributes, data)
	if len(bytes.Trim(out[at:at+len(added)], "\xff")) != 0 {
		t.Fatal("the variable file has no room")
	}
	copy(out[at:], added)
	return out
}

// GUIDs as they lie in a variable store.
var (
	globalVariable = []byte{0x61, 0xdf, 0xe4, 0x8b, 0xca, 0x93, 0xd2, 0x11, 0xaa, 0x0d, 0x00, 0xe0, 0x98, 0x03, 0x2b, 0x8c}
	imageSecurity  = []byte{0xcb, 0xb2, 0x19, 0xd7, 0x3a, 0x3d, 0x96, 0x45, 0xa3, 0xbc, 0xda, 0xd0, 0x0e, 0x67, 0x65, 0x6f}
	certX509       = []byte{0xa1, 0x59, 0xc0, 0xa5, 0xe4, 0x94, 0xa7, 0x4a, 0x87, 0xb5, 0xab, 0x15, 0x5c, 0x2b, 0xf0, 0x72}
	owner          = []byte("a test's own key")
)

// Enroll writes the keys into a copy of a variable file without variables, such as OVMF_VARS_4M.fd.
func (k Keys) Enroll(t testing.TB, empty []byte) []byte {
	t.Helper()
	list := k.list()
	var store []byte
	for _, v := range []struct {
		vendor []byte
		name   string
	}{{globalVariable, "PK"}, {globalVariable, "KEK"}, {imageSecurity, "db"}} {
		const attributes = 0x27 // non-volatile, boot and run time, time-based authentication
		store = append(store, variable(v.vendor, v.name, attributes, list)...)
		for len(store)%4 != 0 {
			store = append(store, 0xff)
		}
	}
	return fill(t, empty, store)
}

// list is a signature list with the certificate.
func (k Keys) list() []byte {
	list := append([]byte{}, certX509...)
	for _, n := range []int{28 + 16 + len(k.der), 0, 16 + len(k.der)} {
		list = binary.LittleEndian.AppendUint32(list, uint32(n))
	}
	return append(append(list, owner...), k.der...)
}

// fill puts variables into a copy of a file without any.
func fill(t testing.TB, empty, store []byte) []byte {
	t.Helper()
	const first = 0x64 // after the headers of volume and store
	out := bytes.Clone(empty)
	if len(bytes.Trim(out[first:first+len(store)], "\xff")) != 0 {
		t.Fatal("the variable file is not empty")
	}
	copy(out[first:], store)
	return out
}

// AddVariables writes variables of the firmware's own vendor, such as BootNext, into a copy of a file without variables.
func AddVariables(t testing.TB, empty []byte, variables map[string][]byte) []byte {
	t.Helper()
	var store []byte
	for _, name := range slices.Sorted(maps.Keys(variables)) {
		store = append(store, variable(globalVariable, name, 0x07, variables[name])...)
		for len(store)%4 != 0 {
			store = append(store, 0xff)
		}
	}
	return fill(t, empty, store)
}

// variable is a variable in a store of authenticated ones (MdeModulePkg/Include/Guid/VariableFormat.h).
func variable(vendor []byte, name string, attributes uint32, data []byte) []byte {
	wide := utf16.Encode([]rune(name + "\x00"))
	b := []byte{0xaa, 0x55, 0x3f, 0}
	b = binary.LittleEndian.AppendUint32(b, attributes)
	b = append(b, make([]byte, 8)...)                                   // monotonic count
	b = append(b, 0xe8, 0x07, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0) // 2024-01-01
	b = append(b, make([]byte, 4)...)                                   // public key index
	b = binary.LittleEndian.AppendUint32(b, uint32(2*len(wide)))        // with its NUL
	b = append(binary.LittleEndian.AppendUint32(b, uint32(len(data))), vendor...)
	for _, u := range wide {
		b = binary.LittleEndian.AppendUint16(b, u)
	}
	return append(b, data...)
}
