package joinservice

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest/wire"
)

// addressClaims are what became of the addresses that a machine named.
type addressClaims struct {
	granted []netip.Addr
	refused []Refusal
	// left are those of its record that it gave up, and kept the others that it did not name.
	left, kept []netip.Addr
}

// names reports whether the machine named an address.
func (c addressClaims) names(a netip.Addr) bool {
	return slices.Contains(c.granted, a) || slices.ContainsFunc(c.refused, func(r Refusal) bool { return r.Address == a })
}

// note writes into a record what its machine has by now.
func (c addressClaims) note(m *Machine) {
	others := slices.DeleteFunc(slices.Clone(m.Addresses), func(a netip.Addr) bool { return c.names(a) || slices.Contains(c.left, a) })
	m.Addresses = append(slices.Clone(c.granted), others...)
	refused := slices.Clone(c.refused)
	if len(c.kept) > 0 {
		refused = append(refused, slices.DeleteFunc(slices.Clone(m.Refused), func(r Refusal) bool { return c.names(r.Address) })...)
	}
	m.Refused = refused[:min(len(refused), MaxAddresses)]
}

// noted reports whether a record says so already.
func (c addressClaims) noted(m Machine) bool {
	then := m
	c.note(&then)
	same := func(a, b Refusal) bool { return a.Address == b.Address && a.Condition.Code == b.Condition.Code }
	return slices.Equal(then.Addresses, m.Addresses) && slices.EqualFunc(then.Refused, m.Refused, same)
}

// ClaimAddresses claims for a machine the addresses that a certificate of its kubelet is to name, and returns those that it
// holds by now, and why not others. A worker that names a new one has moved: what it does not name is free again. A control
// plane keeps what it has, for its API server's and etcd's certificates name it. An error is of the records, or says that there
// is none of the machine.
func (s *Service) ClaimAddresses(ctx context.Context, node hullmark.EKID, named []netip.Addr) (granted []netip.Addr, refused []Refusal, err error) {
	var last stored
	if last.machine, last.version, err = s.Records.Load(ctx, node); err != nil {
		return nil, nil, err
	}
	if last.version == "" {
		return nil, nil, fmt.Errorf("addresses of machine %s: it has no record", node)
	}
	moved := slices.ContainsFunc(named, func(a netip.Addr) bool { return !slices.Contains(last.machine.Addresses, CanonicalAddress(a)) })
	claims, err := s.claimAddresses(ctx, &last, named, last.machine.Role == hullmark.ControlPlane || !moved)
	if err != nil || claims.noted(last.machine) {
		return claims.granted, claims.refused, err
	}
	seen := last.machine.Seen // The machine itself said nothing.
	return claims.granted, claims.refused, s.change(ctx, node, &last, func(m *Machine, _ bool) error {
		m.Seen = seen
		claims.note(m)
		return nil
	})
}

// claimAddresses claims what a machine names, and gives up what else its record has, or keeps it. The record, which is last,
// names each address before it is claimed, and until it is given up, so that whoever forgets the machine finds all its claims.
// The caller stores what note says. An error is of the records.
func (s *Service) claimAddresses(ctx context.Context, last *stored, named []netip.Addr, keep bool) (addressClaims, error) {
	node := last.machine.EKID
	claims := s.sort(last.machine, named, keep)
	wanted := claims.granted
	if fresh := without(wanted, last.machine.Addresses); len(fresh) > 0 {
		s.warnOfNames(ctx, node, fresh)
		err := s.change(ctx, node, last, func(m *Machine, known bool) error {
			if !known {
				return errSuperseded
			}
			m.Addresses = append(slices.Clone(m.Addresses), without(wanted, m.Addresses)...)
			return nil
		})
		if err != nil {
			return claims, err
		}
	}
	claims.granted = nil
	for _, a := range wanted {
		var c *hullmark.Condition
		switch err := s.Records.ClaimAddress(ctx, a, node); {
		case err == nil:
			claims.granted = append(claims.granted, a)
		case errors.As(err, &c) && c.Code == codeAddressTaken:
			claims.refused = append(claims.refused, Refusal{a, c})
		default:
			return claims, err
		}
	}
	for _, a := range claims.left {
		if err := s.Records.ReleaseAddress(ctx, a, node); err != nil {
			return claims, err
		}
	}
	s.logRefused(last.machine, claims.refused)
	return claims, nil
}

