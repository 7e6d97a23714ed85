package addons

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"helm.sh/helm/v4/pkg/action"
	ci "helm.sh/helm/v4/pkg/chart"
	"helm.sh/helm/v4/pkg/chart/common"
	chartvalues "helm.sh/helm/v4/pkg/chart/common/util"
	chart "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/chart/v2/loader"

	"github.com/hullmark/hullmark/cluster/render"
	"github.com/hullmark/hullmark/internal/atomicfile"
	"github.com/hullmark/hullmark/measurements/publish"
)

// maxArchive is the largest archive of a chart that is read, in bytes. Helm bounds what comes out of it.
const maxArchive = 64 << 20

// path is where a file is that the document names.
func (o *Options) path(name string) string {
	if filepath.IsAbs(name) {
		return name
	}
	return filepath.Join(o.Folder, name)
}

// chart loads an add-on's chart, anew each time, because Helm changes what it renders.
func (o *Options) chart(ctx context.Context, a render.Addon) (*chart.Chart, error) {
	loaded, err := o.load(ctx, a)
	if err != nil {
		return nil, fmt.Errorf("chart %s: %w", a.Chart, err)
	}
	if kind := loaded.Metadata.Type; kind != "" && kind != "application" {
		return nil, fmt.Errorf("chart %s: its type is %s, which cannot be installed", a.Chart, kind)
	}
	var wanted []ci.Dependency
	for _, d := range loaded.Metadata.Dependencies {
		wanted = append(wanted, d)
	}
	if err := action.CheckDependencies(loaded, wanted); err != nil {
		return nil, fmt.Errorf("chart %s: %w; next: helm dependency build", a.Chart, err)
	}
	return loaded, nil
}

func (o *Options) load(ctx context.Context, a render.Addon) (*chart.Chart, error) {
	if !a.Archived() {
		return loadFolder(ctx, o.path(a.Chart))
	}
	wanted, err := hex.DecodeString(a.SHA256)
	if err != nil {
		return nil, err
	}
	if strings.HasPrefix(a.Chart, render.OCIScheme) {
		archive, err := publish.Blob(ctx, a.Chart, o.Credential, wanted, maxArchive)
		if err != nil {
			return nil, err
		}
		return loadArchive(ctx, archive)
	}
	archive, err := atomicfile.Read(o.path(a.Chart), maxArchive)
	if err != nil {
		return nil, err
	}
	if got := sha256.Sum256(archive); !bytes.Equal(got[:], wanted) {
		return nil, fmt.Errorf("the document names the archive with sha256 %s, this one has %x; look at what changed, and write it there", a.SHA256, got)
	}
	return loadArchive(ctx, archive)
}

func loadArchive(ctx context.Context, archive []byte) (*chart.Chart, error) {
	if err := newUnpacking(ctx).archive(bytes.NewReader(archive), 0); err != nil {
		return nil, err
	}
	return loader.LoadArchive(bytes.NewReader(archive))
}

func loadFolder(ctx context.Context, name string) (*chart.Chart, error) {
	folder, err := filepath.EvalSymlinks(name)
	if err != nil {
		return nil, err
	}
	if err := newUnpacking(ctx).folder(folder); err != nil {
		return nil, err
	}
	return loader.LoadDir(folder)
}

// values are an add-on's own: those in the document over those of files, of which later ones go before earlier ones.
func (o *Options) values(a render.Addon) (map[string]any, error) {
	all := map[string]any{}
	for _, name := range a.ValuesFiles {
		text, err := atomicfile.Read(o.path(name), maxManifest)
		if err != nil {
			return nil, fmt.Errorf("valuesFiles: %w", err)
		}
		some, err := common.ReadValues(text)
		if err != nil {
			return nil, fmt.Errorf("valuesFiles: %s: %w", name, err)
		}
		all = chartvalues.MergeTables(some, all)
	}
	own, err := copyOf(a.Values)
	return chartvalues.MergeTables(own, all), err
}

// manifests reads an add-on's objects, of files in their order, and of folders in that of their files' names.
func (o *Options) manifests(a render.Addon) ([]*object, error) {
	var all []*object
	for _, name := range a.Manifests {
		files, err := manifestFiles(o.path(name))
		if err != nil {
			return nil, fmt.Errorf("manifests: %w", err)
		}
		for _, file := range files {
			text, err := atomicfile.Read(file, maxManifest)
			if err != nil {
				return nil, fmt.Errorf("manifests: %w", err)
			}
			some, err := parse(text)
			if err != nil {
				return nil, fmt.Errorf("manifests: %s: %w", file, err)
			}
			all = append(all, some...)
		}
	}
	if len(all) == 0 || len(all) > maxObjects {
		return nil, fmt.Errorf("manifests: %d objects, want 1 to %d", len(all), maxObjects)
	}
	return all, nil
}

// manifestFiles returns a file, or those in YAML or JSON that lie in a folder itself.
func manifestFiles(name string) ([]string, error) {
	info, err := os.Stat(name)
	if err != nil || !info.IsDir() {
		return []string{name}, err
	}
	entries, err := os.ReadDir(name)
	if err != nil {
		return nil, err
	}
	entries = slices.DeleteFunc(entries, func(e fs.DirEntry) bool {
		return e.IsDir() || !slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(e.Name()))
	})
	if len(entries) == 0 {
		return nil, errors.New(name + ": no file in it ends with .yaml, .yml or .json")
	}
	files := make([]string, 0, len(entries))
	for _, e := range entries {
		files = append(files, filepath.Join(name, e.Name()))
	}
	return files, nil
}
