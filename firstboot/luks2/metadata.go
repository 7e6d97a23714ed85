package luks2

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
)

// anySalt stands in the profile for 32 bytes of base64.
const anySalt = "32 bytes in base64"

// profile is the whole metadata document (§3) as flatten returns it.
var profile = map[string]string{
	"keyslots.0.type":            `"luks2"`,
	"keyslots.0.key_size":        strconv.Itoa(KeySize),
	"keyslots.0.af.type":         `"luks1"`,
	"keyslots.0.af.stripes":      "4000",
	"keyslots.0.af.hash":         strconv.Quote(Hash),
	"keyslots.0.area.type":       `"raw"`,
	"keyslots.0.area.offset":     quoted(KeyslotOffset),
	"keyslots.0.area.size":       quoted(KeyslotSize),
	"keyslots.0.area.encryption": strconv.Quote(Cipher + "-" + Mode),
	"keyslots.0.area.key_size":   "64",
	"keyslots.0.kdf.type":        `"pbkdf2"`,
	"keyslots.0.kdf.hash":        strconv.Quote(Hash),
	"keyslots.0.kdf.iterations":  strconv.Itoa(Iterations),
	"keyslots.0.kdf.salt":        anySalt,

	"tokens": "{}",

	"segments.0.type":                         `"crypt"`,
	"segments.0.offset":                       quoted(DataOffset),
	"segments.0.size":                         `"dynamic"`,
	"segments.0.iv_tweak":                     `"0"`,
	"segments.0.encryption":                   strconv.Quote(Cipher + "-" + Mode),
	"segments.0.sector_size":                  strconv.Itoa(SectorSize),
	"segments.0.integrity.type":               strconv.Quote(Integrity),
	"segments.0.integrity.journal_encryption": `"none"`,
	"segments.0.integrity.journal_integrity":  `"none"`,

	"digests.0.type":       `"pbkdf2"`,
	"digests.0.keyslots":   `["0"]`,
	"digests.0.segments":   `["0"]`,
	"digests.0.hash":       strconv.Quote(Hash),
	"digests.0.iterations": strconv.Itoa(Iterations),
	"digests.0.salt":       anySalt,
	"digests.0.digest":     anySalt,

	"config.json_size":     quoted(jsonSize),
	"config.keyslots_size": quoted(DataOffset - KeyslotOffset),
}

func quoted(n int) string { return strconv.Quote(strconv.Itoa(n)) }

// Limits of a metadata document beyond the size of its area.
const (
	maxDepth  = 6
	maxValues = 64
)

// flatten returns every value of a JSON document by its path: strings quoted,
// numbers as written, arrays of strings as JSON, empty objects as {}. A key
// that occurs twice is an error, because readers disagree which one counts.
func flatten(document []byte) (map[string]string, error) {
	d := json.NewDecoder(bytes.NewReader(document))
	d.UseNumber()
	f := flattener{decoder: d, values: map[string]string{}}
	if err := f.value("", 0); err != nil {
		return nil, err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("data after the end of the document")
	}
	return f.values, nil
}

type flattener struct {
	decoder *json.Decoder
	values  map[string]string
}

func (f *flattener) value(path string, depth int) error {
	token, err := f.decoder.Token()
	if err != nil {
		return err
	}
	switch v := token.(type) {
	case json.Delim:
		if v == '{' {
			return f.object(path, depth)
		}
		return f.array(path)
	case string:
		return f.set(path, strconv.Quote(v))
	case json.Number:
		return f.set(path, v.String())
	}
	return fmt.Errorf("%s: neither string, number, list nor object", path)
}

func (f *flattener) object(path string, depth int) error {
	if depth == maxDepth {
		return fmt.Errorf("%s: nested too deeply", path)
	}
	seen := map[string]bool{}
	for f.decoder.More() {
		token, err := f.decoder.Token()
		if err != nil {
			return err
		}
		key, ok := token.(string)
		if !ok || !plainKey(key) || seen[key] {
			return fmt.Errorf("%s: key %.40q is repeated or not plain", path, key)
		}
		seen[key] = true
		if err := f.value(join(path, key), depth+1); err != nil {
			return err
		}
	}
	if _, err := f.decoder.Token(); err != nil {
		return err
	}
	if len(seen) == 0 {
		return f.set(path, "{}")
	}
	return nil
}

func (f *flattener) array(path string) error {
	var items []byte
	for n := 0; f.decoder.More(); n++ {
		token, err := f.decoder.Token()
		if err != nil {
			return err
		}
		item, ok := token.(string)
		if !ok || n == maxDepth {
			return fmt.Errorf("%s: want a short list of strings", path)
		}
		items = append(strconv.AppendQuote(items, item), ',')
	}
	if _, err := f.decoder.Token(); err != nil {
		return err
	}
	return f.set(path, "["+string(bytes.TrimSuffix(items, []byte(",")))+"]")
}

func (f *flattener) set(path, value string) error {
	if len(f.values) == maxValues {
		return errors.New("too many values")
	}
	f.values[path] = value
	return nil
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

// plainKey keeps a key from being mistaken for a path.
func plainKey(key string) bool {
	for _, c := range key {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '_' {
			return false
		}
	}
	return key != ""
}
