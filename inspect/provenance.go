package inspect

import (
	"github.com/hullmark/hullmark/image/lock"
	"github.com/hullmark/hullmark/measurements"
	"github.com/hullmark/hullmark/pcrs"
)

// repositoryURI is where our sources are.
const repositoryURI = "git+https://github.com/hullmark/hullmark"

// provenance says what the image was made of. The files that it is about have names and digests, the disk first.
func (b Build) provenance(release measurements.Release, by Vouched, names []string, digests []pcrs.Digest) ([]byte, error) {
	definition := measurements.BuildDefinition{
		Parameters: measurements.BuildParameters{ImageID: b.Contents.ID, Profiles: append([]string{}, b.Profiles...), WithoutKubernetes: !b.Kubernetes},
	}
	var err error
	if definition.Dependencies, err = b.dependencies(release.Lock); err != nil {
		return nil, err
	}
	run := measurements.RunDetails{Builder: measurements.ProvenanceBuilder{ID: by.Builder, Version: map[string]string{"hullmark": release.Builder}}}
	if by.Invocation != "" {
		run.Metadata = &measurements.BuildMetadata{InvocationID: by.Invocation}
	}
	p, err := measurements.NewProvenance(definition, run, names, digests)
	if err != nil {
		return nil, err
	}
	return p.Encode()
}

// dependencies are all inputs of an image: sources, the user's folder, lock, packages, Go, modules.
func (b Build) dependencies(locked pcrs.Digest) ([]measurements.Resource, error) {
	sources := measurements.Resource{Name: measurements.SourcesName, URI: repositoryURI, Digest: map[string]string{"dirHash": b.Sources}}
	if b.Commit != "" {
		sources.Digest["gitCommit"] = b.Commit
	}
	if b.Changed {
		sources.Annotations = map[string]string{"changed": "the files differ from the commit"}
	}
	all := []measurements.Resource{sources, {Name: measurements.LockName, Digest: map[string]string{"sha256": locked.String()}}}
	if b.Definitions != "" {
		all = append(all, measurements.Resource{Name: "definitions", Digest: map[string]string{"dirHash": b.Definitions}})
	}
	for _, p := range b.Lock.Packages {
		all = append(all, measurements.PackageResource(p))
	}
	if b.Kubernetes {
		for _, s := range b.Lock.Kubernetes.Sums {
			all = append(all, measurements.Resource{Name: s.Dir + "/go.sum", Digest: map[string]string{"sha256": s.SHA256}})
		}
	}
	for _, m := range b.Contents.Modules {
		resource := measurements.Resource{URI: m.PURL(), Digest: map[string]string{}}
		if m.Sum != "" {
			sum, err := lock.HexOfH1(m.Sum)
			if err != nil {
				return nil, err
			}
			resource.Digest["dirHash"] = sum
		}
		all = append(all, resource)
	}
	return append(all, measurements.Resource{URI: b.Lock.Stdlib().PURL()}), nil
}
