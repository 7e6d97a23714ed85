// Package strictjson reads JSON that others wrote: one value of a bounded length, without fields that are not known, and nothing after it.
package strictjson

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// Decode reads the one value (RFC 8259) in encoded, of at most limit bytes, into what into points to. An error says what is wrong
// and where, as far as that is known; of what was read until then, into may hold a part.
func Decode(encoded []byte, limit int, into any) error {
	if len(encoded) > limit {
		return fmt.Errorf("%d bytes, want at most %d", len(encoded), limit)
	}
	d := json.NewDecoder(bytes.NewReader(encoded))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return explain(err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("data after the end of the value")
	}
	return nil
}

// explain says in other words what encoding/json names after itself.
func explain(err error) error {
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
