package export

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/fxamacker/cbor/v2"

	"github.com/hullmark/hullmark/measurements"
	"github.com/hullmark/hullmark/pcrs"
)

// recorded is the log of a boot that was observed, with its registers beside it.
const recorded = "../../pcrs/testdata/ovmf-2025.02"

func readLog(t testing.TB) pcrs.Log {
	t.Helper()
	raw, err := os.ReadFile(recorded + ".log")
	if err != nil {
		t.Fatal(err)
	}
	log, err := pcrs.ParseLog(raw)
	if err != nil {
		t.Fatal(err)
	}
	return log
}

// recordedRegisters reads the registers that the machine had after the boot.
func recordedRegisters(t testing.TB) map[pcrs.Bank]pcrs.Values {
	t.Helper()
	text, err := os.ReadFile(recorded + ".pcrs")
	if err != nil {
		t.Fatal(err)
	}
	out := map[pcrs.Bank]pcrs.Values{pcrs.SHA1: {}, pcrs.SHA256: {}, pcrs.SHA384: {}, pcrs.SHA512: {}}
	for line := range strings.Lines(string(text)) {
		words := strings.Fields(line)
		bank, err := pcrs.ParseBank(words[0])
		if err != nil {
			t.Fatal(err)
		}
		number, err := strconv.Atoi(words[1])
		if err != nil {
			t.Fatal(err)
		}
		var digest pcrs.Digest
		if err := digest.UnmarshalText([]byte(words[2])); err != nil {
			t.Fatal(err)
		}
		out[bank][pcrs.Register(number)] = digest
	}
	return out
}

// document describes the recorded boot: every register but PCR 8, which a document of a release leaves out, and PCR 10, which is not in the
// firmware's log.
func document(t testing.TB) measurements.Document {
	t.Helper()
	return describe(t, readLog(t), 0, 1, 2, 3, 4, 5, 6, 7, 9, 11, 12, 13, 14, 15)
}

