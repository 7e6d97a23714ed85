// Package templates holds what "clusterctl generate cluster" makes clusters of.
package templates

import (
	"embed"
	"io/fs"
)

//go:embed *.yaml
var files embed.FS

// Files returns what belongs into the infrastructure provider's release beside its components, by the names that clusterctl looks for:
// cluster templates of QEMU machines, with clusterctl's variables, and the ClusterClasses that they refer to.
func Files() (map[string][]byte, error) {
	names, err := fs.Glob(files, "*.yaml")
	if err != nil {
		return nil, err
	}
	all := map[string][]byte{}
	for _, name := range names {
		if all[name], err = files.ReadFile(name); err != nil {
			return nil, err
		}
	}
	return all, nil
}
