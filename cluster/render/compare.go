package render

import (
	"maps"
	"path"
	"slices"

	"github.com/rogpeppe/go-internal/diff"
)

// Compare returns a unified diff from the files of a folder, by name, to the rendered ones; it is empty if they are equal.
func Compare(folder string, earlier map[string][]byte, files []Rendered) (differences []byte) {
	wanted := Contents(files)
	names := slices.Collect(maps.Keys(wanted))
	names = slices.AppendSeq(names, maps.Keys(earlier))
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		differences = append(differences, diff.Diff(path.Join(folder, name), earlier[name], name, wanted[name])...)
	}
	return differences
}

// Contents are the files by their names.
func Contents(files []Rendered) map[string][]byte {
	byName := map[string][]byte{}
	for _, f := range files {
		byName[f.Name] = f.Content
	}
	return byName
}
