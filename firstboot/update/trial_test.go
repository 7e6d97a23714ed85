package update

import (
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hullmark/hullmark/image/slot"
)

func TestTry(t *testing.T) {
	r := releases(t)
	d, dev := open(t, installed(t, r[0]), slot.A)
	if _, err := d.Stage(t.Context(), r[1].Release, from(memory{raw: r[1].raw}), nil); err != nil {
		t.Fatal(err)
	}
	v := Variables(t.TempDir())
	content := func(name string) string {
		b, err := os.ReadFile(v.path(name))
		if err != nil {
			return err.Error()
		}
		return hex.EncodeToString(b)
	}
	for range 2 { // once more is the same
		if err := d.Try(slot.B, v); err != nil {
			t.Fatal(err)
		}
		if got := content("BootNext"); got != "07000000"+"4248" {
			t.Errorf("BootNext is %s", got)
		}
		if got := content("Boot4842"); got != "07000000"+hex.EncodeToString(slot.LoadOption(slot.B, d.slots[slot.B].ESP)) {
			t.Errorf("Boot4842 is %s", got)
		}
	}

	// What cannot be tried leaves the variables as they are.
	empty := Variables(t.TempDir())
	if err := d.Try(slot.A, empty); err == nil || !strings.Contains(err.Error(), "starts by itself") {
		t.Errorf("the slot that starts by itself: %v", err)
	}
	if _, err := dev.WriteAt(make([]byte, 512), d.slots[slot.B].ESP.Offset()); err != nil {
		t.Fatal(err)
	}
	if err := d.Try(slot.B, empty); err == nil || !strings.Contains(err.Error(), "no kernel image") {
		t.Errorf("a torn slot: %v", err)
	}
	if left, err := filepath.Glob(string(empty) + "/*"); err != nil || len(left) > 0 {
		t.Errorf("variables were written: %v, %v", left, err)
	}
}

// TestVariablesThatDoNotStay has firmware that fails, and some that says that it stored what it did not.
func TestVariablesThatDoNotStay(t *testing.T) {
	r := releases(t)
	d, _ := open(t, installed(t, r[0]), slot.A)
	if _, err := d.Stage(t.Context(), r[1].Release, from(memory{raw: r[1].raw}), nil); err != nil {
		t.Fatal(err)
	}
	if err := d.Try(slot.B, Variables(filepath.Join(t.TempDir(), "none"))); err == nil || !strings.Contains(err.Error(), "firmware variable Boot4842") {
		t.Errorf("no variables: %v", err)
	}
	forgets := Variables(t.TempDir())
	if err := os.Symlink(os.DevNull, forgets.path("Boot4842")); err != nil {
		t.Fatal(err)
	}
	if err := d.Try(slot.B, forgets); err == nil || !strings.Contains(err.Error(), "did not store it") {
		t.Errorf("a firmware that forgets: %v", err)
	}
	if _, err := os.Stat(forgets.path("BootNext")); err == nil {
		t.Error("BootNext names an entry that is not there")
	}
}
