package main

import (
	"bytes"
	"crypto"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/hullmark/hullmark/image/lock"
	"github.com/hullmark/hullmark/inspect"
	"github.com/hullmark/hullmark/measurements"
	"github.com/hullmark/hullmark/pcrs"
	"github.com/hullmark/hullmark/pcrs/machine"
)

// attestOptions are the flags of `hullmark reproduce` that are about signing what came out.
type attestOptions struct {
	document, key, passphraseFile, machine, out string
}

func (a *attestOptions) register(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&a.document, "attest", "", "sign this measurement document, a published `FILE`, if the builds lead to it")
	f.StringVar(&a.key, "key", "", "private key `FILE` to sign with (PEM, PKCS #8)")
	f.StringVar(&a.passphraseFile, "passphrase-file", "", "`FILE` whose first line is the key's passphrase (default: ask, if the key is encrypted)")
	f.StringVar(&a.machine, "machine", "", "machine `FILE` that the document is for (default: the firmware of the tools tree)")
	f.StringVar(&a.out, "attestation", "", "`FILE` to write what was signed to (default: the document's with the ending .attestation.dsse)")
}

// attestation is what is signed if builds lead to it.
type attestation struct {
	published measurements.Document
	encoded   []byte
	boot      *pcrs.Boot // nil: the firmware of the tools tree
	key       crypto.Signer
	to        string
}

// open reads everything before hours of building; nil if nothing is to be attested.
func (a *attestOptions) open(notes io.Writer) (*attestation, error) {
	if a.document == "" {
		if *a != (attestOptions{}) {
			return nil, withCode(exitUsage, errors.New("reproduce: --key, --passphrase-file, --machine and --attestation are about a document that is signed (--attest)"))
		}
		return nil, nil
	}
	if a.key == "" {
		return nil, withCode(exitUsage, errors.New("reproduce: --attest needs a key (--key)"))
	}
	s := &attestation{to: a.out}
	if s.to == "" {
		s.to = strings.TrimSuffix(a.document, ".json") + ".attestation.dsse"
	}
	if err := notOver(s.to, a.document, a.key, a.passphraseFile, a.machine); err != nil {
		return nil, fmt.Errorf("reproduce: %w", err)
	}
	var err error
	if s.published, err = readDocument(a.document); err != nil {
		return nil, err
	}
	if s.encoded, err = s.published.Encode(); err != nil {
		return nil, err
	}
	if s.published.Machine.Log != nil {
		return nil, fmt.Errorf("%s: it is about a machine that is known by its log alone, which no build leads to; attest a document for firmware in files", a.document)
	}
	if a.machine != "" {
		m, err := inspect.ReadMachine(a.machine)
		if err != nil {
			return nil, err
		}
		boot, err := inspect.OpenBoot(m)
		if err != nil {
			return nil, err
		}
		s.boot = &boot
	}
	s.key, err = readPrivateKey(a.key, a.passphraseFile, notes)
	return s, err
}

// sign measures the image that was built, and signs the published document if that is what it measures. Only the release's name and
// its security version are taken from it: they are the releaser's to give.
func (s *attestation) sign(image, tools string) error {
	own, err := readDocument(lock.Beside(image, lock.DocumentEnding))
	if err != nil {
		return err
	}
	boot := s.boot
	if boot == nil {
		m, err := inspect.OpenMachine(machine.Hardware{Tools: tools})
		if err != nil {
			return err
		}
		boot = &pcrs.Boot{Machine: m}
	}
	release := own.Release
	release.Name, release.SVN = s.published.Name, s.published.SVN
	document, err := inspect.MeasureFile(image, *boot, release)
	if err != nil {
		return err
	}
	encoded, err := document.Encode()
	if err != nil {
		return err
	}
	if !bytes.Equal(encoded, s.encoded) {
		return withCode(exitMismatch, fmt.Errorf("nothing was signed: the builds lead to another document: %s", strings.Join(departures(s.published, document), "; ")))
	}
	signed, err := measurements.Sign(s.key, document)
	if err != nil {
		return err
	}
	return writeWhole(s.to, signed, 0o644)
}

// departures names what differs between a published document and one's own.
func departures(published, own measurements.Document) (lines []string) {
	for _, part := range []struct{ what, published, own string }{
		{"image ID", published.Image.ID, own.Image.ID},
		{"image version", published.Image.Version, own.Image.Version},
		{"root hash", published.Image.RootHash.String(), own.Image.RootHash.String()},
		{"kernel image", published.Image.UKI.String(), own.Image.UKI.String()},
		{"disk", published.Image.Disk.String(), own.Image.Disk.String()},
		{"lock", published.Lock.String(), own.Lock.String()},
		{"SBOM (SPDX)", published.SBOM.String(), own.SBOM.String()},
		{"SBOM (CycloneDX)", published.CycloneDX.String(), own.CycloneDX.String()},
		{"program that built", published.Builder, own.Builder},
		{"firmware", published.Machine.Firmware.String(), own.Machine.Firmware.String()},
		{"variables", published.Machine.Variables.String(), own.Machine.Variables.String()},
	} {
		if part.published != part.own {
			lines = append(lines, fmt.Sprintf("%s %.80q, published is %.80q", part.what, part.own, part.published))
		}
	}
	if len(lines) == 0 {
		lines = []string{"the same image on the same firmware, but another prediction: it was made for another machine (--machine), or by another release of hullmark"}
	}
	return lines
}
