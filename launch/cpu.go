package launch

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// model is a processor of QEMU's, by what CPUID says of it.
type model struct{ family, model, stepping uint32 }

// models are QEMU's that can run SEV-SNP guests (target/i386/cpu.c, builtin_x86_defs), without the number of their version, which
// changes none of these.
var models = map[string]model{
	"EPYC": {23, 1, 2}, "EPYC-IBPB": {23, 1, 2}, "EPYC-Rome": {23, 49, 0}, "EPYC-Milan": {25, 1, 1}, "EPYC-Genoa": {25, 17, 0}, "EPYC-Turin": {26, 0, 0},
}

// ParseCPU returns the signature of a processor by the name of QEMU's model, with or without a version (EPYC-Milan-v2), or by
// itself as a hexadecimal number (0xa00f11).
func ParseCPU(name string) (uint32, error) {
	if digits, ok := strings.CutPrefix(name, "0x"); ok {
		n, err := strconv.ParseUint(digits, 16, 32)
		if err != nil || n == 0 {
			return 0, fmt.Errorf("processor %q: want a signature of 32 bits", name)
		}
		return uint32(n), nil
	}
	base := name
	if at := strings.LastIndex(name, "-v"); at > 0 {
		if n, err := strconv.ParseUint(name[at+2:], 10, 8); err == nil && n > 0 {
			base = name[:at]
		}
	}
	m, ok := models[base]
	if !ok {
		return 0, fmt.Errorf("processor %q: the models are %s; another one by its signature, such as 0xa00f11", name, strings.Join(slices.Sorted(maps.Keys(models)), ", "))
	}
	return m.signature(), nil
}

// signature is what CPUID function 1 returns in EAX (AMD 25481).
func (m model) signature() uint32 {
	low := min(m.family, 0xf)
	return (m.family-low)<<20 | m.model>>4<<16 | low<<8 | m.model&0xf<<4 | m.stepping
}

// GCEAddressBits returns SNP.AddressBits of a Google host, by its product: Milan or Genoa.
func GCEAddressBits(product string) (int, error) {
	bits, ok := map[string]int{"Milan": 48, "Genoa": 52}[product]
	if !ok {
		return 0, fmt.Errorf("processor %q: on GCE the host's product counts: Milan or Genoa", product)
	}
	return bits, nil
}
