package pcrs

import (
	"encoding/binary"

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
	if m.Log != nil {
		return m.Log.secureBoot()
	}
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

// secureBoot is the firmware's policy in PCR 7 (PFP §3.3.4.8): five variables, absent or not, dbt if there is one, then a separator. dbr
// is not measured (EDK2, MeasureAllSecureVariables). What follows are the entries of db that programs are verified with, each once
// (measureAuthority).
func (p *predictor) secureBoot() error {
	vars := p.boot.Machine.Vars
	p.state = p.boot.Machine.secureBootOf()
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
	dbt, _ := vars.Lookup(efi.ImageSecurity, "dbt")
	if len(dbt) > 0 {
		p.add(variableEvent(efi.ImageSecurity, "dbt", dbt, EvVariableDriverConfig))
	}
	p.add(separator(7))
	if p.state != secureBootOn {
		return nil
	}
	db, _ := vars.Lookup(efi.ImageSecurity, "db")
	dbx, _ := vars.Lookup(efi.ImageSecurity, "dbx")
	var err error
	p.databases, err = openDatabases(db, dbx, dbt)
	return err
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
