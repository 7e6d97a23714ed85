package measurements_test

import (
	"crypto/ed25519"
	"crypto/sha256"
	"fmt"
	"log"

	"github.com/hullmark/hullmark/measurements"
	"github.com/hullmark/hullmark/pcrs"
)

// A machine's registers, judged by a policy that accepts one document.
func ExampleJudge() {
	signed, public := publishedDocument()

	document, err := measurements.Open(signed, public) // nothing is decoded before its signature was checked
	if err != nil {
		log.Fatal(err)
	}
	id, err := document.Digest()
	if err != nil {
		log.Fatal(err)
	}
	policy := measurements.Policy{MinimumSVN: 3, Documents: []measurements.Accepted{{Document: id}}}

	measured := document.Values(pcrs.SHA256) // a verifier takes the values that a quote proves
	verdict := measurements.Judge(policy, []measurements.Document{document}, pcrs.SHA256, measured)
	fmt.Println("accepted:", verdict.Accepted(), verdict.Matched)

	measured[9] = make(pcrs.Digest, sha256.Size)
	verdict = measurements.Judge(policy, []measurements.Document{document}, pcrs.SHA256, measured)
	fmt.Println("accepted:", verdict.Accepted())
	for _, reason := range verdict.Reasons {
		fmt.Println(reason.Text)
	}
	// Output:
	// accepted: true [PCR 4 PCR 7 PCR 9 PCR 11 PCR 12 PCR 13]
	// accepted: false
	// PCR 9: want f1a82279816de0149ce22c8d87e184c613d15f7896fde62a0f38a8807a8763a7, got 0000000000000000000000000000000000000000000000000000000000000000
}

// publishedDocument stands for a file that was fetched, and for the publisher's key.
func publishedDocument() (signed []byte, public ed25519.PublicKey) {
	event := func(r pcrs.Register, what string) pcrs.Event {
		return pcrs.Event{
			Register: r, Type: pcrs.EvEFIAction, Digests: pcrs.DigestsOf([]byte(what), pcrs.PredictedBanks()...),
			Source: &pcrs.Source{Kind: pcrs.FromAction, Name: what}, Origin: pcrs.Derived,
		}
	}
	prediction := pcrs.Prediction{ // pcrs.Predict makes one of an image and a machine
		Log:       pcrs.Log{Events: []pcrs.Event{event(4, "kernel image"), event(7, "keys"), event(9, "command line"), event(11, "sections")}},
		Registers: []pcrs.Register{4, 7, 9, 11, 12, 13},
	}
	digest := make(pcrs.Digest, sha256.Size)
	image := measurements.Image{ID: "node", Version: "1", Disk: digest, RootHash: digest, UKI: digest, Stub: "257.1"}
	document, err := measurements.New(image, measurements.Release{SVN: 3}, pcrs.Machine{}, prediction)
	if err != nil {
		log.Fatal(err)
	}
	key := ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize))
	if signed, err = measurements.Sign(key, document); err != nil {
		log.Fatal(err)
	}
	return signed, key.Public().(ed25519.PublicKey)
}
