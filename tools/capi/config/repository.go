package config

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"

	sigsyaml "sigs.k8s.io/yaml"

	"github.com/hullmark/hullmark/internal/atomicfile"
	"github.com/hullmark/hullmark/tools/capi/templates"
)

// ClusterctlFile is the name of the file, in a repository, that tells clusterctl of it: clusterctl --config REPOSITORY/clusterctl.yaml.
const ClusterctlFile = "clusterctl.yaml"

// versionPattern is that of a release, and of a folder of one.
var versionPattern = regexp.MustCompile(`^v(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)(-[0-9A-Za-z.-]+)?$`)

// WriteRepository writes a release of all providers into a folder, a clusterctl repository, which is made if it is not there. Other
// releases in it stay.
func WriteRepository(dir, version, image string) error {
	if !versionPattern.MatchString(version) {
		return fmt.Errorf("version %q: want one such as v0.1.0", version)
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	for _, p := range Providers() {
		if err := p.writeRelease(filepath.Join(dir, p.Label, version), image); err != nil {
			return fmt.Errorf("%s: %w", p.Label, err)
		}
	}
	text, err := clusterctlFile(dir, version)
	if err != nil {
		return err
	}
	return atomicfile.Write(filepath.Join(dir, ClusterctlFile), text, 0o644)
}

// writeRelease writes one release of one provider.
func (p Provider) writeRelease(dir, image string) error {
	components, err := p.Components(image)
	if err != nil {
		return err
	}
	metadata, err := Metadata()
	if err != nil {
		return err
	}
	contents := map[string][]byte{p.ComponentsFile: components, MetadataFile: metadata}
	if p.Label == Infrastructure.Label {
		files, err := templates.Files()
		if err != nil {
			return err
		}
		maps.Copy(contents, files)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for name, content := range contents {
		if err := atomicfile.Write(filepath.Join(dir, name), content, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// clusterctlFile says to clusterctl where the providers are.
func clusterctlFile(dir, version string) ([]byte, error) {
	type provider struct {
		Name string `json:"name"`
		Type string `json:"type"`
		URL  string `json:"url"`
	}
	var all struct {
		Providers []provider `json:"providers"`
	}
	for _, p := range Providers() {
		all.Providers = append(all.Providers, provider{Name, p.Type, filepath.Join(dir, p.Label, version, p.ComponentsFile)})
	}
	return sigsyaml.Marshal(all)
}
