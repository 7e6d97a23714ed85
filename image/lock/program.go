package lock

import "path"

// Program is a compiled program of ours that is given to people by itself.
type Program struct {
	// File is its file's name, Version what it calls itself, SHA256 its content's, in hex.
	File, Version, SHA256 string
	// Modules are what it was compiled from, as it says itself.
	Modules []Module
}

// ProgramSPDX returns the SBOM of a program in the form of SPDX: the modules in it, and the release of Go. It depends on l and p alone.
func (l Lock) ProgramSPDX(p Program) ([]byte, error) {
	program := spdxPackage{
		SPDXID: "SPDXRef-Program", Name: path.Base(p.File), Version: p.Version, FileName: p.File, Supplier: spdxUnsaid, DownloadLocation: spdxUnsaid,
		Checksums: []spdxChecksum{{"SHA256", p.SHA256}},
	}
	d := l.describe(p.File, program)
	d.Comment = "The Go modules that the program itself says it holds."
	for _, in := range l.compiled(p.Modules) {
		d.contain(program, in.spdx())
	}
	return d.named()
}
