package wire_test

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/hullmark/hullmark/attest/wire"
)

func TestNodeAddresses(t *testing.T) {
	for _, own := range [][]netip.Addr{nil, {netip.MustParseAddr("192.0.2.7")}, {netip.MustParseAddr("2001:db8::7")}, {netip.MustParseAddr("2001:db8::7"), netip.MustParseAddr("192.0.2.7")}} {
		p := &wire.Proceed{}
		p.SetNodeAddresses(own)
		if got, err := p.NodeAddresses(); err != nil || !slices.Equal(got, own) {
			t.Errorf("%v is read as %v, %v", own, got, err)
		}
	}
	for _, text := range []string{"host", "192.0.2.07", "192.0.2.7,", ",192.0.2.7", "192.0.2.7,192.0.2.8", "2001:db8::7,2001:db8::8", "192.0.2.7,2001:db8::7,192.0.2.8", "::ffff:192.0.2.7", "fe80::1%eth0", "2001:DB8::7", "192.0.2.7, 2001:db8::7"} {
		if got, err := (&wire.Proceed{Address: text}).NodeAddresses(); err == nil {
			t.Errorf("%q is read as %v", text, got)
		}
	}
}
