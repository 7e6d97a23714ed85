package operate_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/hullmark/hullmark/cluster/operate"
	"github.com/hullmark/hullmark/joinservice"
	"github.com/hullmark/hullmark/measurements"
	"github.com/hullmark/hullmark/pcrs"
)

// Whoever accepts a document is told of every register that nobody holds, also where the document keeps silent about it, and of programs
// that a log says are the firmware's.
func TestTerms(t *testing.T) {
	document := measurements.Document{NotPredicted: []measurements.NotPredicted{{Register: 2, Reason: "a reason"}, {Register: 8, Reason: "differs per node"}, {Register: pcrs.RTMR(3), Reason: "run time"}}}
	for _, r := range []pcrs.Register{0, 1, 3, 4, 5, 6, 9, 11, 12, 13} {
		document.Registers = append(document.Registers, measurements.Register{Register: r, Values: pcrs.Digests{pcrs.SHA256: make(pcrs.Digest, 32)}})
	}
	event := func(kind pcrs.EventType, origin pcrs.Origin, source pcrs.Source) measurements.Event {
		return measurements.Event{Type: kind, Origin: origin, Source: source, Digests: pcrs.Digests{pcrs.SHA256: {0xab}}}
	}
	document.Registers[3].Events = []measurements.Event{
		event(pcrs.EvEFIAction, pcrs.Learned, pcrs.Source{Kind: pcrs.FromAction, Name: "Calling EFI Application from Boot Option"}),
		event(pcrs.EvEFIAction, pcrs.Learned, pcrs.Source{Kind: pcrs.FromAction, Name: "MZ\x00"}),
		event(pcrs.EvSeparator, pcrs.Learned, pcrs.Source{Kind: pcrs.FromSeparator}),
		event(pcrs.EvBootServicesApplication, pcrs.Learned, pcrs.Source{Kind: pcrs.FromLoadedProgram, File: "bios.efi"}),
		event(pcrs.EvBootServicesApplication, pcrs.Derived, pcrs.Source{Kind: pcrs.FromProgram}),
	}
	lines := strings.Split(operate.Terms(document, measurements.Accepted{Enforce: []pcrs.Register{1}}), "\n")[1:]
	if want := []string{
		"not enforced: PCR 5, which the document predicts (--enforce 5)", "open: PCR 2: a reason", "open: PCR 7: the document says nothing of it",
		"open: PCR 14: the document says nothing of it", "open: RTMR 3: run time",
		`learned: PCR 4 holds the text "MZ\x00" (EV_EFI_ACTION, ab), which the log says is the firmware's own`,
		`learned: PCR 4 holds the program "bios.efi" (EV_EFI_BOOT_SERVICES_APPLICATION, ab), which the log says is the firmware's own`,
	}; !slices.Equal(lines, want) {
		t.Errorf("%q", lines)
	}
}

// A document that names one machine's own hardware is not enforced in that unless its operator says so, who is told why.
func TestTermsOfOneMachine(t *testing.T) {
	document := measurements.Document{Registers: []measurements.Register{{Register: 1, Values: pcrs.Digests{pcrs.SHA256: make(pcrs.Digest, 32)}}}}
	if got := joinservice.DefaultEnforced(document); !slices.Equal(got, []pcrs.Register{1}) {
		t.Errorf("of any machine: %v", got)
	}
	document.Registers[0].Events = []measurements.Event{{
		Source: pcrs.Source{Kind: pcrs.FromBootVariable, Name: "Boot0004", Parts: []pcrs.Source{{Kind: pcrs.FromHardware, Name: "UEFI PXEv4 (MAC:525400123456)"}}},
	}}
	if got := joinservice.DefaultEnforced(document); len(got) > 0 {
		t.Errorf("of one machine: %v", got)
	}
	if terms := operate.Terms(document, measurements.Accepted{}); !strings.Contains(terms, `PCR 1, which the document predicts of this machine alone: it holds "UEFI PXEv4 (MAC:525400123456)" (--enforce 1)`) {
		t.Error(terms)
	}
}
