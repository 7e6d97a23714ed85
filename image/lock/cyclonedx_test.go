package lock

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// cycloneDXSchema compiles CycloneDX's own schema, which comes with the library's module.
func cycloneDXSchema(t *testing.T) *jsonschema.Schema {
	t.Helper()
	dir, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/CycloneDX/cyclonedx-go").Output()
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	for _, name := range []string{"bom-1.6.schema.json", "spdx.schema.json", "jsf-0.82.schemax.json"} {
		text, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(dir)), "schema", name))
		if err != nil {
			t.Fatal(err)
		}
		source, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		if err := c.AddResource("http://cyclonedx.org/schema/"+strings.Replace(name, "schemax", "schema", 1), source); err != nil {
			t.Fatal(err)
		}
	}
	schema, err := c.Compile("http://cyclonedx.org/schema/bom-1.6.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	return schema
}

func TestCycloneDXListsWhatSPDXDoes(t *testing.T) {
	l := trackedLock(t)
	text, err := l.CycloneDX(contents)
	if err != nil {
		t.Fatal(err)
	}
	instance, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	if err := cycloneDXSchema(t).Validate(instance); err != nil {
		t.Error(err)
	}
	if again, err := l.CycloneDX(contents); err != nil || !bytes.Equal(again, text) {
		t.Errorf("the same lock has two SBOMs, %v", err)
	}
	var sbom struct {
		SerialNumber string
		Metadata     struct {
			Component struct{ Name, Version, Description string }
		}
		Components []struct {
			PURL   string
			Hashes []struct{ Alg, Content string }
		}
	}
	if err := json.Unmarshal(text, &sbom); err != nil {
		t.Fatal(err)
	}
	if sbom.Metadata.Component.Name != "node" || sbom.Metadata.Component.Description != "dm-verity root hash "+sum("7") {
		t.Errorf("it is about %+v", sbom.Metadata)
	}
	listed := map[string]string{} // from package URL to checksum
	for _, c := range sbom.Components {
		listed[c.PURL] = ""
		for _, h := range c.Hashes {
			listed[c.PURL] = h.Alg + h.Content
		}
	}
	d := readSBOM(t, billOf(t, l, contents))
	if len(listed) != len(d.Packages)-1 || len(sbom.Components) != len(listed) {
		t.Errorf("%d components, %d package URLs, SPDX has %d", len(sbom.Components), len(listed), len(d.Packages)-1)
	}
	for _, p := range d.Packages {
		for _, r := range p.PackageExternalReferences {
			sum, there := listed[r.Locator]
			if !there || len(p.PackageChecksums) == 1 && sum != "SHA-256"+p.PackageChecksums[0].Value {
				t.Errorf("%s: %v, checksum %q", r.Locator, there, sum)
			}
		}
	}
	other := contents
	other.RootHash = sum("8")
	changed, err := l.CycloneDX(other)
	serial := regexp.MustCompile(`urn:uuid:[0-9a-f]{8}-[0-9a-f]{4}-8[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}`)
	if err != nil || !serial.MatchString(sbom.SerialNumber) || bytes.Contains(changed, []byte(sbom.SerialNumber)) {
		t.Errorf("serial number %s, also of another SBOM: %v, %v", sbom.SerialNumber, bytes.Contains(changed, []byte(sbom.SerialNumber)), err)
	}
}
