// Command site writes the site of this repository's pages into a folder, in place of an earlier one. It is run in the repository's root.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/hullmark/hullmark/internal/atomicfile"
	"github.com/hullmark/hullmark/internal/site"
)

func main() {
	out := flag.String("out", "out/site", "`FOLDER` to write")
	flag.Parse()
	if err := run(filepath.Clean(*out)); err != nil {
		fmt.Fprintln(os.Stderr, "site:", err)
		os.Exit(1)
	}
	fmt.Println(filepath.Join(*out, "index.html"))
}

func run(out string) error {
	files, err := site.Build(os.DirFS("."), site.Groups())
	if err != nil {
		return err
	}
	if err := removeEarlier(out); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(out), 0o755); err != nil {
		return err
	}
	return atomicfile.Folder(out, 0o755, func(dir string) error {
		for _, f := range files {
			if err := os.WriteFile(filepath.Join(dir, f.Name), f.Content, 0o644); err != nil {
				return err
			}
		}
		return nil
	})
}

// removeEarlier removes a site. Of any other folder nothing is removed, so that it is refused unless it is empty.
func removeEarlier(out string) error {
	if _, err := os.Stat(filepath.Join(out, "search-index.js")); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	}
	return os.RemoveAll(out)
}
