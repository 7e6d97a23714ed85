package button

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"testing"
	"time"
)

// event is a generic netlink message as the kernel sends it: a 4-byte header, then
// one attribute with struct acpi_genl_event {class[20], bus[15], u32 type, u32 data}.
func event(class string) []byte {
	payload := make([]byte, 44)
	copy(payload, class)
	attribute := make([]byte, 4, 48)
	binary.NativeEndian.PutUint16(attribute, uint16(4+len(payload)))
	binary.NativeEndian.PutUint16(attribute[2:], eventAttr)
	return append([]byte{1, 1, 0, 0}, append(attribute, payload...)...)
}

func TestIsPress(t *testing.T) {
	if !isPress(event("button/power")) {
		t.Error("a press of the power button was not recognised")
	}
	for _, class := range []string{"button/sleep", "button/powerful", "", "processor"} {
		if isPress(event(class)) {
			t.Errorf("%q was taken for the power button", class)
		}
	}
}

func FuzzIsPress(f *testing.F) {
	f.Add(event("button/power"))
	f.Add(event("button/sleep"))
	f.Fuzz(func(t *testing.T, message []byte) {
		if isPress(message) && !bytes.Contains(message, []byte(powerClass+"\x00")) {
			t.Error("a press of no power button was taken for one")
		}
	})
}

func TestWaitEnds(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	err := Wait(ctx)
	if _, missing := groupID(); missing != nil {
		if err == nil {
			t.Fatal("no ACPI events, and yet a press")
		}
		return
	}
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("got %v, want the deadline", err)
	}
}
