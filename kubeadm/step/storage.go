package step

import (
	"crypto/sha256"
	"encoding/base64"
	"slices"
)

// Resource is one version of a resource, as an API server's discovery tells of it.
type Resource struct {
	// Group is empty for the core API; Name is the plural, such as deployments.
	Group, Version, Kind, Name string
	// StorageHash names the version in which the server stores it (APIResource.storageVersionHash); empty where it stores none.
	StorageHash string
}

// storageHash is how a server names the version that it stores a kind in (k8s.io/apiserver, pkg/endpoints/discovery, StorageVersionHash).
func storageHash(group, version, kind string) string {
	sum := sha256.Sum256([]byte(group + "/" + version + "/" + kind))
	return base64.StdEncoding.EncodeToString(sum[:8])
}

// Unreadable names the resources that now are stored in a version that the server of before does not serve, and so might not read, as
// GROUP/NAME in their order. What that server did not have at all is not among them: it does not look for it either.
func Unreadable(before, now []Resource) []string {
	type resource struct{ group, name string }
	reads := map[resource][]string{}
	for _, r := range before {
		key := resource{r.Group, r.Name}
		// It reads what it serves, and what it stores, which need not be served.
		reads[key] = append(reads[key], storageHash(r.Group, r.Version, r.Kind), r.StorageHash)
	}
	var moved []string
	for _, r := range now {
		hashes, had := reads[resource{r.Group, r.Name}]
		if name := r.Group + "/" + r.Name; had && r.StorageHash != "" && !slices.Contains(hashes, r.StorageHash) && !slices.Contains(moved, name) {
			moved = append(moved, name)
		}
	}
	slices.Sort(moved)
	return moved
}
