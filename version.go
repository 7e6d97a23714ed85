package hullmark

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// Version is a release of Kubernetes or of etcd: three numbers, and what stands behind a hyphen before a release (Semantic Versioning
// 2.0.0, §2 and §9). The zero value is one that is not known.
type Version struct {
	Major, Minor, Patch int
	// Pre is empty for a release.
	Pre string
}

// versionPattern bounds each number to six digits and what follows to 64 characters; build metadata (§10) is of no release.
var versionPattern = regexp.MustCompile(`^v(0|[1-9][0-9]{0,5})\.(0|[1-9][0-9]{0,5})\.(0|[1-9][0-9]{0,5})(?:-([0-9A-Za-z.-]{1,64}))?$`)

// ParseVersion reads what String writes of a known version: "v1.36.3".
func ParseVersion(text string) (Version, error) {
	m := versionPattern.FindStringSubmatch(text)
	if m == nil || m[1] == "0" && m[2] == "0" && m[3] == "0" {
		return Version{}, fmt.Errorf("version %.80q: want the form v1.2.3", text)
	}
	v := Version{Pre: m[4]}
	for i, number := range []*int{&v.Major, &v.Minor, &v.Patch} {
		*number, _ = strconv.Atoi(m[1+i]) // digits, as the pattern says
	}
	return v, nil
}

// Known reports that v is not the zero value.
func (v Version) Known() bool { return v != Version{} }

// String returns the form "v1.36.3", or "unknown".
func (v Version) String() string {
	if !v.Known() {
		return "unknown"
	}
	text := fmt.Sprintf("v%d.%d.%d", v.Major, v.Minor, v.Patch)
	if v.Pre != "" {
		text += "-" + v.Pre
	}
	return text
}

// Line returns the two numbers that a minor release is called by: "1.36".
func (v Version) Line() string { return fmt.Sprintf("%d.%d", v.Major, v.Minor) }

// SameLine reports whether both are of one minor release.
func (v Version) SameLine(other Version) bool {
	return v.Major == other.Major && v.Minor == other.Minor
}

// Compare is negative where v comes before other. What comes before a release is compared as text.
func (v Version) Compare(other Version) int {
	return cmp.Or(cmp.Compare(v.Major, other.Major), cmp.Compare(v.Minor, other.Minor), cmp.Compare(v.Patch, other.Patch),
		cmp.Compare(rank(v.Pre), rank(other.Pre)), strings.Compare(v.Pre, other.Pre))
}

// rank puts a release behind what comes before it.
func rank(pre string) int {
	if pre == "" {
		return 1
	}
	return 0
}

// MarshalText writes String's form; an unknown version has none.
func (v Version) MarshalText() ([]byte, error) {
	if !v.Known() {
		return nil, errors.New("an unknown version has no text")
	}
	return []byte(v.String()), nil
}

// UnmarshalText reads what MarshalText writes.
func (v *Version) UnmarshalText(text []byte) (err error) {
	*v, err = ParseVersion(string(text))
	return err
}

// Versions are those of the programs that an image brings its nodes. An image without Kubernetes, or from before images said so, has none.
type Versions struct {
	// Kubernetes is that of kubelet, kubeadm and the control plane.
	Kubernetes Version `json:"kubernetes,omitzero"`
	// Etcd is that of etcd.
	Etcd Version `json:"etcd,omitzero"`
}

// The fields of os-release(5) in which an image says its versions.
const (
	kubernetesField = "HULLMARK_KUBERNETES"
	etcdField       = "HULLMARK_ETCD"
)

// OSRelease returns the lines of os-release(5) that say v; none of an unknown version.
func (v Versions) OSRelease() string {
	var text strings.Builder
	for _, f := range []struct {
		name    string
		version Version
	}{{kubernetesField, v.Kubernetes}, {etcdField, v.Etcd}} {
		if f.version.Known() {
			fmt.Fprintf(&text, "%s=%s\n", f.name, f.version)
		}
	}
	return text.String()
}

// VersionsOf reads an image's os-release(5).
func VersionsOf(osRelease []byte) (v Versions, err error) {
	for name, version := range map[string]*Version{kubernetesField: &v.Kubernetes, etcdField: &v.Etcd} {
		text := OSReleaseField(osRelease, name)
		if text == "" {
			continue
		}
		if *version, err = ParseVersion(text); err != nil {
			return Versions{}, fmt.Errorf("os-release: %s: %w", name, err)
		}
	}
	return v, nil
}

// OSReleaseField returns a field of os-release(5), without quotes, or nothing.
func OSReleaseField(osRelease []byte, name string) string {
	for line := range bytes.Lines(osRelease) {
		if value, ok := strings.CutPrefix(strings.TrimSpace(string(line)), name+"="); ok {
			return strings.Trim(value, `"'`)
		}
	}
	return ""
}
