package infrastructure

import (
	"embed"
	"io/fs"
)

//go:embed crd/*.yaml
var crds embed.FS

// CRDs returns the definitions of the provider's kinds, in YAML.
func CRDs() (text []byte, err error) {
	names, err := fs.Glob(crds, "crd/*.yaml")
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		one, err := crds.ReadFile(name)
		if err != nil {
			return nil, err
		}
		text = append(text, one...)
	}
	return text, nil
}
