package lock

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
)

// Move is one package that differs between two locks. A package that came or went has a zero From or To.
type Move struct{ From, To Package }

// String says what moved in one line.
func (m Move) String() string {
	switch {
	case m.From.Name == "":
		return fmt.Sprintf("%s: %s came", m.To.Set, m.To.ID())
	case m.To.Name == "":
		return fmt.Sprintf("%s: %s went", m.From.Set, m.From.ID())
	case m.From.Version == m.To.Version:
		return fmt.Sprintf("%s: %s has another content: sha256 %.12s… became %.12s…", m.To.Set, m.To.ID(), m.From.SHA256, m.To.SHA256)
	}
	return fmt.Sprintf("%s: %s %s became %s", m.To.Set, m.To.Name, m.From.Version, m.To.Version)
}

// Compare lists what differs between the packages of two locks, in their order.
func Compare(from, to Lock) []Move {
	type key struct {
		set        Set
		name, arch string
	}
	old := map[key]Package{}
	for _, p := range from.Packages {
		old[key{p.Set, p.Name, p.Arch}] = p
	}
	var moves []Move
	for _, p := range to.Packages {
		k := key{p.Set, p.Name, p.Arch}
		if was := old[k]; was.SHA256 != p.SHA256 || was.Version != p.Version {
			moves = append(moves, Move{From: was, To: p})
		}
		delete(old, k)
	}
	for _, p := range from.Packages {
		if _, left := old[key{p.Set, p.Name, p.Arch}]; left {
			moves = append(moves, Move{From: p})
		}
	}
	slices.SortStableFunc(moves, func(a, b Move) int { return strings.Compare(a.name(), b.name()) })
	return moves
}

func (m Move) name() string { return string(m.From.Set+m.To.Set) + m.From.Name + m.To.Name }

// MovedError says that a package is not what the lock holds.
type MovedError struct {
	Package Package
	// Found is what there was in its place, in words.
	Found string
}

// Error names the package, what was locked and what was found.
func (e *MovedError) Error() string {
	return fmt.Sprintf("package %s moved: locked version %s, sha256 %s; found %s (hullmark lock chooses anew)",
		e.Package.Name, e.Package.Version, e.Package.SHA256, e.Found)
}

// Installed is a package that a dpkg database calls installed.
type Installed struct{ Name, Version, Arch string }

// CheckInstalled compares what is installed in a tree with what was locked for it. Every package that is missing, extra or
// another version is in the error, each as a MovedError.
func CheckInstalled(want []Package, have []Installed) error {
	found := map[string]Installed{}
	for _, h := range have {
		found[h.Name] = h
	}
	var errs []error
	for _, w := range want {
		h, ok := found[w.Name]
		delete(found, w.Name)
		switch {
		case !ok:
			errs = append(errs, &MovedError{Package: w, Found: "nothing: it is not installed"})
		case h.Version != w.Version || h.Arch != w.Arch:
			errs = append(errs, &MovedError{Package: w, Found: "version " + h.Version + " " + h.Arch})
		}
	}
	for _, h := range have {
		if _, extra := found[h.Name]; extra {
			errs = append(errs, fmt.Errorf("package %s %s is installed, but not locked (hullmark lock chooses anew)", h.Name, h.Version))
		}
	}
	return errors.Join(errs...)
}

// ParseStatus reads a dpkg status file (dpkg-query(1)). Packages in any state but "install ok installed" are an error: they are half there.
func ParseStatus(r io.Reader) ([]Installed, error) {
	var all []Installed
	var p Installed
	var state string
	in := bufio.NewScanner(r)
	in.Buffer(nil, 1<<20)
	done := func() error {
		if p.Name != "" && state != "install ok installed" {
			return fmt.Errorf("read dpkg status: package %s is %q", p.Name, state)
		}
		if p.Name != "" {
			all = append(all, p)
		}
		p, state = Installed{}, ""
		return nil
	}
	for in.Scan() {
		field, value, _ := strings.Cut(in.Text(), ": ")
		switch field {
		case "":
			if err := done(); err != nil {
				return nil, err
			}
		case "Package":
			p.Name = value
		case "Version":
			p.Version = value
		case "Architecture":
			p.Arch = value
		case "Status":
			state = value
		}
	}
	return all, errors.Join(done(), in.Err())
}
