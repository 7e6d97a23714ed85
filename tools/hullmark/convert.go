package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/hullmark/hullmark/image/disk"
	"github.com/hullmark/hullmark/image/lock"
	"github.com/hullmark/hullmark/inspect"
	"github.com/hullmark/hullmark/pcrs"
)

func newConvertCommand() *cobra.Command {
	var formats []string
	var out, output string
	cmd := &cobra.Command{
		Use:   "convert IMAGE",
		Short: "Write an image into the files that hypervisors and clouds take",
		Long: `Write an image into the files that hypervisors and clouds take.

qcow2 is QEMU's, compressed; vhd is Azure's, of fixed size; tar.gz is Google Compute Engine's, with a disk.raw; raw.zst is a stream of the disk. All hold
the same disk, byte for byte, and measure the same: where one has to be larger, zeros follow. The same image gives the same files, on any machine.

The image's content is checked against its own root hash first, and again against itself while it is read. Beside the files, NAME.formats.json lists them
with their digests, and the digest of the disk, which its measurement document names.`,
		Example: "  hullmark convert out/hullmark.raw\n  hullmark convert out/hullmark.raw --format qcow2,vhd --out release",
		Args:    exactArg("convert", "the image"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkOutput("convert", output); err != nil {
				return err
			}
			chosen, err := parseFormats(formats)
			if err != nil {
				return withCode(exitUsage, fmt.Errorf("convert: %w", err))
			}
			if out == "" {
				out = filepath.Dir(args[0])
			}
			m, err := convert(cmd.Context(), args[0], out, chosen)
			if err != nil {
				return fmt.Errorf("convert %s: %w", args[0], err)
			}
			if output == "json" {
				return writeJSON(cmd.OutOrStdout(), m)
			}
			return m.writeTable(cmd.OutOrStdout())
		},
	}
	cmd.Flags().StringSliceVar(&formats, "format", nil, "`FORMATS` to write, separated by commas: qcow2, vhd, tar.gz, raw.zst (default: all)")
	cmd.Flags().StringVar(&out, "out", "", "`FOLDER` for the files (default: the image's)")
	cmd.Flags().StringVarP(&output, "output", "o", "text", "`FORMAT` of the output: text or json")
	return cmd
}

func parseFormats(names []string) ([]disk.Format, error) {
	if len(names) == 0 {
		return disk.Formats(), nil
	}
	var formats []disk.Format
	for _, name := range names {
		f, err := disk.Parse(name)
		if err != nil {
			return nil, err
		}
		if !slices.Contains(formats, f) {
			formats = append(formats, f)
		}
	}
	return formats, nil
}

// formatsSchema names the format of a formatsManifest.
const formatsSchema = "hullmark.formats/v1"

// formatsManifest says which files hold a disk.
type formatsManifest struct {
	Schema string `json:"schema"`
	// Disk is the raw disk: its digest is image.disk of the measurement document.
	Disk formatFile `json:"disk"`
	// Files hold the same disk.
	Files []formatFile `json:"files"`
}

// formatFile is a file: its name, its length in bytes and its SHA-256.
type formatFile struct {
	Name   string      `json:"name"`
	Format string      `json:"format"`
	Size   int64       `json:"size"`
	SHA256 pcrs.Digest `json:"sha256"`
}

func (m formatsManifest) writeTable(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, f := range append([]formatFile{m.Disk}, m.Files...) {
		fmt.Fprintf(t, "%s\t%d\t%v\t%s\n", f.Format, f.Size, f.SHA256, f.Name)
	}
	return t.Flush()
}

// convert writes an image's files into a folder, and the manifest when all are there.
func convert(ctx context.Context, path, out string, formats []disk.Format) (formatsManifest, error) {
	m := formatsManifest{Schema: formatsSchema}
	raw, err := os.Open(path)
	if err != nil {
		return m, err
	}
	defer raw.Close()
	info, err := raw.Stat()
	if err != nil {
		return m, err
	}
	_, described, err := inspect.Open(raw, info.Size())
	if err != nil {
		return m, fmt.Errorf("%w; only whole images of hullmark build are converted", err)
	}
	m.Disk = formatFile{Name: filepath.Base(path), Format: "raw", Size: info.Size(), SHA256: described.Disk}
	if err := os.MkdirAll(out, 0o755); err != nil {
		return m, err
	}
	name := filepath.Join(out, strings.TrimSuffix(m.Disk.Name, lock.DiskEnding))
	for _, f := range formats {
		file := name + "." + string(f)
		if err := notOver(file, path); err != nil {
			return m, err
		}
		written, err := convertTo(ctx, f, raw, m.Disk, file)
		if err != nil {
			return m, err
		}
		m.Files = append(m.Files, written)
	}
	var text bytes.Buffer
	if err := writeJSON(&text, m); err != nil {
		return m, err
	}
	return m, writeWhole(name+".formats.json", text.Bytes(), 0o644)
}

// convertTo writes a disk into a file of a format, which has its name only when it is whole and was made of what the disk was
// when it was checked.
func convertTo(ctx context.Context, f disk.Format, raw io.ReaderAt, from formatFile, path string) (formatFile, error) {
	out := formatFile{Name: filepath.Base(path), Format: string(f)}
	read := sha256.New()
	r := io.TeeReader(cancelable{ctx, io.NewSectionReader(raw, 0, from.Size)}, read)
	err := replace(path, 0o644, func(file *os.File) error {
		if err := f.Write(file, r, from.Size); err != nil {
			return err
		}
		if !bytes.Equal(read.Sum(nil), from.SHA256) {
			return fmt.Errorf("%s changed while it was converted; nothing of %s is left: convert it again when it is finished", from.Name, out.Name)
		}
		info, err := file.Stat()
		if err != nil {
			return err
		}
		out.Size = info.Size()
		out.SHA256, err = digestOf(file.Name())
		return err
	})
	return out, err
}

// cancelable ends reading when its context does.
type cancelable struct {
	ctx context.Context
	r   io.Reader
}

func (c cancelable) Read(b []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	return c.r.Read(b)
}
