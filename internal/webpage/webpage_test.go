package webpage_test

import (
	"strings"
	"testing"

	"github.com/hullmark/hullmark/internal/webpage"
)

// TestCleanShowsWhatIsThere holds texts with what cannot be seen to the ones that are seen.
func TestCleanShowsWhatIsThere(t *testing.T) {
	for text, want := range map[string]string{
		"worker-1":                                    "worker-1",
		"Grüße, 日本 עברית":                             "Grüße, 日本 עברית",
		" a\tb\r\n\u2028c\u00a0d\u0085e ":             "a b c d e",
		"a\u202eb\u200bc\u00add\ufeffe\x1bf\x00":      "abcdef",
		"a\u3164b\u115fc\u1160d\uffa0e\u2800f":        "abcdef", // fillers of Hangul, and Braille without a dot
		"a\u034fb\u17b4c\ufe0fd\U000e0100e\U0001d159": "abcde",
		"a \u3164 b":                                  "a b",
		"\u3164\u2800":                                "",
		"a\xffb":                                      "a\ufffdb",
	} {
		if got := webpage.Clean(text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
		if got := webpage.Printable(want); got != want {
			t.Errorf("%q is printed as %q", want, got)
		}
	}
	if got := webpage.Printable("a\n\tb\r\u3164\u202e"); got != "a\n\tb" {
		t.Errorf("%q", got)
	}
	long := strings.Repeat("é", 240)
	if got := webpage.Clean(long); got != long {
		t.Error("240 characters were cut")
	}
	if got := webpage.Clean(long + "é"); got != long[:2*239]+"…" {
		t.Errorf("241 characters: %q", got)
	}
}
