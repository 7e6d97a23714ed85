package lukstest

import (
	"encoding/json"
	"iter"
	"math/rand/v2"
	"strconv"
	"strings"
)

// node is a value of a JSON document that keeps its order, and can be written in wrong ways.
type node struct {
	// raw is a scalar's text; it replaces members if it is set.
	raw     string
	list    bool
	members []member
}

// member is one of an object or, without a key, of a list.
type member struct {
	key   string
	value *node
}

func parse(document string) *node {
	d := json.NewDecoder(strings.NewReader(document))
	d.UseNumber()
	return read(d)
}

// read panics on what is no JSON.
func read(d *json.Decoder) *node {
	token, err := d.Token()
	if err != nil {
		panic(err)
	}
	switch v := token.(type) {
	case string:
		return &node{raw: strconv.Quote(v)}
	case json.Number:
		return &node{raw: v.String()}
	case json.Delim:
		n := &node{list: v == '['}
		for d.More() {
			var m member
			if !n.list {
				token, err := d.Token()
				if err != nil {
					panic(err)
				}
				m.key = token.(string)
			}
			m.value = read(d)
			n.members = append(n.members, m)
		}
		if _, err := d.Token(); err != nil {
			panic(err)
		}
		return n
	}
	text, err := json.Marshal(token) // true, false or null
	if err != nil {
		panic(err)
	}
	return &node{raw: string(text)}
}

// String returns the document.
func (n *node) String() string {
	if n.raw != "" {
		return n.raw
	}
	texts := make([]string, len(n.members))
	for i, m := range n.members {
		if texts[i] = m.value.String(); !n.list {
			texts[i] = strconv.Quote(m.key) + ":" + texts[i]
		}
	}
	if n.list {
		return "[" + strings.Join(texts, ",") + "]"
	}
	return "{" + strings.Join(texts, ",") + "}"
}

// repeated finds a key that an object has twice.
func (n *node) repeated() (key string, found bool) {
	seen := map[string]bool{}
	for _, m := range n.members {
		if !n.list && seen[m.key] {
			return m.key, true
		}
		seen[m.key] = true
		if key, found := m.value.repeated(); found {
			return key, true
		}
	}
	return "", false
}

// hostile are values for any place.
var hostile = []string{
	`null`, `true`, `0`, `-1`, `1e999`, `18446744073709551616`, `""`, `"\u0000"`, `[]`, `{}`, `[0]`, `["0"]`, `["0","1"]`, `{"0":{}}`,
	`"cipher_null-ecb"`, `"linear"`, `"argon2id"`, strings.Repeat("[", 100) + strings.Repeat("]", 100), `"` + strings.Repeat("A", 4096) + `"`,
}

// variants are values that look like a scalar.
func variants(raw string) []string {
	text, quoted := strings.CutPrefix(raw, `"`)
	text = strings.TrimSuffix(text, `"`)
	var list []string
	if n, err := strconv.ParseInt(text, 10, 64); err == nil {
		for _, v := range []int64{n + 1, n - 1, -n, n + 1<<32, 2 * n, n + 512} {
			list = append(list, strconv.FormatInt(v, 10))
		}
		list = append(list, "0"+text, text+".0", text+"e0", " "+text+" ", "+"+text)
	} else {
		list = append(list, strings.ToUpper(text), text+" ", text+`\u0000`, text+`\u0000x`, text[:len(text)/2])
	}
	if quoted {
		for i := range list {
			list[i] = `"` + list[i] + `"`
		}
		return append(list, text)
	}
	return append(list, `"`+text+`"`)
}

// documents yields each field of a metadata document, with the documents that have something else there.
func documents(document string) iter.Seq2[string, string] {
	return func(yield func(string, string) bool) {
		root := parse(document)
		root.each("", func(path string, n *node) bool {
			return n.mutate(func() bool {
				mutant := root.String()
				return mutant == document || yield(path, mutant)
			})
		})
	}
}

// each calls f with every value, until it returns false.
func (n *node) each(path string, f func(string, *node) bool) bool {
	if !f(path, n) {
		return false
	}
	for i, m := range n.members {
		key := m.key
		if n.list {
			key = strconv.Itoa(i)
		}
		if !m.value.each(path+"."+key, f) {
			return false
		}
	}
	return true
}

// mutate gives a value one hostile form after the other, and calls f with each until it returns false; then it is what it was.
func (n *node) mutate(f func() bool) bool {
	was := *n
	defer func() { *n = was }()
	values := hostile
	if was.raw != "" {
		values = append(variants(was.raw), hostile...)
	}
	for _, n.raw = range values {
		if !f() {
			return false
		}
	}
	n.raw = was.raw
	if n.raw != "" {
		return true
	}
	for i, m := range was.members {
		for _, members := range [][]member{
			nil,                // it is gone
			{m, m},             // twice
			{{m.key, zero}, m}, // twice, with another value first
			{m, {m.key, zero}}, // or last
			{{strings.ToUpper(m.key), m.value}},
			{{m.key + "\x00", m.value}},
			{m, {m.key + "1", m.value}}, // a sibling
		} {
			n.members = append(append(append([]member(nil), was.members[:i]...), members...), was.members[i+1:]...)
			if !f() {
				return false
			}
		}
	}
	n.members = append(append([]member(nil), was.members...), member{"requirements", &node{raw: `{"mandatory":["online-reencrypt"]}`}})
	return f()
}

var zero = &node{raw: "0"}

// scramble makes one random change, somewhere.
func (n *node) scramble(r *rand.Rand) {
	var all []*node
	n.each("", func(_ string, n *node) bool { all = append(all, n); return true })
	victim := all[r.IntN(len(all))]
	switch other := all[r.IntN(len(all))]; {
	case victim.raw != "" && r.IntN(2) == 0:
		list := variants(victim.raw)
		victim.raw = list[r.IntN(len(list))]
	case victim.raw == "" && len(victim.members) > 0 && r.IntN(2) == 0:
		i := r.IntN(len(victim.members))
		switch m := victim.members[i]; r.IntN(3) {
		case 0:
			victim.members = append(victim.members[:i:i], victim.members[i+1:]...)
		case 1:
			victim.members = append(victim.members, m)
		case 2:
			victim.members[i].key = strings.ToUpper(m.key)
		}
	case r.IntN(2) == 0:
		*victim = node{raw: other.String()}
	default:
		*victim = node{raw: hostile[r.IntN(len(hostile))]}
	}
}
