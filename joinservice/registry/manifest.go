package registry

import _ "embed"

//go:embed manifest.yaml
var manifest []byte

// Manifest returns, as a YAML stream, what a cluster needs before a join service can work: the namespaces, the permissions of
// the service's user, of the upgrade engine's, of operators, of enrollers' account, and of nodes that bring a bootstrap token, and
// admission policies: they keep the service's writes in kube-system to bootstrap tokens, what it deletes of its own to claims of
// addresses, what the engine changes to cordons of its own, directions and its state, what operators write to the policy and its
// documents, and whoever writes vouchers to those.
// Applying it again changes nothing.
func Manifest() []byte { return append([]byte(nil), manifest...) }
