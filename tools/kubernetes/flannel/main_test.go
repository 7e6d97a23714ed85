package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/flannel-io/flannel/pkg/ipmatch"
	"github.com/flannel-io/flannel/pkg/subnet"
)

func TestOwnAddress(t *testing.T) {
	v4, v6, both := &subnet.Config{EnableIPv4: true}, &subnet.Config{EnableIPv6: true}, &subnet.Config{EnableIPv4: true, EnableIPv6: true}
	for _, c := range []struct {
		addresses string
		config    *subnet.Config
		own       string
		public    ipmatch.PublicIPOpts
		refused   string
	}{
		{"", both, "", ipmatch.PublicIPOpts{}, ""},
		{"192.0.2.7", v4, "192.0.2.7", ipmatch.PublicIPOpts{PublicIP: "192.0.2.7"}, ""},
		{"192.0.2.7,2001:db8::7", v4, "192.0.2.7", ipmatch.PublicIPOpts{PublicIP: "192.0.2.7"}, ""},
		{"192.0.2.7,2001:db8::7", v6, "2001:db8::7", ipmatch.PublicIPOpts{PublicIPv6: "2001:db8::7"}, ""},
		{"2001:db8::7,192.0.2.7", both, "192.0.2.7", ipmatch.PublicIPOpts{PublicIP: "192.0.2.7", PublicIPv6: "2001:db8::7"}, ""},
		{"192.0.2.7", both, "", ipmatch.PublicIPOpts{}, "one of each family"},
		{"2001:db8::7", v4, "", ipmatch.PublicIPOpts{}, "one of each family"},
		{"192.0.2.7,node", v4, "", ipmatch.PublicIPOpts{}, "NODE_ADDRESSES"},
	} {
		own, public, err := ownAddress(c.addresses, c.config)
		if c.refused != "" {
			if err == nil || !strings.Contains(err.Error(), c.refused) {
				t.Errorf("%q: %v, want %s", c.addresses, err, c.refused)
			}
			continue
		}
		if err != nil || own != c.own || public != c.public {
			t.Errorf("%q: %q, %v, %v, want %q, %v", c.addresses, own, public, err, c.own, c.public)
		}
	}
}

// TestCNI: pods get an address of each of the node's subnets, and a way to everywhere by each.
func TestCNI(t *testing.T) {
	path := filepath.Join(t.TempDir(), "10-flannel.conflist")
	if err := writeCNI(path, []string{"10.244.1.0/24", "fd00:10:244:1::/64"}, 1400); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var got any
	if err := json.Unmarshal(text, &got); err != nil {
		t.Fatal(err)
	}
	short, err := json.Marshal(got)
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"cniVersion":"0.4.0","name":"flannel","plugins":[{"ipam":{"dataDir":"/run/cni-ipam-state",` +
		`"ranges":[[{"subnet":"10.244.1.0/24"}],[{"subnet":"fd00:10:244:1::/64"}]],"routes":[{"dst":"0.0.0.0/0"},{"dst":"::/0"}],"type":"host-local"},"mtu":1400,"type":"ptp"}]}`
	if string(short) != want {
		t.Errorf("got  %s\nwant %s", short, want)
	}
}
