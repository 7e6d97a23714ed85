package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/hullmark/hullmark/image/build"
	"github.com/hullmark/hullmark/inspect"
	"github.com/hullmark/hullmark/internal/cache"
	"github.com/hullmark/hullmark/measurements"
)

// buildOptions are the flags of `hullmark build`.
type buildOptions struct {
	buildFlags
	relock  bool
	output  string
	release measurements.Release
	by      inspect.Vouched
}

func newBuildCommand() *cobra.Command {
	o := buildOptions{release: measurements.Release{Builder: thisBuilder()}}
	cmd := &cobra.Command{
		Use:   "build",
		Short: "Build an image from the locked packages",
		Long: `Build an image from the locked packages.

Exactly the packages of the lock are installed; one that cannot be had, or is another than was locked, is an error that names it. The
same lock, sources and compiler give the same image, byte for byte. Everything that was downloaded or built once is kept in the cache folder.

Beside the image lie its SBOM (SPDX and CycloneDX), its measurement document, for the firmware of the tools tree without keys, the provenance of
these (SLSA), and links to that tree and to the image's kubectl.`,
		Example: "  hullmark build\n  hullmark build --config my-node --image-id my-node",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.run(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	o.register(cmd)
	o.registerImage(cmd)
	registerRelease(cmd, &o.release)
	cmd.Flags().StringVar(&o.by.Builder, "builder-id", measurements.LocalBuilder, "`URI` of who vouches for the build, for its provenance")
	cmd.Flags().StringVar(&o.by.Invocation, "invocation-id", "", "`URI` of this run, for its provenance")
	cmd.Flags().BoolVar(&o.relock, "relock", false, "where a locked package is gone from every source, lock it anew into OUT/hullmark.lock and build from that")
	cmd.Flags().StringVarP(&o.output, "output", "o", "text", "`FORMAT` of the output: text or json")
	return cmd
}

// run builds the image, unless it lies there already.
func (b *buildOptions) run(ctx context.Context, out, notes io.Writer) error {
	if err := checkOutput("build", b.output); err != nil {
		return err
	}
	o, err := b.options(notes)
	if err != nil {
		return err
	}
	if b.relock {
		if o, err = build.Settle(ctx, o); err != nil {
			return err
		}
	}
	of, err := fingerprint(ctx, o, b.release, b.by)
	if err != nil {
		return err
	}
	if last, ok := unchanged(o, of); ok {
		o.Progress.Say("nothing changed since it was built")
		return writeBuilt(out, last, b.output)
	}
	r, err := build.Build(ctx, o)
	if err != nil {
		return err
	}
	o.Progress.Summary()
	if err := accompany(r, b.release, b.by); err != nil {
		return err
	}
	said := built{r.Image, r.Size, r.RootHash, r.Cmdline, r.LockFile, r.Tools}
	if err := remember(o, of, said); err != nil {
		return err
	}
	return writeBuilt(out, said, b.output)
}

// built is the JSON that hullmark build writes.
type built struct {
	Image    string `json:"image"`
	Size     int64  `json:"size"`
	RootHash string `json:"rootHash"`
	Cmdline  string `json:"cmdline"`
	Lock     string `json:"lock"`
	Tools    string `json:"tools"`
}

func writeBuilt(w io.Writer, r built, format string) error {
	if format == "json" {
		return writeJSON(w, r)
	}
	_, err := fmt.Fprintf(w, "image         %s (%d MB)\nroot hash     %s\ncommand line  %s\n", r.Image, r.Size/1e6, r.RootHash, r.Cmdline)
	return err
}

// buildFlags are what lock, build and reproduce have in common.
type buildFlags struct {
	source, lockFile, out, id, config, mirror string
	profiles                                  []string
	withoutKubernetes                         bool
}

// register defines the flags of all three commands.
func (f *buildFlags) register(cmd *cobra.Command) {
	s := cmd.Flags()
	s.StringVar(&f.source, "source", ".", "`FOLDER` of the checkout")
	s.StringVar(&f.lockFile, "lock", "", "lock `FILE` (default: hullmark.lock in the checkout)")
	s.StringVar(&f.config, "config", "", "definition `FOLDER` of your own, layered over mkosi/")
	s.StringVar(&f.mirror, "mirror", "", "`URL` of a Debian archive to use instead of this machine's")
}

// registerImage defines the flags of the two that build.
func (f *buildFlags) registerImage(cmd *cobra.Command) {
	s := cmd.Flags()
	s.StringVar(&f.out, "out", "out", "`FOLDER` for the image")
	s.StringVar(&f.id, "image-id", "hullmark", "`NAME` of the image and of its files")
	s.StringSliceVar(&f.profiles, "profile", nil, "mkosi profile `NAME` to add: a platform (qemu, azure, gcp, aws, baremetal), debug, or one of your own")
	s.BoolVar(&f.withoutKubernetes, "without-kubernetes", false, "leave the Kubernetes bundle out, for work on the system itself")
}

// imageID is what names files and stands in os-release: IMAGE_ID of os-release(5).
var imageID = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,63}$`)

// check refuses at once what would fail, or be measured, after minutes of work.
func (f *buildFlags) check() error {
	if f.id != "" && !imageID.MatchString(f.id) {
		return fmt.Errorf("--image-id %q: want up to 64 of a-z, 0-9, dot, dash, underscore", f.id)
	}
	if f.config != "" {
		if _, err := os.ReadDir(f.config); err != nil {
			return fmt.Errorf("--config: want a folder of mkosi definitions: %w", err)
		}
	}
	return nil
}

// options turns flags into what package build takes; progress goes to w.
func (f *buildFlags) options(w io.Writer) (build.Options, error) {
	if err := f.check(); err != nil {
		return build.Options{}, withCode(exitUsage, err)
	}
	store, err := cache.Open()
	if err != nil {
		return build.Options{}, err
	}
	o := build.Options{
		LockFile: f.lockFile, ID: f.id, Profiles: f.profiles, Mirror: f.mirror, WithoutKubernetes: f.withoutKubernetes,
		Store: store, Progress: build.NewProgress(w, time.Now),
	}
	for _, p := range []struct {
		to   *string
		from string
	}{{&o.Source, f.source}, {&o.Out, f.out}, {&o.Config, f.config}} {
		if p.from == "" {
			continue
		}
		if *p.to, err = filepath.Abs(p.from); err != nil {
			return o, err
		}
	}
	if o.Out != "" && (o.Out == o.Source || o.Out == o.Config) {
		return o, withCode(exitUsage, fmt.Errorf("--out %s is what is built from: name a folder in it, or elsewhere", f.out))
	}
	if o.LockFile == "" {
		o.LockFile = filepath.Join(o.Source, "hullmark.lock")
	}
	if _, err := os.Stat(filepath.Join(o.Source, "mkosi", "mkosi.conf")); err != nil {
		return o, withCode(exitUsage, fmt.Errorf("%s is not a checkout of hullmark: name one with --source: %w", o.Source, err))
	}
	o.Profiles = slices.DeleteFunc(o.Profiles, func(name string) bool { return name == "" })
	slices.Sort(o.Profiles) // their order is no input
	o.Profiles = slices.Compact(o.Profiles)
	if err := build.CheckProfiles(o); err != nil {
		return o, withCode(exitUsage, err)
	}
	return o, build.CheckDefinitions(o)
}
