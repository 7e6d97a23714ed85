package pcrs

import (
	"strings"
	"testing"
)

// chain is a register's events, one for each letter.
func chain(letters string) []Event {
	var out []Event
	for _, letter := range letters {
		out = append(out, Event{Source: &Source{Kind: FromText, Name: string(letter)}, Digests: DigestsOf([]byte(string(letter)), SHA256)})
	}
	return out
}

// drawn is what Align returns: "a" for the same, "a/b" for another, "a/" and "/b" for one side.
func drawn(expected, measured string) string {
	var out []string
	for _, s := range Align(SHA256, chain(expected), chain(measured)) {
		var want, got string
		if s.Expected != nil {
			want = s.Expected.From().Name
		}
		if s.Measured != nil {
			got = s.Measured.From().Name
		}
		if s.Same(SHA256) {
			out = append(out, want)
		} else {
			out = append(out, want+"/"+got)
		}
	}
	return strings.Join(out, " ")
}

func TestAlign(t *testing.T) {
	for _, c := range [][3]string{
		{"", "", ""},
		{"abc", "abc", "a b c"},
		{"abc", "axc", "a b/x c"},
		{"abc", "xabc", "/x a b c"},
		{"abc", "ab", "a b c/"},
		{"abcd", "ad", "a b/ c/ d"},
		{"abcd", "axyzd", "a b/x c/y /z d"},
		{"aba", "ba", "a/ b a"},
		{"", "ab", "/a /b"},
		{"ab", "xyz", "a/x b/y /z"},
	} {
		if got := drawn(c[0], c[1]); got != c[2] {
			t.Errorf("%q beside %q: got %q, want %q", c[0], c[1], got, c[2])
		}
	}
}

// Events without a digest of the bank are equal to nothing.
func TestAlignWithoutDigests(t *testing.T) {
	for _, s := range Align(SHA384, chain("a"), chain("a")) {
		if s.Same(SHA384) {
			t.Error("two events without a digest are the same")
		}
	}
}
