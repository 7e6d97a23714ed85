package export

import (
	"encoding/base64"
	"encoding/json"
	"strconv"

	"github.com/hullmark/hullmark/pcrs"
)

// rvpsMessage is what RVPS registers (confidential-containers/trustee, rvps/src/lib.rs).
type rvpsMessage struct {
	Version string `json:"version"`
	Type    string `json:"type"`
	// Payload is base64 of the values by name.
	Payload string `json:"payload"`
}

// writeRVPS writes a message of type "sample", whose names are those that Trustee's policies ask for: tpm_pcr11 is what
// input.tpm.pcr11 is looked up in (attestation-service, ear_default_policy_cpu.rego). Trustee's TPM verifier reads the bank
// SHA-256 alone (deps/verifier/src/tpm). Of confidential machines the names are
// those that its policy has for SNP and TDX.
func writeRVPS(r reference) ([]File, error) {
	values := map[string][]string{}
	for _, register := range r.registers {
		values[rvpsName(register.Register)] = []string{register.Values[register.Register.In(pcrs.SHA256)].String()}
	}
	payload, err := json.Marshal(values)
	if err != nil {
		return nil, err
	}
	return one("rvps.json", rvpsMessage{Version: "0.1.0", Type: "sample", Payload: base64.StdEncoding.EncodeToString(payload)})
}

func rvpsName(r pcrs.Register) string {
	switch r {
	case pcrs.LaunchDigest:
		return "snp_launch_measurement"
	case pcrs.MRTD:
		return "mr_td"
	}
	if n := int(r - pcrs.RTMR(0)); !r.PCR() {
		return "rtmr_" + strconv.Itoa(n)
	}
	return "tpm_pcr" + strconv.Itoa(int(r))
}
