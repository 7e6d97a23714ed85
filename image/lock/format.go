package lock

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

const header = "hullmark-lock 3"

// Encode returns l's file: a line for each fact, in Sort's order, and a last line with the SHA-256 of all before it.
// A lock that Parse would refuse is an error.
func Encode(l Lock) ([]byte, error) {
	body := l.body()
	file := append(body, closing(body)...)
	if _, err := Parse(file); err != nil {
		return nil, fmt.Errorf("write lock: %w", err)
	}
	return file, nil
}

func (l Lock) body() []byte {
	l.Suites, l.Packages = slices.Clone(l.Suites), slices.Clone(l.Packages)
	l.Kubernetes.Sums, l.Kubernetes.Modules = slices.Clone(l.Kubernetes.Sums), slices.Clone(l.Kubernetes.Modules)
	l.Sort()
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s\ntime %d\ngo %s\n", header, l.Time, l.Go)
	for _, s := range l.Suites {
		fmt.Fprintf(&b, "suite %s %s %d %s\n", s.Archive, s.Name, s.Date, s.InRelease)
	}
	for _, g := range l.Kubernetes.Sums {
		fmt.Fprintf(&b, "gosum %s %s\n", g.Dir, g.SHA256)
	}
	for _, m := range l.Kubernetes.Modules {
		fmt.Fprintf(&b, "module %s %s %s\n", m.Path, m.Version, m.Sum)
	}
	for _, p := range l.Packages {
		fmt.Fprintf(&b, "%s %s %s %s %s %d %s\n", p.Set, p.Name, p.Version, p.Arch, p.SHA256, p.Size, p.Path)
	}
	return b.Bytes()
}

func closing(body []byte) string {
	sum := sha256.Sum256(body)
	return "end " + hex.EncodeToString(sum[:]) + "\n"
}

// Parse reads a lock file. It is strict: the file must be byte for byte what Encode writes for its content, so a flipped bit,
// an unknown line, another order or a missing end is an error.
func Parse(file []byte) (Lock, error) {
	var l Lock
	if len(file) > MaxSize {
		return l, fmt.Errorf("read lock: %d bytes, at most %d are allowed", len(file), MaxSize)
	}
	body, err := checkEnd(file)
	if err != nil {
		return l, fmt.Errorf("read lock: %w", err)
	}
	for i, line := range strings.Split(strings.TrimSuffix(string(body), "\n"), "\n") {
		if i == 0 {
			if line != header {
				return Lock{}, fmt.Errorf("read lock: line 1: want %q, got %q: bring the lock back that was there, or remove it, and make it anew with hullmark lock", header, line)
			}
			continue
		}
		if err := l.parseLine(strings.Split(line, " ")); err != nil {
			return Lock{}, fmt.Errorf("read lock: line %d: %w", i+1, err)
		}
	}
	if !bytes.Equal(l.body(), body) {
		return Lock{}, errors.New("read lock: lines are not in canonical order or form: bring the lock back that was there, or remove it, and make it anew with hullmark lock")
	}
	return l, l.check()
}

// checkEnd splits off the last line and holds it against the bytes before it.
func checkEnd(file []byte) (body []byte, err error) {
	at := bytes.LastIndex(file, []byte("\nend ")) + 1
	if at == 0 {
		return nil, errors.New("the last line, end SHA256, is missing: the file is cut off")
	}
	if body = file[:at]; string(file[at:]) != closing(body) {
		return nil, errors.New("content does not match its last line: the file was changed by hand or by accident; bring it back as it was, or remove it and make it anew with hullmark lock")
	}
	return body, nil
}

func (l *Lock) parseLine(f []string) (err error) {
	switch {
	case f[0] == "time" && len(f) == 2:
		l.Time, err = strconv.ParseInt(f[1], 10, 64)
	case f[0] == "go" && len(f) == 2:
		l.Go = f[1]
	case f[0] == "suite" && len(f) == 5:
		s := Suite{Archive: f[1], Name: f[2], InRelease: f[4]}
		s.Date, err = strconv.ParseInt(f[3], 10, 64)
		l.Suites = append(l.Suites, s)
	case f[0] == "gosum" && len(f) == 3:
		l.Kubernetes.Sums = append(l.Kubernetes.Sums, GoSum{Dir: f[1], SHA256: f[2]})
	case f[0] == "module" && len(f) == 4:
		l.Kubernetes.Modules = append(l.Kubernetes.Modules, Module{Path: f[1], Version: f[2], Sum: f[3]})
	case setForm.MatchString(f[0]) && len(f) == 7:
		p := Package{Set: Set(f[0]), Name: f[1], Version: f[2], Arch: f[3], SHA256: f[4], Path: f[6]}
		p.Size, err = strconv.ParseInt(f[5], 10, 64)
		l.Packages = append(l.Packages, p)
	default:
		return fmt.Errorf("unknown line %q with %d fields", f[0], len(f))
	}
	return err
}

