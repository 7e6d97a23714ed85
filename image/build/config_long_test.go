//go:build long

package build

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Were they not refused before, mkosi would find nothing of what definitions take from elsewhere, or tell of it.
func TestDefinitionsFromElsewhere(t *testing.T) {
	o, l, _ := settled(t)
	elsewhere := t.TempDir()
	put(t, elsewhere, map[string]string{"script": "#!/bin/sh\n"})
	for _, setting := range []string{
		"[Content]\nExtraTrees=%s", "[Content]\nSkeletonTrees=%s:/opt", "[Content]\nBaseTrees=%s", "[Content]\nPackageDirectories=%s", "[Content]\nVolatilePackageDirectories=%s",
		"[Content]\nSyncScripts=%s/script", "[Content]\nPrepareScripts=%s/script", "[Content]\nBuildScripts=%s/script", "[Content]\nPostInstallationScripts=%s/script",
		"[Content]\nFinalizeScripts=%s/script", "[Config]\nConfigureScripts=%s/script", "[Build]\nBuildSources=%s:x", "[Build]\nSandboxTrees=%s", "[Build]\nEnvironmentFiles=%s/script",
	} {
		o.Config = t.TempDir()
		if err := os.Chmod(filepath.Join(elsewhere, "script"), 0o755); err != nil {
			t.Fatal(err)
		}
		put(t, o.Config, map[string]string{"mkosi.conf": fmt.Sprintf(setting, elsewhere) + "\n"})
		if _, err := openMkosi(t.Context(), o, l); err == nil {
			t.Errorf(setting+": they are given to mkosi", elsewhere)
		}
		m, err := unpackMkosi(t.Context(), o, l) // as if nobody had looked before
		if err != nil {
			t.Fatal(err)
		}
		_, err = m.summary(t.Context())
		if err == nil || !strings.Contains(err.Error(), "they name "+elsewhere) && !strings.Contains(err.Error(), elsewhere+" does not exist") && !strings.Contains(err.Error(), elsewhere+"/script does not exist") {
			t.Errorf(setting+": %v", elsewhere, err)
		}
	}
}

func TestDebugProfileIsVisible(t *testing.T) {
	o, _, _ := settled(t)
	o.Profiles = []string{"debug"}
	r, err := Build(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if release := measuredSection(t, r.Image, ".osrel"); !strings.Contains(string(release), "\nVARIANT_ID=debug\n") {
		t.Errorf("what PCR 11 measures does not name the profile:\n%s", release)
	}
	if err := os.Remove(r.Image); err != nil {
		t.Fatal(err)
	}
	o.Profiles = nil
	if r, err = Build(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	if release := measuredSection(t, r.Image, ".osrel"); strings.Contains(string(release), "VARIANT_ID") {
		t.Errorf("an image without a profile names one:\n%s", release)
	}
}
