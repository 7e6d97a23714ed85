package build

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hullmark/hullmark/firstboot/config"
)

func checkout() Options { return Options{Source: "../.."} }

func TestProfilesAreKnown(t *testing.T) {
	o := checkout()
	known, err := Profiles(o)
	if want := []string{"aws", "azure", "baremetal", "debug", "gcp", "qemu", "unsigned-modules"}; err != nil || !slices.Equal(known, want) {
		t.Errorf("%v, %v; want %v", known, err, want)
	}
	for _, c := range []struct {
		profiles []string
		want     string
	}{
		{nil, ""},
		{[]string{"azure", "debug"}, ""},
		{[]string{"nosuch"}, "there is aws, azure, baremetal, debug, gcp, qemu, unsigned-modules"},
		{[]string{"aws", "azure"}, "aws, azure: each is for a platform"},
	} {
		o.Profiles = c.profiles
		if err := CheckProfiles(o); (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: %v, want %q", c.profiles, err, c.want)
		}
	}
}

// A profile says in the image where its nodes find their configuration, in a word that the agent knows.
func TestPlatformsNameASource(t *testing.T) {
	files, err := filepath.Glob("../../mkosi/mkosi.profiles/*/" + platformFile)
	if err != nil || len(files) != 5 {
		t.Fatalf("%d platforms, %v", len(files), err)
	}
	if !strings.HasSuffix(platformFile, config.ImageFile) {
		t.Errorf("%s is not what the agent reads, %s", platformFile, config.ImageFile)
	}
	for _, file := range files {
		name, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := config.Named(strings.TrimSpace(string(name)), nil); err != nil {
			t.Errorf("%s: %v", file, err)
		}
	}
}
