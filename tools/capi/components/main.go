// Components writes a release's files for a clusterctl repository into a folder: bootstrap-components.yaml and metadata.yaml.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"

	"github.com/hullmark/hullmark/internal/atomicfile"
	"github.com/hullmark/hullmark/tools/capi/config"
)

func main() {
	image := flag.String("image", "", "the manager's image, by tag or digest")
	out := flag.String("out", "", "the folder of the release, such as REPOSITORY/bootstrap-hullmark/v0.1.0; it is made")
	flag.Parse()
	if err := write(*out, *image); err != nil {
		fmt.Fprintln(os.Stderr, "components:", err)
		os.Exit(1)
	}
}

func write(dir, image string) error {
	if dir == "" {
		return fmt.Errorf("--out is missing")
	}
	components, err := config.Components(image)
	if err != nil {
		return err
	}
	metadata, err := config.Metadata()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if err := atomicfile.Write(filepath.Join(dir, config.MetadataFile), metadata, 0o644); err != nil {
		return err
	}
	return atomicfile.Write(filepath.Join(dir, config.ComponentsFile), components, 0o644)
}