func describe(t testing.TB, log pcrs.Log, registers ...pcrs.Register) measurements.Document {
	t.Helper()
	p := pcrs.Prediction{Registers: registers, Unpredicted: []pcrs.Unpredicted{{Register: 8, Reason: "differs per node"}}}
	for _, r := range registers {
		for _, e := range log.Of(r) {
			digests := maps.Clone(e.Digests)
			maps.DeleteFunc(digests, func(b pcrs.Bank, _ pcrs.Digest) bool { return !slices.Contains(pcrs.PredictedBanks(), b) })
			p.Log.Events = append(p.Log.Events, pcrs.Event{Register: r, Type: e.Type, Digests: digests, Origin: pcrs.Learned})
		}
	}
	digest := slices.Repeat([]byte{7}, 32)
	image := measurements.Image{ID: "node", Version: "20260101", Disk: digest, RootHash: digest, UKI: digest, Stub: "257.1"}
	d, err := measurements.New(image, measurements.Release{SVN: 3, Lock: digest}, pcrs.Machine{}, p)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func export(t testing.TB, d measurements.Document, f Format, chosen ...pcrs.Register) []File {
	t.Helper()
	files, err := Export(d, f, chosen...)
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// exportOne returns the content of an export that is one file.
func exportOne(t testing.TB, d measurements.Document, f Format, chosen ...pcrs.Register) []byte {
	t.Helper()
	files := export(t, d, f, chosen...)
	if len(files) != 1 {
		t.Fatalf("%s: %d files, want one", f, len(files))
	}
	return files[0].Content
}

// TestExport reads every form back and compares it with the registers of the machine that booted.
func TestExport(t *testing.T) {
	want := recordedRegisters(t)
	for _, format := range Formats() {
		for name, chosen := range map[string][]pcrs.Register{"all": nil, "some": {4, 11, 9}} {
			t.Run(string(format)+"/"+name, func(t *testing.T) {
				d := document(t)
				read := readers[format](t, export(t, d, format, chosen...))
				wanted := chosen
				if chosen == nil {
					wanted = slices.Collect(maps.Keys(d.Values(pcrs.SHA256)))
				}
				banks := pcrs.PredictedBanks()
				if format == RVPS {
					banks = []pcrs.Bank{pcrs.SHA256}
				}
				if len(read) != len(banks) {
					t.Fatalf("%d banks, want %v", len(read), banks)
				}
				for _, bank := range banks {
					if format == Pcrlock {
						addZeros(read[bank], bank, d)
					}
					compare(t, bank, read[bank], want[bank], wanted)
				}
			})
		}
	}
}

// addZeros adds the registers that have no component because nothing is measured into them, if the others are there too.
func addZeros(values pcrs.Values, bank pcrs.Bank, d measurements.Document) {
	for _, r := range d.Registers {
		if len(r.Events) == 0 && values[0] != nil {
			values[r.Register] = make(pcrs.Digest, bank.Size())
		}
	}
}

// compare wants exactly the wanted registers, with their values.
func compare(t *testing.T, bank pcrs.Bank, got, want pcrs.Values, wanted []pcrs.Register) {
	t.Helper()
	for _, r := range wanted {
		if !got[r].Equal(want[r]) {
			t.Errorf("%v of %v: exported %v, the machine had %v", r, bank, got[r], want[r])
		}
	}
	for r := range got {
		if !slices.Contains(wanted, r) {
			t.Errorf("%v of %v is exported and was not asked for", r, bank)
		}
	}
}

// goldens are the forms of PCR 3, whose one event is the separator of four zero bytes. ID stands for the document's digest.
var goldens = map[Format]string{
	JSON: `{
  "schema": "hullmark.registers/v2",
  "document": "ID",
  "image": {
    "id": "node",
    "version": "20260101"
  },
  "banks": {
    "sha256": {
      "pcr3": "3d458cfe55cc03ea1f443f1562beec8df51c75e14a9fcf9a7234a13f198e7969"
    },
    "sha384": {
      "pcr3": "518923b0f955d08da077c96aaba522b9decede61c599cea6c41889cfbea4ae4d50529d96fe4d1afdafb65e7f95bf23c4"
    },
    "sha512": {
      "pcr3": "27ec091533c4b9eea38dd14c3a3ecdef0a99c1e564cbe66dfe008250154e7839b0b75228fe8debcc4ca330e6aebc1abc74070bc9c9c1e26b939c9d916e45e13c"
    }
  }
}
`,
	Keylime: `{
  "3": [
    "3d458cfe55cc03ea1f443f1562beec8df51c75e14a9fcf9a7234a13f198e7969",
    "518923b0f955d08da077c96aaba522b9decede61c599cea6c41889cfbea4ae4d50529d96fe4d1afdafb65e7f95bf23c4",
    "27ec091533c4b9eea38dd14c3a3ecdef0a99c1e564cbe66dfe008250154e7839b0b75228fe8debcc4ca330e6aebc1abc74070bc9c9c1e26b939c9d916e45e13c"
  ]
}
`,
	RVPS: `{
  "version": "0.1.0",
  "type": "sample",
  "payload": "` + base64.StdEncoding.EncodeToString([]byte(`{"tpm_pcr3":["3d458cfe55cc03ea1f443f1562beec8df51c75e14a9fcf9a7234a13f198e7969"]}`)) + `"
}
`,
	Pcrlock: `{
  "records": [
    {
      "pcr": 3,
      "digests": [
        {
          "hashAlg": "sha256",
          "digest": "df3f619804a92fdb4057192dc43dd748ea778adc52bc498ce80524c014b81119"
        },
        {
          "hashAlg": "sha384",
          "digest": "394341b7182cd227c5c6b07ef8000cdfd86136c4292b8e576573ad7ed9ae41019f5818b4b971c9effc60e1ad9f1289f0"
        },
        {
          "hashAlg": "sha512",
          "digest": "ec2d57691d9b2d40182ac565032054b7d784ba96b18bcb5be0bb4e70e3fb041eff582c8af66ee50256539f2181d7f9e53627c0189da7e75a4d5ef10ea93b20b3"
        }
      ]
    }
  ]
}
`,
	CoRIM: "d901f5" + "a2" + // 501({
		"00" + "7842" + "ID" + // 0: "ID-3",
		"01" + "81" + "d901fa" + "59010e" + // 1: [506(<<{
		"a2" + "01" + "a100" + "7842" + "ID" + // 1: {0: "ID-3"},
		"04" + "a100" + "81" + "82" + // 4: {0: [[
		"a100" + "a2" + "00" + "d825" + "50" + "046a599c98685b0e9504a1c0bac02f6d" + "02" + "646e6f6465" + // {0: {0: 37(UUID), 2: "node"}},
		"81" + "a2" + "0003" + "01" + "a102" + "83" + // [{0: 3, 1: {2: [
		"82" + "01" + "5820" + "3d458cfe55cc03ea1f443f1562beec8df51c75e14a9fcf9a7234a13f198e7969" + // [1, sha256],
		"82" + "07" + "5830" + "518923b0f955d08da077c96aaba522b9decede61c599cea6c41889cfbea4ae4d50529d96fe4d1afdafb65e7f95bf23c4" + // [7, sha384],
		"82" + "08" + "5840" + "27ec091533c4b9eea38dd14c3a3ecdef0a99c1e564cbe66dfe008250154e7839b0b75228fe8debcc4ca330e6aebc1abc74070bc9c9c1e26b939c9d916e45e13c", // [8, sha512]]}}]]]}}>>)]})
}

func TestExportGoldens(t *testing.T) {
	d := document(t)
	id, err := d.Digest()
	if err != nil {
		t.Fatal(err)
	}
	for _, format := range Formats() {
		got := string(exportOne(t, d, format, 3))
		want := strings.ReplaceAll(goldens[format], "ID", id.String())
		if format == CoRIM {
			got = hex.EncodeToString([]byte(got))
			want = strings.ReplaceAll(goldens[format], "ID", hex.EncodeToString([]byte(id.String()+"-3")))
		}
		if got != want {
			t.Errorf("%s:\n%s\nwant\n%s", format, got, want)
		}
	}
}

func TestExportIsDeterministic(t *testing.T) {
	d := document(t)
	for _, format := range Formats() {
		first, second := export(t, d, format), export(t, d, format)
		for i := range first {
			if string(first[i].Content) != string(second[i].Content) || first[i].Name != second[i].Name {
				t.Errorf("%s: file %d differs the second time", format, i+1)
			}
		}
	}
}

func TestExportRefuses(t *testing.T) {
	d := document(t)
	withIMA := describe(t, readLog(t), 4, 10)
	none := describe(t, readLog(t))
	changed := document(t)
	changed.Image.ID = ""
	for name, c := range map[string]struct {
		document  measurements.Document
		format    Format
		chosen    []pcrs.Register
		registers bool // other registers would do
		want      string
	}{
		"an unknown form":               {d, "tpm", nil, false, "json, corim, keylime, rvps, pcrlock"},
		"a register of the node":        {d, JSON, []pcrs.Register{4, 8}, true, "PCR 8: the document does not predict it (differs per node)"},
		"a register nobody speaks of":   {d, CoRIM, []pcrs.Register{10}, true, "PCR 10: the document does not predict it;"},
		"no register of a TPM":          {d, RVPS, []pcrs.Register{-1}, true, "does not predict it"},
		"PCR 10 in a policy of Keylime": {withIMA, Keylime, nil, true, "PCR 10: Keylime judges it by the list of IMA's measurements"},
		"components without events":     {d, Pcrlock, []pcrs.Register{12, 15}, true, "none of the registers has an event"},
		"a document without registers":  {none, JSON, nil, false, "predicts no register"},
		"a document that is none":       {changed, JSON, nil, false, "image"},
	} {
		t.Run(name, func(t *testing.T) {
			files, err := Export(c.document, c.format, c.chosen...)
			if err == nil || !strings.Contains(err.Error(), c.want) || errors.Is(err, ErrRegisters) != c.registers {
				t.Errorf("got %v, want %q", err, c.want)
			}
			if files != nil {
				t.Errorf("%d files came with the error", len(files))
			}
		})
	}
	if _, err := ParseFormat("CoRIM"); err == nil {
		t.Error("ParseFormat takes a name in other letters")
	}
}

// TestExportOfConfidentialHardware: what hardware measures is named in the forms that have words for it.
func TestExportOfConfidentialHardware(t *testing.T) {
	d := document(t)
	p := d.Prediction()
	for _, r := range []pcrs.Register{pcrs.RTMR(1), pcrs.MRTD, pcrs.LaunchDigest} {
		source := pcrs.Source{Kind: pcrs.FromLaunch, Name: "the firmware"}
		p.Log.Events = append(p.Log.Events, pcrs.Event{Register: r, Type: pcrs.EvLaunch, Digests: pcrs.DigestsOf([]byte(r.String()), pcrs.SHA384), Source: &source, Origin: pcrs.Derived})
		p.Registers = append(p.Registers, r)
	}
	d, err := measurements.New(d.Image, measurements.Release{SVN: 1}, pcrs.Machine{}, p)
	if err != nil {
		t.Fatal(err)
	}
	want := d.Values(pcrs.SHA384)
	found := map[string]string{}
	content := exportOne(t, d, CoRIM)
	openCoRIM(t, content) // veraison/corim reads it, but passes names over.
	var tagged cbor.RawTag
	var outer outerCoRIM
	var inner comidMap
	if err := errors.Join(cbor.Unmarshal(content, &tagged), cbor.Unmarshal(tagged.Content, &outer)); err != nil {
		t.Fatal(err)
	}
	if err := cbor.Unmarshal(outer.Tags[0].Content.([]byte), &inner); err != nil {
		t.Fatal(err)
	}
	for _, c := range inner.Triples.References[0].Claims {
		if c.Register == nil && len(c.Values.Digests) == 1 {
			found["corim "+c.Values.Name] = hex.EncodeToString(c.Values.Digests[0].Value)
		}
	}
	var message struct{ Payload []byte }
	var values map[string][]string
	if err := errors.Join(json.Unmarshal(exportOne(t, d, RVPS), &message), json.Unmarshal(message.Payload, &values)); err != nil {
		t.Fatal(err)
	}
	for name, v := range values {
		found["rvps "+name] = v[0]
	}
	for name, r := range map[string]pcrs.Register{
		"corim rtmr1": pcrs.RTMR(1), "corim mrtd": pcrs.MRTD, "corim launch-digest": pcrs.LaunchDigest,
		"rvps rtmr_1": pcrs.RTMR(1), "rvps mr_td": pcrs.MRTD, "rvps snp_launch_measurement": pcrs.LaunchDigest,
	} {
		if found[name] != want[r].String() {
			t.Errorf("%s: %q, want %v", name, found[name], want[r])
		}
	}
	if _, err := Export(d, Keylime, pcrs.MRTD); err == nil {
		t.Error("a form for TPMs has MRTD")
	}
}
