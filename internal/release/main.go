// Command release makes a release of Hullmark's own program: binaries, their bills of materials, and checksums. `make release` runs and signs it.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"

	"github.com/hullmark/hullmark/image/build"
)

func main() {
	version := flag.String("version", "", "version of the release, vMAJOR.MINOR.PATCH")
	out := flag.String("out", "out/release", "folder for the release")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if !build.IsRelease(*version) {
		fmt.Fprintf(os.Stderr, "release: version %q: want vMAJOR.MINOR.PATCH, as the tag has it\n", *version)
		os.Exit(2)
	}
	if err := build.Release(ctx, ".", *version, *out, build.ReleaseArchitectures); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
	fmt.Println("released in", *out)
}
