package infrastructure

import (
	"net"
	"net/netip"
	"os"
	"slices"
	"testing"

	"github.com/hullmark/hullmark/internal/vm"
)

func TestForwardsStayUnlessTaken(t *testing.T) {
	c := (&folders{root: t.TempDir()}).cluster("n", "c")
	if err := os.MkdirAll(string(c), 0o700); err != nil {
		t.Fatal(err)
	}
	api := vm.Forward{Address: netip.MustParseAddr("10.0.2.20"), Guest: 6443}
	first, err := c.chooseForwards(api)
	if err != nil {
		t.Fatal(err)
	}
	if err := (vm.NetworkConfig{Dir: "x", Forwards: first}).Check(); err != nil {
		t.Error(err)
	}
	for _, address := range []string{"10.0.2.4", "10.0.2.99", "10.0.2.100", "10.0.2.115"} {
		if hostPort(first, netip.MustParseAddr(address), agentPort) == 0 {
			t.Errorf("%s has no forward", address)
		}
	}
	if port := hostPort(first, netip.MustParseAddr("10.0.2.116"), agentPort); port != 0 {
		t.Errorf("10.0.2.116 is reached by %d", port)
	}
	again, err := c.chooseForwards(api)
	if err != nil || !slices.Equal(first, again) {
		t.Errorf("the ports changed: %v, %v, %v", first[:2], again[:2], err)
	}
	l, err := net.Listen("tcp4", onHost(first[1].Host))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	again, err = c.chooseForwards(api)
	if err != nil || again[1].Host == first[1].Host || !slices.Equal(first[2:], again[2:]) || again[0] != first[0] {
		t.Errorf("one port was taken: %v, %v, %v", first[:3], again[:3], err)
	}
	api.Host = 7
	if again, err = c.chooseForwards(api); err != nil || again[0].Host != 7 {
		t.Errorf("the chosen port: %v, %v", again[0], err)
	}
	if stored, err := c.forwards(); err != nil || !slices.Equal(stored, again) {
		t.Errorf("stored: %v, %v", stored, err)
	}
}
