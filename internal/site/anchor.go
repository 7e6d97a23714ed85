package site

import (
	"fmt"
	"strings"
	"unicode"
)

// anchors are those of a page's headings so far. The number counts further headings with the same text.
type anchors map[string]int

// next is the anchor that GitHub gives the page's next heading: in lower case, hyphens for spaces, of all else letters, digits, hyphens and
// low lines alone, and a number if there is one like it.
func (a anchors) next(heading string) string {
	anchor := strings.Map(func(r rune) rune {
		switch {
		case r == ' ':
			return '-'
		case r == '-' || unicode.In(r, unicode.L, unicode.M, unicode.Nd, unicode.Pc):
			return r
		}
		return -1
	}, strings.ToLower(heading))
	unique := anchor
	for {
		if _, taken := a[unique]; !taken {
			break
		}
		a[anchor]++
		unique = fmt.Sprintf("%s-%d", anchor, a[anchor])
	}
	a[unique] = 0
	return unique
}
