// Package agenttest is what stands around the agent: fakes of its state disk, of systemd and of Kubernetes. Each remembers what
// was asked of it, for whoever looks once the agent has ended or said that it is done.
package agenttest

import (
	"bytes"
	"context"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/firstboot/network"
	"github.com/hullmark/hullmark/firstboot/statedisk"
)

// NewStateDir makes the folder where a state disk would be mounted, with what its unit makes there.
func NewStateDir(t testing.TB) string {
	t.Helper()
	state := filepath.Join(t.TempDir(), "state")
	for _, folder := range []string{"etc-kubernetes", "var/lib/hullmark", statedisk.AgentDir} {
		if err := os.MkdirAll(filepath.Join(state, folder), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return state
}

// Text is what is written to it.
type Text struct {
	mutex sync.Mutex
	text  strings.Builder
}

var _ io.Writer = (*Text)(nil)

// Write adds to the text.
func (t *Text) Write(b []byte) (int, error) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	return t.text.Write(b)
}

// String returns the text.
func (t *Text) String() string {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	return t.text.String()
}

// tookLine is what the agent says of its time before it starts Kubernetes.
var tookLine = regexp.MustCompile(`the agent took (\S+) of its own time, and waited (\S+) for the TPM, (\S+) for the disk helper, (\S+) for the network and (\S+) for other programs`)

// Took is where the agent says that its time went until Kubernetes started.
type Took struct{ Own, TPM, Disk, Network, Programs time.Duration }

// TookIn finds what the agent says in its log, where it has to be once.
func TookIn(t testing.TB, log string) Took {
	t.Helper()
	found := tookLine.FindAllStringSubmatch(log, -1)
	if len(found) != 1 {
		t.Fatalf("the agent says %d times what it took, want once; its log:\n%s", len(found), log)
	}
	var took Took
	for i, part := range []*time.Duration{&took.Own, &took.TPM, &took.Disk, &took.Network, &took.Programs} {
		d, err := time.ParseDuration(found[0][i+1])
		if err != nil {
			t.Fatal(err)
		}
		*part = d
	}
	return took
}

// Disk is a state disk in memory.
type Disk struct {
	// Claim is what Probe says.
	Claim hullmark.DiskClaim
	// Opened is what Open says, unless Err is set.
	Opened statedisk.Opened
	Err    error
	// StateDir is the agent's, and Files are what the disk's manifest holds from the next Open on.
	StateDir string
	Files    map[string]string
	// Grants are those of each Open, and Key is the last one's.
	Grants []hullmark.DiskGrant
	Key    []byte
}

// Probe returns the claim.
func (d *Disk) Probe(context.Context, hullmark.DiskSelector) (hullmark.DiskClaim, error) {
	return d.Claim, nil
}

// Open takes the key. A disk that was blank is ready for that key from then on, and its counter is the ticket's.
func (d *Disk) Open(_ context.Context, _ hullmark.DiskSelector, g hullmark.DiskGrant) (statedisk.Opened, error) {
	d.Grants, d.Key = append(d.Grants, g), bytes.Clone(g.Key.Expose())
	if d.Err != nil {
		return statedisk.Opened{}, d.Err
	}
	opened := d.Opened
	var err error
	if opened.Manifest, err = d.keep(g); err != nil {
		return statedisk.Opened{}, err
	}
	if g.FormatAllowed {
		d.Claim = hullmark.DiskClaim{State: hullmark.DiskReady, UUID: g.UUID, Generation: g.Generation, Owner: g.Owner}
	}
	d.Opened.EpochRead = g.Epoch.Issued
	return opened, nil
}

// keep leaves the manifest of an opened disk: the one that is there, or a new one, with Files.
func (d *Disk) keep(g hullmark.DiskGrant) (statedisk.MAC, error) {
	key, err := statedisk.ManifestKey(g.Key)
	if err != nil {
		return statedisk.MAC{}, err
	}
	root, err := os.OpenRoot(d.StateDir)
	if err != nil {
		return statedisk.MAC{}, err
	}
	defer root.Close()
	m, _, err := statedisk.ReadManifest(root, key)
	if err != nil {
		m = statedisk.Manifest{Files: map[string]statedisk.KeptFile{}}
	}
	m.Disk, m.Epoch = g.UUID, g.Epoch.Issued
	for name, content := range d.Files {
		m.Files[name] = statedisk.KeptFile{Mode: 0o600, Content: []byte(content)}
	}
	d.Files = nil
	return statedisk.WriteManifest(root, key, m)
}

// System is systemd. Its fields are set before the agent begins.
type System struct {
	// Offline is how often Links has no interface that is up at first, or from SetOffline on.
	Offline int
	// Cards are what Links has, at first or from SetCards on; a card with an address by default.
	Cards []network.Link
	// Fail is what fails when it is asked for, such as "start kubelet.service".
	Fail string
	// Started, if set, is called with each unit that is started.
	Started func(unit string)

	mutex  sync.Mutex
	did    []string
	uptime time.Duration
}

func (m *System) note(what string) error {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	m.did = append(m.did, what)
	if what == m.Fail {
		return io.ErrUnexpectedEOF
	}
	return nil
}

// Did returns what was asked for, in its order.
func (m *System) Did() []string {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	return slices.Clone(m.did)
}

// SetUptime sets what Uptime says.
func (m *System) SetUptime(up time.Duration) {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	m.uptime = up
}

// Uptime returns what was set.
func (m *System) Uptime() (time.Duration, error) {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	return m.uptime, nil
}

// Has reports whether it was asked for something.
func (m *System) Has(what string) bool { return slices.Contains(m.Did(), what) }

// Start starts a unit.
func (m *System) Start(_ context.Context, unit string) error {
	if m.Started != nil {
		m.Started(unit)
	}
	return m.note("start " + unit)
}

// Restart starts a unit anew.
func (m *System) Restart(_ context.Context, unit string) error { return m.note("restart " + unit) }

// Reboot does nothing else.
func (m *System) Reboot(context.Context) error { return m.note("reboot") }

// RebootAtOnce notes that the machine restarts.
func (m *System) RebootAtOnce(context.Context) error { return m.note("reboot at once") }

// SetOffline takes the network away for so many answers of Links.
func (m *System) SetOffline(times int) {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	m.Offline = times
}

// SetCards gives the machine others.
func (m *System) SetCards(cards []network.Link) {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	m.Cards = cards
}

// Links has the machine's cards, none of which is up for a while; by default one with an address.
func (m *System) Links() (links []network.Link, settled bool, err error) {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	m.Offline--
	links = slices.Clone(m.Cards)
	if m.Cards == nil {
		links = []network.Link{{Name: "eth0", Card: true, MAC: "52:54:00:00:00:01", Up: true, Addresses: []netip.Prefix{netip.MustParsePrefix("192.0.2.7/24")}}}
	}
	for i := range links {
		links[i].Up = links[i].Up && m.Offline < 0
	}
	return links, true, nil
}

// Journal is short.
func (m *System) Journal(_ context.Context, w io.Writer) error {
	_, err := io.WriteString(w, "the log")
	return err
}
