package export

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"testing"

	"github.com/hullmark/hullmark/pcrs"
)

// readers read the registers back out of a form, by bank.
var readers = map[Format]func(*testing.T, []File) map[pcrs.Bank]pcrs.Values{
	JSON: readJSON, CoRIM: readCoRIM, Keylime: readKeylime, RVPS: readRVPS, Pcrlock: readPcrlock,
}

func decodeJSON[T any](t *testing.T, content []byte) T {
	t.Helper()
	var v T
	d := json.NewDecoder(strings.NewReader(string(content)))
	d.DisallowUnknownFields()
	if err := d.Decode(&v); err != nil {
		t.Fatalf("%v\n%s", err, content)
	}
	return v
}

func readJSON(t *testing.T, files []File) map[pcrs.Bank]pcrs.Values {
	out := decodeJSON[plainRegisters](t, files[0].Content)
	id, err := document(t).Digest()
	if err != nil {
		t.Fatal(err)
	}
	if out.Schema != RegistersSchema || out.Document != id || out.Image.ID != "node" || out.Image.Version != "20260101" {
		t.Errorf("the head is %+v", out)
	}
	return out.Banks
}

// readKeylime reads a policy as keylime.tpm.tpm_util.readPolicy does: every member is the number of a register.
func readKeylime(t *testing.T, files []File) map[pcrs.Bank]pcrs.Values {
	out := map[pcrs.Bank]pcrs.Values{}
	for key, values := range decodeJSON[map[string][]pcrs.Digest](t, files[0].Content) {
		number, err := strconv.ParseUint(key, 10, 8)
		if err != nil || number > 24 || number == 10 || number == 16 {
			t.Fatalf("Keylime refuses %q", key)
		}
		for _, value := range values {
			put(out, bankOfSize(t, len(value)), pcrs.Register(number), value)
		}
	}
	return out
}

func put(out map[pcrs.Bank]pcrs.Values, bank pcrs.Bank, r pcrs.Register, value pcrs.Digest) {
	if out[bank] == nil {
		out[bank] = pcrs.Values{}
	}
	out[bank][r] = value
}

func bankOfSize(t *testing.T, size int) pcrs.Bank {
	t.Helper()
	for _, bank := range pcrs.PredictedBanks() {
		if bank.Size() == size {
			return bank
		}
	}
	t.Fatalf("no bank has values of %d bytes", size)
	return 0
}

// readRVPS reads a message as Trustee's extractor of type "sample" does.
func readRVPS(t *testing.T, files []File) map[pcrs.Bank]pcrs.Values {
	message := decodeJSON[rvpsMessage](t, files[0].Content)
	if message.Version != "0.1.0" || message.Type != "sample" {
		t.Errorf("the message is of version %q, type %q", message.Version, message.Type)
	}
	payload, err := base64.StdEncoding.DecodeString(message.Payload)
	if err != nil {
		t.Fatal(err)
	}
	out := map[pcrs.Bank]pcrs.Values{}
	for name, values := range decodeJSON[map[string][]pcrs.Digest](t, payload) {
		var number int
		if _, err := fmt.Sscanf(name, "tpm_pcr%d", &number); err != nil || name != fmt.Sprintf("tpm_pcr%d", number) || len(values) != 1 {
			t.Fatalf("%s has %d values: %v", name, len(values), err)
		}
		put(out, bankOfSize(t, len(values[0])), pcrs.Register(number), values[0])
	}
	return out
}

// readPcrlock replays the components.
func readPcrlock(t *testing.T, files []File) map[pcrs.Bank]pcrs.Values {
	var log pcrs.Log
	covered := map[pcrs.Register]bool{}
	for _, f := range files {
		c := decodeJSON[pcrlockComponent](t, f.Content)
		for _, record := range c.Records {
			if name := fmt.Sprintf("500-hullmark-pcr%02d.pcrlock", record.Register); f.Name != name {
				t.Errorf("%s holds a record of PCR %d", f.Name, record.Register)
			}
			covered[pcrs.Register(record.Register)] = true
			event := pcrs.Event{Register: pcrs.Register(record.Register), Digests: pcrs.Digests{}}
			for _, digest := range record.Digests {
				event.Digests[digest.Bank] = digest.Digest
			}
			log.Events = append(log.Events, event)
		}
	}
	out := map[pcrs.Bank]pcrs.Values{}
	for _, bank := range pcrs.PredictedBanks() {
		values, err := log.Replay(bank)
		if err != nil {
			t.Fatal(err)
		}
		maps.DeleteFunc(values, func(r pcrs.Register, _ pcrs.Digest) bool { return !covered[r] })
		out[bank] = values
	}
	return out
}
