// Package webpage is what the pages that the program writes have in common: one style, a policy by which a browser runs and fetches
// nothing, and texts that are fit to show whoever wrote them. The site of the docs has its colours, type and brand from here, too.
package webpage

import (
	"crypto/sha256"
	_ "embed" // the styles, and what all pages begin with
	"encoding/base64"
	"html/template"
	"strings"
	"unicode"
)

// maxWords is the length of a text that a page shows, in characters.
const maxWords = 240

var (
	//go:embed base.css
	base string
	//go:embed page.css
	own string
	//go:embed parts.html
	parts string
)

// style is that of a page which stands for itself.
var style = base + own

// Base is the style that these pages share with others: colours by day, by night and on paper, type, and the brand.
func Base() string { return base }

// policy is the Content-Security-Policy of a page that needs nothing else. The style is allowed by its hash, so that nothing else
// in the page can be one (CSP Level 3 §2.3.1).
func policy() string {
	hash := sha256.Sum256([]byte(style))
	return "default-src 'none'; style-src 'sha256-" + base64.StdEncoding.EncodeToString(hash[:]) + "'; base-uri 'none'; form-action 'none'"
}

// MustParse returns the template of a page, or panics. Beside its own it has the templates head, of a title, and brand, of what the page
// is.
func MustParse(page string) *template.Template {
	functions := template.FuncMap{"policy": policy, "style": func() template.CSS { return template.CSS(style) }}
	t := template.Must(template.New("parts").Funcs(functions).Parse(parts))
	return template.Must(t.New("page").Parse(page))
}

// invisible reports whether a character of a text shows nothing, or changes how others are shown. Some letters and marks do: they are
// printable by their category, and a name with one looks like another (Unicode's DerivedCoreProperties, Default_Ignorable_Code_Point;
// the blank pattern of Braille and the null notehead have an empty glyph besides).
func invisible(r rune) bool {
	return !unicode.IsPrint(r) || unicode.In(r, unicode.Other_Default_Ignorable_Code_Point, unicode.Variation_Selector) || r == '\u2800' || r == '\U0001d159'
}

// Printable leaves out control, formatting and invisible characters other than line feed and tab. Of whoever may write lines of
// their own, it keeps these: a value has Line.
func Printable(text string) string {
	return strings.Map(func(r rune) rune {
		if r != '\n' && r != '\t' && invisible(r) {
			return -1
		}
		return r
	}, text)
}

// Line makes a text of whoever it is from one line, without control, formatting and invisible characters, of at most so many
// characters: it cannot pass for a line, or a column, of whoever prints it.
func Line(text string, most int) string {
	text = strings.Map(func(r rune) rune {
		switch {
		case unicode.IsSpace(r):
			return ' '
		case invisible(r):
			return -1
		}
		return r
	}, text)
	text = strings.Join(strings.Fields(text), " ")
	if runes := []rune(text); len(runes) > most {
		return string(runes[:most-1]) + "…"
	}
	return text
}

// Clean is the Line of a text that a page shows.
func Clean(text string) string { return Line(text, maxWords) }
