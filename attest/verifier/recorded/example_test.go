package recorded_test

import (
	"fmt"
	"log"
	"time"

	"github.com/google/go-sev-guest/verify/testdata"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest/verifier/recorded"
)

// A report of a real machine, and the certificate of its chip's key: debug was allowed, so nothing that the guest knows is hidden from
// its host.
func Example() {
	e, err := recorded.Read([]recorded.File{
		{Name: "report.bin", Content: testdata.AttestationBytes[:1184]}, {Name: "vcek.der", Content: testdata.VcekBytes},
	})
	if err != nil {
		log.Fatal(err)
	}
	result, err := e.Verify(hullmark.PlatformSNP, recorded.Options{At: time.Date(2023, 6, 1, 0, 0, 0, 0, time.UTC)})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("verified:", result.Verified)
	for _, reason := range result.Reasons {
		fmt.Println(reason.Code, reason)
	}
	// Output:
	// verified: false
	// debug-allowed the host may read the guest's memory: debug is allowed
}
