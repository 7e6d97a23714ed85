package operate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/cluster"
	"github.com/hullmark/hullmark/joinservice"
	"github.com/hullmark/hullmark/measurements"
)

// Withdrawn is a machine that a policy leaves without a release, or without the way back to one.
type Withdrawn struct {
	// Name is the machine's.
	Name string
	// Starts says that what the machine would start next is not accepted: it gets no ticket at its next boot. Otherwise it has no way back
	// alone.
	Starts bool
	// What says which release, for people.
	What string
}

// CheckWithdrawn compares the cluster file's policy with what machines say that they run and would fall back to, before it is pushed.
// The error is ErrDenied if one of them would get no ticket at its next boot, or if another copy of the cluster file was used since.
func (a *API) CheckWithdrawn(ctx context.Context) (all []Withdrawn, err error) {
	return a.checkWithdrawn(ctx, a.checkNewest)
}

// CheckWithdrawn does so for an operator's file.
func (r *Reader) CheckWithdrawn(ctx context.Context) (all []Withdrawn, err error) {
	return r.checkWithdrawn(ctx, func(context.Context) error { return nil })
}

func (r *Reader) checkWithdrawn(ctx context.Context, before func(context.Context) error) (all []Withdrawn, err error) {
	if policy, err := r.known().OpenPolicy(); err != nil || policy.Version == 0 {
		return nil, cmp.Or(err, ErrNoPolicy)
	}
	err = r.persist(ctx, func() error {
		if err := before(ctx); err != nil {
			return err
		}
		policy, err := r.known().OpenPolicy()
		if err != nil {
			return err
		}
		records, unread := r.client.List(ctx)
		if unread != nil && len(records) == 0 {
			return unread
		}
		accepted, err := acceptedBy(policy, r.known())
		if err != nil {
			return err
		}
		all = nil
		for _, m := range records {
			all = append(all, accepted.leaves(m)...)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	var lost []string
	for _, w := range all {
		if w.Starts {
			lost = append(lost, w.Name+" ("+w.What+")")
		}
	}
	if len(lost) > 0 {
		return all, as(ErrDenied, fmt.Errorf("by this policy %d machines would get no ticket at their next boot: %s; next: give them another release first (hullmark update), or push with --withdraw", len(lost), strings.Join(lost, ", ")))
	}
	return all, nil
}

// accepted is what a policy lets boot.
type accepted struct {
	documents map[measurements.DocumentID]bool
	roots     map[hullmark.RootHash]bool
}

func acceptedBy(policy measurements.Policy, c *cluster.Cluster) (accepted, error) {
	a := accepted{map[measurements.DocumentID]bool{}, map[hullmark.RootHash]bool{}}
	for _, d := range policy.Documents {
		encoded, ok := c.Documents[d.Document]
		if !ok {
			return a, errors.New("the cluster file lacks document " + d.Document.String())
		}
		document, err := measurements.Parse(encoded)
		if err != nil {
			return a, err
		}
		agreement, err := policy.Agreement(document)
		if err != nil {
			return a, err
		}
		if document.SVN < policy.MinimumSVN || !agreement.Met() || len(document.Image.RootHash) != len(hullmark.RootHash{}) {
			continue
		}
		a.documents[d.Document] = true
		a.roots[hullmark.RootHash(document.Image.RootHash)] = true
	}
	return a, nil
}

// leaves says what a machine has that the policy does not accept: what it booted last by its evidence, and what its slots hold by its word.
func (a accepted) leaves(m joinservice.Machine) (all []Withdrawn) {
	if m.Document == (measurements.DocumentID{}) {
		return nil // It never had a ticket.
	}
	add := func(starts bool, format string, args ...any) {
		all = append(all, Withdrawn{m.Name, starts, fmt.Sprintf(format, args...)})
	}
	s := m.Update
	if s == nil {
		if !a.documents[m.Document] {
			add(true, "it booted document %s", m.Document)
		}
		return all
	}
	first, other := s.A, s.B
	if s.Default == "b" {
		first, other = other, first
	}
	if !a.roots[first] {
		add(true, "slot %s, which starts by itself, holds release %.16s", s.Default, first)
	}
	if other != (hullmark.RootHash{}) && !a.roots[other] {
		add(false, "its other slot holds release %.16s", other)
	}
	return all
}
