package main

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"time"

	"github.com/hullmark/hullmark/image/build"
	"github.com/hullmark/hullmark/image/lock"
	"github.com/hullmark/hullmark/inspect"
	"github.com/hullmark/hullmark/internal/cache"
	"github.com/hullmark/hullmark/measurements"
)

// lastBuild is what hullmark build remembers beside an image, so that it need not build it again.
type lastBuild struct {
	// Fingerprint is that of everything that the image and its companions were made from.
	Fingerprint string              `json:"fingerprint"`
	Built       built               `json:"built"`
	Files       map[string]fileMark `json:"files"`
	// Links are where the tools tree and kubectl are.
	Links map[string]string `json:"links"`
}

// fileMark is how a file looks that nobody touched.
type fileMark struct {
	Size     int64     `json:"size"`
	Modified time.Time `json:"modified"`
}

func lastBuildFile(o build.Options) string { return filepath.Join(o.Out, "."+o.ID+".build.json") }

// fingerprint is that of an image and of its companions.
func fingerprint(ctx context.Context, o build.Options, release measurements.Release, by inspect.Vouched) (string, error) {
	of, err := build.Fingerprint(ctx, o)
	if err != nil {
		return "", err
	}
	said, err := json.Marshal(release)
	return cache.Key(of, string(said), by.Builder, by.Invocation), err
}

// unchanged tells whether the image that o describes lies there finished, and what was said of it.
func unchanged(o build.Options, fingerprint string) (built, bool) {
	var last lastBuild
	text, err := os.ReadFile(lastBuildFile(o))
	if err != nil || json.Unmarshal(text, &last) != nil || last.Fingerprint != fingerprint || len(last.Files) == 0 {
		return built{}, false
	}
	for name, want := range last.Files {
		if got, err := mark(filepath.Join(o.Out, name)); err != nil || got.Size != want.Size || !got.Modified.Equal(want.Modified) {
			return built{}, false
		}
	}
	for name, target := range last.Links {
		if _, err := os.Stat(target); err != nil || link(target, filepath.Join(o.Out, name)) != nil {
			return built{}, false
		}
	}
	return last.Built, true
}

// remember notes what was built, with the files that the build left.
func remember(o build.Options, fingerprint string, b built) error {
	last := lastBuild{Fingerprint: fingerprint, Built: b, Files: map[string]fileMark{}, Links: map[string]string{}}
	for _, name := range []string{"tools", "kubectl"} {
		if target, err := os.Readlink(filepath.Join(o.Out, name)); err == nil {
			last.Links[name] = target
		}
	}
	for _, ending := range lock.Endings() {
		m, err := mark(filepath.Join(o.Out, o.ID+ending))
		if err != nil {
			return err
		}
		last.Files[o.ID+ending] = m
	}
	text, err := json.MarshalIndent(last, "", "  ")
	if err != nil {
		return err
	}
	return writeWhole(lastBuildFile(o), append(text, '\n'), 0o644)
}

func mark(name string) (fileMark, error) {
	info, err := os.Stat(name)
	if err != nil {
		return fileMark{}, err
	}
	return fileMark{Size: info.Size(), Modified: info.ModTime()}, nil
}
