package site

import (
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"path"
	"slices"
	"unicode/utf8"

	"github.com/yuin/goldmark/ast"
)

// source is a file or a folder of the repository that pages lead to: the site has a page that shows its text.
type source struct {
	Path, name string
	Files      []sourceFile
}

type sourceFile struct{ Path, Text string }

// pictureEndings are those of files that browsers show.
var pictureEndings = []string{".png", ".svg", ".jpg", ".webp"}

// maxSources is how many files a folder may have that a page leads to.
const maxSources = 40

// follow goes after what a page leads to and shows, and makes it lead to the same in the site.
func (m *maker) follow(p *page) {
	_ = ast.Walk(p.root, func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		if !entering {
			return ast.WalkContinue, nil
		}
		var target, why string
		switch n := n.(type) {
		case *ast.Link:
			target = string(n.Destination)
			to, err := m.link(p, target)
			n.Destination, why = []byte(to), reason(err)
		case *ast.AutoLink:
			target = string(n.URL(p.source))
			_, err := m.link(p, target)
			why = reason(err)
		case *ast.Image:
			target = string(n.Destination)
			to, err := m.picture(p, target, words(n, p.source))
			n.Destination, why = []byte(to), reason(err)
		}
		if why != "" {
			m.faults = append(m.faults, Fault{Page: p.path, Line: p.line(n), Target: target, Why: why})
		}
		return ast.WalkContinue, nil
	})
}

func reason(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// link is where a page's link leads in the site.
func (m *maker) link(p *page, target string) (string, error) {
	u, err := url.Parse(target)
	if err != nil {
		return "", err
	}
	if slices.Contains([]string{"https", "http", "mailto"}, u.Scheme) {
		return target, nil
	}
	to, err := p.beside(u)
	if err != nil {
		return "", err
	}
	if other := m.pages[to]; other != nil {
		return other.link(u.Fragment)
	}
	if u.Fragment != "" {
		return "", fmt.Errorf("%s is no page, and has no headings", to)
	}
	return m.show(to)
}

// beside is the path of what a relative address on the page means, which is the page itself if the address has none.
func (p *page) beside(u *url.URL) (string, error) {
	if u.Scheme != "" || u.Host != "" || u.RawQuery != "" || path.IsAbs(u.Path) {
		return "", errors.New("want a path from this page, or an address that begins with https:// or http://")
	}
	if u.Path == "" {
		return p.path, nil
	}
	to := path.Join(path.Dir(p.path), u.Path)
	if !fs.ValidPath(to) {
		return "", errors.New("it leads out of the repository")
	}
	return to, nil
}

// link is where one of the page's headings is in the site, or where the page is.
func (p *page) link(anchor string) (string, error) {
	if anchor == "" {
		return p.name, nil
	}
	if !p.has(anchor) {
		return "", fmt.Errorf("%s has no heading with the anchor %s", p.path, anchor)
	}
	return p.name + "#" + anchor, nil
}

// picture is where a page's picture is in the site.
func (m *maker) picture(p *page, target, alternative string) (string, error) {
	u, err := url.Parse(target)
	if err != nil {
		return "", err
	}
	at, err := p.beside(u)
	switch {
	case err != nil:
		return "", fmt.Errorf("want a file of the repository: %w", err)
	case !slices.Contains(pictureEndings, path.Ext(at)) || u.Fragment != "":
		return "", fmt.Errorf("want a picture: one of %v", pictureEndings)
	case alternative == "":
		return "", errors.New("the picture has no words for whoever does not see it")
	}
	content, err := fs.ReadFile(m.tree, at)
	if err != nil {
		return "", err
	}
	if _, known := m.pictures[at]; !known {
		m.pictures[at] = File{flat(at), content}
		m.name(at, flat(at))
	}
	return flat(at), nil
}

// show is the site's page of a file or folder.
func (m *maker) show(at string) (string, error) {
	if known := m.sources[at]; known != nil {
		return known.name, nil
	}
	s := &source{Path: at, name: flat(at) + ".html"}
	err := fs.WalkDir(m.tree, at, func(file string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		if len(s.Files) == maxSources {
			return fmt.Errorf("it has more than %d files; lead to one of its folders", maxSources)
		}
		text, err := fs.ReadFile(m.tree, file)
		if err != nil {
			return err
		}
		if !utf8.Valid(text) {
			return fmt.Errorf("%s is no text", file)
		}
		s.Files = append(s.Files, sourceFile{file, string(text)})
		return nil
	})
	if err != nil {
		return "", err
	}
	m.sources[at] = s
	m.name(at, s.name)
	return s.name, nil
}
