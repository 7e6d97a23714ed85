package site

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

// sample are pages with everything that pages here have, and their navigation.
func sample() (fstest.MapFS, []Group) {
	tree := fstest.MapFS{}
	for name, text := range map[string]string{
		"README.md": "# Home\n\nRead [how](docs/how.md#a-b-and-c), [all of it](docs/how.md) or [this](#more).\n\n## More\n\nA [web page](https://example.com/).\n",
		"docs/how.md": "# How it is done\n\n<!-- for who edits -->\n\nBack [home](../README.md#more), to [a file](../tools/one.conf) and to [a folder](../tools/many).\n\n" +
			"## A `b`, and C\n\n![what it looks like](look.svg)\n\n| x | y |\n|---|--:|\n| one<br>two | <b>three</b> &amp; 4 |\n\n## A b and c\n\n" +
			"```console\n$ hullmark <one> \\\n    two\nthree\n```\n\n<div onclick=\"x\">\nno\n</div>\n",
		"docs/look.svg":      "<svg/>",
		"tools/one.conf":     "[one]\n<two>\n",
		"tools/many/a":       "the first\n",
		"tools/many/below/b": "the second\n",
	} {
		tree[name] = &fstest.MapFile{Data: []byte(text)}
	}
	return tree, []Group{{"Begin", []string{"README.md"}}, {"Then", []string{"docs/how.md"}}}
}

// built are the files of a site by their names.
func built(t *testing.T, files []File, err error) map[string]string {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]string{}
	for _, f := range files {
		found[f.Name] = string(f.Content)
	}
	return found
}

func TestBuild(t *testing.T) {
	tree, groups := sample()
	first, err := Build(tree, groups)
	site := built(t, first, err)
	var names []string
	for _, f := range first {
		names = append(names, f.Name)
	}
	if want := []string{"docs-look.svg", "how.html", "icon.svg", "index.html", "search-index.js", "search.js", "style.css", "tools-many.html", "tools-one.conf.html"}; !slices.Equal(names, want) {
		t.Errorf("files %q, want %q", names, want)
	}
	for name, texts := range map[string][]string{
		"index.html": {
			"<title>Home</title>", `<h1 id="home">Home</h1>`, `href="how.html#a-b-and-c"`, `href="how.html"`, `href="index.html#more"`, `href="https://example.com/"`,
			`<a href="index.html" aria-current="page">Home</a>`, `<li><a href="#more">More</a></li>`, `<a rel="next" href="how.html">How it is done →</a>`,
		},
		"how.html": {
			"<title>How it is done – Hullmark</title>", `<h2 id="a-b-and-c">A <code>b</code>, and C`, `<h2 id="a-b-and-c-1">A b and c`, `<img src="docs-look.svg" alt="what it looks like">`,
			`href="index.html#more"`, `href="tools-one.conf.html"`, `href="tools-many.html"`, `<div class="wide"><table>`, `</table></div>`, `<td>one<br>two</td>`,
			`<td align="right">&lt;b&gt;three&lt;/b&gt; &amp; 4</td>`, "<pre><code><b>$ hullmark &lt;one&gt; \\\n</b><b>    two\n</b>three\n</code></pre>",
			"<p>&lt;div onclick=&quot;x&quot;&gt;\nno\n&lt;/div&gt;\n</p>", `<a rel="prev" href="index.html">← Home</a>`,
		},
		"tools-one.conf.html": {"<h1>tools/one.conf</h1>", "[one]\n&lt;two&gt;\n"},
		"tools-many.html":     {"<h2>tools/many/a</h2>", "the first", "<h2>tools/many/below/b</h2>", "the second"},
		"docs-look.svg":       {"<svg/>"},
	} {
		for _, text := range texts {
			if !strings.Contains(site[name], text) {
				t.Errorf("%s has no %q:\n%s", name, text, site[name])
			}
		}
	}
	if strings.Contains(site["how.html"], "for who edits") {
		t.Error("a comment is shown")
	}
	second, err := Build(tree, groups)
	if err != nil || !slices.EqualFunc(first, second, func(a, b File) bool { return a.Name == b.Name && bytes.Equal(a.Content, b.Content) }) {
		t.Errorf("the same pages give another site (%v)", err)
	}
}

func TestIndex(t *testing.T) {
	tree, groups := sample()
	files, err := Build(tree, groups)
	got := indexOf(t, built(t, files, err)["search-index.js"])
	want := []section{
		{"index.html", "Home", "Home", "Read how, all of it or this."},
		{"index.html#more", "Home", "More", "A web page."},
		{"how.html", "How it is done", "How it is done", "Back home, to a file and to a folder."},
		{"how.html#a-b-and-c", "How it is done", "A b, and C", "what it looks like x y one two three & 4"},
		{"how.html#a-b-and-c-1", "How it is done", "A b and c", `$ hullmark <one> \ two three`},
	}
	if !slices.Equal(got, want) {
		t.Errorf("the index is %+v, want %+v", got, want)
	}
}

// indexOf reads an index as the search does.
func indexOf(t *testing.T, script string) []section {
	t.Helper()
	text, ok := strings.CutPrefix(strings.TrimSuffix(script, ",\n];\n"), "window.hullmarkSections = ")
	var sections []section
	if err := json.Unmarshal([]byte(text+"]"), &sections); !ok || err != nil {
		t.Fatalf("the index is none: %v", err)
	}
	return sections
}

