// Package operate is what a person, or a program outside of the cluster, does to a cluster, with its cluster file: begin it, bring it
// back, ask its nodes, change its policy, its keys, its endpoint and its machines, back it up. It prints nothing and asks nobody; what
// takes its time is told by Progress, and errors have a kind. Where they say what to do next, they name the flag of the hullmark
// command; the comment of an option names its flag where that has another name.
package operate

import "errors"

// What an error of this package may be, beside a failure; errors.Is tells. The error's text says what it is about.
var (
	// ErrUsage says that what was asked for cannot be right, whatever the cluster is like.
	ErrUsage = errors.New("wrong usage")
	// ErrMismatch says that a node booted something else than was predicted.
	ErrMismatch = errors.New("measured mismatch")
	// ErrDenied says that a node, the cluster's state or one of its rules forbids it.
	ErrDenied = errors.New("denied")
	// ErrUnreachable says that a node, an API server, a member of etcd or a keeper was not reached: the same can be tried again.
	ErrUnreachable = errors.New("not reached")
)

// kindError is an error of one of the kinds above.
type kindError struct{ kind, err error }

func (e kindError) Error() string        { return e.err.Error() }
func (e kindError) Unwrap() error        { return e.err }
func (e kindError) Is(target error) bool { return target == e.kind }

// as gives an error its kind.
func as(kind, err error) error { return kindError{kind, err} }
