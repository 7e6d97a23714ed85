package verifier_test

import (
	"crypto/sha256"
	"fmt"
	"log"
	"os"

	"github.com/hullmark/hullmark/attest/verifier"
	"github.com/hullmark/hullmark/pcrs"
)

// Registers of a machine, proven by a quote of its TPM: files as tpm2_createak(1) and tpm2_quote(1) leave them, and the event log.
func ExampleOpenQuote() {
	var files [4][]byte
	for i, name := range []string{"testdata/ak.pub", "testdata/quote.msg", "testdata/quote.sig", "../../pcrs/testdata/ovmf-2025.02.log"} {
		var err error
		if files[i], err = os.ReadFile(name); err != nil {
			log.Fatal(err)
		}
	}
	key, err := verifier.ParseKey(files[0]) // whose key it is, is for the asker to know
	if err != nil {
		log.Fatal(err)
	}
	quote, err := verifier.OpenQuote(key, files[1], files[2])
	if err != nil {
		log.Fatal(err)
	}
	nonce := sha256.Sum256([]byte("a nonce of the asker"))
	fmt.Println("fresh:", string(quote.Nonce) == string(nonce[:]))

	boot, err := pcrs.ParseLog(files[3])
	if err != nil {
		log.Fatal(err)
	}
	values, err := boot.Replay(pcrs.SHA256)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("the log is that of the quoted boot:", quote.Check(map[pcrs.Bank]pcrs.Values{pcrs.SHA256: values}) == nil)
	fmt.Println("covered:", quote.Covered(pcrs.SHA256))

	values[4] = make(pcrs.Digest, sha256.Size)
	fmt.Println("with another PCR 4:", quote.Check(map[pcrs.Bank]pcrs.Values{pcrs.SHA256: values}))
	// Output:
	// fresh: true
	// the log is that of the quoted boot: true
	// covered: [PCR 0 PCR 1 PCR 2 PCR 3 PCR 4 PCR 5 PCR 6 PCR 7 PCR 8 PCR 9 PCR 11 PCR 12 PCR 13 PCR 14 PCR 15]
	// with another PCR 4: quote: the given values are not the quoted ones; read the registers and quote them at the same time
}
