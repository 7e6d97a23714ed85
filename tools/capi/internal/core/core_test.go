package core

import (
	"strings"
	"testing"
	"unicode/utf8"
)

func TestAtMost(t *testing.T) {
	for text, want := range map[string]string{"": "", "abc": "abc", "abcd": "abc…", "ab\xff": "ab?", "abé": "ab…"} {
		if got := AtMost(text, 3); got != want || !utf8.ValidString(got) {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
	if n := len(Note(strings.Repeat("é", 5000))); n > 1024 {
		t.Errorf("a note of %d bytes", n)
	}
}
