package kubeadmspec

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	bootstrapv1 "sigs.k8s.io/cluster-api/api/bootstrap/kubeadm/v1beta2"
)

// mapping is one call of Map.
type mapping struct {
	spec         *bootstrapv1.KubeadmConfigSpec
	controlPlane bool
	pieces       []piece
	refusals     []Refusal
	// broken are the units of which a field is refused.
	broken map[string]bool
}

// piece is one value of the result.
type piece struct {
	// unit is the field that it came from; of an element of a list, the element: its fields make sense together only.
	unit string
	// to are the steps to its place in the result: names, and indices of lists.
	to    []any
	value any
	// agrees says that it is there already, and has only to be the same (Field.agrees).
	agrees bool
}

// place is where in the spec something stands.
type place struct {
	// field is its path, and path the one in the table: with [] in place of each index.
	field, path string
	// unit is the innermost element of a list around it, or the field itself.
	unit string
	// index has the indices of the path.
	index []int
}

func (p place) named(name string) place {
	if p.field != "" {
		name = "." + name
	}
	unit := p.unit
	if len(p.index) == 0 {
		unit += name
	}
	return place{field: p.field + name, path: p.path + name, unit: unit, index: p.index}
}

func (p place) element(i int) place {
	field := fmt.Sprintf("%s[%d]", p.field, i)
	return place{field: field, path: p.path + "[]", unit: field, index: append(slices.Clone(p.index), i)}
}

// walk takes what stands at a place, beside the other fields of its object.
func (m *mapping) walk(at place, value any, beside map[string]any) {
	if f, ok := rows[at.path]; ok && m.take(f, at, value, beside) {
		return
	}
	switch value := value.(type) {
	case map[string]any:
		m.walkObject(at, value)
	case []any:
		for i, element := range value {
			m.walk(at.element(i), element, nil)
		}
	default:
		m.refuse(at, "this release of Hullmark does not know the field; leave it out")
	}
}

func (m *mapping) walkObject(at place, object map[string]any) {
	for _, f := range required[at.path] {
		if name := f[len(at.path)+1:]; object[name] == nil || object[name] == "" {
			m.refuse(at.named(name), "it is missing")
		}
	}
	for _, name := range slices.Sorted(maps.Keys(object)) {
		m.walk(at.named(name), object[name], object)
	}
}

// take does with a value what the table says, and reports whether there is no more to do below it.
func (m *mapping) take(f Field, at place, value any, beside map[string]any) bool {
	switch {
	case f.Workers != "" && !m.controlPlane:
		m.refuse(at, f.Workers)
		return true
	case slices.ContainsFunc(f.Same, func(same any) bool { return reflect.DeepEqual(same, value) }):
		return true
	case f.Where == "" && !f.open:
		m.refuse(at, f.Why)
		return true
	}
	use := f.use
	if use == nil && !f.open {
		use = keep
	}
	if use != nil {
		if err := use(m, f, at, value, beside); err != nil {
			m.refuse(at, err.Error())
			return true
		}
	}
	return !f.open
}

func (m *mapping) refuse(at place, reason string) {
	m.refusals = append(m.refusals, Refusal{Field: at.field, Reason: reason})
	m.broken[at.unit] = true
}

// put adds a piece of the result.
func (m *mapping) put(f Field, at place, value any) {
	m.pieces = append(m.pieces, piece{unit: at.unit, to: steps(f.Where, at.index), value: value, agrees: f.agrees})
}

// steps are those of a place of the table with its indices.
func steps(where string, index []int) []any {
	var all []any
	for name := range strings.SplitSeq(where, ".") {
		name, isList := strings.CutSuffix(name, "[]")
		all = append(all, name)
		if isList {
			all, index = append(all, index[0]), index[1:]
		}
	}
	return all
}

// template is how cloud-init asks for something of the machine; it fills that in also where nobody expects it.
var template = regexp.MustCompile(`\{\{-?\s*(ds|v1)\b`)

// checkText refuses what would not be found again as it was meant.
func checkText(value any) error {
	switch value := value.(type) {
	case string:
		if strings.ContainsRune(value, utf8.RuneError) {
			return errors.New("want text in UTF-8")
		}
		if template.MatchString(value) {
			return errors.New("there is no cloud-init that fills in templates; write the value itself")
		}
	case map[string]any:
		for name := range value {
			if err := checkText(name); err != nil {
				return err
			}
		}
	}
	return nil
}
