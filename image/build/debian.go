package build

import (
	"bytes"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"github.com/klauspost/compress/gzip"

	"github.com/hullmark/hullmark/internal/atomicfile"
	"github.com/hullmark/hullmark/internal/debfile"
)

// copyright stands where a Debian package says what may be done with it.
const copyright = `The licence of Hullmark is not chosen yet. Until it is, this package gives nobody
a right that the law does not give.

The program holds Go modules of others, each under a licence of its own. Its
SBOM, which is released beside this package, names them all.
`

// description is what package managers show.
const description = `build, predict and admit attested Kubernetes nodes
 Hullmark builds reproducible disk images, predicts what a TPM measures when
 they boot, and gives the key of its disk only to a node that booted exactly
 that.
 .
 "hullmark doctor" tells what this machine lacks for each of its verbs.`

// completionPaths are where Debian's shells look for what they complete by.
var completionPaths = map[string]string{
	"hullmark.bash": "/usr/share/bash-completion/completions/hullmark",
	"hullmark.zsh":  "/usr/share/zsh/vendor-completions/_hullmark",
	"hullmark.fish": "/usr/share/fish/vendor_completions.d/hullmark.fish",
}

// makePackage writes an architecture's Debian package of its program and the files that manual names, and returns its name in work.
// GOARCH spells the architectures that there are as Debian does.
func (r released) makePackage(arch string, manual []string) (name string, err error) {
	files, err := r.packageFiles(arch, manual)
	if err != nil {
		return "", err
	}
	p := debfile.Package{Control: r.control(arch), Files: files, Time: time.Unix(r.lock.Time, 0)}
	var content bytes.Buffer
	if err := p.Write(&content); err != nil {
		return "", err
	}
	name = "hullmark_" + r.number() + "_" + arch + ".deb"
	return name, atomicfile.Write(filepath.Join(r.work, name), content.Bytes(), 0o644)
}

// control are the fields of a package. Nobody's address is known yet that would answer for it.
func (r released) control(arch string) []debfile.Field {
	fields := []debfile.Field{
		{Name: "Package", Value: "hullmark"},
		{Name: "Version", Value: r.number()},
		{Name: "Section", Value: "admin"},
		{Name: "Priority", Value: "optional"},
		{Name: "Architecture", Value: arch},
		{Name: "Maintainer", Value: "Hullmark <nobody@hullmark.invalid>"},
	}
	recommends, suggests := r.Relations(arch)
	for _, f := range []struct {
		name     string
		packages []string
	}{{"Recommends", recommends}, {"Suggests", suggests}} {
		if len(f.packages) > 0 {
			fields = append(fields, debfile.Field{Name: f.name, Value: strings.Join(f.packages, ", ")})
		}
	}
	return append(fields, debfile.Field{Name: "Homepage", Value: "https://github.com/hullmark/hullmark"}, debfile.Field{Name: "Description", Value: description})
}

// packageFiles are what a package installs.
func (r released) packageFiles(arch string, manual []string) ([]debfile.File, error) {
	program, err := os.ReadFile(filepath.Join(r.work, r.program(arch)))
	if err != nil {
		return nil, err
	}
	files := []debfile.File{
		{Path: "/usr/bin/hullmark", Mode: 0o755, Content: program},
		{Path: "/usr/share/doc/hullmark/copyright", Mode: 0o644, Content: []byte(copyright)},
	}
	changes, err := os.ReadFile(filepath.Join(r.Source, changelogFile))
	if err != nil {
		return nil, err
	}
	packed, err := gzipped(changes)
	if err != nil {
		return nil, err
	}
	// A changelog that is the only one has this name, and is compressed (Debian Policy, 12.7).
	files = append(files, debfile.File{Path: "/usr/share/doc/hullmark/changelog.gz", Mode: 0o644, Content: packed})
	for _, name := range manual {
		content, err := os.ReadFile(filepath.Join(r.work, name))
		if err != nil {
			return nil, err
		}
		f := debfile.File{Path: completionPaths[path.Base(name)], Mode: 0o644, Content: content}
		if path.Dir(name) == "man" {
			f.Path = "/usr/share/man/man1/" + path.Base(name) + ".gz"
			if f.Content, err = gzipped(content); err != nil {
				return nil, err
			}
		}
		if f.Path == "" {
			return nil, fmt.Errorf("nobody knows where %s is installed", name)
		}
		files = append(files, f)
	}
	return files, nil
}

// gzipped compresses a text, without a name or a date.
func gzipped(content []byte) ([]byte, error) {
	var b bytes.Buffer
	w, err := gzip.NewWriterLevel(&b, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	if _, err := w.Write(content); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}
