package site

import (
	"bytes"
	"strings"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	"github.com/yuin/goldmark/renderer"
	"github.com/yuin/goldmark/text"
	"github.com/yuin/goldmark/util"
)

// markdown reads CommonMark with GitHub's tables, which is all that pages here are written in. How cells are aligned is an attribute: the
// pages' policy allows no style in an element.
var markdown = goldmark.New(
	goldmark.WithExtensions(extension.NewTable(extension.WithTableCellAlignMethod(extension.TableCellAlignAttribute))),
	goldmark.WithRendererOptions(renderer.WithNodeRenderers(util.Prioritized(nodes{}, 100))), // before those of goldmark, 500 and 1000
)

// page is a Markdown file.
type page struct {
	// path is its name in the repository, name that in the site.
	path, name string
	source     []byte
	root       ast.Node
	headings   []heading
	anchors    anchors
}

// heading is one of a page's; its level is from 1 to 6.
type heading struct {
	level        int
	Text, Anchor string
}

// Title is the page's first heading.
func (p *page) Title() string { return p.headings[0].Text }

// Name is the page's in the site.
func (p *page) Name() string { return p.name }

// parse reads a page, and gives its headings their anchors.
func parse(at string, source []byte) *page {
	p := &page{path: at, name: pageName(at), source: source, root: markdown.Parser().Parse(text.NewReader(source)), anchors: anchors{}}
	_ = ast.Walk(p.root, func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		if h, ok := n.(*ast.Heading); ok && entering {
			said := words(h, source)
			anchor := p.anchors.next(said)
			h.SetAttributeString("id", anchor)
			p.headings = append(p.headings, heading{level: h.Level, Text: said, Anchor: anchor})
		}
		return ast.WalkContinue, nil
	})
	return p
}

// has reports whether the page has a heading with the anchor.
func (p *page) has(anchor string) bool {
	_, there := p.anchors[anchor]
	return there
}

// line is the line of a node, from 1.
func (p *page) line(n ast.Node) int {
	return 1 + bytes.Count(p.source[:max(0, n.Pos())], []byte("\n"))
}

// section is a part of a page from one heading to the next, as the search has it.
type section struct {
	Href    string `json:"href"`
	Page    string `json:"page"`
	Heading string `json:"heading"`
	Text    string `json:"text"`
}

// sections part a page at its headings, those of the fourth level and below left out.
func (p *page) sections() []section {
	var all []section
	for n := p.root.FirstChild(); n != nil; n = n.NextSibling() {
		said := words(n, p.source)
		if h, ok := n.(*ast.Heading); ok && h.Level <= 3 {
			s := section{Href: p.name, Page: p.Title(), Heading: said}
			if anchor, ok := h.AttributeString("id"); ok && h.Level > 1 {
				s.Href += "#" + anchor.(string)
			}
			all = append(all, s)
			continue
		}
		if len(all) > 0 { // A page begins with its title.
			last := &all[len(all)-1]
			last.Text = strings.TrimSpace(last.Text + " " + said)
		}
	}
	return all
}

// words is what a node says, as one line without markup.
func words(n ast.Node, source []byte) string {
	var b strings.Builder
	_ = ast.Walk(n, func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		switch n := n.(type) {
		case *ast.Text:
			if !entering {
				break
			}
			b.Write(plain(n, source))
			if n.SoftLineBreak() || n.HardLineBreak() {
				b.WriteByte(' ')
			}
		case *ast.AutoLink:
			if entering {
				b.Write(n.Label(source))
			}
		case *ast.RawHTML:
			b.WriteByte(' ')
		case *ast.FencedCodeBlock, *ast.CodeBlock:
			if entering {
				b.Write(n.Lines().Value(source))
			}
		default:
			if !entering && n.Type() == ast.TypeBlock {
				b.WriteByte(' ')
			}
		}
		return ast.WalkContinue, nil
	})
	return strings.Join(strings.Fields(b.String()), " ")
}

// plain is a text as it is shown: outside of code without its backslashes, and with characters in place of their references.
func plain(n *ast.Text, source []byte) []byte {
	value := n.Value(source)
	if n.IsRaw() {
		return value
	}
	return util.ResolveEntityNames(util.ResolveNumericReferences(util.UnescapePunctuations(value)))
}
