package export

import (
	"fmt"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/measurements"
	"github.com/hullmark/hullmark/pcrs"
)

// pcrlockComponent is a component file (systemd.pcrlock(5)).
type pcrlockComponent struct {
	Records []pcrlockRecord `json:"records"`
}

// pcrlockRecord is one event.
type pcrlockRecord struct {
	Register int             `json:"pcr"`
	Digests  []pcrlockDigest `json:"digests"`
}

type pcrlockDigest struct {
	Bank   pcrs.Bank   `json:"hashAlg"`
	Digest pcrs.Digest `json:"digest"`
}

// writePcrlock writes a component for each register that has events. The records of a component must be in a log in the
// component's order, and a document keeps that order within a register only. A register without events needs no component:
// systemd-pcrlock expects zeros of it.
func writePcrlock(r reference) ([]File, error) {
	var files []File
	for _, register := range r.registers {
		if len(register.Events) == 0 {
			continue
		}
		content, err := hullmark.CanonicalJSON(component(register, r.banks))
		if err != nil {
			return nil, err
		}
		files = append(files, File{Name: fmt.Sprintf("500-hullmark-pcr%02d.pcrlock", int(register.Register)), Content: content})
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("none of the registers has an event, so there is no component; %w", ErrRegisters)
	}
	return files, nil
}

func component(register measurements.Register, banks []pcrs.Bank) pcrlockComponent {
	var c pcrlockComponent
	for _, e := range register.Events {
		record := pcrlockRecord{Register: int(register.Register)}
		for _, bank := range banks {
			record.Digests = append(record.Digests, pcrlockDigest{Bank: bank, Digest: e.Digests[bank]})
		}
		c.Records = append(c.Records, record)
	}
	return c
}
