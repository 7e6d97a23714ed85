package main

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
)

// countScript is the script of the page by which a stranger counts builders.
var countScript = regexp.MustCompile(`(?s)cat > out/count\.sh <<'END'\n(.*?\n)END\n`)

// counting is a folder with that script, keys of builders, and what each signed.
type counting struct {
	dir  string
	path func(name string) string
}

func newCounting(t *testing.T) counting {
	t.Helper()
	document, _, _ := explainFixture(t)
	path := builderKeys(t)
	script := countScript.FindSubmatch(mustRead(t, "../../docs/verify.md"))
	if script == nil {
		t.Fatal("the page has no script that counts")
	}
	write(t, path("count.sh"), script[1])
	for name, algorithm := range map[string][]string{
		"nist": {"EC", "-pkeyopt", "ec_paramgen_curve:P-256"}, "p384": {"EC", "-pkeyopt", "ec_paramgen_curve:P-384"}, "x25519": {"X25519"},
	} {
		openssl(t, append([]string{"genpkey", "-out", path(name + ".key"), "-algorithm"}, algorithm...)...)
		openssl(t, "pkey", "-in", path(name+".key"), "-pubout", "-out", path(name+".pub"))
	}
	openssl(t, "pkey", "-in", path("nist.key"), "-pubout", "-ec_conv_form", "compressed", "-out", path("short.pub"))
	for _, name := range []string{"alice", "bob", "nist"} {
		code, output := hullmarkCLI(t, "sign", document, "--key", path(name+".key"), "--out", path(name+".dsse"))
		wantExit(t, code, 0, output)
	}
	return counting{path(""), path}
}

// run counts, and wants nothing to be left of it in the folder of temporary files.
func (c counting) run(t *testing.T, args ...string) (code int, output string) {
	t.Helper()
	temporary := t.TempDir()
	cmd := exec.CommandContext(t.Context(), "sh", append([]string{"count.sh"}, args...)...)
	cmd.Dir, cmd.Env = c.dir, append(os.Environ(), "TMPDIR="+temporary)
	out, err := cmd.CombinedOutput()
	if err != nil && cmd.ProcessState == nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(temporary); err != nil || len(left) > 0 {
		t.Errorf("%q leaves %v: %v", args, left, err)
	}
	return cmd.ProcessState.ExitCode(), string(out)
}

// envelope writes alice's envelope with another text in the place of one.
func (c counting) envelope(t *testing.T, name, old, new string) {
	t.Helper()
	was := mustRead(t, c.path("alice.dsse"))
	is := bytes.Replace(was, []byte(old), []byte(new), 1)
	if bytes.Equal(was, is) {
		t.Fatalf("alice's envelope has no %q", old)
	}
	write(t, c.path(name), is)
}

// TestPageCountsBuilders runs the page's script. Whatever it refuses stands beside what would be enough without it.
func TestPageCountsBuilders(t *testing.T) {
	c := newCounting(t)
	write(t, c.path("-alice.dsse"), mustRead(t, c.path("alice.dsse")))
	write(t, c.path("-alice key.pub"), mustRead(t, c.path("alice.pub")))
	write(t, c.path("again.pub"), mustRead(t, c.path("alice.pub")))
	write(t, c.path("joined.dsse"), append(mustRead(t, c.path("alice.dsse")), mustRead(t, c.path("bob.dsse"))...))
	write(t, c.path("none.dsse"), []byte(`{"payloadType":"application/vnd.in-toto+json","payload":"e30=","signatures":[]}`))
	c.envelope(t, "odd.dsse", `"signatures": [`, `"signatures": [{"sig": "!!!"}, {"sig": null}, {"sig": "\n\n"}, {"sig": ""},`)
	c.envelope(t, "other.dsse", `"payload": "`, `"payload": "ICAg`)
	c.envelope(t, "base64.dsse", `"payload": "`, `"payload": "!`)
	c.envelope(t, "type.dsse", "in-toto+json", "other+json")
	for name, test := range map[string]struct {
		args string
		code int
		says string
	}{
		"one of one":                {"1 alice.dsse -- alice.pub", 0, "1 of 1 keys signed it, 1 have to"},
		"two of three":              {"2 alice.dsse bob.dsse -- alice.pub bob.pub carol.pub", 0, "2 of 3 keys signed it, 2 have to"},
		"of two kinds":              {"2 alice.dsse nist.dsse -- alice.pub nist.pub", 0, "nist.pub signed it"},
		"in the other spelling":     {"1 nist.dsse -- short.pub", 0, "short.pub signed it"},
		"beside odd signatures":     {"2 odd.dsse bob.dsse -- alice.pub bob.pub", 0, "2 of 2 keys"},
		"names that begin with -":   {"1 -alice.dsse -- ./-alice%key.pub", 0, "1 of 1 keys"},
		"a key's name, likewise":    {"1 -alice.dsse -- -alice%key.pub", 0, "-alice key.pub signed it"},
		"one of two":                {"2 alice.dsse -- alice.pub bob.pub", 1, "1 of 2 keys signed it, 2 have to"},
		"one who signed twice":      {"2 alice.dsse alice.dsse -- alice.pub bob.pub", 1, "1 of 2 keys signed it, 2 have to"},
		"another's":                 {"1 alice.dsse -- bob.pub", 1, "0 of 1 keys signed it, 1 have to"},
		"one key, twice":            {"1 alice.dsse -- alice.pub again.pub", 1, "again.pub: one key, twice"},
		"one key, in two spellings": {"1 nist.dsse -- nist.pub short.pub", 1, "short.pub: one key, twice"},
		"another curve":             {"1 alice.dsse -- alice.pub p384.pub", 1, "p384.pub: neither Ed25519 nor P-256"},
		"a key for other uses":      {"1 alice.dsse -- alice.pub x25519.pub", 1, "x25519.pub: neither Ed25519 nor P-256"},
		"a private key":             {"1 alice.dsse -- alice.pub bob.key", 1, "bob.key: no public key"},
		"no such key":               {"1 alice.dsse -- alice.pub none.pub", 1, "none.pub: no public key"},
		"another statement":         {"1 alice.dsse other.dsse -- alice.pub", 1, "other.dsse: another statement than the first one's"},
		"no base64":                 {"1 base64.dsse -- alice.pub", 1, "base64.dsse: its payload is not in base64"},
		"another type":              {"1 alice.dsse type.dsse -- alice.pub", 1, "type.dsse: no envelope"},
		"two envelopes in a file":   {"1 joined.dsse -- alice.pub", 1, "joined.dsse: no envelope"},
		"no envelope":               {"1 alice.dsse alice.pub -- alice.pub", 1, "alice.pub: no envelope"},
		"no such envelope":          {"1 alice.dsse none -- alice.pub", 1, "none: no envelope"},
		"no statement":              {"1 none.dsse -- alice.pub", 1, "no statement"},
		"none have to":              {"0 alice.dsse -- alice.pub", 1, "want a threshold of 1 or more, not '0'"},
		"less than none":            {"-1 alice.dsse -- alice.pub", 1, "want a threshold of 1 or more"},
		"no number":                 {"one alice.dsse -- alice.pub", 1, "want a threshold of 1 or more"},
		"nothing":                   {"", 1, "want a threshold of 1 or more"},
		"no envelopes":              {"1 -- alice.pub", 1, "want envelopes, -- and keys"},
		"no keys":                   {"1 alice.dsse --", 1, "want envelopes, -- and keys"},
		"no --":                     {"1 alice.dsse", 1, "want envelopes, -- and keys"},
	} {
		args := strings.Fields(test.args)
		for i := range args {
			args[i] = strings.ReplaceAll(args[i], "%", " ")
		}
		code, output := c.run(t, args...)
		if code != test.code || !strings.Contains(output, test.says) {
			t.Errorf("%s: exit code %d, want %d and %q:\n%s", name, code, test.code, test.says, output)
		}
	}
}

