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
	for name, c := range map[string]struct{ config, says string }{
		"unknown field":     {with(`"version":1`, `"version":1,"role":"control-plane"`), `unknown field "role"`},
		"a secret":          {with(`"version":1`, `"version":1,"token":"abcdef.0123456789abcdef"`), `unknown field "token"`},
		"version":           {with(`"version":1`, `"version":2`), "version: want 1, got 2"},
		"trailing data":     {goodConfig + "{}", "data after the end"},
		"no root":           {with(`00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff`, strings.Repeat("0", 64)), "clusterRoot: missing"},
		"short root":        {with("eeff\"", "ee\""), "want 64 hexadecimal digits"},
		"upper-case root":   {with("aabb", "AABB"), "lower-case"},
		"no disk":           {with(`{"serial":"state"}`, `{}`), "exactly one of serial and path"},
		"two disks":         {with(`"serial":"state"`, `"serial":"state","path":"/dev/vda"`), "exactly one of serial and path"},
		"disk outside /dev": {with(`"serial":"state"`, `"path":"/etc/shadow"`), "want a device below /dev"},
		"too large":         {goodConfig + strings.Repeat(" ", MaxNodeConfig), "at most 65536"},
		"bad endpoint":      {with(`"version":1`, `"version":1,"endpoints":["host"]`), `"host": want HOST:PORT`},
		"bad name server":   {with(`"version":1`, `"version":1,"nameServers":["dns.example"]`), `"dns.example" is no IP address`},
		"bad address":       {with(`"version":1`, `"version":1,"addresses":["10.0.0.1"]`), "addresses: "},
	} {
		if _, err := ParseNodeConfig([]byte(c.config)); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: got %v, want an error with %q", name, err, c.says)
		}
	}
}

// What is an address to some programs and a name to others is no endpoint: a worker could claim the address behind it.
func TestEndpointIsNoNumber(t *testing.T) {
	for _, host := range []string{"192.0.2.01", "0x7f.1", "127.1", "3232235777", "0300.0.2.1", "0xC0000201", "192.0.2.0x1", "a.1", "0x", "256.1.1.1"} {
		if ValidEndpoint(host + ":6443") {
			t.Errorf("%s is taken for a name", host)
		}
	}
	for _, host := range []string{"192.0.2.1", "[2001:db8::1]", "api.example.net", "a1", "0xyz", "1a", "api.1and1", "10-96-0-1.example"} {
		if !ValidEndpoint(host + ":6443") {
			t.Errorf("%s is refused", host)
		}
	}
	// An endpoint is told of in one line of the log.
	for host, want := range map[string]bool{"[fe80::1%enp0s3]": true, "[fe80::1%a\nREADY]": false, "[fe80::1%a b]": false, "[fe80::1%\u009b2J]": false} {
		if ValidEndpoint(host+":7443") != want {
			t.Errorf("%q: want %v", host, want)
		}
	}
}

// FuzzNames holds the names that others give to what they become: host names, units, certificates' names, file names and lines of settings.
func FuzzNames(f *testing.F) {
	for _, name := range []string{"worker-1", "api.example.net:6443", "[2001:db8::1]:6443", "2001:db8::1", "192.0.2.1", "*.example", "storage.service", "a b", "x\n", "-", "..", EKID{7}.String(), UUID{7}.String()} {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		accepted := ValidNodeName(name) || ValidEndpoint(name) || ValidHook(name)
		if ValidServerName(name) {
			name, accepted = strings.TrimPrefix(name, "*."), true // The first label of a certificate's name may be any.
		}
		if accepted && (len(name) == 0 || len(name) > 300 || strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r >= 0x7f || strings.ContainsRune("/\\'\"`$;&|<>(){}*?!#,=", r) })) {
			t.Errorf("%q is taken for a name", name)
		}
		if node, err := ParseEKID(name); err == nil && node.String() != name {
			t.Errorf("%q is the identity %s", name, node)
		}
		if id, err := ParseUUID(name); err == nil && id.String() != name {
			t.Errorf("%q is the UUID %s", name, id)
		}
		if root, err := ParseClusterRoot(name); err == nil && root.String() != name {
			t.Errorf("%q is the root %s", name, root)
		}
	})
}

func FuzzParseNodeConfig(f *testing.F) {
	f.Add([]byte(goodConfig))
	f.Add(withNetwork(bonded))
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

// A zone must not bring a second line into what systemd reads.
func TestNodeConfigRefusesZonesThatAreNoName(t *testing.T) {
	config := func(zone string) NodeConfig {
		return NodeConfig{
			Version: 1, ClusterRoot: ClusterRoot{1}, StateDisk: DiskSelector{Serial: "state"},
			Gateway: "fe80::1%" + zone, NameServers: []string{"fe80::1%" + zone}, TimeServers: []string{"fe80::1%" + zone},
		}
	}
	if err := config("enp0s3").check(); err != nil {
		t.Error(err)
	}
	for _, zone := range []string{"a\nDNS=192.0.2.1", "a b", "a\x00", "abcdefghijklmnop"} {
		whole := config(zone)
		for field, c := range map[string]NodeConfig{
			"gateway":     {Gateway: whole.Gateway},
			"nameServers": {NameServers: whole.NameServers},
			"timeServers": {TimeServers: whole.TimeServers},
		} {
			c.Version, c.ClusterRoot, c.StateDisk = whole.Version, whole.ClusterRoot, whole.StateDisk
			if err := c.check(); err == nil || !strings.HasPrefix(err.Error(), field) {
				t.Errorf("%s with zone %q: %v", field, zone, err)
			}
		}
	}
}
