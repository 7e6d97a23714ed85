// Components writes a release of all providers into a clusterctl repository in a folder: for each its components and metadata.yaml, the
// cluster template, and clusterctl.yaml, which tells clusterctl of them.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"

	"github.com/hullmark/hullmark/tools/capi/config"
)

func main() {
	image := flag.String("image", "", "the manager's image, by tag or digest")
	version := flag.String("version", "v0.1.0", "the release, as its folders are called")
	out := flag.String("out", "", "the folder of the repository; it is made")
	flag.Parse()
	err := errors.New("--out is missing")
	if *out != "" {
		err = config.WriteRepository(*out, *version, *image)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "components:", err)
		os.Exit(1)
	}
}
