package inspect

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/hullmark/hullmark/pcrs"
)

// Comparison is what differs between two images.
type Comparison struct {
	Equal       bool         `json:"equal"`
	Differences []Difference `json:"differences"`
	// NotCompared are kinds that could not be looked at in both images, with the reason.
	NotCompared []NotCompared `json:"notCompared"`
}

// Difference is something that two images have otherwise: what only one has is empty on the other's side.
type Difference struct {
	Kind Kind   `json:"kind"`
	Name string `json:"name"`
	A    string `json:"a,omitempty"`
	B    string `json:"b,omitempty"`
}

// NotCompared is a kind that could not be looked at.
type NotCompared struct {
	Kind   Kind   `json:"kind"`
	Reason string `json:"reason"`
}

// Compare says what differs between the raw disks in two files. Registers are predicted for boot's machine; walk looks into their root file
// systems, and only if these differ.
func Compare(ctx context.Context, boot pcrs.Boot, walk Walk, fileA, fileB string) (Comparison, error) {
	a, err := openListed(fileA, boot)
	if err != nil {
		return Comparison{}, fmt.Errorf("%s: %w", fileA, err)
	}
	defer a.Close()
	b, err := openListed(fileB, boot)
	if err != nil {
		return Comparison{}, fmt.Errorf("%s: %w", fileB, err)
	}
	defer b.Close()
	if a.disk.RootHash != b.disk.RootHash {
		for _, i := range []listed{a, b} {
			if err := i.addRoot(ctx, walk); err != nil {
				return Comparison{}, err
			}
		}
	}
	return compareInventories(a.Inventory, b.Inventory), nil
}

// compareInventories lists what differs, by kind and name.
func compareInventories(a, b Inventory) Comparison {
	c := Comparison{Equal: true, Differences: []Difference{}, NotCompared: []NotCompared{}}
	for _, kind := range kinds {
		if reason := cmp.Or(a.Missing[kind], b.Missing[kind]); reason != "" {
			c.NotCompared = append(c.NotCompared, NotCompared{kind, reason})
			continue
		}
		x, y := a.Found[kind], b.Found[kind]
		both := maps.Clone(x)
		if both == nil {
			both = map[string]string{}
		}
		maps.Copy(both, y)
		for _, name := range slices.Sorted(maps.Keys(both)) {
			if x[name] != y[name] {
				c.Differences = append(c.Differences, Difference{kind, name, x[name], y[name]})
			}
		}
	}
	c.Equal = len(c.Differences) == 0
	return c
}
