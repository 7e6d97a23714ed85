package needs

import (
	"maps"
	"slices"
)

// essential are packages that every Debian machine has, and that none is to name (Debian Policy, 3.8).
var essential = []string{"dash", "dpkg", "libc-bin", "tar", "util-linux"}

// elsewhere are the verbs that need an x86-64 processor: on another machine nobody needs anything for them.
func elsewhere() []string {
	var verbs []string
	for _, u := range table[slices.IndexFunc(table, func(n Need) bool { return n.What == x86 })].For {
		verbs = append(verbs, u.Verb)
	}
	return verbs
}

// Relations are the packages that a Debian package of hullmark for an architecture names, deb-control(5). It recommends what verbs do
// nothing without, and suggests what they need for a part of what they do, or what reproduce alone needs, which few run. It depends on
// nothing: the program is static, and who only speaks to clusters wants no more of it.
func Relations(arch string) (recommends, suggests []string) {
	some, most := map[string]bool{}, map[string]bool{}
	for _, n := range table {
		for _, u := range n.For {
			if arch != "amd64" && slices.Contains(elsewhere(), u.Verb) {
				continue
			}
			for _, p := range n.Packages {
				if slices.Contains(essential, p) {
					continue
				}
				if some[p] = true; u.When == "" && u.Verb != reproduce {
					most[p] = true
				}
			}
		}
	}
	for p := range most {
		delete(some, p)
	}
	return slices.Sorted(maps.Keys(most)), slices.Sorted(maps.Keys(some))
}
