package render

import (
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
)

// sorted yields a map's entries in the order of their keys.
func sorted[V any](m map[string]V) iter.Seq2[string, V] {
	return func(yield func(string, V) bool) {
		for _, key := range slices.Sorted(maps.Keys(m)) {
			if !yield(key, m[key]) {
				return
			}
		}
	}
}

// ownLabels are the labels of Kubernetes' own names that a kubelet may set on its Node (k8s.io/kubelet, pkg/apis); others it
// refuses to start with.
var ownLabels = []string{
	"beta.kubernetes.io/arch", "beta.kubernetes.io/instance-type", "beta.kubernetes.io/os",
	"failure-domain.beta.kubernetes.io/region", "failure-domain.beta.kubernetes.io/zone",
	"kubernetes.io/arch", "kubernetes.io/hostname", "kubernetes.io/os",
	"node.kubernetes.io/instance-type", "topology.kubernetes.io/region", "topology.kubernetes.io/zone",
}

// checkLabel refuses what the kubelet would refuse when it starts.
func checkLabel(key, value string) error {
	if !qualifiedName.MatchString(key) {
		return fmt.Errorf("%q: want a qualified name such as example.com/key", key)
	}
	if !labelValue.MatchString(value) {
		return fmt.Errorf("%s: value %q: want at most 63 letters, digits, dots, hyphens or underscores", key, value)
	}
	domain, _, qualified := strings.Cut(key, "/")
	if !qualified || !(below(domain, "kubernetes.io") || below(domain, "k8s.io")) {
		return nil
	}
	if below(domain, "kubelet.kubernetes.io") || below(domain, "node.kubernetes.io") || slices.Contains(ownLabels, key) {
		return nil
	}
	return fmt.Errorf("%s: a kubelet may not set it on its own Node; use a name of your own domain, or set it with kubectl", key)
}

// below reports whether a domain is parent or lies below it.
func below(domain, parent string) bool {
	return domain == parent || strings.HasSuffix(domain, "."+parent)
}

// nodeLabels writes labels as the kubelet's flag takes them.
func nodeLabels(labels map[string]string) string {
	var pairs []string
	for key, value := range sorted(labels) {
		pairs = append(pairs, key+"="+value)
	}
	return strings.Join(pairs, ",")
}
