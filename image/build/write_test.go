package build

import (
	"slices"
	"strings"
	"testing"
)

// Credentials of the SMBIOS and of fw_cfg are in no register: only the command line, which is, keeps the first process from taking them.
func TestNoCredentialsFromTheHost(t *testing.T) {
	if !slices.Contains(strings.Fields(kernelCommandLine), "systemd.import_credentials=no") {
		t.Errorf("the command line is %q", kernelCommandLine)
	}
}
