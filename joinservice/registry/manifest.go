package registry

import _ "embed"

//go:embed manifest.yaml
var manifest []byte

// Manifest returns, as a YAML stream, what a cluster needs before a join service can work: the namespace, the permissions of
// the service's user, those of nodes that bring a bootstrap token, and admission policies that keep the service's writes in
// kube-system to bootstrap tokens, and what it deletes of its own to claims of addresses. Applying it again changes nothing.
func Manifest() []byte { return append([]byte(nil), manifest...) }
