package backup

import (
	"net/netip"
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/joinservice"
	"github.com/hullmark/hullmark/joinservice/registry"
)

// Keys that the API server stores objects under.
const (
	hullmarkKeys  = "/registry/configmaps/" + registry.Namespace + "/"
	machineKeys   = hullmarkKeys + registry.MachineObjects
	nameKeys      = hullmarkKeys + registry.NameObjects
	addressKeys   = hullmarkKeys + registry.AddressObjects
	groupKeys     = hullmarkKeys + registry.GroupObjects
	nodeKeys      = "/registry/minions/"
	csiNodeKeys   = "/registry/csinodes/"
	nodeLeaseKeys = "/registry/leases/kube-node-lease/"
	podKeys       = "/registry/pods/"
)

// never begin the keys of what no cluster begins with: addresses of API servers that are
// gone, tokens that let machines join, requests for certificates that nobody waits for, and the
// records, claims and groups' lists that the plan does not change. Authorities by which servers of
// aggregated APIs know API servers may have been exchanged since, and API servers would keep them there.
var never = []string{
	machineKeys, nameKeys, addressKeys, groupKeys,
	"/registry/masterleases/",
	"/registry/configmaps/kube-system/extension-apiserver-authentication",
	"/registry/secrets/kube-system/bootstrap-token-",
	"/registry/certificatesigningrequests/",
}

// plan says what becomes of each key.
type plan struct {
	// machines are the changed records, claims and groups' lists, by their keys in the backup; all others are dropped.
	machines map[string]change
	// nodes are the names of those that come back.
	nodes map[string]hullmark.EKID
	// claims are the addresses of those that come back.
	claims []inheritance
	// workers, givenUp and unread are for Content.
	workers []joinservice.Machine
	givenUp []string
	unread  []string
}

// inheritance is what a machine had, and who it is by now.
type inheritance struct {
	from, to  hullmark.EKID
	addresses []netip.Addr
}

// change is what lies in the place of an entry.
type change struct {
	key   string
	value []byte
}

// newPlan decides what comes back.
func newPlan(s *state, want Restore) (*plan, error) {
	p := &plan{machines: map[string]change{}, nodes: map[string]hullmark.EKID{}}
	all, unread, err := readMachines(s)
	if err != nil {
		return nil, err
	}
	p.unread = unread
	succession := newSuccession(want.Policy, all)
	for _, each := range all {
		m, ok := succession.restored(each.machine)
		if !ok || p.isBack(m.Name) {
			continue
		}
		if err := p.bringBack(each, m, want.Now); err != nil {
			return nil, err
		}
	}
	slices.SortFunc(p.workers, func(a, b joinservice.Machine) int { return strings.Compare(a.Name, b.Name) })
	for key := range s.live {
		if name, ok := strings.CutPrefix(key, nodeKeys); ok && !p.isBack(name) {
			p.givenUp = append(p.givenUp, name)
		}
	}
	slices.Sort(p.givenUp)
	if err := p.keepNames(s); err != nil {
		return nil, err
	}
	if err := p.keepAddresses(s); err != nil {
		return nil, err
	}
	return p, p.keepGroups(s)
}

// bringBack keeps a machine's record, as that of the machine that it is by now.
func (p *plan) bringBack(r record, m joinservice.Machine, now time.Time) error {
	m.Token, m.Condition, m.Record = "", nil, m.Record.Restored(now)
	m.FirstKey, m.Credentials = "", nil // What it was issued since nobody knows: it gets a token when it comes back.
	p.claims = append(p.claims, inheritance{r.machine.EKID, m.EKID, m.Addresses})
	if err := registry.PutMachine(r.object, m); err != nil {
		return err
	}
	value, err := encodeConfigMap(r.object)
	if err != nil {
		return err
	}
	p.machines[r.key] = change{hullmarkKeys + r.object.Name, value}
	p.nodes[m.Name], p.workers = m.EKID, append(p.workers, m)
	return nil
}

// keepNames keeps the claims of the names of the machines that come back, each as its machine's.
// A claim that is missing is made when its machine joins.
func (p *plan) keepNames(s *state) error {
	for name, heir := range p.nodes {
		key := hullmarkKeys + registry.NameObject(name)
		object, err := s.configMap(key)
		if err != nil {
			return err
		}
		if object == nil {
			continue
		}
		registry.PutHolder(object, heir)
		value, err := encodeConfigMap(object)
		if err != nil {
			return err
		}
		p.machines[key] = change{key, value}
	}
	return nil
}

// keepAddresses keeps the claims of the addresses of the machines that come back, so that no others take them before they do.
func (p *plan) keepAddresses(s *state) error {
	for _, c := range p.claims {
		for _, address := range c.addresses {
			if err := p.keepAddress(s, hullmarkKeys+registry.AddressObject(address), c); err != nil {
				return err
			}
		}
	}
	return nil
}

// keepAddress hands a claim on, unless it was another's by then, or cannot be read.
func (p *plan) keepAddress(s *state, key string, c inheritance) error {
	object, err := s.configMap(key)
	if err != nil || object == nil {
		return err
	}
	if holder, err := registry.ParseHolder(object); err != nil || holder != c.from {
		return nil // A claim that is missing is made at the machine's next ticket.
	}
	registry.PutHolder(object, c.to)
	value, err := encodeConfigMap(object)
	if err != nil {
		return err
	}
	p.machines[key] = change{key, value}
	return nil
}

// keepGroups keeps on the groups' lists the machines that come back, so that no others take their places before they do.
func (p *plan) keepGroups(s *state) error {
	groups := map[string][]hullmark.EKID{}
	for _, m := range p.workers {
		if group, ok := m.GroupName(); ok {
			groups[group] = append(groups[group], m.EKID)
		}
	}
	for group, nodes := range groups {
		key := groupKeys + group
		object, err := s.configMap(key)
		if err != nil {
			return err
		}
		if object == nil {
			continue // A rule of its own gave the machine such a name.
		}
		registry.PutCounted(object, nodes)
		value, err := encodeConfigMap(object)
		if err != nil {
			return err
		}
		p.machines[key] = change{key, value}
	}
	return nil
}

// isBack reports whether a Node of this name comes back.
func (p *plan) isBack(name string) bool {
	_, ok := p.nodes[name]
	return ok
}

// apply decides over an entry, and changes it if what it holds is to be changed.
func (p *plan) apply(kv *mvccpb.KeyValue) (keep, changed bool, err error) {
	key := string(kv.Key)
	if c, ok := p.machines[key]; ok {
		kv.Key, kv.Value = []byte(c.key), slices.Clone(c.value) // Its memory is used again.
		return true, true, nil
	}
	if kv.Lease != 0 || isNever(key) {
		return false, false, nil
	}
	keep, err = p.keeps(key, kv.Value)
	return keep, false, err
}

// keeps decides over what may be a Node's.
func (p *plan) keeps(key string, value []byte) (bool, error) {
	for _, prefix := range []string{nodeKeys, csiNodeKeys, nodeLeaseKeys} {
		if name, ok := strings.CutPrefix(key, prefix); ok {
			return p.isBack(name), nil
		}
	}
	if !strings.HasPrefix(key, podKeys) {
		return true, nil
	}
	name, err := nodeOf(key, value)
	return name == "" || p.isBack(name), err
}

// isNever reports whether a key is of what no cluster begins with.
func isNever(key string) bool {
	if name, ok := strings.CutPrefix(key, hullmarkKeys); ok && registry.IsPolicyObject(name) {
		return true
	}
	return slices.ContainsFunc(never, func(prefix string) bool { return strings.HasPrefix(key, prefix) })
}
