package main

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
)

// row is an attack, and the tests that the page names beside it.
type row struct {
	attack string
	// refused show the attack refused; controls show its positive control accepted. Where the page names none for that, the former do both.
	refused, controls []reference
}

func (r row) tests() []reference { return slices.Concat(r.refused, r.controls) }

// accepted are the tests that show the positive control.
func (r row) accepted() []reference {
	if len(r.controls) == 0 {
		return r.refused
	}
	return r.controls
}

// reference names a test as the page does: joinservice.TestBusyService, or one subtest of it.
type reference struct {
	// folder is the package's, with the module's own called hullmark.
	folder, name, subtest string
}

// dir is where the checkout has a package's folder.
func dir(folder string) string {
	if folder == "hullmark" {
		return "."
	}
	return folder
}

func (r reference) String() string {
	text := r.folder + "." + r.name
	if r.subtest != "" {
		text += fmt.Sprintf("/%q", r.subtest)
	}
	return text
}

const heading = "| attack | what meets it | shown by |"

// readPage returns the rows of the page's table of attacks.
func readPage(path string) ([]row, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	_, table, found := strings.Cut(string(text), "\n"+heading+"\n|---|---|---|\n")
	if !found {
		return nil, fmt.Errorf("%s has no table %s", path, heading)
	}
	var rows []row
	for line := range strings.Lines(table) {
		if !strings.HasPrefix(line, "|") {
			break
		}
		r, err := readRow(line)
		if err != nil {
			return nil, fmt.Errorf("%s: %s: %w", path, r.attack, err)
		}
		rows = append(rows, r)
	}
	return rows, nil
}

func readRow(line string) (row, error) {
	cells := strings.Split(line, "|")
	r := row{attack: strings.TrimSpace(cells[1])}
	if len(cells) != 5 {
		return r, fmt.Errorf("%d cells, want 3", len(cells)-2)
	}
	refused, controls, apart := strings.Cut(cells[3], "control:")
	var err error
	if r.refused, err = references(refused); err != nil || !apart {
		return r, err
	}
	r.controls, err = references(controls)
	return r, err
}

var (
	span = regexp.MustCompile("`([^`]+)`")
	// name is what stands in a span. Without a folder it is of the package before, without a test it is a further subtest of the
	// test before.
	name = regexp.MustCompile(`^(?:([a-z0-9/]*)\.((?:Test|Fuzz)[A-Za-z0-9_]+))?(?:/"([^"]+)")?$`)
)

func references(cell string) ([]reference, error) {
	var list []reference
	var r reference
	for _, found := range span.FindAllStringSubmatch(cell, -1) {
		m := name.FindStringSubmatch(found[1])
		if m == nil || m[1] == "" && r.folder == "" {
			return nil, fmt.Errorf("%s names no test", found[0])
		}
		if m[1] != "" {
			r.folder = m[1]
		}
		if m[2] != "" {
			r.name = m[2]
		}
		r.subtest = m[3]
		list = append(list, r)
	}
	if len(list) == 0 {
		return nil, errors.New("no test is named")
	}
	return list, nil
}