// TestBuildRefuses adds a page to the sample, with one thing wrong.
func TestBuildRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		page, want string
		groups     []Group
	}{
		"no such page":       {page: "# X\n\n[x](none.md)\n", want: "docs/x.md:3: none.md: "},
		"no such heading":    {page: "# X\n\nand\n[x](how.md#none)\n", want: "docs/x.md:4: how.md#none: docs/how.md has no heading with the anchor none"},
		"none of its own":    {page: "# X\n\n[x](#none)\n", want: "docs/x.md:3: #none: docs/x.md has no heading"},
		"in another case":    {page: "# X\n\n[x](how.md#A-b-and-c)\n", want: "has no heading"},
		"in a table":         {page: "# X\n\n| a |\n|---|\n| b |\n| [x](none.md) |\n", want: "docs/x.md:6: none.md: "},
		"in a list":          {page: "# X\n\n- a\n- b\n  [x](none.md)\n", want: "docs/x.md:5: none.md: "},
		"a heading of none":  {page: "# X\n\n[x](../tools/one.conf#two)\n", want: "tools/one.conf is no page"},
		"no such picture":    {page: "# X\n\n![x](none.png)\n", want: "docs/x.md:3: none.png: "},
		"no picture":         {page: "# X\n\n![x](../tools/one.conf)\n", want: "want a picture"},
		"a picture's words":  {page: "# X\n\n![](look.svg)\n", want: "no words"},
		"another's picture":  {page: "# X\n\n![x](https://example.com/x.png)\n", want: "want a file of the repository"},
		"out of here":        {page: "# X\n\n[x](../../y)\n", want: "leads out of the repository"},
		"from the root":      {page: "# X\n\n[x](/docs/how.md)\n", want: "want a path from this page"},
		"a script":           {page: "# X\n\n[x](javascript:alert(1))\n", want: "want a path from this page"},
		"another's page":     {page: "# X\n\n[x](//example.com/y)\n", want: "want a path from this page"},
		"a program":          {page: "# X\n\n[x](../tools/program)\n", want: "tools/program is no text"},
		"no title":           {page: "X\n", want: "docs/x.md: want one heading of the first level"},
		"two titles":         {page: "# X\n\n# Y\n", want: "docs/x.md: want one heading of the first level"},
		"in no group":        {page: "# X\n", groups: []Group{}, want: "docs/x.md: no group of the navigation names it"},
		"in a group twice":   {page: "# X\n", groups: []Group{{"Last", []string{"docs/x.md", "docs/x.md"}}}, want: "docs/x.md: the navigation names it twice"},
		"a group of nothing": {page: "# X\n", groups: []Group{{"Last", []string{"docs/x.md", "docs/none.md"}}}, want: "docs/none.md: the navigation names it: "},
		"one name for two":   {page: "# X\n", groups: []Group{{"Last", []string{"docs/x.md", "docs/Index.md"}}}, want: "docs/Index.md: its name in the site is index.html, which README.md has"},
	} {
		tree, groups := sample()
		tree["docs/x.md"] = &fstest.MapFile{Data: []byte(c.page)}
		tree["tools/program"] = &fstest.MapFile{Data: []byte("\x7fELF\xff")}
		if c.groups == nil {
			c.groups = []Group{{"Last", []string{"docs/x.md"}}}
		}
		if name == "one name for two" {
			tree["docs/Index.md"] = &fstest.MapFile{Data: []byte("# Index\n")}
		}
		_, err := Build(tree, append(groups, c.groups...))
		var fault Fault
		if !errors.As(err, &fault) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", name, err, c.want)
		}
	}
	tree, groups := sample()
	tree["docs/x.md"] = &fstest.MapFile{Data: []byte("# X\n\n[x](none.md) ![](none.png)\n\n[x](#none)\n")}
	_, err := Build(tree, append(groups, Group{"Last", []string{"docs/x.md"}}))
	if err == nil || strings.Count(err.Error(), "docs/x.md:") != 3 {
		t.Errorf("three faults: got %v", err)
	}
}

// TestAnchors are headings with the anchors that GitHub has for them.
func TestAnchors(t *testing.T) {
	seen := anchors{}
	for _, c := range [][2]string{
		{"The same bytes, elsewhere", "the-same-bytes-elsewhere"},
		{"k8s.io/client-go & others", "k8sioclient-go--others"},
		{"`--out` and _this_", "--out-and-_this_"},
		{"Grüße, 日本 №5", "grüße-日本-5"},
		{"Same", "same"},
		{"Same", "same-1"},
		{"Same 1", "same-1-1"},
		{"Same", "same-2"},
	} {
		if got := seen.next(strings.ReplaceAll(c[0], "`", "")); got != c[1] {
			t.Errorf("%s: %s, want %s", c[0], got, c[1])
		}
	}
}

// elsewhere is what makes a browser ask for something that is not beside the page, or runs or paints what is in it.
var elsewhere = regexp.MustCompile(`<(?:script|link|img)\b[^>]*\b(?:src|href)="(?:[a-z]+:|/)|<(?:iframe|object|embed|base|style)\b|\b(?:style|srcset|on[a-z]+)="[^"]*"[^<]*>|@import|url\(`)

// TestThisRepository makes the site of this repository, of which nothing comes from elsewhere, and each section of whose index is there.
func TestThisRepository(t *testing.T) {
	files, err := Build(os.DirFS("../.."), Groups())
	site := built(t, files, err)
	for name, content := range site {
		if found := elsewhere.FindString(content); found != "" && (strings.HasSuffix(name, ".html") || strings.HasSuffix(name, ".css")) {
			t.Errorf("%s has %q", name, found)
		}
	}
	sections := indexOf(t, site["search-index.js"])
	if len(sections) < 300 {
		t.Errorf("only %d sections were found", len(sections))
	}
	for _, s := range sections {
		name, anchor, ok := strings.Cut(s.Href, "#")
		if content := site[name]; content == "" || ok && !strings.Contains(content, ` id="`+anchor+`"`) {
			t.Errorf("the index leads to %s, which is not there", s.Href)
		}
	}
}