// What the fields may look like: Debian Policy 5.6.1 and 5.6.12, and nothing that could leave a folder or end a line.
var (
	setForm     = regexp.MustCompile(`^(build|tools|root([+-][a-z0-9][a-z0-9._-]*)?)$`)
	sumForm     = regexp.MustCompile(`^[0-9a-f]{64}$`)
	wordForm    = regexp.MustCompile(`^[a-z0-9][a-z0-9.-]*$`)
	nameForm    = regexp.MustCompile(`^[a-z0-9][a-z0-9+.-]+$`)
	versionForm = regexp.MustCompile(`^[0-9][A-Za-z0-9.+:~-]*$`)
	pathForm    = regexp.MustCompile(`^[a-z0-9][A-Za-z0-9/_.+~-]*$`)
	moduleForm  = regexp.MustCompile(`^[a-z0-9][A-Za-z0-9/_.~-]*$`)
	goForm      = regexp.MustCompile(`^go1\.[0-9]+(\.[0-9]+|rc[0-9]+)?$`)
	h1Form      = regexp.MustCompile(`^h1:[A-Za-z0-9+/]{43}=$`)
)

func (l Lock) check() error {
	if l.Time <= 0 || len(l.Packages) > MaxPackages || len(l.Kubernetes.Modules) > MaxModules {
		return fmt.Errorf("read lock: time %d, %d packages, %d modules: outside what a lock may hold", l.Time, len(l.Packages), len(l.Kubernetes.Modules))
	}
	if !goForm.MatchString(l.Go) {
		return fmt.Errorf("read lock: malformed Go release %q", l.Go)
	}
	for _, s := range l.Suites {
		if !wordForm.MatchString(s.Archive) || !wordForm.MatchString(s.Name) || !sumForm.MatchString(s.InRelease) || s.Date <= 0 || s.Date > l.Time {
			return fmt.Errorf("read lock: malformed suite %q %q", s.Archive, s.Name)
		}
	}
	for _, g := range l.Kubernetes.Sums {
		if !moduleForm.MatchString(g.Dir) || !sumForm.MatchString(g.SHA256) {
			return fmt.Errorf("read lock: malformed gosum %q", g.Dir)
		}
	}
	for _, m := range l.Kubernetes.Modules {
		if !moduleForm.MatchString(m.Path) || m.Version == "" || !h1Form.MatchString(m.Sum) {
			return fmt.Errorf("read lock: malformed module %q", m.Path)
		}
	}
	return l.checkPackages()
}

func (l Lock) checkPackages() error {
	sums := map[string]string{}
	for i, p := range l.Packages {
		if err := p.check(); err != nil {
			return fmt.Errorf("read lock: package %q: %w", p.Name, err)
		}
		if i > 0 && comparePackages(l.Packages[i-1], p) == 0 {
			return fmt.Errorf("read lock: package %q is in set %s twice", p.Name, p.Set)
		}
		if other, twice := sums[p.ID()]; twice && other != p.SHA256 {
			return fmt.Errorf("read lock: package %s has two contents", p.ID())
		}
		sums[p.ID()] = p.SHA256
	}
	return nil
}

func (p Package) check() error {
	switch {
	case !nameForm.MatchString(p.Name), !versionForm.MatchString(p.Version), p.Arch != "all" && p.Arch != "amd64":
		return fmt.Errorf("malformed name, version or architecture: %q %q", p.Version, p.Arch)
	case !sumForm.MatchString(p.SHA256), p.Size <= 0:
		return errors.New("malformed sha256 or size")
	case !pathForm.MatchString(p.Path), path.Clean(p.Path) != p.Path, strings.Contains(p.Path, ".."):
		return fmt.Errorf("malformed path %q", p.Path)
	case path.Base(p.Path) != p.File():
		return fmt.Errorf("path %q is not that of %s", p.Path, p.File())
	}
	return nil
}
