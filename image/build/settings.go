package build

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// assignment is one setting of a definition file, with all lines of its value.
type assignment struct{ section, name, value string }

// The sections that mkosi takes settings from, and those that say when a file counts.
var (
	sections   = []string{"Include", "Config", "Distribution", "Output", "Content", "Validation", "Build", "Runtime", "Host"}
	conditions = []string{"Match", "TriggerMatch"}
)

func (a assignment) isCondition() bool { return slices.Contains(conditions, a.section) }

// parseSettings reads a definition file as mkosi does (mkosi(1); parse_ini in its config.py): # begins a comment anywhere, and an
// indented line goes on with the value before it. What mkosi could take for something else than it looks like is refused.
func parseSettings(text []byte) ([]assignment, error) {
	if !utf8.Valid(text) {
		return nil, errors.New("it is no text in UTF-8: write it anew")
	}
	var all []assignment
	section, open := "", false // open: an indented line belongs to the last setting
	for i, line := range strings.Split(string(text), "\n") {
		wrong := func(why string) error { return fmt.Errorf("line %d: %s", i+1, why) }
		if strings.ContainsFunc(line, endsLines) {
			return nil, wrong("a control character: write the line anew, with a plain end")
		}
		line, _, _ = strings.Cut(line, "#")
		trimmed := strings.TrimSpace(line)
		if trimmed == "" {
			continue
		}
		first, _ := utf8.DecodeRuneInString(line)
		header, indented := trimmed[0] == '[', unicode.IsSpace(first)
		switch {
		case indented && (header || section == "" || slices.Contains(conditions, section)):
			return nil, wrong("it is indented, and goes on with no value: begin it in the first column")
		case indented && open:
			all[len(all)-1].value += "\n" + trimmed
		case header:
			section, open = strings.TrimSpace(strings.Trim(trimmed, "[]")), false
			if trimmed != "["+section+"]" || !slices.Contains(sections, section) && !slices.Contains(conditions, section) {
				return nil, wrong(trimmed + " is no section that mkosi reads: " + strings.Join(append(sections, conditions...), ", "))
			}
		default:
			name, value, ok := strings.Cut(trimmed, "=")
			if !ok || section == "" {
				return nil, wrong("want a section, and settings of the form NAME=VALUE below it")
			}
			all, open = append(all, assignment{section, strings.TrimSpace(name), strings.TrimSpace(value)}), true
		}
	}
	return all, nil
}

// endsLines tells whether Python takes a character for the end of a line, or it is some other control character.
func endsLines(r rune) bool {
	return r != '\t' && (unicode.IsControl(r) || unicode.In(r, unicode.Zl, unicode.Zp))
}
