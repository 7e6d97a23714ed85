package pcrs

import (
	"slices"
	"strings"
	"testing"
)

// TestSentences: each kind of source has a sentence of its own, in one line, and says from which boot a digest is.
func TestSentences(t *testing.T) {
	seen := map[string]SourceKind{}
	for _, kind := range sourceKinds {
		s := Source{Kind: kind, Name: "name", Section: ".section", File: "loader/file.efi", Files: []string{"one"}, Bytes: 7}
		sentence := s.String()
		// What is text in a log is quoted, whether it has a tag or not.
		if other, ok := seen[sentence]; ok && (kind != FromTag || other != FromText) {
			t.Errorf("%s and %s are both %q", kind, other, sentence)
		}
		seen[sentence] = kind
		if kind != FromData && sentence == (Source{Kind: FromData, Bytes: 7}).String() || strings.ContainsAny(sentence, "\n\x00") {
			t.Errorf("%s: %q", kind, sentence)
		}
		s.Boot = "boot 1"
		if got := s.String(); got != sentence+"; from a boot: boot 1" {
			t.Errorf("%s: %q", kind, got)
		}
		if err := s.Check(); err != nil {
			t.Errorf("%s: %v", kind, err)
		}
	}
}

func TestSourceRefuses(t *testing.T) {
	long := strings.Repeat("x", maxSourceText+1)
	for name, s := range map[string]Source{
		"no kind":        {},
		"unknown kind":   {Kind: "deed"},
		"long name":      {Kind: FromAction, Name: long},
		"long file":      {Kind: FromProgram, File: long},
		"long in files":  {Kind: FromArchive, Files: []string{long}},
		"many files":     {Kind: FromArchive, Files: slices.Repeat([]string{"a"}, maxSourceFiles+1)},
		"negative bytes": {Kind: FromData, Bytes: -1},
		"many parts":     {Kind: FromInitrd, Parts: slices.Repeat([]Source{{Kind: FromData}}, maxSourceParts+1)},
		"part of a part": {Kind: FromInitrd, Parts: []Source{{Kind: FromInitrd, Parts: []Source{{Kind: FromData}}}}},
		"unknown part":   {Kind: FromInitrd, Parts: []Source{{Kind: "deed"}}},
	} {
		if s.Check() == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}
