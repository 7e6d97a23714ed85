//go:build vm

package vm

import (
	"bytes"
	"net"
	"path/filepath"
	"testing"

	"github.com/hullmark/hullmark/pcrs/machine"
)

// offered waits until the router offers the machine an address (RFC 2131, operation 2), which its firmware asked for.
func (c *card) offered(t *testing.T, m *Machine) (address net.IP) {
	t.Helper()
	mac := hardwareAddress(m.Dir(), 0)
	c.await(t, "the router's offer to "+mac.String(), etherIPv4, func(_ net.HardwareAddr, p []byte) bool {
		udp := p[4*(p[0]&15):]
		if p[9] != 17 || len(udp) < 8+240 || udp[8] != 2 || !bytes.Equal(udp[8+28:8+34], mac) {
			return false
		}
		address = bytes.Clone(udp[8+16 : 8+20])
		return true
	})
	return address
}

// Firmware that finds no disk asks for an address. So two machines show by their firmware alone that they are on one segment, that the
// router hears them, and that one's power cut is nothing to the other.
func TestMachinesShareANetwork(t *testing.T) {
	n := startNetwork(t)
	listener := plugCard(t, n, 9)
	listener.patience = firmwareTime
	machine := func(name string) Config {
		c := testConfig(t)
		c.Dir, c.Networks, c.TPM = filepath.Join(t.TempDir(), name), []string{n.Dir()}, machine.NoTPM
		return c
	}
	one, two := machine("one"), machine("two")
	first := start(t, one)
	address := listener.offered(t, first)
	second := start(t, two)
	defer second.Kill()
	if other := listener.offered(t, second); other.Equal(address) {
		t.Errorf("both machines got %v", other)
	}
	first.Kill()
	first = start(t, one)
	defer first.Kill()
	if again := listener.offered(t, first); !again.Equal(address) {
		t.Errorf("after its power cut the machine got %v, and had %v: it has another network card", again, address)
	}
	select {
	case <-second.Done():
		t.Errorf("the other machine ended: %v", second.Wait())
	default:
	}
}
