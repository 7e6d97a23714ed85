package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hullmark/hullmark/attest/wire"
	"github.com/hullmark/hullmark/joinservice"
	"github.com/hullmark/hullmark/joinservice/cluster"
)

// unitCredentials makes the credentials folder as systemd does: by the unit's own lines, from a control plane's files.
func unitCredentials(t *testing.T, files []*wire.File) (dir string) {
	t.Helper()
	unit, err := os.ReadFile("../../systemd/system/hullmark-joinservice.service")
	if err != nil {
		t.Fatal(err)
	}
	dir = t.TempDir()
	write := func(name string, content []byte) {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o400); err != nil {
			t.Fatal(err)
		}
	}
	for line := range strings.Lines(string(unit)) {
		credential, ok := strings.CutPrefix(strings.TrimSpace(line), "LoadCredential=")
		if !ok {
			continue
		}
		name, path, _ := strings.Cut(credential, ":")
		for _, f := range files {
			if below, ok := strings.CutPrefix(f.GetPath(), path+"/"); ok {
				write(name+"_"+below, f.GetContent())
			} else if f.GetPath() == path {
				write(name, f.GetContent())
			}
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "initialising.json")); err != nil {
		write("initialising.json", []byte("null"))
	}
	return dir
}

// A control plane that joins gets what the operator gave the first one: all but the policy, which the service adds, and the first node's record.
func TestFilesOfAFurtherControlPlane(t *testing.T) {
	c, err := cluster.New()
	if err != nil {
		t.Fatal(err)
	}
	c.Settings = &joinservice.Settings{ControlPlaneEndpoint: "192.0.2.1:6443"}
	first, err := c.Files()
	if err != nil {
		t.Fatal(err)
	}
	credentials := folder(unitCredentials(t, first))
	second, err := credentials.controlPlaneFiles()
	if err != nil {
		t.Fatal(err)
	}
	byPath := map[string]*wire.File{}
	for _, f := range second {
		byPath[f.GetPath()] = f
	}
	for _, want := range first {
		got, ok := byPath[want.GetPath()]
		delete(byPath, want.GetPath())
		if others := want.GetPath() == "/var/lib/hullmark/policy"; others == ok {
			t.Errorf("%s: handed on: %t", want.GetPath(), ok)
		} else if ok && (!bytes.Equal(got.GetContent(), want.GetContent()) || got.GetMode() != want.GetMode()) {
			t.Errorf("%s: other content, or mode %o, want %o", want.GetPath(), got.GetMode(), want.GetMode())
		}
	}
	if len(byPath) > 0 {
		t.Errorf("handed on, but no control plane has it: %v", byPath)
	}
	if _, err := readCredentials(string(credentials)); err != nil {
		t.Error(err)
	}
	if err := os.Remove(filepath.Join(string(credentials), "sa.key")); err != nil {
		t.Fatal(err)
	}
	if _, err := readCredentials(string(credentials)); err == nil || !strings.Contains(err.Error(), "sa.key") {
		t.Errorf("without sa.key: got %v", err)
	}
}
