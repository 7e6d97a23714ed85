package infrastructure

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"

	"github.com/hullmark/hullmark/internal/atomicfile"
	"github.com/hullmark/hullmark/internal/vm"
)

// agentPort is where a node's agent listens.
const agentPort = 7443

// The addresses that machines have: static ones from firstStatic on, those that the router gives from firstGiven on, slots of them.
var (
	network     = netip.MustParsePrefix("10.0.2.0/24")
	firstStatic = netip.MustParseAddr("10.0.2.4")
	firstGiven  = netip.MustParseAddr("10.0.2.100")
)

// guests are all guests' ports that the host can reach: the API server's, which is the first, and the agent's on every address that a
// machine may have. The network knows them when it starts; which machine has which address turns out later.
func guests(api vm.Forward) []vm.Forward {
	all := []vm.Forward{api}
	address := firstStatic
	for range int(firstGiven.As4()[3]) - int(firstStatic.As4()[3]) + slots {
		all = append(all, vm.Forward{Address: address, Guest: agentPort})
		address = address.Next()
	}
	return all
}

func (c clusterFolder) forwardsFile() string { return filepath.Join(string(c), "forwards.json") }

// forwards reads the network's forwards; none where it never started.
func (c clusterFolder) forwards() ([]vm.Forward, error) {
	content, err := os.ReadFile(c.forwardsFile())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var texts []string
	if err := json.Unmarshal(content, &texts); err != nil {
		return nil, fmt.Errorf("%s: %w", c.forwardsFile(), err)
	}
	var all []vm.Forward
	for _, text := range texts {
		f, err := vm.ParseForward(text)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", c.forwardsFile(), err)
		}
		all = append(all, f)
	}
	return all, nil
}

// chooseForwards chooses a port of the host for each guest's: that which it had before if nobody else has it, or a free one. The API
// server's, if a person chose it, stays that.
func (c clusterFolder) chooseForwards(api vm.Forward) ([]vm.Forward, error) {
	before, err := c.forwards()
	if err != nil {
		return nil, err
	}
	all := guests(api)
	var held ports
	defer held.release()
	// Those that had a port go first, so that none of them loses it to one that takes any.
	for i, f := range all {
		if had := hostPort(before, f.Address, f.Guest); f.Host == 0 && had != 0 {
			all[i].Host = held.take(had)
		}
	}
	for i, f := range all {
		if f.Host != 0 {
			continue
		}
		if all[i].Host = held.take(0); all[i].Host == 0 {
			return nil, errors.New("the host has no free ports")
		}
	}
	var texts []string
	for _, f := range all {
		texts = append(texts, f.String())
	}
	content, err := json.Marshal(texts)
	if err != nil {
		return nil, err
	}
	return all, atomicfile.Write(c.forwardsFile(), content, 0o600)
}

// ports are ports of the loopback address that are held until all are chosen.
type ports []net.Listener

// take takes a port, any free one for 0, and returns it; 0 where it is taken.
func (p *ports) take(port uint16) uint16 {
	l, err := net.Listen("tcp4", onHost(port))
	if err != nil {
		return 0
	}
	*p = append(*p, l)
	return uint16(l.Addr().(*net.TCPAddr).Port)
}

func (p *ports) release() {
	for _, l := range *p {
		l.Close()
	}
}

// hostPort returns the port of the host that leads to a guest's, 0 where none does.
func hostPort(forwards []vm.Forward, address netip.Addr, guest uint16) uint16 {
	for _, f := range forwards {
		if f.Address == address && f.Guest == guest {
			return f.Host
		}
	}
	return 0
}

// onHost is an address as the host reaches it.
func onHost(port uint16) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(int(port))) }