// claimAddresses claims what Opened named, unless a later ticket was given since, whose exchange decides, and adds to Proceed
// what became of it.
func (o *opened) claimAddresses(proceed *wire.Proceed) (err error) {
	if o.last.version == "" {
		if o.last.machine, o.last.version, err = o.service.Records.Load(o.ctx, o.claims.EKID); err != nil {
			return err
		}
	}
	if o.overtaken(&o.last.machine) {
		return o.stale(o.last.machine.Record)
	}
	if o.addresses, err = o.service.claimAddresses(o.ctx, &o.last, o.disk.Addresses, false); err != nil {
		return err
	}
	return o.addAddresses(proceed)
}

// addAddresses tells the node which of several addresses are its own where its kubelet would not find them, and if it was
// refused another, and why: the kubelet's certificate would name the one that it finds first, and be denied.
func (o *opened) addAddresses(proceed *wire.Proceed) error {
	for _, r := range o.addresses.refused {
		proceed.Refused = append(proceed.Refused, wire.FromCondition(r.Condition))
	}
	granted := o.addresses.granted
	own, missing := o.service.Settings.NodeAddresses(granted)
	o.service.Settings.Tell(proceed, own)
	if len(own) > 0 && missing != "" && !o.comesBack() {
		return o.addressMissing(missing) // Half of its pods' addresses would lead nowhere.
	}
	if len(o.addresses.refused) > 0 && len(granted) > 0 && proceed.GetAddress() == "" {
		proceed.SetNodeAddresses(append(own, granted...)[:1])
	}
	return nil
}

// sort tells those that a machine may claim from those that are reserved, and what else its record has. A machine has as many
// addresses as Opened can name.
func (s *Service) sort(m Machine, named []netip.Addr, keep bool) (c addressClaims) {
	reserved, own := s.Reserved(), usable(named)
	others := without(m.Addresses, own)
	if keep {
		c.kept = others
	} else {
		c.left = others
	}
	for _, a := range own {
		var refused *hullmark.Condition
		switch err := reserved.Check(a, m.Role); {
		case errors.As(err, &refused):
			c.refused = append(c.refused, Refusal{a, refused})
		case len(c.granted)+len(c.kept) >= MaxAddresses:
			c.refused = append(c.refused, Refusal{a, addressReserved(a, fmt.Sprintf("and has %d already", MaxAddresses))})
		default:
			c.granted = append(c.granted, a)
		}
	}
	return c
}

func without(addresses, others []netip.Addr) []netip.Addr {
	return slices.DeleteFunc(slices.Clone(addresses), func(a netip.Addr) bool { return slices.Contains(others, a) })
}

func (s *Service) logRefused(m Machine, refused []Refusal) {
	if s.Log == nil {
		return
	}
	for _, r := range refused {
		if !slices.ContainsFunc(m.Refused, func(known Refusal) bool {
			return known.Address == r.Address && known.Condition.Code == r.Condition.Code
		}) {
			s.Log.Warn("address refused", "node", m.EKID.String(), "name", m.Name, "error", r.Condition.Error())
		}
	}
}

// lookup bounds the answer of DNS.
const lookup = 2 * time.Second

// warnOfNames says that a machine's new address is what DNS has for the endpoint. That decides nothing: whoever answers for DNS
// could then refuse any machine its address.
func (s *Service) warnOfNames(ctx context.Context, node hullmark.EKID, addresses []netip.Addr) {
	host, _ := hullmark.EndpointHost(s.Settings.Under(s.Policy.Policy()).ControlPlaneEndpoint)
	if _, err := netip.ParseAddr(host); err == nil || s.Lookup == nil || s.Log == nil {
		return
	}
	go func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lookup)
		defer cancel()
		found, err := s.Lookup(ctx, host)
		if err != nil {
			return // A cluster works without DNS for this name here.
		}
		for _, a := range found {
			if a = CanonicalAddress(a); slices.Contains(addresses, a) {
				s.Log.Warn("a machine has an address that DNS gives for the endpoint: name the endpoint by address, or give the machine another, unless it is a control plane",
					"node", node.String(), "address", a.String(), "endpoint", strings.ToLower(host))
			}
		}
	}()
}
