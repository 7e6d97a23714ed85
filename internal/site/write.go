package site

import (
	"bytes"
	"cmp"
	_ "embed" // the template, the style and the search
	"encoding/json"
	"fmt"
	"html/template"
	"maps"
	"slices"

	"github.com/hullmark/hullmark/internal/webpage"
)

var (
	//go:embed site.html
	layoutText string
	//go:embed site.css
	style string
	//go:embed search.js
	search []byte
	//go:embed icon.svg
	icon []byte
)

var layout = webpage.MustParse(layoutText)

// view is what the template shows of a page.
type view struct {
	// Title is the browser's, Path is whose text is shown.
	Title, Path   string
	Groups        []viewGroup
	Body          template.HTML
	Before, After *page
}

type viewGroup struct {
	Title string
	Pages []viewPage
}

// viewPage is a page in the navigation; Parts are its headings, of the page that is shown alone.
type viewPage struct {
	Name, Title string
	Here        bool
	Parts       []heading
}

// write makes the files of the site.
func (m *maker) write() ([]File, error) {
	files := []File{{"style.css", []byte(webpage.Base() + style)}, {"search.js", search}, {"icon.svg", icon}}
	files = slices.AppendSeq(files, maps.Values(m.pictures))
	index, err := m.index()
	if err != nil {
		return nil, err
	}
	files = append(files, File{"search-index.js", index})
	for i := range m.order {
		page, err := m.writePage(i)
		if err != nil {
			return nil, err
		}
		files = append(files, page)
	}
	for _, s := range m.sources {
		page, err := m.writeSource(s)
		if err != nil {
			return nil, err
		}
		files = append(files, page)
	}
	slices.SortFunc(files, func(a, b File) int { return cmp.Compare(a.Name, b.Name) })
	return files, nil
}

// writePage makes the page that is number i in the order of the navigation.
func (m *maker) writePage(i int) (File, error) {
	p := m.order[i]
	var body bytes.Buffer
	if err := markdown.Renderer().Render(&body, p.source, p.root); err != nil {
		return File{}, fmt.Errorf("%s: %w", p.path, err)
	}
	v := view{Title: p.Title() + " – Hullmark", Path: p.path, Groups: m.navigation(p), Body: template.HTML(body.Bytes())}
	if p.path == home {
		v.Title = p.Title()
	}
	if i > 0 {
		v.Before = m.order[i-1]
	}
	if i+1 < len(m.order) {
		v.After = m.order[i+1]
	}
	return write(p.name, v)
}

// writeSource makes the page of a file or folder of the repository.
func (m *maker) writeSource(s *source) (File, error) {
	var body bytes.Buffer
	if err := layout.ExecuteTemplate(&body, "source", s); err != nil {
		return File{}, fmt.Errorf("%s: %w", s.Path, err)
	}
	return write(s.name, view{Title: s.Path + " – Hullmark", Path: s.Path, Groups: m.navigation(nil), Body: template.HTML(body.Bytes())})
}

func write(name string, v view) (File, error) {
	var out bytes.Buffer
	if err := layout.Execute(&out, v); err != nil {
		return File{}, fmt.Errorf("%s: %w", name, err)
	}
	return File{name, out.Bytes()}, nil
}

// navigation are the groups as a page shows them.
func (m *maker) navigation(here *page) []viewGroup {
	var groups []viewGroup
	for _, g := range m.groups {
		shown := viewGroup{Title: g.Title}
		for _, at := range g.Pages {
			p := m.pages[at]
			v := viewPage{Name: p.name, Title: p.Title(), Here: p == here}
			for _, h := range p.headings {
				if v.Here && h.level == 2 {
					v.Parts = append(v.Parts, h)
				}
			}
			shown.Pages = append(shown.Pages, v)
		}
		groups = append(groups, shown)
	}
	return groups
}

// index is what the search reads: a script, since a page that was opened as a file may read nothing else. A line of it is a section.
func (m *maker) index() ([]byte, error) {
	var out bytes.Buffer
	out.WriteString("window.hullmarkSections = [\n")
	for _, p := range m.order {
		for _, s := range p.sections() {
			line, err := json.Marshal(s)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", p.path, err)
			}
			out.Write(append(line, ",\n"...))
		}
	}
	out.WriteString("];\n")
	return out.Bytes(), nil
}
