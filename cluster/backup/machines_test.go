package backup

import (
	"crypto/ed25519"
	"crypto/rand"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/joinservice"
	"github.com/hullmark/hullmark/joinservice/registry"
	"github.com/hullmark/hullmark/measurements"
)

func rebind(old, newer byte) measurements.Rebind {
	return measurements.Rebind{Old: hullmark.EKID{old}, New: hullmark.EKID{newer}}
}

func TestWhoComesBack(t *testing.T) {
	reset := func(id, disk byte) measurements.Policy {
		return measurements.Policy{Resets: []measurements.Reset{{EKID: hullmark.EKID{id}, OldUUID: hullmark.UUID{disk}}}}
	}
	rebinds := func(all ...measurements.Rebind) measurements.Policy { return measurements.Policy{Rebinds: all} }
	control := machine(1, "w1")
	control.Role = hullmark.ControlPlane
	for name, test := range map[string]struct {
		machines []joinservice.Machine
		members  []measurements.Member
		policy   measurements.Policy
		// heir is who comes back as w1, with the disk of machine 1; 0 if nobody does.
		heir byte
	}{
		"itself":                  {members: []measurements.Member{rule(1, "w1")}, heir: 1},
		"no member":               {},
		"another name":            {members: []measurements.Member{rule(1, "w2")}},
		"a control plane now":     {members: []measurements.Member{{EKID: hullmark.EKID{1}, Role: hullmark.ControlPlane, Name: "w1"}}},
		"a control plane then":    {machines: []joinservice.Machine{control}, members: []measurements.Member{rule(1, "w1")}},
		"rebound":                 {members: []measurements.Member{rule(2, "w1")}, policy: rebinds(rebind(1, 2)), heir: 2},
		"rebound twice":           {members: []measurements.Member{rule(3, "w1")}, policy: rebinds(rebind(2, 3), rebind(1, 2)), heir: 3},
		"rebound back":            {members: []measurements.Member{rule(1, "w1")}, policy: rebinds(rebind(1, 2), rebind(2, 1)), heir: 1},
		"rebound in a cycle":      {members: []measurements.Member{rule(9, "w1")}, policy: rebinds(rebind(1, 2), rebind(2, 3), rebind(3, 1))},
		"rebound, out of a cycle": {members: []measurements.Member{rule(4, "w1")}, policy: rebinds(rebind(1, 2), rebind(2, 1), rebind(2, 4)), heir: 4},
		"rebound to no member":    {policy: rebinds(rebind(1, 2))},
		"rebound, another name":   {members: []measurements.Member{rule(2, "w2")}, policy: rebinds(rebind(1, 2))},
		"rebound, and new itself": {members: []measurements.Member{rule(1, "w2"), rule(2, "w1")}, policy: rebinds(rebind(1, 2)), heir: 2},
		"rebound to one with a record": {
			machines: []joinservice.Machine{machine(1, "w1"), machine(2, "w2")},
			members:  []measurements.Member{rule(2, "w1")}, policy: rebinds(rebind(1, 2)),
		},
		"rebound through one with a record": {
			machines: []joinservice.Machine{machine(1, "w1"), machine(2, "w2")},
			members:  []measurements.Member{rule(3, "w1")}, policy: rebinds(rebind(1, 2), rebind(2, 3)),
		},
		"reset":                    {members: []measurements.Member{rule(1, "w1")}, policy: reset(1, 1)},
		"reset of another's disk":  {members: []measurements.Member{rule(1, "w1")}, policy: reset(2, 1), heir: 1},
		"reset of an earlier disk": {members: []measurements.Member{rule(1, "w1")}, policy: reset(1, 7), heir: 1},
		"reset, then rebound": {members: []measurements.Member{rule(2, "w1")}, policy: measurements.Policy{
			Rebinds: rebinds(rebind(1, 2)).Rebinds, Resets: reset(1, 1).Resets,
		}},
		"rebound, then reset": {members: []measurements.Member{rule(2, "w1")}, policy: measurements.Policy{
			Rebinds: rebinds(rebind(1, 2)).Rebinds, Resets: reset(2, 1).Resets,
		}},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEtcd(t).cluster()
			if test.machines == nil {
				test.machines = []joinservice.Machine{machine(1, "w1")}
			}
			for _, m := range test.machines {
				e.machine(m)
				e.node(m.Name)
			}
			want := restore()
			want.Policy = test.policy
			want.Policy.Members = test.members
			checkHeir(t, e.prepare(want), test.heir)
		})
	}
}

