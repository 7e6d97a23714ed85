// Package memrecords keeps a cluster's machines and tokens in memory. It is
// the fake of the records in Kubernetes objects, for tests and benchmarks of
// what decides over them.
package memrecords

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"sync"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/joinservice"
)

// Store implements joinservice.Records, joinservice.Tokens and joinservice.Lease. The zero value
// is empty and safe for concurrent use; the fields are set before it is used.
type Store struct {
	// BeforeStore, if set, is called before each Store looks at the version:
	// what it changes by another Store is what a second replica does.
	BeforeStore func(joinservice.Machine)

	mutex    sync.Mutex
	down     bool
	machines map[hullmark.EKID]versioned
	names    map[string]hullmark.EKID
	groups   map[string][]hullmark.EKID
	// addresses are who claimed each, and gone those whose Nodes are not Ready for long.
	addresses map[netip.Addr]hullmark.EKID
	gone      map[hullmark.EKID]bool
	tokens    map[string]hullmark.EKID
	// issued counts tokens, conflicts the writes that lost a race, writes those that did not.
	issued, conflicts, writes int
	// term is of who has, or last had, the place of the control plane that joins.
	term     joinservice.Term
	held     bool
	renewals int
}

type versioned struct {
	machine joinservice.Machine
	version int
}

// clone shares no list with a record.
func clone(m joinservice.Machine) joinservice.Machine {
	m.Addresses, m.Refused, m.Credentials = slices.Clone(m.Addresses), slices.Clone(m.Refused), slices.Clone(m.Credentials)
	return m
}

var (
	_ joinservice.Records = (*Store)(nil)
	_ joinservice.Tokens  = (*Store)(nil)
	_ joinservice.Lease   = (*Store)(nil)
)

// SetDown lets every call fail as if the API were not reachable, or no longer.
func (s *Store) SetDown(down bool) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.down = down
}

// check is called with the mutex held.
func (s *Store) check() error {
	if !s.down {
		return nil
	}
	return &hullmark.Condition{Code: "api-unreachable", Title: "the records are down", Next: "wait", Retry: true}
}

// Acquire gives the place of the control plane that joins to a machine.
func (s *Store) Acquire(_ context.Context, node hullmark.EKID) (joinservice.Term, error) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if err := s.check(); err != nil {
		return joinservice.Term{}, err
	}
	if s.held && s.term.EKID != node {
		return joinservice.Term{}, &hullmark.Condition{Code: "busy", Title: "another control plane joins", Next: "wait", Retry: true}
	}
	s.held, s.term = true, joinservice.Term{EKID: node, Number: s.term.Number + 1}
	return s.term, nil
}

// Renew keeps the place.
func (s *Store) Renew(_ context.Context, t joinservice.Term) error {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if err := s.check(); err != nil {
		return err
	}
	if !s.held || s.term != t {
		return joinservice.ErrConflict
	}
	s.renewals++
	return nil
}

// Release gives the place up.
func (s *Store) Release(_ context.Context, t joinservice.Term) error {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if err := s.check(); err != nil {
		return err
	}
	if !s.held || s.term != t {
		return joinservice.ErrConflict
	}
	s.held = false
	return nil
}

// Holder returns who has the place, if anybody has, and how often it was renewed in all.
func (s *Store) Holder() (node hullmark.EKID, held bool, renewals int) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	return s.term.EKID, s.held, s.renewals
}

// Load returns a machine's record.
func (s *Store) Load(_ context.Context, node hullmark.EKID) (joinservice.Machine, joinservice.Version, error) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if err := s.check(); err != nil {
		return joinservice.Machine{}, "", err
	}
	kept, ok := s.machines[node]
	if !ok {
		return joinservice.Machine{EKID: node}, "", nil
	}
	kept.machine = clone(kept.machine)
	return kept.machine, joinservice.Version(strconv.Itoa(kept.version)), nil
}

// Store replaces a machine's record.
func (s *Store) Store(_ context.Context, m joinservice.Machine, v joinservice.Version) (joinservice.Version, error) {
	if s.BeforeStore != nil {
		s.BeforeStore(m)
	}
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if err := s.check(); err != nil {
		return "", err
	}
	kept, ok := s.machines[m.EKID]
	var current joinservice.Version
	if ok {
		current = joinservice.Version(strconv.Itoa(kept.version))
	}
	if v != current {
		s.conflicts++
		return "", joinservice.ErrConflict
	}
	if s.machines == nil {
		s.machines = map[hullmark.EKID]versioned{}
	}
	s.writes++
	s.machines[m.EKID] = versioned{clone(m), kept.version + 1}
	return joinservice.Version(strconv.Itoa(kept.version + 1)), nil
}

// Claim binds a name to one machine.
func (s *Store) Claim(_ context.Context, name string, node hullmark.EKID) error {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if err := s.check(); err != nil {
		return err
	}
	if holder, ok := s.names[name]; ok && holder != node {
		return joinservice.NameTaken(name, holder, node)
	}
	if s.names == nil {
		s.names = map[string]hullmark.EKID{}
	}
	s.names[name] = node
	return nil
}