// TestPageSaysWhatWasSigned has the page's script name the subject and the type of what it counts for, fit for a terminal.
func TestPageSaysWhatWasSigned(t *testing.T) {
	c := newCounting(t)
	_, output := c.run(t, "1", "alice.dsse", "--", "alice.pub")
	var said struct {
		PredicateType string
		Subject       []struct {
			Name   string
			Digest map[string]string
		}
	}
	line, _, _ := strings.Cut(output, "\n")
	if err := json.Unmarshal([]byte(line), &said); err != nil || !strings.Contains(said.PredicateType, "measurement") || len(said.Subject) != 2 ||
		said.Subject[0].Name == "" || len(said.Subject[0].Digest["sha256"]) != 64 {
		t.Errorf("it says %q: %v", line, err)
	}
	statement := []byte(`{"subject":[{"name":"\u001b[2J\u202e","digest":{"sha256":"00"}}],"predicateType":"x"}`)
	envelope, err := json.Marshal(map[string]any{"payloadType": "application/vnd.in-toto+json", "payload": statement, "signatures": []any{}})
	if err != nil {
		t.Fatal(err)
	}
	write(t, c.path("hostile.dsse"), envelope)
	if _, output := c.run(t, "1", "hostile.dsse", "--", "alice.pub"); strings.ContainsAny(output, "\x1b\u202e") || !strings.Contains(output, `"x"`) {
		t.Errorf("it says %q", output)
	}
}

// TestPageRefusesDegenerateKeys has the page's script refuse each Ed25519 key by which anybody can sign, and each that RFC 8032 §5.1.3
// does not decode. A key whose bytes are near those of one is counted as a key that signed nothing.
func TestPageRefusesDegenerateKeys(t *testing.T) {
	c := newCounting(t)
	count := func(y string, sign byte) (code int, output string) {
		t.Helper()
		key, err := hex.DecodeString("302a300506032b6570032100" + y)
		if err != nil || len(key) != 44 {
			t.Fatalf("%s: %v", y, err)
		}
		key[43] |= sign
		write(t, c.path("odd.pub"), pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: key}))
		return c.run(t, "1", "alice.dsse", "--", "alice.pub", "odd.pub")
	}
	zeros, ones := strings.Repeat("00", 30), strings.Repeat("ff", 30)
	for name, y := range map[string]string{
		"0": "00" + zeros + "00", "1": "01" + zeros + "00", "p - 1": "ec" + ones + "7f", "p": "ed" + ones + "7f", "p + 1": "ee" + ones + "7f",
		"p + 2": "ef" + ones + "7f", "p + 3": "f0" + ones + "7f", "2^255 - 1": "ff" + ones + "7f",
		"of order 8":           "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
		"of order 8, likewise": "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
	} {
		for _, sign := range []byte{0, 0x80} {
			if code, output := count(y, sign); code == 0 || !strings.Contains(output, "odd.pub: a key by which anybody can sign") {
				t.Errorf("y = %s, sign bit %#x: exit code %d\n%s", name, sign, code, output)
			}
		}
	}
	for name, y := range map[string]string{
		"2": "02" + zeros + "00", "p - 2": "eb" + ones + "7f", "256": "0001" + zeros, "less than p by 2^247": "ed" + ones[2:] + "fe7f", "half of 2^255": "00" + zeros + "40",
	} {
		if code, output := count(y, 0); code != 0 || !strings.Contains(output, "1 of 2 keys signed it") {
			t.Errorf("y = %s: exit code %d\n%s", name, code, output)
		}
	}
}
