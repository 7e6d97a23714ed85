package main

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hullmark/hullmark/image/build"
	"github.com/hullmark/hullmark/image/lock"
)

// What is built does not lie among what it is built from.
func TestOutputIsNoInput(t *testing.T) {
	dir := t.TempDir()
	source, config := filepath.Join(dir, "checkout"), filepath.Join(dir, "mine")
	for _, file := range []string{filepath.Join(source, "mkosi", "mkosi.conf"), filepath.Join(config, "mkosi.conf")} {
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, nil, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	for out, want := range map[string]bool{source: false, config: false, filepath.Join(source, "out"): true, filepath.Join(config, "image"): true} {
		f := buildFlags{source: source, config: config, out: out, id: "mine"}
		if _, err := f.options(io.Discard); (err == nil) != want || !want && !strings.Contains(err.Error(), "--out "+out) {
			t.Errorf("%s: %v", out, err)
		}
	}
}

func TestUnchanged(t *testing.T) {
	o := build.Options{Out: t.TempDir(), ID: "node"}
	image := filepath.Join(o.Out, "node.raw")
	b := built{Image: image, Size: 5, Tools: o.Out}
	if err := os.Symlink(o.Out, filepath.Join(o.Out, "tools")); err != nil {
		t.Fatal(err)
	}
	finish := func() {
		t.Helper()
		for _, ending := range lock.Endings() {
			write(t, filepath.Join(o.Out, "node"+ending), []byte("image"))
		}
		if err := remember(o, "1", b); err != nil {
			t.Fatal(err)
		}
		if got, ok := unchanged(o, "1"); !ok || got != b {
			t.Fatalf("%+v, %t", got, ok)
		}
	}
	if _, ok := unchanged(o, "1"); ok {
		t.Error("nothing was built")
	}
	finish()
	if err := os.Remove(filepath.Join(o.Out, "tools")); err != nil {
		t.Fatal(err)
	}
	if _, ok := unchanged(o, "1"); !ok {
		t.Error("a link that is gone is a change")
	}
	if target, err := os.Readlink(filepath.Join(o.Out, "tools")); err != nil || target != o.Out {
		t.Errorf("the link is not made again: %q, %v", target, err)
	}
	// What others make of the image is no part of it.
	signed := filepath.Join(o.Out, "node.dsse")
	write(t, signed, []byte("signed"))
	finish()
	if err := os.Remove(signed); err != nil {
		t.Fatal(err)
	}
	if _, ok := unchanged(o, "1"); !ok {
		t.Error("a signed document that is gone is a change")
	}
	for what, change := range map[string]func() error{
		"another image's":         func() error { return os.Rename(lastBuildFile(o), filepath.Join(o.Out, "x")) },
		"the image is gone":       func() error { return os.Remove(image) },
		"the image was written":   func() error { return os.Chtimes(image, time.Time{}, time.Now().Add(time.Second)) },
		"the image was truncated": func() error { return os.Truncate(image, 4) },
		"the note is torn":        func() error { return os.Truncate(lastBuildFile(o), 20) },
	} {
		finish()
		if _, ok := unchanged(o, "2"); ok {
			t.Error("other inputs are the same")
		}
		if err := change(); err != nil {
			t.Fatal(err)
		}
		if _, ok := unchanged(o, "1"); ok {
			t.Errorf("%s: unchanged", what)
		}
	}
}
