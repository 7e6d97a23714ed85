package secureboot

import (
	"bytes"
	"crypto"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/binary"
	"fmt"
	"time"

	"github.com/hullmark/hullmark/image/efi"
)

var (
	guidPKCS7        = efi.MustGUID("4aafd29d-68df-49ee-8aa9-347d375665a7")
	guidWorkingBlock = efi.MustGUID("9e58292b-7c68-497d-a0ce-6500fd9f1b95")
)

// OwnerOf derives the owner of a key set's entries from its platform certificate:
// a UUID of version 8, whose content its maker chooses (RFC 9562 §5.8).
func OwnerOf(platform *x509.Certificate) efi.GUID {
	digest := sha256.Sum256(platform.Raw)
	g := efi.GUID(digest[:16])
	g[7] = g[7]&0x0f | 0x80
	g[8] = g[8]&0x3f | 0x80
	return g
}

// List returns an EFI_SIGNATURE_LIST with one certificate in DER (UEFI 2.10
// §32.4.1). owner says whose entry it is; firmware only keeps it.
func List(owner efi.GUID, certificate []byte) []byte {
	const header = 16 + 3*4
	entry := len(owner) + len(certificate)
	b := bytes.Clone(efi.CertX509[:])
	for _, n := range []int{header + entry, 0, entry} { // list, its own header, each entry
		b = binary.LittleEndian.AppendUint32(b, uint32(n))
	}
	return append(append(b, owner[:]...), certificate...)
}

// Variable is a value of one of the variables that hold Secure Boot's keys.
type Variable struct {
	// Name is PK, KEK or db.
	Name string
	// Data is one or more signature lists.
	Data []byte
	// Time is when the value was made, to the second: firmware takes a value only in place of an older one (UEFI 2.10 §8.2.2).
	Time time.Time
}

// variableAttributes are: non-volatile, at boot and run time, written with a time-based signature (UEFI 2.10 §8.2.1).
const variableAttributes = 0x1 | 0x2 | 0x4 | 0x20

func (v Variable) vendor() efi.GUID {
	if v.Name == "db" {
		return efi.ImageSecurity
	}
	return efi.GlobalVariable
}

// Sign returns the signed update by which firmware sets the variable: an
// EFI_VARIABLE_AUTHENTICATION_2 and the data, what people keep in .auth files
// (UEFI 2.10 §8.2.2). The key of PK signs PK and KEK, that of KEK signs db.
func (v Variable) Sign(certificate *x509.Certificate, key crypto.Signer) ([]byte, error) {
	if err := CheckCertificate(certificate); err != nil {
		return nil, fmt.Errorf("sign variable %s: certificate: %w", v.Name, err)
	}
	stamp, vendor := efiTime(v.Time), v.vendor()
	message := append(efi.UTF16(v.Name), vendor[:]...)
	message = binary.LittleEndian.AppendUint32(message, variableAttributes)
	message = append(append(message, stamp...), v.Data...)
	signature, err := crypto.SignMessage(key, rand.Reader, message, crypto.SHA256)
	if err != nil {
		return nil, fmt.Errorf("sign variable %s: %w", v.Name, err)
	}
	if err := verify(certificate, message, signature); err != nil {
		return nil, fmt.Errorf("sign variable %s: %w", v.Name, err)
	}
	// Older firmware wants the SignedData without the ContentInfo around it.
	signed := signedData(sequence(oidData), certificate, nil, signature)
	const header = 4 + 2 + 2 + 16 // WIN_CERTIFICATE_UEFI_GUID of revision 2.0 and type EFI_GUID
	out := binary.LittleEndian.AppendUint32(stamp, uint32(header+len(signed)))
	out = binary.LittleEndian.AppendUint32(out, 0x0ef1_0200)
	return bytes.Join([][]byte{out, guidPKCS7[:], signed, v.Data}, nil), nil
}

// efiTime is an EFI_TIME in UTC, with zeros where a signature's time has to have them.
func efiTime(t time.Time) []byte {
	t = t.UTC()
	b := binary.LittleEndian.AppendUint16(nil, uint16(t.Year()))
	b = append(b, byte(t.Month()), byte(t.Day()), byte(t.Hour()), byte(t.Minute()), byte(t.Second()))
	return append(b, make([]byte, 9)...)
}
