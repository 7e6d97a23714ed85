package export

import (
	"fmt"
	"strconv"

	"github.com/hullmark/hullmark/pcrs"
)

// keylimeOwn are registers that Keylime judges by other means, and refuses in a tpm_policy.
var keylimeOwn = map[pcrs.Register]string{
	10: "by the list of IMA's measurements",
	16: "by the data that it binds to a quote",
}

// writeKeylime writes a tpm_policy: lower-case digits by register. A quote is of one bank, whose name is not in the policy, so
// each register lists its values in all banks. The member "mask" is not written: who reads a policy for Keylime
// (keylime.tpm.tpm_util.readPolicy) computes it, and takes every member for a register's number.
func writeKeylime(r reference) ([]File, error) {
	policy := map[string][]string{}
	for _, register := range r.registers {
		if how, ok := keylimeOwn[register.Register]; ok {
			return nil, fmt.Errorf("%v: Keylime judges it %s and refuses it in a policy; %w", register.Register, how, ErrRegisters)
		}
		key := strconv.Itoa(int(register.Register))
		for _, bank := range r.banks {
			policy[key] = append(policy[key], register.Values[bank].String())
		}
	}
	return one("tpm_policy.json", policy)
}
