package hullmark

import (
	"encoding/json"
	"strings"
	"testing"
)

const goodConfig = `{"version":1,"clusterRoot":"` +
	`00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff","stateDisk":{"serial":"state"}}`

func TestParseNodeConfig(t *testing.T) {
	c, err := ParseNodeConfig([]byte(goodConfig))
	if err != nil {
		t.Fatal(err)
	}
	if c.StateDisk.Serial != "state" || c.ClusterRoot.String()[:8] != "00112233" {
		t.Errorf("decoded %+v", c)
	}
}

func TestParseNodeConfigRefuses(t *testing.T) {
	with := func(old, replacement string) string { return strings.Replace(goodConfig, old, replacement, 1) }
	cases := map[string]string{
		"unknown field":     with(`"version":1`, `"version":1,"role":"control-plane"`),
		"version":           with(`"version":1`, `"version":2`),
		"trailing data":     goodConfig + "{}",
		"no root":           with(`00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff`, strings.Repeat("0", 64)),
		"short root":        with("eeff\"", "ee\""),
		"upper-case root":   with("aabb", "AABB"),
		"no disk":           with(`{"serial":"state"}`, `{}`),
		"two disks":         with(`"serial":"state"`, `"serial":"state","path":"/dev/vda"`),
		"disk outside /dev": with(`"serial":"state"`, `"path":"/etc/shadow"`),
		"too large":         goodConfig + strings.Repeat(" ", MaxNodeConfig),
		"bad endpoint":      with(`"version":1`, `"version":1,"endpoints":["host"]`),
		"bad name server":   with(`"version":1`, `"version":1,"nameServers":["dns.example"]`),
		"bad address":       with(`"version":1`, `"version":1,"addresses":["10.0.0.1"]`),
	}
	for name, config := range cases {
		if _, err := ParseNodeConfig([]byte(config)); err == nil {
			t.Errorf("%s: accepted %s", name, config)
		}
	}
}

func FuzzParseNodeConfig(f *testing.F) {
	f.Add([]byte(goodConfig))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := ParseNodeConfig(data)
		if err != nil {
			return
		}
		again, err := json.Marshal(c)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := ParseNodeConfig(again); err != nil {
			t.Fatalf("accepted %q but not its own encoding %q: %v", data, again, err)
		}
	})
}