// A machine of a group comes back under the name that the group gives it, as long as the group is there and does not bar it.
func TestMachinesOfAGroupComeBack(t *testing.T) {
	cloud := measurements.Group{Name: "cloud"}
	name := cloud.Member(hullmark.EKID{1}).Name
	for what, test := range map[string]struct {
		policy measurements.Policy
		back   bool
	}{
		"admitted":      {measurements.Policy{Groups: []measurements.Group{cloud}}, true},
		"denied":        {measurements.Policy{Groups: []measurements.Group{cloud}, Denied: []hullmark.EKID{{1}}}, false},
		"named by now":  {measurements.Policy{Groups: []measurements.Group{cloud}, Members: []measurements.Member{rule(1, "w1")}}, false},
		"named so":      {measurements.Policy{Groups: []measurements.Group{cloud}, Members: []measurements.Member{rule(1, name)}}, true},
		"another group": {measurements.Policy{Groups: []measurements.Group{{Name: "site"}}}, false},
		"no group":      {measurements.Policy{}, false},
	} {
		e := newEtcd(t).cluster()
		e.machine(machine(1, name))
		e.node(name)
		e.machine(machine(2, "w2"))
		e.configMap("hullmark", "group.cloud", map[string]string{hullmark.EKID{1}.String(): "", hullmark.EKID{2}.String(): "", hullmark.EKID{3}.String(): ""})
		want := restore()
		want.Policy = test.policy
		got := e.prepare(want)
		var counted []hullmark.EKID // Others can take the places of those that do not come back.
		if test.back {
			counted = []hullmark.EKID{{1}}
		}
		if got := got.counted(t, "cloud"); !slices.Equal(got, counted) {
			t.Errorf("%s: the group counts %v", what, got)
		}
		_, node := got.values[nodeKeys+name]
		if _, found := got.machine(t, 1); found != test.back || node != test.back || len(got.Workers) == 1 != test.back {
			t.Errorf("%s: record %v, Node %v, workers %+v", what, found, node, got.Workers)
		}
	}
}

// One record that cannot be read costs its own machine the way back, and no other.
func TestRecordThatCannotBeRead(t *testing.T) {
	e := newEtcd(t).cluster()
	e.machine(machine(1, "w1"))
	e.configMap("hullmark", "node.x", map[string]string{"machine": "{}"})
	want := restore()
	want.Policy.Members = []measurements.Member{rule(1, "w1")}
	got := e.prepare(want)
	if _, found := got.machine(t, 1); !found || len(got.Workers) != 1 || len(got.Unread) != 1 || !strings.Contains(got.Unread[0], "node.x") {
		t.Errorf("found %v: workers %+v, unread %q", found, got.Workers, got.Unread)
	}
	if _, kept := got.values[machineKeys+"x"]; kept {
		t.Error("the record is kept")
	}
}

// checkHeir holds what was prepared to one machine, that is w1 with the disk of machine 1, or none.
func checkHeir(t *testing.T, got prepared, heir byte) {
	t.Helper()
	_, node := got.values[nodeKeys+"w1"]
	if heir == 0 {
		if len(got.Workers) != 0 || node || got.holder(t, "w1") != (hullmark.EKID{}) {
			t.Errorf("came back: %+v", got.Workers)
		}
		return
	}
	m, found := got.machine(t, heir)
	want := joinservice.Record{Disk: hullmark.UUID{1}, Committed: 5, Issued: uint64(now.Unix())}
	if !found || m.Name != "w1" || m.Record != want || !node || len(got.Workers) != 1 {
		t.Errorf("found %v: %+v", found, m)
	}
	if holder := got.holder(t, "w1"); holder != m.EKID {
		t.Errorf("the name is %s's", holder)
	}
	for id := range byte(10) {
		if _, found := got.machine(t, id); found && id != heir {
			t.Errorf("machine %d has a record too", id)
		}
	}
}

func TestOverridesOfToday(t *testing.T) {
	override := func(serial uint64, id, disk byte, epoch uint64) measurements.Override {
		return measurements.Override{Serial: serial, EKID: hullmark.EKID{id}, UUID: hullmark.UUID{disk}, Epoch: epoch}
	}
	const late = 3_000_000_000 // a number above the time of the restore
	for name, test := range map[string]struct {
		used      uint64
		heir      byte
		overrides []measurements.Override
		want      joinservice.Record
	}{
		"none":         {0, 1, nil, joinservice.Record{Committed: 5, Issued: 2_000_000_000}},
		"newest":       {0, 1, []measurements.Override{override(1, 1, 1, 2), override(2, 1, 1, 3)}, joinservice.Record{Committed: 3, Issued: 2_000_000_000, Serial: 2}},
		"used":         {2, 1, []measurements.Override{override(2, 1, 1, 3)}, joinservice.Record{Committed: 5, Issued: 2_000_000_000, Serial: 2}},
		"other disk":   {0, 1, []measurements.Override{override(2, 1, 7, 3)}, joinservice.Record{Committed: 5, Issued: 2_000_000_000}},
		"other owner":  {0, 1, []measurements.Override{override(2, 7, 1, 3)}, joinservice.Record{Committed: 5, Issued: 2_000_000_000}},
		"before":       {0, 2, []measurements.Override{override(2, 1, 1, 3)}, joinservice.Record{Committed: 3, Issued: 2_000_000_000, Serial: 2}},
		"since":        {0, 2, []measurements.Override{override(2, 2, 1, 3)}, joinservice.Record{Committed: 3, Issued: 2_000_000_000, Serial: 2}},
		"above a time": {0, 1, []measurements.Override{override(2, 1, 1, late)}, joinservice.Record{Committed: late, Issued: late, Serial: 2}},
	} {
		t.Run(name, func(t *testing.T) {
			e, m := newEtcd(t).cluster(), machine(1, "w1")
			m.Record.Serial, test.want.Disk = test.used, m.Record.Disk
			e.machine(m)
			want := restore(rule(test.heir, "w1"))
			want.Policy.Overrides, want.Policy.Rebinds = test.overrides, []measurements.Rebind{rebind(1, 2)}
			if got := e.prepare(want).Workers; len(got) != 1 || got[0].Record != test.want {
				t.Errorf("got %+v, want %+v", got, test.want)
			}
		})
	}
}

