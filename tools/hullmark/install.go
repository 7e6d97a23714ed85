package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/hullmark/hullmark/image"
	"github.com/hullmark/hullmark/inspect"
	"github.com/hullmark/hullmark/internal/atomicfile"
	"github.com/hullmark/hullmark/pcrs/machine"
)

// installOptions say what is written, beside the image.
type installOptions struct {
	overwrite, medium bool
	config            string
}

func newInstallCommand() *cobra.Command {
	var o installOptions
	cmd := &cobra.Command{
		Use:   "install IMAGE DISK",
		Short: "Write an image to a disk, a USB stick, or a file",
		Long: `Write an image to a disk, a USB stick, or a file.

The image's content is checked against its own root hash first, then written, then read back. The partition table is written last: a disk on
which this was interrupted has none, and starts nowhere. A disk is installed once; later releases go into its second slot.

An image of the profile baremetal takes its node configuration from the disk: --config puts it there. With --medium what is written is an
installation medium: a machine that starts from it, by USB or by HTTP, installs the disk that the configuration names (install), and restarts.

A disk that has something on it is left alone without --overwrite. Its partitions must not be in use.`,
		Example: "  hullmark install out/baremetal/hullmark.raw /dev/sdX --medium --config node.json\n  hullmark install out/hullmark.raw node1.raw",
		Args:    exactArgs(2, "install", "an image and the disk"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if o.medium && o.config == "" {
				return withCode(exitUsage, errors.New("install: a medium needs the node configuration (--config): it names the disk to install"))
			}
			if err := o.install(cmd.Context(), args[0], args[1], cmd.ErrOrStderr()); err != nil {
				return fmt.Errorf("install %s on %s: %w", args[0], args[1], err)
			}
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "%s %s %s\n", args[1], map[bool]string{false: "holds", true: "installs"}[o.medium], args[0])
			return err
		},
	}
	cmd.Flags().BoolVar(&o.overwrite, "overwrite", false, "replace what is on the disk, or the file")
	cmd.Flags().BoolVar(&o.medium, "medium", false, "write a medium that installs machines, in place of a machine's own disk")
	cmd.Flags().StringVar(&o.config, "config", "", "node configuration `FILE` to put on the disk, or on the medium")
	return cmd
}

func (o installOptions) install(ctx context.Context, path, to string, notes io.Writer) error {
	raw, err := os.Open(path)
	if err != nil {
		return err
	}
	defer raw.Close()
	info, err := raw.Stat()
	if err != nil {
		return err
	}
	disk, described, err := inspect.Open(raw, info.Size())
	if err != nil {
		return err
	}
	i := image.Installation{Digest: [32]byte(described.Disk), Size: info.Size()}
	content := io.ReaderAt(raw)
	if o.config != "" {
		layout, err := o.configured(disk)
		if err != nil {
			return err
		}
		i.Size, content = layout.Size(), layout
		if i.Digest, err = layout.Digest(); err != nil {
			return err
		}
	}
	i.Room, i.Progress = i.Size, progress(notes, 2*i.Size)
	from, overwrite := io.NewSectionReader(content, 0, i.Size), o.overwrite
	target, err := os.Stat(to)
	switch {
	case err == nil && target.Mode()&fs.ModeDevice != 0 && target.Mode()&fs.ModeCharDevice == 0:
		return installOnDevice(ctx, i, to, overwrite, from)
	case err == nil && os.SameFile(info, target):
		return errors.New("that is the image itself")
	case err == nil && !target.Mode().IsRegular():
		return errors.New("it is neither a disk nor a file")
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return err
	}
	err = atomicfile.Stream(to, atomicfile.Options{Mode: 0o600, New: !overwrite}, func(f *os.File) error {
		if err := f.Truncate(i.Size); err != nil {
			return err
		}
		return i.Install(ctx, holes{onFile(&i, f)}, from)
	})
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("%w; name another file, or give --overwrite", err)
	}
	return err
}

// configured is the disk, or the medium, with the node configuration.
func (o installOptions) configured(disk *image.Disk) (*image.Layout, error) {
	config, err := machine.NodeConfig(o.config, readBounded)
	if err != nil {
		return nil, err
	}
	if !o.medium {
		return disk.Configured(config)
	}
	return disk.Medium(config)
}

func installOnDevice(ctx context.Context, i image.Installation, path string, overwrite bool, from io.Reader) error {
	// O_EXCL refuses a device that is mounted, or has partitions that are (open(2)).
	f, err := os.OpenFile(path, os.O_RDWR|unix.O_EXCL, 0)
	if errors.Is(err, unix.EBUSY) {
		return errors.New("it is in use: unmount what is on it")
	}
	if err != nil {
		return err
	}
	defer f.Close()
	if i.Room, err = f.Seek(0, io.SeekEnd); err != nil {
		return err
	}
	start := make([]byte, min(1<<20, i.Room))
	if _, err := f.ReadAt(start, 0); err != nil {
		return err
	}
	if len(bytes.Trim(start, "\x00")) > 0 && !overwrite {
		return errors.New("there is something on it; give --overwrite to lose that")
	}
	return i.Install(ctx, onFile(&i, f), from)
}

// holes is a file of zeros, to which zeros need not be written.
type holes struct{ *os.File }

func (h holes) WriteAt(b []byte, at int64) (int, error) {
	if len(bytes.Trim(b, "\x00")) == 0 {
		return len(b), nil
	}
	return h.File.WriteAt(b, at)
}

// onFile has what was written read back from the disk, and not from memory.
func onFile(i *image.Installation, f *os.File) *os.File {
	i.Reread = func() error { return unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED) }
	return f
}

// progress says every few seconds how much of an installation is done, of all that is written and read back, in bytes.
func progress(notes io.Writer, all int64) func(done int64) {
	next := time.Now().Add(2 * time.Second)
	return func(done int64) {
		if now := time.Now(); now.After(next) {
			next = now.Add(2 * time.Second)
			fmt.Fprintf(notes, "%d of %d MB written and read back\n", done/1e6, all/1e6)
		}
	}
}
