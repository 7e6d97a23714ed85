package main

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/hullmark/hullmark/measurements"
	"github.com/hullmark/hullmark/measurements/publish"
)

func newPublishCommand() *cobra.Command {
	var key, image, to string
	cmd := &cobra.Command{
		Use:   "publish FILE",
		Short: "Put a signed measurement document, and its image, where others fetch it",
		Long: `Put a signed measurement document, and its image, where others fetch it.

The folder is a tree that any web server can show. Both files have to be what the key signed.`,
		Example: "  hullmark publish node.dsse --key release.pub --image node.raw --to /srv/releases",
		Args:    exactArg("publish", "the signed document"),
		RunE: func(cmd *cobra.Command, args []string) error {
			public, err := readPublicKey(key)
			if err != nil {
				return err
			}
			signed, err := readBounded(args[0], measurements.MaxEnvelope)
			if err != nil {
				return err
			}
			if err := publish.Release(to, signed, public, image); err != nil {
				return err
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), "published in", to)
			return err
		},
	}
	f := cmd.Flags()
	f.StringVar(&key, "key", "", "public key `FILE` (PEM)")
	f.StringVar(&image, "image", "", "also publish this disk image `FILE`")
	f.StringVar(&to, "to", "", "`FOLDER` to publish in")
	require(cmd, "key", "to")
	return cmd
}

// fetchOptions are the flags of `hullmark fetch`.
type fetchOptions struct {
	from, key, out, image string
	minimum               uint32
}

func newFetchCommand() *cobra.Command {
	var o fetchOptions
	cmd := &cobra.Command{
		Use:   "fetch NAME|DIGEST",
		Short: "Fetch a signed measurement document, and its image, and check them",
		Long: `Fetch a signed measurement document, and its image, and check them.

It is named by its image's name or by the document's digest. Whoever serves is not trusted: nothing is written that the key did not sign, that was not
asked for, or whose security version is below --minimum-svn. An image that was interrupted goes on where it was when the command is repeated.`,
		Example: "  hullmark fetch node --from https://releases.example --key release.pub --minimum-svn 4 --image node.raw",
		Args:    exactArg("fetch", "an image's name or a document's digest"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.run(cmd, args[0])
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.from, "from", "", "`FOLDER`, or http or https address, to fetch from")
	f.StringVar(&o.key, "key", "", "public key `FILE` (PEM)")
	f.StringVar(&o.out, "out", "", "`FILE` for the signed document (default: the image's name with the ending .dsse)")
	f.StringVar(&o.image, "image", "", "also fetch the disk image into `FILE`")
	f.Uint32Var(&o.minimum, "minimum-svn", 0, "lowest security version `NUMBER` to take")
	require(cmd, "from", "key")
	return cmd
}

func (o *fetchOptions) run(cmd *cobra.Command, reference string) error {
	key, err := readPublicKey(o.key)
	if err != nil {
		return err
	}
	source := publish.Folder(o.from)
	if strings.Contains(o.from, "://") {
		if source, err = publish.Web(o.from); err != nil {
			return withCode(exitUsage, err)
		}
	}
	signed, document, err := publish.Fetch(cmd.Context(), source, reference, key, o.minimum)
	if err != nil {
		return err
	}
	if o.image != "" {
		if err := publish.FetchImage(cmd.Context(), source, document, o.image, bytesDone(cmd.ErrOrStderr(), time.Now)); err != nil {
			return err
		}
	}
	if o.out == "" {
		o.out = document.Image.ID + ".dsse"
	}
	if err := writeWhole(o.out, signed, 0o644); err != nil {
		return fmt.Errorf("fetch: %w", err)
	}
	_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s: image %s %s, security version %d\n", o.out, printable(document.Image.ID), printable(document.Image.Version), document.SVN)
	return err
}

// bytesDone says every two seconds how far a transfer is.
func bytesDone(w io.Writer, now func() time.Time) func(int64) {
	last := now()
	return func(done int64) {
		if now().Sub(last) >= 2*time.Second {
			last = now()
			fmt.Fprintf(w, "%d MB\n", done/1e6)
		}
	}
}
