package pcrs

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/hullmark/hullmark/image/efi"
)

// secureBootState is what the firmware says in the variable SecureBoot.
type secureBootState int

const (
	secureBootUnknown secureBootState = iota // the build has no such variable
	secureBootOff
	secureBootOn
)

func (s secureBootState) data() []byte {
	switch s {
	case secureBootOff:
		return []byte{0}
	case secureBootOn:
		return []byte{1}
	}
	return nil
}

func (s secureBootState) name() string {
	return [...]string{secureBootUnknown: SecureBootAbsent, secureBootOff: SecureBootOff, secureBootOn: SecureBootOn}[s]
}

// secureBootOf decides as EDK2 does (SecurityPkg, AuthVariableLib): with a
// platform key Secure Boot is on, unless SecureBootEnable says otherwise.
func (m Machine) secureBootOf() secureBootState {
	if !m.Firmware.SecureBoot {
		return secureBootUnknown
	}
	if pk, _ := m.Vars.Lookup(efi.GlobalVariable, "PK"); len(pk) == 0 {
		return secureBootOff
	}
	enable, ok := m.Vars.Lookup(guidSecureBootEnable, "SecureBootEnable")
	if ok && (len(enable) != 1 || enable[0] != 1) {
		return secureBootOff
	}
	return secureBootOn
}

// SecureBoot reports whether the firmware will enforce Secure Boot with these variables.
func (m Machine) SecureBoot() bool { return m.secureBootOf() == secureBootOn }

// secureBoot is the firmware's policy in PCR 7 (PFP §3.3.4.8): five variables, absent or not, then a separator.
func (p *predictor) secureBoot() error {
	vars := p.boot.Machine.Vars
	p.state = p.boot.Machine.secureBootOf()
	for _, name := range []string{"dbt", "dbr"} {
		if data, _ := vars.Lookup(efi.ImageSecurity, name); len(data) > 0 {
			return fmt.Errorf("variable %s is set, and what firmware measures of it was never observed; use variables without it", name)
		}
	}
	p.add(secureBootEvent(p.state))
	for _, v := range []struct {
		vendor efi.GUID
		name   string
	}{
		{efi.GlobalVariable, "PK"},
		{efi.GlobalVariable, "KEK"},
		{efi.ImageSecurity, "db"},
		{efi.ImageSecurity, "dbx"},
	} {
		data, _ := vars.Lookup(v.vendor, v.name)
		p.add(variableEvent(v.vendor, v.name, data, EvVariableDriverConfig))
	}
	p.add(separator(7))
	return nil
}

// authority is the certificate that the UKI is verified with. It is known
// without verifying anything where db holds one certificate and nothing else:
// firmware starts the UKI because of that one, or not at all.
func (p *predictor) authority() error {
	if p.state != secureBootOn {
		return nil
	}
	db, _ := p.boot.Machine.Vars.Lookup(efi.ImageSecurity, "db")
	entry, err := onlyCertificate(db)
	if err != nil {
		return fmt.Errorf("variable db, which decides because Secure Boot is on: %w", err)
	}
	p.add(variableEvent(efi.ImageSecurity, "db", entry, EvVariableAuthority))
	return nil
}

// onlyCertificate returns the single EFI_SIGNATURE_DATA (owner ‖ certificate) of
// a db (EFI_SIGNATURE_LIST, UEFI 2.10 §32.4.1).
func onlyCertificate(db []byte) ([]byte, error) {
	const listHeaderSize = 28
	if len(db) < listHeaderSize {
		return nil, errors.New("holds no signature list, so nothing can boot")
	}
	listSize := binary.LittleEndian.Uint32(db[16:])
	headerSize := binary.LittleEndian.Uint32(db[20:])
	entrySize := binary.LittleEndian.Uint32(db[24:])
	single := int64(listHeaderSize)+int64(headerSize)+int64(entrySize) == int64(len(db)) && int64(listSize) == int64(len(db))
	if efi.GUID(db[:16]) != efi.CertX509 || !single || entrySize <= 16 || headerSize != 0 {
		return nil, errors.New("holds more than one X.509 certificate, and choosing the one that verifies the image is not supported yet; " +
			"use variables with one certificate, or turn Secure Boot off")
	}
	return db[listHeaderSize:], nil
}

// variableEvent hashes UEFI_VARIABLE_DATA (PFP §10.4.2.6): vendor, lengths of
// name (in characters) and data, name without a NUL, data.
func variableEvent(vendor efi.GUID, name string, data []byte, t EventType) Event {
	wide := efi.UTF16(name)
	b := append([]byte(nil), vendor[:]...)
	b = binary.LittleEndian.AppendUint64(b, uint64(len(wide)/2))
	b = binary.LittleEndian.AppendUint64(b, uint64(len(data)))
	b = append(append(b, wide...), data...)
	source := Source{Kind: FromVariable, Name: name, Bytes: len(data), File: VariableFile}
	if t == EvVariableAuthority {
		source.Kind = FromAuthority
	}
	return dataEvent(7, t, b, source)
}

// secureBootEvent is the variable that firmware makes of its state.
func secureBootEvent(state secureBootState) Event {
	e := variableEvent(efi.GlobalVariable, "SecureBoot", state.data(), EvVariableDriverConfig)
	e.Source = &Source{Kind: FromSecureBoot, Name: state.name()}
	return e
}
