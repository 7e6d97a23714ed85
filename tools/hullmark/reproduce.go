package main

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/hullmark/hullmark/image/build"
)

func newReproduceCommand() *cobra.Command {
	var f buildFlags
	var a attestOptions
	cmd := &cobra.Command{
		Use:   "reproduce",
		Short: "Build the image three times under other circumstances and compare",
		Long: `Build the image three times under other circumstances and compare.

Folder, umask, time zone and locale differ, and the third build runs on another kernel (User-Mode Linux) with one processor, whose clock stands
more than a year ahead. Every build begins with an empty cache: they share only packages and Go modules, which are held by hash, and the tools
tree; the third also takes the second's Kubernetes bundle, which would take hours there. If the images or their documents differ, the first differing partition, file and offset are named. The images
are gone at the end. hullmark doctor reproduce tells what a machine lacks for it.

With --attest a published document is signed, if the builds lead to that very document: policies and hullmark verify count such signatures of several builders. Have the
sources and the lock that the release was built from, and the flags that it was built with; check the document first (hullmark verify --document).
Keep the key outside of the checkout and of the definition folder, since builds copy what lies there.

Exit codes: 0 byte-equal, and signed if that was asked for, 3 the builds differ, or lead to another document, and nothing was signed, 1 failed, 2 usage.`,
		Example: "  hullmark reproduce\n  hullmark reproduce --attest out/node.json --key ../builder.key",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o, err := f.options(cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			program, err := os.Executable()
			if err != nil {
				return err
			}
			attest, err := a.open(cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			var use func(image, tools string) error
			if attest != nil {
				use = attest.sign
			}
			sum, err := build.Reproduce(cmd.Context(), o, program, use)
			if errors.Is(err, build.ErrImagesDiffer) || errors.Is(err, build.ErrDocumentsDiffer) {
				return withCode(exitMismatch, err)
			}
			if err != nil {
				return err
			}
			said := fmt.Sprintf("byte-equal: all three images have sha256 %s, and equal documents\n", sum)
			if attest != nil {
				said += "signed: " + attest.to + "\n"
			}
			_, err = io.WriteString(cmd.OutOrStdout(), said)
			return err
		},
	}
	f.register(cmd)
	f.registerImage(cmd)
	a.register(cmd)
	return cmd
}
