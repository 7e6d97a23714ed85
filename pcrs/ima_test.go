package pcrs

import "testing"

func TestBootAggregateEqualsTheTPM(t *testing.T) {
	for _, name := range recorded {
		e, err := BootAggregate(recordedValues(t, name, SHA256))
		if err != nil {
			t.Fatal(err)
		}
		for _, bank := range []Bank{SHA1, SHA256, SHA384, SHA512} {
			got, err := Log{Events: []Event{e}}.Replay(bank)
			if err != nil {
				t.Fatal(err)
			}
			if want := recordedValues(t, name, bank)[10]; !want.Equal(got[10]) {
				t.Errorf("%s: %v: computed %v, the TPM has %v", name, bank, got[10], want)
			}
		}
	}
	values := recordedValues(t, recorded[0], SHA256)
	delete(values, 3)
	if _, err := BootAggregate(values); err == nil {
		t.Error("computed it without PCR 3")
	}
}
