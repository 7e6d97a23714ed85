package addons

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hullmark/hullmark/cluster/render"
)

const plainChart = "apiVersion: v2\nname: x\nversion: 1.0.0\n"

// tarred packs files.
func tarred(t *testing.T, files func(*tar.Writer) error) []byte {
	t.Helper()
	var out bytes.Buffer
	zip := gzip.NewWriter(&out)
	all := tar.NewWriter(zip)
	if err := errors.Join(files(all), all.Close(), zip.Close()); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func put(w *tar.Writer, name string, content []byte) error {
	return errors.Join(w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(content))}), func() error { _, err := w.Write(content); return err }())
}

// A chart's folder comes from its author, too: it reads none of the operator's files, and has an end.
func TestChartFolderWithLinks(t *testing.T) {
	for name, to := range map[string]func(secret string) string{
		"to a file of the operator's": func(secret string) string { return secret },
		"to a folder":                 func(secret string) string { return filepath.Dir(secret) },
		"in a circle":                 func(string) string { return "." },
		"to nothing":                  func(string) string { return "none" },
	} {
		t.Run(name, func(t *testing.T) {
			o := Options{Folder: t.TempDir()}
			secret := filepath.Join(t.TempDir(), "key")
			chart := filepath.Join(o.Folder, "x")
			if err := errors.Join(os.WriteFile(secret, []byte("the operator's"), 0o600), os.MkdirAll(filepath.Join(chart, "files"), 0o700),
				os.WriteFile(filepath.Join(chart, "Chart.yaml"), []byte(plainChart), 0o600)); err != nil {
				t.Fatal(err)
			}
			if _, err := o.chart(t.Context(), render.Addon{Chart: "x"}); err != nil {
				t.Fatalf("the positive control: %v", err)
			}
			if err := os.Symlink(to(secret), filepath.Join(chart, "files", "a")); err != nil {
				t.Fatal(err)
			}
			ch, err := o.chart(t.Context(), render.Addon{Chart: "x"})
			if err == nil || !strings.Contains(err.Error(), "is a symbolic link") {
				t.Errorf("%v, %v", ch, err)
			}
		})
	}
}

// An archive that unpacks to more than anybody has memory for is refused before anything of it is kept.
func TestChartThatUnpacksToTooMuch(t *testing.T) {
	inner := tarred(t, func(w *tar.Writer) error { return put(w, "y/values.yaml", make([]byte, 4<<20)) })
	for name, archive := range map[string][]byte{
		"many small archives in one": tarred(t, func(w *tar.Writer) (err error) {
			for i := range 100 {
				err = errors.Join(err, put(w, fmt.Sprintf("x/charts/y%d.tgz", i), inner))
			}
			return err
		}),
		"archives in archives": func() []byte {
			archive := inner
			for range maxNested + 1 {
				archive = tarred(t, func(w *tar.Writer) error { return put(w, "x/charts/y.tgz", archive) })
			}
			return archive
		}(),
	} {
		sum := sha256.Sum256(archive)
		o := Options{Folder: t.TempDir()}
		if err := errors.Join(os.WriteFile(filepath.Join(o.Folder, "x.tgz"), archive, 0o600), os.MkdirAll(filepath.Join(o.Folder, "x", "charts"), 0o700),
			os.WriteFile(filepath.Join(o.Folder, "x", "Chart.yaml"), []byte(plainChart), 0o600), os.WriteFile(filepath.Join(o.Folder, "x", "charts", "y.tgz"), archive, 0o600)); err != nil {
			t.Fatal(err)
		}
		for _, a := range []render.Addon{{Chart: "x.tgz", SHA256: hex.EncodeToString(sum[:])}, {Chart: "x"}} {
			if ch, err := o.chart(t.Context(), a); err == nil || !strings.Contains(err.Error(), "unpack to more than") && !strings.Contains(err.Error(), "deep") {
				t.Errorf("%s: %s: %v, %v", name, a.Chart, ch, err)
			}
		}
	}
	headers := tarred(t, func(w *tar.Writer) (err error) {
		for i := range 2048 {
			err = errors.Join(err, put(w, fmt.Sprintf("x/%d", i), nil))
		}
		return err
	})
	if err := (&unpacking{t.Context(), 1 << 20}).archive(bytes.NewReader(headers), 0); err == nil {
		t.Error("files without content count for nothing")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := newUnpacking(ctx).archive(bytes.NewReader(inner), 0); !errors.Is(err, context.Canceled) {
		t.Errorf("interrupted: %v", err)
	}
}

// FuzzUnpacking wants an end to each archive.
func FuzzUnpacking(f *testing.F) {
	var out bytes.Buffer
	zip := gzip.NewWriter(&out)
	all := tar.NewWriter(zip)
	if err := errors.Join(put(all, "x/Chart.yaml", []byte(plainChart)), put(all, "x/charts/y.tgz", []byte{0x1f, 0x8b}), all.Close(), zip.Close()); err != nil {
		f.Fatal(err)
	}
	f.Add(out.Bytes())
	f.Add([]byte{0x1f, 0x8b, 8, 0})
	f.Fuzz(func(t *testing.T, archive []byte) {
		u := newUnpacking(t.Context())
		if err := u.archive(bytes.NewReader(archive), 0); err == nil && u.left < 0 {
			t.Error("more than is allowed was unpacked")
		}
	})
}
