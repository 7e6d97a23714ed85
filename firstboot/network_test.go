package firstboot

import (
	"testing"

	"github.com/hullmark/hullmark"
)

func TestNetworkSettings(t *testing.T) {
	got := networkSettings(hullmark.NodeConfig{
		Addresses: []string{"192.0.2.21/24", "2001:db8::21/64"}, Gateway: "192.0.2.1", NameServers: []string{"192.0.2.3", "2001:db8::3"},
	})
	want := "[Match]\nType=ether\nKind=!*\n\n[Network]\nAddress=192.0.2.21/24\nAddress=2001:db8::21/64\nGateway=192.0.2.1\nDNS=192.0.2.3\nDNS=2001:db8::3\n"
	if got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := networkSettings(hullmark.NodeConfig{Addresses: []string{"192.0.2.21/24"}}); got != "[Match]\nType=ether\nKind=!*\n\n[Network]\nAddress=192.0.2.21/24\n" {
		t.Errorf("address alone: %q", got)
	}
}