// ClaimAddress binds an address to one machine.
func (s *Store) ClaimAddress(_ context.Context, address netip.Addr, node hullmark.EKID) error {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if err := s.check(); err != nil {
		return err
	}
	role := func(of hullmark.EKID) hullmark.Role { return s.machines[of].machine.Role }
	if holder, ok := s.addresses[address]; ok && holder != node && !joinservice.ClaimYields(role(holder), role(node), s.gone[holder]) {
		return joinservice.AddressTaken(address, holder, node)
	}
	if s.addresses == nil {
		s.addresses = map[netip.Addr]hullmark.EKID{}
	}
	s.addresses[address] = node
	return nil
}

// ReleaseAddress gives a machine's claim up.
func (s *Store) ReleaseAddress(_ context.Context, address netip.Addr, node hullmark.EKID) error {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if err := s.check(); err != nil {
		return err
	}
	if s.addresses[address] == node {
		delete(s.addresses, address)
	}
	return nil
}

// SetGone says whether a machine's Node has not been Ready for so long that its claims of addresses yield.
func (s *Store) SetGone(node hullmark.EKID, gone bool) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if s.gone == nil {
		s.gone = map[hullmark.EKID]bool{}
	}
	s.gone[node] = gone
}

// Addresses returns which machine claimed each address.
func (s *Store) Addresses() map[netip.Addr]hullmark.EKID {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	return maps.Clone(s.addresses)
}

// Enrol counts a machine to a group.
func (s *Store) Enrol(_ context.Context, group string, node hullmark.EKID, most int) error {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if err := s.check(); err != nil || slices.Contains(s.groups[group], node) {
		return err
	}
	if len(s.groups[group]) >= most {
		return joinservice.GroupFull(group, most)
	}
	if s.groups == nil {
		s.groups = map[string][]hullmark.EKID{}
	}
	s.groups[group] = append(s.groups[group], node)
	return nil
}

// Leave counts a machine to a group no more.
func (s *Store) Leave(_ context.Context, group string, node hullmark.EKID) error {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if err := s.check(); err != nil {
		return err
	}
	if s.groups == nil {
		return nil
	}
	s.groups[group] = slices.DeleteFunc(s.groups[group], func(counted hullmark.EKID) bool { return counted == node })
	return nil
}

// Issue makes a token.
func (s *Store) Issue(_ context.Context, m joinservice.Machine, note func(id string) error) (hullmark.Secret, error) {
	secret := make([]byte, 8)
	if _, err := rand.Read(secret); err != nil {
		return hullmark.Secret{}, err
	}
	id, err := s.nextToken()
	if err == nil {
		err = note(id)
	}
	if err != nil {
		return hullmark.Secret{}, err
	}
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if err := s.check(); err != nil {
		return hullmark.Secret{}, err
	}
	if s.tokens == nil {
		s.tokens = map[string]hullmark.EKID{}
	}
	s.tokens[id] = m.EKID
	return hullmark.NewSecret([]byte(id + "." + hex.EncodeToString(secret))), nil
}

// nextToken returns the public half of the next token.
func (s *Store) nextToken() (string, error) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if err := s.check(); err != nil {
		return "", err
	}
	s.issued++
	return fmt.Sprintf("%06d", s.issued), nil
}

// Revoke ends a token.
func (s *Store) Revoke(_ context.Context, id string) error {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if err := s.check(); err != nil {
		return err
	}
	delete(s.tokens, id)
	return nil
}

// Tokens returns which machine each token that may be used is for.
func (s *Store) Tokens() map[string]hullmark.EKID {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	return maps.Clone(s.tokens)
}

// Issued returns how many tokens were ever made.
func (s *Store) Issued() int {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	return s.issued
}

// Conflicts returns how many writes lost a race.
func (s *Store) Conflicts() int {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	return s.conflicts
}

// Writes returns how many writes were made.
func (s *Store) Writes() int {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	return s.writes
}

// Clone returns a store that holds the same and shares nothing.
func (s *Store) Clone() *Store {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	c := &Store{
		BeforeStore: s.BeforeStore, down: s.down, machines: maps.Clone(s.machines), names: maps.Clone(s.names), groups: maps.Clone(s.groups),
		addresses: maps.Clone(s.addresses), gone: maps.Clone(s.gone),
		tokens: maps.Clone(s.tokens), issued: s.issued, conflicts: s.conflicts, writes: s.writes, term: s.term, held: s.held, renewals: s.renewals,
	}
	for node, kept := range c.machines {
		c.machines[node] = versioned{clone(kept.machine), kept.version}
	}
	for group, nodes := range c.groups {
		c.groups[group] = slices.Clone(nodes)
	}
	return c
}

// Names returns which machine claimed each name.
func (s *Store) Names() map[string]hullmark.EKID {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	return maps.Clone(s.names)
}
