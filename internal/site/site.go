// Package site makes a site of this repository's pages: README and docs, with the anchors that GitHub gives them, one navigation, and a
// search that needs no server and no network. What leads nowhere is an error.
//
// It is pure: pages come from a file system that it is given, and the same pages give the same bytes. All files of a site lie in one
// folder, and ask for nothing outside of it.
package site

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
)

// Group is a part of the navigation.
type Group struct {
	Title string
	// Pages are Markdown files of the repository by their paths, in the order in which they are read.
	Pages []string
}

// File is a file of a site.
type File struct {
	Name    string
	Content []byte
}

// Fault is one thing that is wrong with a page.
type Fault struct {
	// Page is its path. Line counts from 1, and is 0 where no line is meant.
	Page string
	Line int
	// Target is what the page leads to, if that is what is wrong.
	Target, Why string
}

// Error says page, line, target and reason.
func (f Fault) Error() string {
	at := f.Page
	if f.Line > 0 {
		at += ":" + strconv.Itoa(f.Line)
	}
	if f.Target != "" {
		at += ": " + f.Target
	}
	return at + ": " + f.Why
}

// home is the page that the site begins with.
const home = "README.md"

// maker makes one site.
type maker struct {
	tree   fs.FS
	groups []Group
	// pages are those of the groups, by their paths; order has them as they are read.
	pages map[string]*page
	order []*page
	// sources and pictures are other files of the repository that pages lead to and show, by their paths.
	sources  map[string]*source
	pictures map[string]File
	// named is the path of what has a name in the site.
	named  map[string]string
	faults []error
}

// Build makes the site of the pages that the groups name, which are all of the repository's: those in its root and in docs. The files are
// sorted by their names. An error names every Fault.
func Build(tree fs.FS, groups []Group) ([]File, error) {
	m := maker{
		tree: tree, groups: groups, pages: map[string]*page{}, sources: map[string]*source{}, pictures: map[string]File{},
		named: map[string]string{"style.css": "", "search.js": "", "search-index.js": "", "icon.svg": ""},
	}
	if err := m.read(); err != nil {
		return nil, err
	}
	for _, p := range m.order {
		m.follow(p)
	}
	if len(m.faults) > 0 {
		return nil, errors.Join(m.faults...)
	}
	return m.write()
}

// read reads the pages of the groups, and looks for others.
func (m *maker) read() error {
	for _, g := range m.groups {
		for _, at := range g.Pages {
			text, err := fs.ReadFile(m.tree, at)
			if err != nil {
				m.faults = append(m.faults, Fault{Page: at, Why: fmt.Sprintf("the navigation names it: %v", err)})
				continue
			}
			if m.pages[at] != nil {
				m.faults = append(m.faults, Fault{Page: at, Why: "the navigation names it twice"})
				continue
			}
			p := parse(at, text)
			m.pages[at], m.order = p, append(m.order, p)
			m.name(at, p.name)
			if len(p.headings) == 0 || p.headings[0].level != 1 || slices.ContainsFunc(p.headings[1:], func(h heading) bool { return h.level == 1 }) {
				m.faults = append(m.faults, Fault{Page: at, Why: "want one heading of the first level, before all others: the page's title"})
			}
		}
	}
	for _, pattern := range []string{"*.md", "docs/*.md"} {
		found, err := fs.Glob(m.tree, pattern)
		if err != nil {
			return err
		}
		for _, at := range found {
			if m.pages[at] == nil {
				m.faults = append(m.faults, Fault{Page: at, Why: "no group of the navigation names it (internal/site/groups.go)"})
			}
		}
	}
	return nil
}

// name gives what is at a path its name in the site, which nothing else may have.
func (m *maker) name(at, name string) {
	if other, taken := m.named[name]; taken {
		m.faults = append(m.faults, Fault{Page: at, Why: fmt.Sprintf("its name in the site is %s, which %s has", name, nameOr(other))})
	}
	m.named[name] = at
}

func nameOr(at string) string {
	if at == "" {
		return "a part of the site"
	}
	return at
}

// pageName is a page's name in the site.
func pageName(at string) string {
	if at == home {
		return "index.html"
	}
	return strings.ToLower(strings.TrimSuffix(path.Base(at), ".md")) + ".html"
}

// flat is the name in the site of what is no page: its path, in one piece.
func flat(at string) string { return strings.ReplaceAll(at, "/", "-") }
