package measurements

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/hullmark/hullmark"
)

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
