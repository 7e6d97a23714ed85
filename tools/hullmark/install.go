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
)

func newInstallCommand() *cobra.Command {
	var overwrite bool
	cmd := &cobra.Command{
		Use:   "install IMAGE DISK",
		Short: "Write an image to a disk, or to a file",
		Long: `Write an image to a disk, or to a file.

The image's content is checked against its own root hash first, then written, then read back. The partition table is written last: a disk on
which this was interrupted has none, and starts nowhere. A disk is installed once; later releases go into its second slot.

A disk that has something on it is left alone without --overwrite. Its partitions must not be in use.`,
		Example: "  hullmark install out/baremetal/hullmark.raw /dev/sdX\n  hullmark install out/hullmark.raw node1.raw",
		Args:    exactArgs(2, "install", "an image and the disk"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := install(cmd.Context(), args[0], args[1], overwrite, cmd.ErrOrStderr()); err != nil {
				return fmt.Errorf("install %s on %s: %w", args[0], args[1], err)
			}
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "%s holds %s\n", args[1], args[0])
			return err
		},
	}
	cmd.Flags().BoolVar(&overwrite, "overwrite", false, "replace what is on the disk, or the file")
	return cmd
}

func install(ctx context.Context, path, to string, overwrite bool, notes io.Writer) error {
	raw, err := os.Open(path)
	if err != nil {
		return err
	}
	defer raw.Close()
	info, err := raw.Stat()
	if err != nil {
		return err
	}
	_, described, err := inspect.Open(raw, info.Size())
	if err != nil {
		return err
	}
	i := image.Installation{Digest: [32]byte(described.Disk), Size: info.Size(), Room: info.Size(), Progress: percent(notes)}
	from := contextReader{ctx, io.NewSectionReader(raw, 0, info.Size())}
	target, err := os.Stat(to)
	switch {
	case err == nil && target.Mode()&fs.ModeDevice != 0 && target.Mode()&fs.ModeCharDevice == 0:
		return installOnDevice(i, to, overwrite, from)
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
		return i.Install(holes{onFile(&i, f)}, from)
	})
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("%w; name another file, or give --overwrite", err)
	}
	return err
}

func installOnDevice(i image.Installation, path string, overwrite bool, from io.Reader) error {
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
	return i.Install(onFile(&i, f), from)
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

// contextReader ends with its context.
type contextReader struct {
	ctx context.Context
	r   io.Reader
}

func (r contextReader) Read(b []byte) (int, error) {
	if err := context.Cause(r.ctx); err != nil {
		return 0, err
	}
	return r.r.Read(b)
}

// percent says every few seconds how much of an installation is done.
func percent(notes io.Writer) func(done int64) {
	next := time.Now().Add(2 * time.Second)
	return func(done int64) {
		if now := time.Now(); now.After(next) {
			next = now.Add(2 * time.Second)
			fmt.Fprintf(notes, "%d MB written or read back\n", done/1e6)
		}
	}
}
