package measurements

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/hullmark/hullmark"
)

// canonical encodes a value the one way that this package accepts.
func canonical[T any](v T) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(v); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// bytesPerValue is what a value takes at least, on the average of any document, policy or envelope. Lists of
// empty values would otherwise take a hundred bytes of memory for each of their own.
const bytesPerValue = 16

// strict decodes one JSON value of at most limit bytes without unknown fields or trailing data.
func strict[T any](encoded []byte, limit int, v *T) error {
	if len(encoded) > limit {
		return fmt.Errorf("%d bytes, want at most %d", len(encoded), limit)
	}
	if bytes.Count(encoded, []byte(",")) > len(encoded)/bytesPerValue+bytesPerValue {
		return errors.New("more values than its length can hold in canonical form")
	}
	return hullmark.DecodeStrict(encoded, limit, v)
}

// hasSchema refuses what names another schema than the one wanted, before it is decoded by its rules.
func hasSchema(encoded []byte, limit int, want string) error {
	var named struct {
		Schema string `json:"schema"`
	}
	if len(encoded) > limit || json.Unmarshal(encoded, &named) != nil || named.Schema == want {
		return nil // What is too long, or no JSON, is refused by strict, which says how.
	}
	return fmt.Errorf("schema %q, want %q: it is of another release of Hullmark; make it again with this one", named.Schema, want)
}

// isCanonical checks that encoded is the canonical form of v, so that a digest
// names one content only: no duplicate keys, no other spelling of a name.
func isCanonical[T any](encoded []byte, v T) error {
	again, err := canonical(v)
	if err != nil {
		return err
	}
	if !bytes.Equal(encoded, again) {
		return errors.New("not in canonical form; it was reformatted or changed by hand")
	}
	return nil
}
