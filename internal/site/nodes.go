package site

import (
	"bytes"
	"fmt"

	"github.com/yuin/goldmark/ast"
	tables "github.com/yuin/goldmark/extension/ast"
	"github.com/yuin/goldmark/renderer"
	"github.com/yuin/goldmark/util"
)

// nodes writes what goldmark would write otherwise: headings that can be linked to, tables that scroll by themselves, commands that stand
// out from what they print, and HTML as the text that it is.
type nodes struct{}

// RegisterFuncs implements renderer.NodeRenderer.
func (nodes) RegisterFuncs(r renderer.NodeRendererFuncRegisterer) {
	r.Register(ast.KindHeading, writeHeading)
	r.Register(ast.KindFencedCodeBlock, writeFence)
	r.Register(tables.KindTable, writeTable)
	r.Register(ast.KindHTMLBlock, writeHTMLBlock)
	r.Register(ast.KindRawHTML, writeRawHTML)
}

func writeHeading(w util.BufWriter, _ []byte, n ast.Node, entering bool) (ast.WalkStatus, error) {
	level := n.(*ast.Heading).Level
	anchor, _ := n.AttributeString("id")
	if entering {
		fmt.Fprintf(w, "<h%d id=\"%s\">", level, anchor)
		return ast.WalkContinue, nil
	}
	if level > 1 {
		fmt.Fprintf(w, " <a class=\"anchor\" href=\"#%s\" aria-label=\"Link to this part\">#</a>", anchor)
	}
	fmt.Fprintf(w, "</h%d>\n", level)
	return ast.WalkContinue, nil
}

func writeTable(w util.BufWriter, _ []byte, _ ast.Node, entering bool) (ast.WalkStatus, error) {
	if entering {
		_, err := w.WriteString("<div class=\"wide\"><table>\n")
		return ast.WalkContinue, err
	}
	_, err := w.WriteString("</table></div>\n")
	return ast.WalkContinue, err
}

// writeFence writes a block of code. In a terminal's, a command begins after "$ ", and goes on behind a line that ends with a backslash.
func writeFence(w util.BufWriter, source []byte, n ast.Node, entering bool) (ast.WalkStatus, error) {
	if !entering {
		return ast.WalkContinue, nil
	}
	terminal := string(n.(*ast.FencedCodeBlock).Language(source)) == "console"
	fmt.Fprint(w, "<pre><code>")
	command := false
	for line := range bytes.Lines(n.Lines().Value(source)) {
		text := util.EscapeHTML(line)
		if command = terminal && (command || bytes.HasPrefix(line, []byte("$ "))); command {
			fmt.Fprintf(w, "<b>%s</b>", text)
		} else {
			fmt.Fprintf(w, "%s", text)
		}
		command = command && bytes.HasSuffix(line, []byte("\\\n"))
	}
	fmt.Fprint(w, "</code></pre>\n")
	return ast.WalkContinue, nil
}

// writeHTMLBlock shows HTML as text, but for comments, which are for who edits the page.
func writeHTMLBlock(w util.BufWriter, source []byte, n ast.Node, entering bool) (ast.WalkStatus, error) {
	block := n.(*ast.HTMLBlock)
	text := block.Lines().Value(source)
	if block.HasClosure() {
		text = append(text, block.ClosureLine.Value(source)...)
	}
	if entering && !isComment(text) {
		fmt.Fprintf(w, "<p>%s</p>\n", util.EscapeHTML(text))
	}
	return ast.WalkContinue, nil
}

// writeRawHTML does the same within a line. A line break is one: a table's cell can have no other.
func writeRawHTML(w util.BufWriter, source []byte, n ast.Node, entering bool) (ast.WalkStatus, error) {
	text := n.(*ast.RawHTML).Segments.Value(source)
	switch {
	case !entering, isComment(text):
	case string(text) == "<br>":
		fmt.Fprint(w, "<br>")
	default:
		fmt.Fprintf(w, "%s", util.EscapeHTML(text))
	}
	return ast.WalkSkipChildren, nil
}

// isComment reports whether HTML is one comment and nothing else.
func isComment(html []byte) bool {
	html = bytes.TrimSpace(html)
	return bytes.HasPrefix(html, []byte("<!--")) && bytes.Index(html, []byte("-->")) == len(html)-len("-->")
}
