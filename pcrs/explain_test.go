package pcrs

import (
	"maps"
	"strings"
	"testing"
)

func TestExplainNamesTheEvent(t *testing.T) {
	p, err := Predict(testBoot(t))
	if err != nil {
		t.Fatal(err)
	}
	log := recordedLog(t, "ovmf-2025.02")
	measured := recordedValues(t, "ovmf-2025.02", SHA256)
	differences, err := Explain(p, SHA256, measured, &log)
	if err != nil {
		t.Fatal(err)
	}
	byRegister := map[Register]Difference{}
	for _, d := range differences {
		byRegister[d.Register] = d
	}
	// The recorded image had another kernel, disk and initrd, on the same firmware.
	for r, want := range map[Register]string{4: "unified kernel image", 5: "UEFI_GPT_DATA", 9: "section .initrd", 11: "section .linux"} {
		d, ok := byRegister[r]
		if !ok || d.ExpectedEvent == nil || d.MeasuredEvent == nil || !strings.Contains(d.ExpectedEvent.What, want) {
			t.Errorf("%v: want an event with %q, got %v", r, want, d)
		}
	}
	for _, r := range []Register{2, 3, 6, 7, 12, 13, 14, 15} {
		if d, ok := byRegister[r]; ok {
			t.Errorf("%v is equal, but explained: %v", r, d)
		}
	}
}

func TestExplainDoesNotBelieveAWrongLog(t *testing.T) {
	p, err := Predict(testBoot(t))
	if err != nil {
		t.Fatal(err)
	}
	measured, err := p.Values(SHA256)
	if err != nil {
		t.Fatal(err)
	}
	measured = maps.Clone(measured)
	measured[11] = make(Digest, 32)
	delete(measured, 9)
	log := recordedLog(t, "ovmf-2025.02")
	differences, err := Explain(p, SHA256, measured, &log)
	if err != nil || len(differences) != 2 {
		t.Fatalf("got %v, %v", differences, err)
	}
	for i, d := range differences {
		if d.ExpectedEvent != nil || !strings.Contains(d.String(), []string{"was not measured", "does not replay"}[i]) {
			t.Errorf("got %v", d)
		}
	}
	if !strings.Contains(differences[0].String(), "got nothing") {
		t.Errorf("got %v", differences[0])
	}
	without, err := Explain(p, SHA256, measured, nil)
	if err != nil || len(without) != 2 || without[0].Note == "" {
		t.Errorf("without a log: %v, %v", without, err)
	}
}

func TestBankNames(t *testing.T) {
	for _, name := range []string{"sha1", "sha256", "sha384", "sha512"} {
		bank, err := ParseBank(name)
		if err != nil || bank.String() != name {
			t.Errorf("%s: %v, %v", name, bank, err)
		}
	}
	if _, err := ParseBank("sm3_256"); err == nil {
		t.Error("accepted an unknown bank")
	}
}
