package render

import (
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/hullmark/hullmark"
)

// Limits of the add-ons of a cluster document.
const (
	maxAddons = 64
	maxFiles  = 64
	// maxRelease is Helm's, of the name of a release.
	maxRelease = 53
)

// OwnAddons are the names of what every cluster of Hullmark's has, or may have, without its document naming it.
var OwnAddons = []string{"hullmark", "kube-proxy", "flannel"}

// OCIScheme begins the address of a chart in a registry.
const OCIScheme = "oci://"

// Addon is a chart, or plain manifests, that `hullmark addons` brings to the cluster. Nothing is rendered from it.
type Addon struct {
	// Name is a DNS label; of a chart, also the name of its release.
	Name string `json:"name"`
	// Namespace is where a chart's release is, and everything that names no namespace itself; the default is default.
	Namespace string `json:"namespace,omitempty"`
	// Chart is a folder, an archive (.tgz), or oci://HOST/NAME:VERSION; a file's name counts from the document's folder.
	Chart string `json:"chart,omitempty"`
	// SHA256 is that of the archive, in hexadecimal digits. A folder has none.
	SHA256 string `json:"sha256,omitempty"`
	// Values are the chart's, over those of ValuesFiles, of which later ones go before earlier ones.
	Values      map[string]any `json:"values,omitempty"`
	ValuesFiles []string       `json:"valuesFiles,omitempty"`
	// Manifests are files in YAML, or folders of such.
	Manifests []string `json:"manifests,omitempty"`
}

// checkAddons refuses what nothing can be brought to a cluster from.
func checkAddons(addons []Addon) error {
	if len(addons) > maxAddons {
		return fmt.Errorf("addons: %d, want at most %d", len(addons), maxAddons)
	}
	names := map[string]bool{}
	for i, a := range addons {
		if !hullmark.ValidNodeName(a.Name) || names[a.Name] {
			return fmt.Errorf("addons[%d]: name %q: want a DNS label that no other add-on has", i, a.Name)
		}
		names[a.Name] = true
		if slices.Contains(OwnAddons, a.Name) {
			return fmt.Errorf("addons[%d]: name %q: that is one of Hullmark's own, which come with each release", i, a.Name)
		}
		if err := a.check(); err != nil {
			return fmt.Errorf("addons[%d] (%s): %w", i, a.Name, err)
		}
	}
	return nil
}

func (a Addon) check() error {
	if a.Namespace != "" && !hullmark.ValidNodeName(a.Namespace) {
		return fmt.Errorf("namespace %q: want a DNS label", a.Namespace)
	}
	if len(a.Name) > maxRelease && a.Chart != "" {
		return fmt.Errorf("the name of a chart's release has at most %d characters", maxRelease)
	}
	if (a.Chart == "") == (len(a.Manifests) == 0) {
		return errors.New("want either chart or manifests")
	}
	if a.Chart == "" && (a.SHA256 != "" || a.Values != nil || a.ValuesFiles != nil) {
		return errors.New("sha256, values and valuesFiles are a chart's; these are manifests")
	}
	for _, names := range [][]string{a.ValuesFiles, a.Manifests} {
		if len(names) > maxFiles || slices.Contains(names, "") {
			return fmt.Errorf("want at most %d files, each with a name", maxFiles)
		}
	}
	return a.checkDigest()
}

// checkDigest wants the digest of whatever may be exchanged between two looks at it. A folder is the operator's own.
func (a Addon) checkDigest() error {
	if !a.Archived() {
		if a.SHA256 != "" {
			return fmt.Errorf("sha256: the chart %s is a folder, which has none; name an archive (.tgz) or leave it out", a.Chart)
		}
		return nil
	}
	if sum, err := hex.DecodeString(a.SHA256); err != nil || len(sum) != 32 || a.SHA256 != strings.ToLower(a.SHA256) {
		return fmt.Errorf("sha256 %q: want that of the chart's archive, 64 hexadecimal digits in lower case, so that no other is taken: sha256sum of what helm pull fetches", a.SHA256)
	}
	return nil
}

// Archived reports whether the chart is an archive, in a file or in a registry.
func (a Addon) Archived() bool {
	return strings.HasPrefix(a.Chart, OCIScheme) || strings.HasSuffix(a.Chart, ".tgz") || strings.HasSuffix(a.Chart, ".tar.gz")
}
