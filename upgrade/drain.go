package upgrade

import (
	"fmt"
	"slices"
	"strings"
)

// stays reports whether a pod is left on a node that is drained.
func (p Pod) stays() bool { return p.Mirror || p.DaemonSet }

// left returns the pods that still have to go from a node.
func left(pods []Pod) []Pod {
	return slices.DeleteFunc(slices.Clone(pods), Pod.stays)
}

// lost says why a pod is not evicted, since something would be lost with it; empty if nothing is. One that has ended loses nothing.
func (d Drain) lost(p Pod) string {
	switch {
	case p.stays() || p.Finished || p.Ending:
		return ""
	case !p.Controlled && !d.Force:
		return "no controller makes it anew"
	case p.EmptyDir && !d.DeleteEmptyDir:
		return "it has data in an emptyDir"
	}
	return ""
}

// losses says of each pod that the drain must not lose why; sorted.
func (d Drain) losses(pods []Pod) (losses []string) {
	for _, p := range pods {
		if why := d.lost(p); why != "" {
			losses = append(losses, p.String()+": "+why)
		}
	}
	slices.Sort(losses)
	return losses
}

// holdUp says which pods hold a drain up, and by which budgets.
func holdUp(pods []Pod, budgets map[string]Budget) string {
	var words []string
	for _, p := range left(pods) {
		word := "pod " + p.String()
		for _, name := range p.Budgets {
			if b, ok := budgets[name]; ok && b.Allowed < 1 && !p.Ending {
				word += fmt.Sprintf(" (PodDisruptionBudget %s allows no disruption: %d of %d have to be healthy)", name, b.Desired, b.Expected)
			}
		}
		if p.Ending {
			word += " (it is being ended)"
		}
		words = append(words, word)
	}
	slices.Sort(words)
	return list(words)
}

// list joins the first few of some words.
func list(words []string) string {
	const most = 5
	if len(words) > most {
		return fmt.Sprintf("%s, and %d more", strings.Join(words[:most], ", "), len(words)-most)
	}
	return strings.Join(words, ", ")
}
