package firstboot

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest/wire"
)

// The kubelet of a node whose other address was refused names the one that Proceed says, in this boot alone, and the node shows why.
func TestKubeletNamesTheAddressOfM6(t *testing.T) {
	for _, c := range []struct{ address, want string }{
		{"192.0.2.8", "HULLMARK_KUBELET_ARGS=--node-ip=192.0.2.8\n"},
		{"2001:db8::8", "HULLMARK_KUBELET_ARGS=--node-ip=2001:db8::8\n"},
		{"192.0.2.8,2001:db8::8", "HULLMARK_KUBELET_ARGS=--node-ip=192.0.2.8,2001:db8::8\n"},
		{"", "HULLMARK_KUBELET_ARGS=\n"},
	} {
		s := newStage(t)
		service := s.service(t)
		s.dials(t, service.address)
		s.serve(t)
		file := filepath.Join(s.agent.RunDir, kubeletFile)
		if err := os.WriteFile(file, []byte("of an earlier try"), 0o600); err != nil {
			t.Fatal(err)
		}
		link := service.accept()
		link.ticket(link.admit(s))
		link.receive()
		p := worker()
		p.Address = c.address
		if c.address != "" {
			p.Refused = []*wire.Condition{wire.FromCondition(&hullmark.Condition{Code: "address-taken", Title: "another machine holds the address 192.0.2.7", Next: "give it another"})}
		}
		link.proceedWith(p)
		phases, last := link.finish()
		if !last.GetReady() || slices.Contains(phases, "warning") != (c.address != "") {
			t.Errorf("Proceed with %q: phases %v, last %v", c.address, phases, last)
		}
		if got, err := os.ReadFile(file); err != nil || string(got) != c.want {
			t.Errorf("Proceed with %q: %q, %v", c.address, got, err)
		}
	}
}
