package build

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Whatever a person has set up for Go of their own, in the environment or with go env -w, does not shape a binary; where
// modules come from does reach it.
func TestGoCommandKeepsSettingsOut(t *testing.T) {
	file := filepath.Join(t.TempDir(), "goenv")
	if err := os.WriteFile(file, []byte("GOEXPERIMENT=nodwarf5\nGOAMD64=v3\nGOPRIVATE=example.invalid/mine\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, value := range map[string]string{
		"GOENV": file, "GOFIPS140": "v1.0.0", "GOFLAGS": "-race", "GODEBUG": "x509sha1=1", "CGO_ENABLED": "1", "GOARCH": "arm64", "GOPROXY": "https://example.invalid",
	} {
		t.Setenv(name, value)
	}
	out, err := goTool(t.Context(), "local", ".", "", "env", "GOEXPERIMENT", "GOAMD64", "GOFIPS140", "GOFLAGS", "GODEBUG", "CGO_ENABLED", "GOARCH", "GOPROXY", "GOPRIVATE")
	want := "\nv1\noff\n-mod=readonly -buildvcs=false\n\n0\namd64\nhttps://example.invalid\nexample.invalid/mine\n"
	if err != nil || string(out) != want {
		t.Errorf("in force are %q, want %q (%v)", out, want, err)
	}
}

func TestCheckGoTellsGoneFromUnreachable(t *testing.T) {
	t.Setenv("GOPROXY", "off")
	if err := checkGo(t.Context(), "go1.26.9999", "."); !errors.Is(err, errGoGone) || !strings.Contains(err.Error(), "go1.26.9999 is locked") {
		t.Errorf("nobody has it: %v", err)
	}
	t.Setenv("GOPROXY", "http://127.0.0.1:1")
	t.Setenv("GOINSECURE", "*")
	if err := checkGo(t.Context(), "go1.26.9999", "."); err == nil || errors.Is(err, errGoGone) {
		t.Errorf("nobody answers: %v", err)
	}
	machine, err := machineGo(t.Context(), ".")
	if err != nil {
		t.Fatal(err)
	}
	if err := checkGo(t.Context(), machine, "."); err != nil {
		t.Errorf("the machine's own: %v", err)
	}
}
