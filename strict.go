package hullmark

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// DecodeStrict reads JSON that others wrote (RFC 8259): the one value in encoded, of at most limit bytes, without fields that are not
// known and with nothing after it, into what into points to. An error says what is wrong and where, as far as that is known; of
// what was read until then, into may hold a part.
func DecodeStrict(encoded []byte, limit int, into any) error {
	if len(encoded) > limit {
		return fmt.Errorf("%d bytes, want at most %d", len(encoded), limit)
	}
	d := json.NewDecoder(bytes.NewReader(encoded))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return explainJSON(err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("data after the end of the value")
	}
	return nil
}

// CanonicalJSON encodes a value in the one form that documents and policies have: two spaces for each level, no escapes for HTML, and a
// line feed at the end.
func CanonicalJSON(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(v); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// CheckCanonicalJSON checks that encoded is CanonicalJSON of v, so that a digest names one content only: no duplicate keys, no other
// spelling of a name.
func CheckCanonicalJSON(encoded []byte, v any) error {
	again, err := CanonicalJSON(v)
	if err != nil {
		return err
	}
	if !bytes.Equal(encoded, again) {
		return errors.New("not in canonical form; it was reformatted or changed by hand")
	}
	return nil
}

// explainJSON says in other words what encoding/json names after itself.
func explainJSON(err error) error {
	var wrong *json.UnmarshalTypeError
	switch {
	case errors.Is(err, io.EOF):
		return errors.New("it is empty")
	case errors.Is(err, io.ErrUnexpectedEOF):
		return errors.New("it was cut off: it ends in the middle of a value")
	case errors.As(err, &wrong):
		return fmt.Errorf("%s at byte %d where another type is wanted, in field %q", wrong.Value, wrong.Offset, wrong.Field)
	}
	return err
}
