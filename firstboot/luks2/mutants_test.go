package luks2_test

import (
	"flag"
	"math/rand/v2"
	"os"
	"testing"

	"github.com/hullmark/hullmark/firstboot/luks2"
	"github.com/hullmark/hullmark/internal/lukstest"
)

// good returns both copies of a header that libcryptsetup wrote on a node.
func good(t testing.TB) []byte {
	t.Helper()
	headers, err := os.ReadFile("testdata/header.bin")
	if err != nil {
		t.Fatal(err)
	}
	if err := decode(headers); err != nil {
		t.Fatal(err)
	}
	return headers
}

// area is behind every header the same.
var area = make([]byte, luks2.AreaSize)

func decode(headers []byte) error {
	copy(area, headers)
	_, err := luks2.Decode(area)
	return err
}

// Every field of the header, with every hostile value and checksums that fit, is refused without any help from the authentication code,
// unless what was written means the same.
func TestMutantsOfEveryField(t *testing.T) {
	headers := good(t)
	refused, same := map[string]int{}, map[string]int{}
	mutants := 0
	for m := range lukstest.Fields(headers) {
		mutants++
		if decode(m.Header) != nil {
			refused[m.Field]++
			continue
		}
		same[m.Field]++
		if err := lukstest.Equivalent(m.Header, headers); err != nil {
			t.Errorf("%s, %.80s: accepted, but %v", m.Field, m.Value, err)
		}
	}
	for field := range same {
		// Of these, whatever the two copies agree on, or whatever has its length, is good.
		t.Logf("%s: %d accepted, as good as what was there", field, same[field])
	}
	for field, n := range refused {
		if n < 5 {
			t.Errorf("%s: only %d hostile values", field, n)
		}
	}
	t.Logf("%d mutants of %d fields", mutants, len(refused))
}

// randomMutants is small for every day; make fuzz makes a million.
var randomMutants = flag.Int("mutants", 20_000, "how many headers TestRandomMutants changes at random")

func TestRandomMutants(t *testing.T) {
	headers := good(t)
	const seed = 1
	r := rand.New(rand.NewPCG(seed, seed))
	accepted := 0
	for i := range *randomMutants {
		mutant := lukstest.Random(r, headers)
		if decode(mutant) != nil {
			continue
		}
		accepted++
		if err := lukstest.Equivalent(mutant, headers); err != nil {
			t.Fatalf("seed %d, mutant %d: accepted, but %v", seed, i, err)
		}
	}
	if accepted == 0 || accepted > *randomMutants/2 {
		t.Errorf("%d of %d mutants were accepted: the changes are not what they should be", accepted, *randomMutants)
	}
	t.Logf("%d mutants, %d of them equal to the profile", *randomMutants, accepted)
}
