// Image builds the manager's container image, for several architectures, as an OCI image layout in a folder, and prints the digest by
// which registries know it. The same sources give the same digest.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"time"

	"github.com/hullmark/hullmark/image/build"
	"github.com/hullmark/hullmark/image/oci"
	"github.com/hullmark/hullmark/internal/atomicfile"
	"github.com/hullmark/hullmark/internal/cache"
)

// The names in the folder.
const (
	layoutFolder = "layout"
	digestFile   = "digest"
)

func main() {
	source := flag.String("source", "../..", "the checkout")
	name := flag.String("name", "localhost/hullmark/capi-manager:dev", "the image's name in the layout: REGISTRY/REPOSITORY:TAG")
	architectures := flag.String("architectures", "amd64,arm64", "the architectures, as Go calls them")
	out := flag.String("out", "", "the folder, which is made: the layout in place of an earlier one, its digest, and each program with its SBOM")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	digest, err := write(ctx, *source, *out, *name, strings.Split(*architectures, ","))
	if err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
	fmt.Println(digest)
}

// write builds the image into the folder out.
func write(ctx context.Context, source, out, name string, architectures []string) (string, error) {
	if out == "" {
		return "", errors.New("--out is missing")
	}
	store, err := cache.Open()
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(out, 0o755); err != nil {
		return "", err
	}
	o := build.Options{Source: source, LockFile: filepath.Join(source, "hullmark.lock"), Store: store, Progress: build.NewProgress(os.Stderr, time.Now)}
	images, err := build.Managers(ctx, o, out, architectures)
	if err != nil {
		return "", err
	}
	layout, digest, err := oci.NewLayout(images, []string{name})
	if err != nil {
		return "", err
	}
	if err := writeLayout(filepath.Join(out, layoutFolder), layout); err != nil {
		return "", err
	}
	return digest.String(), atomicfile.Write(filepath.Join(out, digestFile), []byte(digest.String()+"\n"), 0o644)
}

// writeLayout writes a layout in place of what is in the folder.
func writeLayout(dir string, layout oci.Layout) error {
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	for name, content := range layout {
		path := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := atomicfile.Write(path, content, 0o644); err != nil {
			return err
		}
	}
	return nil
}
