package core

import (
	"errors"
	"strings"
	"testing"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/hullmark/hullmark"
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

// An identity is taken as one text alone, and zero is none.
func TestReportedEKID(t *testing.T) {
	machine := func(status any) *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{"status": status}}
	}
	text := strings.Repeat("a1", 32)
	got, err := ReportedEKID(machine(map[string]any{"ekID": text}))
	if err != nil || got.String() != text {
		t.Errorf("%s, %v", got, err)
	}
	for name, infra := range map[string]*unstructured.Unstructured{
		"no status": {}, "a status of text": machine("ready"), "no identity": machine(map[string]any{}), "empty": machine(map[string]any{"ekID": ""}),
		"a number": machine(map[string]any{"ekID": int64(7)}),
	} {
		if got, err := ReportedEKID(infra); !errors.Is(err, ErrNoEKID) || got != (hullmark.EKID{}) {
			t.Errorf("%s: %s, %v", name, got, err)
		}
	}
	for name, text := range map[string]string{
		"zero": strings.Repeat("0", 64), "short": "a1", "upper case": strings.Repeat("A1", 32), "not hexadecimal": strings.Repeat("zz", 32), "hostile": strings.Repeat("a\n", 1<<20),
	} {
		got, err := ReportedEKID(machine(map[string]any{"ekID": text}))
		if err == nil || errors.Is(err, ErrNoEKID) || got != (hullmark.EKID{}) || len(err.Error()) > 1000 {
			t.Errorf("%s: %s, %v", name, got, err)
		}
	}
}
