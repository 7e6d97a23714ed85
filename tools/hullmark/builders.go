package main

import (
	"bytes"
	"crypto"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/measurements"
)

// builderOptions are the flags that say which builders have to have signed, and where their signatures are.
type builderOptions struct {
	keys, attestations []string
	threshold          int
}

func (o *builderOptions) register(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringArrayVar(&o.keys, "key", nil, "public key `FILE` (PEM), or NAME=FILE; repeat for more builders")
	f.IntVar(&o.threshold, "threshold", 0, "how `MANY` of the keys have to have signed (default: all)")
	f.StringArrayVar(&o.attestations, "attestation", nil, "another `FILE` in which builders signed the same document; repeat for more")
}

// files are those that the flags name.
func (o *builderOptions) files() []string {
	files := slices.Clone(o.attestations)
	for _, key := range o.keys {
		if _, file, named := strings.Cut(key, "="); named {
			key = file
		}
		files = append(files, key)
	}
	return files
}

// open reads the named keys: each is a builder, called as --key says, or as its file is if that can be a name.
func (o *builderOptions) open(verb string) (b measurements.Builders, keys []crypto.PublicKey, err error) {
	if b.Threshold = len(o.keys); o.threshold != 0 {
		b.Threshold = o.threshold
	}
	for i, arg := range o.keys {
		name, file, named := strings.Cut(arg, "=")
		if !named {
			file = arg
			if name = strings.TrimSuffix(filepath.Base(file), filepath.Ext(file)); !hullmark.ValidNodeName(name) {
				name = fmt.Sprintf("key-%d", i+1)
			}
		}
		builder, public, err := readBuilder(name, file)
		if err != nil {
			return b, nil, err
		}
		b.Of, keys = append(b.Of, builder), append(keys, public)
	}
	if err := b.Check(); err != nil {
		return b, nil, withCode(exitUsage, fmt.Errorf("%s: %w", verb, err))
	}
	return b, keys, nil
}

// readBuilder reads a builder's public key.
func readBuilder(name, file string) (measurements.Builder, crypto.PublicKey, error) {
	public, err := readPublicKey(file)
	if err != nil {
		return measurements.Builder{}, nil, err
	}
	builder, err := measurements.NewBuilder(name, public)
	if err != nil {
		return measurements.Builder{}, nil, fmt.Errorf("%s: %w", file, err)
	}
	return builder, public, nil
}

// read returns the builders' signatures in the named files, each of which has to be about the document.
func (o *builderOptions) read(builders measurements.Builders, document measurements.Document) (signatures [][]byte, err error) {
	for _, file := range o.attestations {
		content, err := readBounded(file, measurements.MaxEnvelope)
		if err != nil {
			return nil, err
		}
		made, err := builders.Signatures(content, document)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		signatures = append(signatures, made...)
	}
	return signatures, nil
}

// openAgreed reads envelopes about one document, one of which a builder has to have signed; so has each that --attestation names. None
// in which a builder did is exitDenied.
func (o *builderOptions) openAgreed(builders measurements.Builders, file string) (d measurements.Document, a measurements.Agreement, err error) {
	var envelopes [][]byte
	for _, name := range append([]string{file}, o.attestations...) {
		content, err := readBounded(name, measurements.MaxEnvelope)
		if err != nil {
			return d, a, err
		}
		envelopes = append(envelopes, content)
	}
	if d, a, err = builders.OpenAgreed(envelopes[0], envelopes[1:]...); err == nil {
		for i, name := range o.attestations {
			if _, err = builders.Signatures(envelopes[i+1], d); err != nil {
				err = fmt.Errorf("%s: %w", name, err)
				break
			}
		}
	} else {
		if first := envelopes[0]; bytes.Contains(first[:min(len(first), 4096)], []byte(measurements.DocumentSchema)) {
			err = errors.New("it is a measurement document without a signature; hullmark sign makes one")
		}
		err = fmt.Errorf("%s: %w", file, err)
	}
	if errors.Is(err, measurements.ErrUnsigned) {
		err = withCode(exitDenied, err)
	}
	return d, a, err
}
