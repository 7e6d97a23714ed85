package pcrs_test

import (
	"fmt"
	"log"
	"os"

	"github.com/hullmark/hullmark/pcrs"
)

// The event log of a boot, as Linux shows it in /sys/kernel/security/tpm0/binary_bios_measurements.
func ExampleParseLog() {
	raw, err := os.ReadFile("testdata/ovmf-2025.02.log")
	if err != nil {
		log.Fatal(err)
	}
	boot, err := pcrs.ParseLog(raw)
	if err != nil {
		log.Fatal(err)
	}
	values, err := boot.Replay(pcrs.SHA256)
	if err != nil {
		log.Fatal(err)
	}

	fmt.Println(len(boot.Events), "events; PCR 4 replays to", values[4])
	for _, event := range boot.Of(4) {
		fmt.Printf("%v: %s\n", event.Type, event.What())
	}
	// Output:
	// 44 events; PCR 4 replays to 1bf6f4826ed925072913b5827a09640c35a8feeaa4a503aea0297180154dad4b
	// EV_EFI_ACTION: the text "Calling EFI Application from Boot Option"
	// EV_SEPARATOR: four zero bytes: the end of the firmware's own measurements
	// EV_EFI_BOOT_SERVICES_APPLICATION: the program "\\EFI\\BOOT\\BOOTX64.EFI"
	// EV_EFI_BOOT_SERVICES_APPLICATION: 56 bytes of data
}

// Why the registers of a boot are not as expected. What is expected here is what an earlier boot measured; where there is a
// prediction, or a measurement document, it is used the same way.
func ExampleExplain() {
	expected, err := readLog("testdata/ovmf-2025.02-setupmode.log")
	if err != nil {
		log.Fatal(err)
	}
	boot, err := readLog("testdata/ovmf-2025.02-secureboot.log")
	if err != nil {
		log.Fatal(err)
	}
	measured, err := boot.Replay(pcrs.SHA256) // a verifier takes the values that a quote proves
	if err != nil {
		log.Fatal(err)
	}

	prediction := pcrs.Prediction{Log: expected, Registers: []pcrs.Register{2, 3, 6, 7, 14}}
	differences, err := pcrs.Explain(prediction, pcrs.SHA256, measured, &boot)
	if err != nil {
		log.Fatal(err)
	}
	for _, d := range differences {
		fmt.Printf("%v differs\n", d.Register)
		if d.ExpectedEvent != nil {
			fmt.Println("  expected:", d.ExpectedEvent.What())
		}
		if d.MeasuredEvent != nil {
			fmt.Println("  measured:", d.MeasuredEvent.What())
		}
		if d.Cause != "" {
			fmt.Println("  cause:", d.Cause)
		}
	}
	// Output:
	// PCR 7 differs
	//   expected: variable SecureBoot: 0, as firmware sets it from PK and SecureBootEnable
	//   measured: variable SecureBoot: 1, as firmware sets it from PK and SecureBootEnable
	//   cause: Secure Boot was on
}

func readLog(file string) (pcrs.Log, error) {
	raw, err := os.ReadFile(file)
	if err != nil {
		return pcrs.Log{}, err
	}
	return pcrs.ParseLog(raw)
}
