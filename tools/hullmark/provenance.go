package main

import (
	"fmt"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/hullmark/hullmark/image/build"
	"github.com/hullmark/hullmark/image/lock"
	"github.com/hullmark/hullmark/measurements"
	"github.com/hullmark/hullmark/pcrs"
)

// repositoryURI is where our sources are.
const repositoryURI = "git+https://github.com/hullmark/hullmark"

// provenanceOptions are what only who runs a build knows of it.
type provenanceOptions struct {
	builder, invocation string
}

func (o *provenanceOptions) register(cmd *cobra.Command) {
	cmd.Flags().StringVar(&o.builder, "builder-id", measurements.LocalBuilder, "`URI` of who vouches for the build, for its provenance")
	cmd.Flags().StringVar(&o.invocation, "invocation-id", "", "`URI` of this run, for its provenance")
}

// writeProvenance writes what the image was made of beside it. Files are those that the image's document is about: the disk, and what lies beside it.
func (o provenanceOptions) writeProvenance(r build.Result, release measurements.Release, files ...string) error {
	definition := measurements.BuildDefinition{
		Parameters: measurements.BuildParameters{ImageID: r.ID, Profiles: append([]string{}, r.Profiles...), WithoutKubernetes: r.Bundle == ""},
	}
	var err error
	if definition.Dependencies, err = dependencies(r); err != nil {
		return fmt.Errorf("provenance: %w", err)
	}
	run := measurements.RunDetails{Builder: measurements.Builder{ID: o.builder, Version: map[string]string{"hullmark": release.Builder}}}
	if o.invocation != "" {
		run.Metadata = &measurements.BuildMetadata{InvocationID: o.invocation}
	}
	var names []string
	var digests []pcrs.Digest
	for _, file := range files {
		digest, err := digestOf(file)
		if err != nil {
			return fmt.Errorf("provenance: %w", err)
		}
		names, digests = append(names, filepath.Base(file)), append(digests, digest)
	}
	p, err := measurements.NewProvenance(definition, run, names, digests)
	if err != nil {
		return fmt.Errorf("provenance: %w", err)
	}
	text, err := p.Encode()
	if err != nil {
		return fmt.Errorf("provenance: %w", err)
	}
	return writeWhole(lock.Beside(r.Image, lock.ProvenanceEnding), text, 0o644)
}

// dependencies are all inputs of an image: sources, the user's folder, lock, packages, Go, modules.
func dependencies(r build.Result) ([]measurements.Resource, error) {
	sources := measurements.Resource{Name: measurements.SourcesName, URI: repositoryURI, Digest: map[string]string{"dirHash": r.Inputs.Sources}}
	if r.Inputs.Commit != "" {
		sources.Digest["gitCommit"] = r.Inputs.Commit
	}
	if r.Inputs.Changed {
		sources.Annotations = map[string]string{"changed": "the files differ from the commit"}
	}
	locked, err := digestOf(r.LockFile)
	if err != nil {
		return nil, err
	}
	all := []measurements.Resource{sources, {Name: measurements.LockName, Digest: map[string]string{"sha256": locked.String()}}}
	if r.Inputs.Config != "" {
		all = append(all, measurements.Resource{Name: "definitions", Digest: map[string]string{"dirHash": r.Inputs.Config}})
	}
	for _, p := range r.Lock.Packages {
		all = append(all, measurements.PackageResource(p))
	}
	if r.Bundle != "" {
		for _, s := range r.Lock.Kubernetes.Sums {
			all = append(all, measurements.Resource{Name: s.Dir + "/go.sum", Digest: map[string]string{"sha256": s.SHA256}})
		}
	}
	for _, m := range r.Inputs.Modules {
		resource := measurements.Resource{URI: m.PURL(), Digest: map[string]string{}}
		if m.Sum != "" {
			if resource.Digest["dirHash"], err = build.HexOfH1(m.Sum); err != nil {
				return nil, err
			}
		}
		all = append(all, resource)
	}
	return append(all, measurements.Resource{URI: r.Lock.Stdlib().PURL()}), nil
}
