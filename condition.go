package hullmark

import (
	"errors"
	"fmt"
	"strings"
)

// Condition says what stands between a node and its next step. The same value
// appears in the node's status file, on its console and in the exchange.
// It is also an error, so that it can travel through ordinary error returns.
type Condition struct {
	// Code is stable and machine-readable, in lower-case words joined by hyphens, without digits. docs/conditions.md lists all.
	Code string `json:"code"`
	// Step is the agent's state in which the condition arose, such as "DISK", or what else was under way, such as "UPDATE". A join
	// service says "ATTEST" up to the ticket, and "EPOCH" behind it.
	Step string `json:"step"`
	// Title says the condition in one line for people.
	Title string `json:"title"`
	// Expected and Got are the two sides of a comparison that failed; both may be empty.
	Expected string `json:"expected,omitempty"`
	// Got is what was found where Expected was wanted.
	Got string `json:"got,omitempty"`
	// Next tells the reader what to do.
	Next string `json:"next"`
	// Retry reports that the cause is expected to pass by itself: whoever met it tries again. CONTRIBUTING.md says what rests on it.
	Retry bool `json:"retry,omitempty"`
	// Because is the condition that caused this one; a reader is shown the innermost first.
	Because *Condition `json:"because,omitempty"`
}

// Error returns the condition as one line: the root cause, then what it prevented.
func (c *Condition) Error() string {
	root := c.Root()
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s", root.Code, root.Title)
	switch {
	case root.Expected != "" && root.Got != "":
		fmt.Fprintf(&b, " (expected %s, got %s)", root.Expected, root.Got)
	case root.Expected != "":
		fmt.Fprintf(&b, " (expected %s)", root.Expected)
	case root.Got != "":
		fmt.Fprintf(&b, " (got %s)", root.Got)
	}
	if root.Next != "" {
		fmt.Fprintf(&b, "; next: %s", root.Next)
	}
	return b.String()
}

// Root returns the condition at the end of the chain of causes.
func (c *Condition) Root() *Condition {
	for c.Because != nil {
		c = c.Because
	}
	return c
}

// Prevented returns the titles of what the cause at the end of the chain led to, the last first. A reader is shown the cause,
// and of the others no more than these.
func (c *Condition) Prevented() (titles []string) {
	for ; c.Because != nil; c = c.Because {
		titles = append(titles, c.Title)
	}
	return titles
}

// Unwrap returns the cause, for errors.As and errors.Is.
func (c *Condition) Unwrap() error {
	if c.Because == nil {
		return nil
	}
	return c.Because
}

// AsCondition returns the condition that err is or wraps; an error that carries
// none becomes one with the given code and step.
func AsCondition(err error, step, code string) *Condition {
	var c *Condition
	if errors.As(err, &c) {
		if c.Step == "" {
			withStep := *c
			withStep.Step = step
			return &withStep
		}
		return c
	}
	return &Condition{Code: code, Step: step, Title: err.Error(), Next: "read the journal (hullmark node logs)"}
}
