package lock

import (
	"bytes"
	"strings"
	"testing"

	spdxjson "github.com/spdx/tools-golang/json"
	"github.com/spdx/tools-golang/spdx/v2/common"
	spdx "github.com/spdx/tools-golang/spdx/v2/v2_3"
	"github.com/spdx/tools-golang/spdxlib"
)

var contents = Contents{ID: "node", Version: "20261121", RootHash: sum("7"), Modules: []Module{{Path: "github.com/Upper/case", Version: "v1.0.0+incompatible", Sum: "h1:x"}, {Path: "k8s.io/kubernetes", Version: "v1.36.3", Sum: "h1:y"}}}

func billOf(t testing.TB, l Lock, c Contents) []byte {
	t.Helper()
	text, err := l.SPDX(c)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// readSBOM reads an SBOM as others do, and checks what a document must hold.
func readSBOM(t *testing.T, text []byte) *spdx.Document {
	t.Helper()
	var d spdx.Document
	if err := spdxjson.ReadInto(bytes.NewReader(text), &d); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	if err := spdxlib.ValidateDocument(&d); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	return &d
}

func TestSBOMOfTheLock(t *testing.T) {
	l := trackedLock(t)
	d := readSBOM(t, billOf(t, l, contents))
	found := map[string]string{} // from package URL to checksum
	for _, p := range d.Packages {
		for _, r := range p.PackageExternalReferences {
			if _, twice := found[r.Locator]; twice {
				t.Errorf("%s is there twice", r.Locator)
			}
			found[r.Locator] = ""
			for _, c := range p.PackageChecksums {
				found[r.Locator] = c.Value
			}
		}
	}
	want := len(l.Of(Root)) + len(contents.Modules) + 2
	if len(found) != want || len(d.Packages) != want+1 || len(d.Relationships) != want+1 {
		t.Errorf("%d package URLs, %d packages, %d relationships for %d things", len(found), len(d.Packages), len(d.Relationships), want)
	}
	for _, p := range l.Of(Root) {
		escaped := strings.ReplaceAll(p.Version, "+", "%2B")
		if got := found["pkg:deb/debian/"+strings.ReplaceAll(p.Name, "+", "%2B")+"@"+escaped+"?arch="+p.Arch]; got != p.SHA256 {
			t.Errorf("%s: the SBOM has sha256 %q", p.ID(), got)
		}
	}
	described, err := spdxlib.GetDescribedPackageIDs(d)
	if err != nil || len(described) != 1 || described[0] != common.ElementID("Image") {
		t.Errorf("it describes %v, %v", described, err)
	}
}

func TestSBOM(t *testing.T) {
	l := small()
	for _, set := range []Set{Tools, Build} { // none of what scripts build with is in the image
		l.Packages = append(l.Packages, Package{Set: set, Name: stubPackage, Version: "257.9-1", Arch: "amd64", SHA256: sum("5")})
	}
	text := billOf(t, l, contents)
	if again := billOf(t, l, contents); !bytes.Equal(text, again) {
		t.Error("the same lock has two SBOMs")
	}
	d := readSBOM(t, text)
	if d.CreationInfo.Created != "2026-11-19T02:12:54Z" || !strings.HasPrefix(d.DocumentNamespace, spdxNamespace) {
		t.Errorf("created %s in %s", d.CreationInfo.Created, d.DocumentNamespace)
	}
	for _, want := range []string{
		`"pkg:deb/debian/passwd@1:4.17.4-2?arch=amd64"`, `"pkg:deb/debian/tar@1.35%2Bdfsg-3.1?arch=amd64"`, `"pkg:golang/k8s.io/kubernetes@v1.36.3"`,
		`"pkg:golang/github.com/upper/case@v1.0.0%2Bincompatible"`, `"pkg:golang/stdlib@1.26.8"`, `systemd-boot-efi@257.9-1`, "only its boot stub",
		"dm-verity root hash " + sum("7"),
	} {
		if strings.Count(string(text), want) != 1 {
			t.Errorf("%s is not there once in\n%s", want, text)
		}
	}
	without := contents
	without.Modules = nil
	bare := billOf(t, l, without)
	if bytes.Contains(bare, []byte("k8s.io")) || readSBOM(t, bare).DocumentNamespace == d.DocumentNamespace {
		t.Error("an image without Kubernetes has its SBOM")
	}
}

func TestReadSPDX(t *testing.T) {
	l := trackedLock(t)
	text := billOf(t, l, contents)
	rootHash, listed, err := ReadSPDX(text)
	if err != nil || rootHash != contents.RootHash || len(listed) != len(l.contained(contents)) {
		t.Errorf("%d things of %s, %v", len(listed), rootHash, err)
	}
	if p := l.Of(Root)[0]; listed[0] != (Listed{p.Name + ":" + p.Arch, p.Version}) || listed[len(listed)-1] != (Listed{"k8s.io/kubernetes", "v1.36.3"}) {
		t.Errorf("it begins with %v and ends with %v", listed[0], listed[len(listed)-1])
	}
	for name, bad := range map[string]string{
		"empty":         "",
		"unknown field": strings.Replace(string(text), `"name"`, `"nome"`, 1),
		"no image":      strings.Replace(string(text), `"SPDXRef-Image"`, `"SPDXRef-Other"`, 2),
		"no root hash":  strings.Replace(string(text), "dm-verity", "verity", 1),
		"nothing":       `{"packages": []}`,
	} {
		if _, _, err := ReadSPDX([]byte(bad)); err == nil || !strings.Contains(err.Error(), "read SBOM: ") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func FuzzReadSPDX(f *testing.F) {
	f.Add(billOf(f, Lock{Go: "go1.26.8"}, contents))
	f.Fuzz(func(t *testing.T, text []byte) {
		if rootHash, listed, err := ReadSPDX(text); err == nil && (len(listed) >= maxListed || len(rootHash) > len(text)) {
			t.Errorf("%d things listed", len(listed))
		}
	})
}
