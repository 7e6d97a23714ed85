package export

import (
	"github.com/hullmark/hullmark/measurements"
	"github.com/hullmark/hullmark/pcrs"
)

// RegistersSchema names the form of JSON.
const RegistersSchema = "hullmark.registers/v2"

// plainRegisters is the form of JSON.
type plainRegisters struct {
	// Schema is RegistersSchema.
	Schema string `json:"schema"`
	// Document is the digest of the document that the values are from.
	Document measurements.DocumentID `json:"document"`
	Image    plainImage              `json:"image"`
	// Banks holds the values by bank and register.
	Banks map[pcrs.Bank]pcrs.Values `json:"banks"`
}

type plainImage struct {
	ID      string `json:"id"`
	Version string `json:"version"`
}

func writeJSON(r reference) ([]File, error) {
	out := plainRegisters{
		Schema: RegistersSchema, Document: r.id,
		Image: plainImage{ID: r.image.ID, Version: r.image.Version},
		Banks: map[pcrs.Bank]pcrs.Values{},
	}
	for _, bank := range r.banks {
		out.Banks[bank] = pcrs.Values{}
	}
	for _, register := range r.registers {
		for bank, value := range register.Values {
			out.Banks[bank][register.Register] = value
		}
	}
	return one("registers.json", out)
}
