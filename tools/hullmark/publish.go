package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"oras.land/oras-go/v2/registry/remote/auth"
	"oras.land/oras-go/v2/registry/remote/credentials"

	"github.com/hullmark/hullmark/measurements"
	"github.com/hullmark/hullmark/measurements/publish"
)

func newPublishCommand() *cobra.Command {
	var key, to string
	var attestations []string
	var files publish.Files
	var log appendOptions
	cmd := &cobra.Command{
		Use:   "publish FILE",
		Short: "Put a signed measurement document, and what it names, where others fetch it",
		Long: `Put a signed measurement document, its image, its SBOM in two forms, and its provenance where others fetch them.

A folder becomes a tree that any web server can show. In an OCI registry, oci://HOST/NAME:TAG, the tag leads to the image, and all else
refers to it, so --image has to be named; the login is the one that docker, podman or oras keep in Docker's configuration. All files have to be what the key signed.

What other builders signed of the same document (--attestation) is published in the same file, for whoever wants several signatures; whether they did is not checked. The file replaces
the one that was published before, so name all attestations each time. The image's name leads to the document that was published last.
With --log the document is appended to a transparency log first, and in a folder the proof of it is published beside the document.`,
		Example: `  hullmark publish node.dsse --key release.pub --image node.raw --sbom node.spdx.json --cyclonedx node.cdx.json --provenance node.provenance.dsse --to /srv/releases
  hullmark publish node.dsse --key release.pub --image node.raw --to oci://registry.example/node:spring`,
		Args: exactArg("publish", "the signed document"),
		RunE: func(cmd *cobra.Command, args []string) error {
			public, err := readPublicKey(key)
			if err != nil {
				return err
			}
			signed, err := readBounded(args[0], measurements.MaxEnvelope)
			if err != nil {
				return err
			}
			for _, name := range attestations {
				attestation, err := readBounded(name, measurements.MaxEnvelope)
				if err != nil {
					return err
				}
				if signed, err = measurements.Merge(signed, attestation); err != nil {
					return fmt.Errorf("%s: %w", name, err)
				}
			}
			destination, err := openPlace(to)
			if err != nil {
				return err
			}
			if err := log.run(cmd, args[0], signed, public, destination); err != nil {
				return err
			}
			if err := publish.Release(cmd.Context(), destination, signed, public, files); err != nil {
				return err
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), "published in", to)
			return err
		},
	}
	f := cmd.Flags()
	f.StringVar(&key, "key", "", "public key `FILE` (PEM)")
	f.StringVar(&files.Image, "image", "", "also publish this disk image `FILE`")
	f.StringVar(&files.SBOM, "sbom", "", "also publish this SBOM `FILE` (SPDX)")
	f.StringVar(&files.CycloneDX, "cyclonedx", "", "also publish this SBOM `FILE` (CycloneDX)")
	f.StringVar(&files.Provenance, "provenance", "", "also publish this signed provenance `FILE`")
	f.StringArrayVar(&attestations, "attestation", nil, "`FILE` in which other builders signed the same document; repeat for more")
	f.StringVar(&to, "to", "", "`PLACE` to publish in: a folder, or oci://HOST/NAME:TAG")
	log.addTo(cmd)
	require(cmd, "key", "to")
	return cmd
}

const registryScheme = "oci://"

// openPlace opens a folder, or a registry with the login that Docker's configuration has for it.
func openPlace(name string) (publish.Store, error) {
	if !strings.Contains(name, "://") {
		return publish.Folder(name), nil
	}
	if !strings.HasPrefix(name, registryScheme) {
		return nil, withCode(exitUsage, fmt.Errorf("--to %s: want a folder, which a web server may show, or %sHOST/NAME:TAG", name, registryScheme))
	}
	login, err := dockerLogin()
	if err != nil {
		return nil, err
	}
	place, err := publish.Registry(name, login)
	if err != nil {
		return nil, withCode(exitUsage, err)
	}
	return place, nil
}

// dockerLogin finds the login that Docker's configuration has for a registry.
func dockerLogin() (auth.CredentialFunc, error) {
	logins, err := credentials.NewStoreFromDocker(credentials.StoreOptions{})
	if err != nil {
		return nil, fmt.Errorf("read Docker's configuration: %w", err)
	}
	return credentials.Credential(logins), nil
}

// openSource opens a place, or a tree on the web.
func openSource(name string) (publish.Source, error) {
	if !strings.Contains(name, "://") || strings.HasPrefix(name, registryScheme) {
		return openPlace(name)
	}
	source, err := publish.Web(name)
	if err != nil {
		return nil, withCode(exitUsage, err)
	}
	return source, nil
}

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
