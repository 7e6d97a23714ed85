package hullmark

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
)

func TestVersionsAreOrdered(t *testing.T) {
	ordered := []string{"v1.9.11", "v1.35.4", "v1.36.0-alpha.1", "v1.36.0-rc.0", "v1.36.0", "v1.36.3", "v1.36.10", "v2.0.0"}
	var versions []Version
	for _, text := range ordered {
		v, err := ParseVersion(text)
		if err != nil || v.String() != text {
			t.Fatalf("%s: %v, %v", text, v, err)
		}
		versions = append(versions, v)
	}
	if !slices.IsSortedFunc(versions, Version.Compare) || versions[4].Compare(versions[3]) <= 0 || versions[4].Compare(versions[4]) != 0 {
		t.Errorf("not in order: %v", versions)
	}
	if !versions[4].SameLine(versions[6]) || versions[4].SameLine(versions[1]) || versions[4].SameLine(Version{Major: 2, Minor: 36}) || versions[4].Line() != "1.36" {
		t.Error("minor releases are taken for each other")
	}
}

func TestVersionsThatAreNone(t *testing.T) {
	for _, text := range []string{"", "1.36.3", "v1.36", "v1.36.3.1", "v01.36.3", "v1.36.3+k3s1", "v1.36.3-", "v1.36.3-" + strings.Repeat("a", 65), "v1.1234567.0", "v0.0.0", "unknown", "v1.36.3\n"} {
		if v, err := ParseVersion(text); err == nil {
			t.Errorf("%q was read as %v", text, v)
		}
	}
	if (Version{}).Known() || (Version{}).String() != "unknown" {
		t.Error("the zero value is taken for a version")
	}
	if _, err := json.Marshal(struct{ V Version }{}); err == nil {
		t.Error("an unknown version was written")
	}
}

func TestVersionsInOSRelease(t *testing.T) {
	want := Versions{Version{1, 36, 3, ""}, Version{3, 6, 8, ""}}
	got, err := VersionsOf([]byte("ID=debian\n" + want.OSRelease() + "IMAGE_ID=node\n"))
	if err != nil || got != want {
		t.Errorf("got %v, %v", got, err)
	}
	if got, err := VersionsOf([]byte("ID=debian\nHULLMARK_ETCD=\"v3.6.8\"\n")); err != nil || got != (Versions{Etcd: want.Etcd}) {
		t.Errorf("one of them, in quotes: %v, %v", got, err)
	}
	if _, err := VersionsOf([]byte("HULLMARK_KUBERNETES=latest\n")); err == nil || !strings.Contains(err.Error(), "HULLMARK_KUBERNETES") {
		t.Errorf("none: %v", err)
	}
	text, err := json.Marshal(want)
	if err != nil || string(text) != `{"kubernetes":"v1.36.3","etcd":"v3.6.8"}` {
		t.Errorf("%s, %v", text, err)
	}
	if text, err := json.Marshal(Versions{}); err != nil || string(text) != "{}" {
		t.Errorf("%s, %v", text, err)
	}
}

// FuzzVersion wants each version to have one spelling.
func FuzzVersion(f *testing.F) {
	f.Add("v1.36.3")
	f.Add("v1.36.0-rc.0")
	f.Fuzz(func(t *testing.T, text string) {
		if v, err := ParseVersion(text); err == nil && (v.String() != text || !v.Known()) {
			t.Errorf("%q was read as %q", text, v)
		}
	})
}
