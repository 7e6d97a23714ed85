package main

import (
	"fmt"
	"strings"

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

What other builders signed of the same document (--attestation) is published in the same file, for whoever wants several signatures; whether they did is not checked. Signatures
of others that are published there already stay. The image's name leads to the document that was published last.
With --log the document is appended to a transparency log once nothing is found against it, and published after that; in a folder the proof of it is published
beside the document.`,
		Example: `  hullmark publish node.dsse --key release.pub --image node.raw --sbom node.spdx.json --cyclonedx node.cdx.json --provenance node.provenance.dsse --to /srv/releases
  hullmark publish node.dsse --key release.pub --image node.raw --to oci://registry.example/node:spring`,
		Args: exactArg("publish", "the signed document"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := log.check(); err != nil {
				return err
			}
			public, err := readPublicKey(key)
			if err != nil {
				return err
			}
			signed, err := readBounded(args[0], measurements.MaxEnvelope)
			if err != nil {
				return err
			}
			if signed, err = withAttestations(signed, attestations); err != nil {
				return err
			}
			destination, err := openPlace(to)
			if err != nil {
				return err
			}
			// What is in a log is in there for good, so all is checked before.
			release, err := publish.Prepare(cmd.Context(), destination, signed, public, files)
			if err != nil {
				return err
			}
			if err := log.run(cmd, args[0], signed, public, destination); err != nil {
				return err
			}
			if err := release.Publish(cmd.Context()); err != nil {
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

// withAttestations adds to a signed document the signatures of others in files.
func withAttestations(signed []byte, files []string) ([]byte, error) {
	for _, file := range files {
		attestation, err := readBounded(file, measurements.MaxEnvelope)
		if err != nil {
			return nil, err
		}
		if signed, err = measurements.Merge(signed, attestation); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
	}
	return signed, nil
}

const registryScheme = "oci://"

// openPlace opens a folder, or a registry with the login that Docker's configuration has for it.
func openPlace(name string) (publish.Store, error) {
	if name == "" {
		return nil, withCode(exitUsage, fmt.Errorf("a place without a name: want a folder (. is this one), or %sHOST/NAME:TAG", registryScheme))
	}
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
