package main

import (
	"crypto"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/spf13/cobra"

	"github.com/hullmark/hullmark/measurements"
	"github.com/hullmark/hullmark/measurements/publish"
)

// fetchOptions are the flags of `hullmark fetch`.
type fetchOptions struct {
	from, key, out, image, sbom, cycloneDX, provenance string
	minimum                                            uint32
	log                                                fetchLogOptions
}

func newFetchCommand() *cobra.Command {
	var o fetchOptions
	cmd := &cobra.Command{
		Use:   "fetch NAME|DIGEST",
		Short: "Fetch a signed measurement document, and what it names, and check them",
		Long: `Fetch a signed measurement document, its image, its SBOM in two forms, and its provenance, and check them.

It is named by its image's name or by the document's digest. Whoever serves is not trusted: nothing is written that the key did not sign, that was not
asked for, or whose security version is below --minimum-svn. An image that was interrupted goes on where it was when the command is repeated.

With --log the document has to be in that transparency log, and the witnesses that are named have to have cosigned that; --log-proof has the proof of it. What
else the key signed is shown if it is in the log and not in --from: others were given it, perhaps, or it will be announced. What was asked for is written then,
too. With --log-state the log has to go on from what was seen the last time, and what is announced is not looked at again.

Exit codes: 0 all is right, 3 the document is not in the log, the log contradicts what was seen of it, or a release in it is not announced, 5 a place is not
reached, 1 anything else is wrong, 2 usage.`,
		Example: `  hullmark fetch node --from https://releases.example --key release.pub --minimum-svn 4 --image node.raw
  hullmark fetch node --from oci://registry.example/node:spring --key release.pub --image node.raw
  hullmark fetch node --from https://releases.example --key release.pub --log https://releases.example/log --log-key log.pub --log-state log.seen`,
		Args: exactArg("fetch", "an image's name or a document's digest"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.run(cmd, args[0])
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.from, "from", "", "`PLACE` to fetch from: a folder, an http or https address, or oci://HOST/NAME:TAG")
	f.StringVar(&o.key, "key", "", "public key `FILE` (PEM)")
	f.StringVar(&o.out, "out", "", "`FILE` for the signed document (default: the image's name with the ending .dsse)")
	f.StringVar(&o.image, "image", "", "also fetch the disk image into `FILE`")
	f.StringVar(&o.sbom, "sbom", "", "also fetch the SBOM (SPDX) into `FILE`")
	f.StringVar(&o.cycloneDX, "cyclonedx", "", "also fetch the SBOM (CycloneDX) into `FILE`")
	f.StringVar(&o.provenance, "provenance", "", "also fetch the signed provenance into `FILE`")
	f.Uint32Var(&o.minimum, "minimum-svn", 0, "lowest security version `NUMBER` to take")
	o.log.addTo(cmd)
	require(cmd, "from", "key")
	return cmd
}

func (o *fetchOptions) run(cmd *cobra.Command, reference string) error {
	if err := o.log.check(); err != nil {
		return err
	}
	key, err := readPublicKey(o.key)
	if err != nil {
		return err
	}
	source, err := openSource(o.from)
	if err != nil {
		return err
	}
	signed, document, err := publish.Fetch(cmd.Context(), source, reference, key, o.minimum)
	var unreachable *net.OpError
	if errors.As(err, &unreachable) {
		return withCode(exitUnreachable, err)
	}
	if err != nil {
		return err
	}
	if o.sbom != "" && len(document.SBOM) == 0 {
		return errors.New("fetch: the document names no SBOM; leave --sbom out")
	}
	if o.cycloneDX != "" && len(document.CycloneDX) == 0 {
		return errors.New("fetch: the document names no CycloneDX SBOM; leave --cyclonedx out")
	}
	found, err := o.findInLog(cmd, source, signed, key)
	if err != nil {
		return logFailure(err)
	}
	if err := o.fetchFiles(cmd, source, document, key); err != nil {
		return err
	}
	if err := o.writeProof(cmd.Context(), found, source, signed, key); err != nil {
		return err
	}
	if o.out == "" {
		o.out = document.Image.ID + ".dsse"
	}
	if err := writeWhole(o.out, signed, 0o644); err != nil {
		return fmt.Errorf("fetch: %w", err)
	}
	if _, err := fmt.Fprintf(cmd.OutOrStdout(), "%s: image %s %s, security version %d\n", o.out, oneLine(document.Image.ID), oneLine(document.Image.Version), document.SVN); err != nil {
		return err
	}
	return found.end(cmd.OutOrStdout())
}

// fetchFiles fetches what is named beside the document.
func (o *fetchOptions) fetchFiles(cmd *cobra.Command, source publish.Source, document measurements.Document, key crypto.PublicKey) error {
	if o.image != "" {
		if err := publish.FetchImage(cmd.Context(), source, document, o.image, bytesDone(cmd.ErrOrStderr(), time.Now)); err != nil {
			return err
		}
	}
	if o.sbom != "" {
		if err := publish.FetchSBOM(cmd.Context(), source, document, o.sbom); err != nil {
			return err
		}
	}
	if o.cycloneDX != "" {
		if err := publish.FetchCycloneDX(cmd.Context(), source, document, o.cycloneDX); err != nil {
			return err
		}
	}
	if o.provenance != "" {
		provenance, err := publish.FetchProvenance(cmd.Context(), source, document, key)
		if err != nil {
			return err
		}
		if err := writeWhole(o.provenance, provenance, 0o644); err != nil {
			return fmt.Errorf("fetch: %w", err)
		}
	}
	return nil
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