func TestNamesAreTheirHeirs(t *testing.T) {
	e := newEtcd(t).cluster()
	e.machine(machine(1, "w1"))
	e.claim("w1", hullmark.EKID{7}) // an exchange that was interrupted
	e.machine(machine(2, "w2"))
	e.remove(nameKeys + "w2")
	e.claim("nobody", hullmark.EKID{1})
	got := e.prepare(restore(rule(1, "w1"), rule(2, "w2")))
	none := hullmark.EKID{}
	if got.holder(t, "w1") != (hullmark.EKID{1}) || got.holder(t, "w2") != none || got.holder(t, "nobody") != none || len(got.Workers) != 2 {
		t.Errorf("got %q and %+v", got.values, got.Workers)
	}
}

// The addresses of machines that come back stay theirs, so that no worker takes them before; a successor has its predecessor's.
func TestAddressesAreTheirHeirs(t *testing.T) {
	e := newEtcd(t).cluster()
	for i, owner := range []byte{1, 2, 3, 7} {
		m := machine(owner, fmt.Sprintf("w%d", owner))
		m.Addresses = []netip.Addr{netip.AddrFrom4([4]byte{192, 0, 2, owner}), netip.AddrFrom4([4]byte{192, 0, 2, 100})}
		if i < 3 {
			e.machine(m)
		}
		e.configMap(registry.Namespace, registry.AddressObject(m.Addresses[0]), map[string]string{"node": hullmark.EKID{owner}.String()})
	}
	e.configMap(registry.Namespace, "address.192.0.2.100", map[string]string{"node": hullmark.EKID{7}.String()}) // It yielded.
	want := restore(rule(1, "w1"), rule(9, "w2"))
	want.Policy.Rebinds = []measurements.Rebind{rebind(2, 9)}
	got := e.prepare(want)
	claims := map[string]string{}
	for key, value := range got.values {
		if name, ok := strings.CutPrefix(key, addressKeys); ok {
			var object corev1.ConfigMap
			if err := decodeObject(key, value, &object); err != nil {
				t.Fatal(err)
			}
			node, err := registry.ParseHolder(&object)
			if err != nil {
				t.Fatal(err)
			}
			claims[name] = node.String()[:2]
		}
	}
	if !maps.Equal(claims, map[string]string{"192.0.2.1": "01", "192.0.2.2": "09"}) {
		t.Errorf("the claims are %v", claims)
	}
}

// A machine that an enroller vouched for comes back, and is counted, by the voucher that its record keeps.
func TestVouchedMachinesComeBack(t *testing.T) {
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	voucher, err := measurements.SignVoucher(private, measurements.Voucher{ClusterRoot: hullmark.ClusterRoot{1}, Group: "cloud", EKID: hullmark.EKID{1}, Name: "cloud-7", NotAfter: time.Unix(1, 0).UTC()})
	if err != nil {
		t.Fatal(err)
	}
	cloud := measurements.Group{Name: "cloud", Enrollers: [][]byte{public}}
	for what, test := range map[string]struct {
		policy measurements.Policy
		kept   []byte
		back   bool
	}{
		"admitted":      {measurements.Policy{Groups: []measurements.Group{cloud}}, voucher, true},
		"no voucher":    {measurements.Policy{Groups: []measurements.Group{cloud}}, nil, false},
		"denied":        {measurements.Policy{Groups: []measurements.Group{cloud}, Denied: []hullmark.EKID{{1}}}, voucher, false},
		"a CA's group":  {measurements.Policy{Groups: []measurements.Group{{Name: "cloud"}}}, voucher, false},
		"another group": {measurements.Policy{Groups: []measurements.Group{{Name: "site", Enrollers: [][]byte{public}}}}, voucher, false},
	} {
		e, m := newEtcd(t).cluster(), machine(1, "cloud-7")
		m.Voucher = test.kept
		e.machine(m)
		e.configMap("hullmark", "group.cloud", map[string]string{hullmark.EKID{1}.String(): "", hullmark.EKID{2}.String(): ""})
		want := restore()
		want.Policy = test.policy
		got := e.prepare(want)
		var counted []hullmark.EKID
		if test.back {
			counted = []hullmark.EKID{{1}}
		}
		if _, found := got.machine(t, 1); found != test.back {
			t.Errorf("%s: record %v", what, found)
		}
		if all := got.counted(t, "cloud"); !slices.Equal(all, counted) {
			t.Errorf("%s: the group counts %v", what, all)
		}
	}
}
