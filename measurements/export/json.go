package export

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strconv"

	"github.com/hullmark/hullmark/measurements"
	"github.com/hullmark/hullmark/pcrs"
)

// RegistersSchema names the form of JSON.
const RegistersSchema = "hullmark.registers/v1"

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
	for _, bank := range pcrs.PredictedBanks() {
		out.Banks[bank] = pcrs.Values{}
		for _, register := range r.registers {
			out.Banks[bank][register.Register] = register.Values[bank]
		}
	}
	return one("registers.json", out)
}

// keylimeOwn are registers that Keylime judges by other means, and refuses in a tpm_policy.
var keylimeOwn = map[pcrs.Register]string{
	10: "by the list of IMA's measurements",
	16: "by the data that it binds to a quote",
}

// writeKeylime writes a tpm_policy: lower-case digits by register. A quote is of one bank, whose name is not in the policy, so each register lists
// its values in all banks. The member "mask" is not written: who reads a policy for Keylime (keylime.tpm.tpm_util.readPolicy) computes it, and
// takes every member for a register's number.
func writeKeylime(r reference) ([]File, error) {
	policy := map[string][]string{}
	for _, register := range r.registers {
		if how, ok := keylimeOwn[register.Register]; ok {
			return nil, fmt.Errorf("%v: Keylime judges it %s and refuses it in a policy; %w", register.Register, how, ErrRegisters)
		}
		key := strconv.Itoa(int(register.Register))
		for _, bank := range pcrs.PredictedBanks() {
			policy[key] = append(policy[key], register.Values[bank].String())
		}
	}
	return one("tpm_policy.json", policy)
}

// rvpsMessage is what RVPS registers (confidential-containers/trustee, rvps/src/lib.rs).
type rvpsMessage struct {
	Version string `json:"version"`
	Type    string `json:"type"`
	// Payload is base64 of the values by name.
	Payload string `json:"payload"`
}

// writeRVPS writes a message of type "sample", whose names are those that Trustee's policies ask for: tpm_pcr11 is what input.tpm.pcr11 is looked
// up in (attestation-service, ear_default_policy_cpu.rego). Trustee's TPM verifier reads the bank SHA-256 alone (deps/verifier/src/tpm).
func writeRVPS(r reference) ([]File, error) {
	values := map[string][]string{}
	for _, register := range r.registers {
		values["tpm_pcr"+strconv.Itoa(int(register.Register))] = []string{register.Values[pcrs.SHA256].String()}
	}
	payload, err := json.Marshal(values)
	if err != nil {
		return nil, err
	}
	return one("rvps.json", rvpsMessage{Version: "0.1.0", Type: "sample", Payload: base64.StdEncoding.EncodeToString(payload)})
}
