// Package firstboot takes a node from power-on to Ready: START, CONFIG,
// ATTEST, DISK, EPOCH, FUSE, KUBEADM, READY. Every step looks at the world
// before it acts and can be repeated. Until the fuse is blown a failure is
// retried in the same boot; afterwards it means a reboot, because this boot
// can earn no second ticket.
package firstboot

import (
	"context"
	"errors"
	"fmt"

	"github.com/hullmark/hullmark"
)

// The names of the steps, as conditions and the status document spell them.
const (
	StepStart   = "START"
	StepConfig  = "CONFIG"
	StepAttest  = "ATTEST"
	StepDisk    = "DISK"
	StepEpoch   = "EPOCH"
	StepFuse    = "FUSE"
	StepKubeadm = "KUBEADM"
	StepReady   = "READY"
)

// Step is one state of the agent.
type Step struct {
	// Name is one of the Step constants.
	Name string
	// Done looks at the world and reports whether there is nothing left to do;
	// nil means that there always is.
	Done func(context.Context) (bool, error)
	// Do makes it so. It is idempotent: it may have been interrupted anywhere before.
	Do func(context.Context) error
}

// Journal runs steps and lets the status say where they are.
type Journal struct{ Status *Status }

// Run runs the steps in order until one fails. The status then shows the
// error's condition; the other end's going away is none.
func (j Journal) Run(ctx context.Context, steps ...Step) error {
	for _, s := range steps {
		j.Status.Enter(s.Name)
		err := s.run(ctx)
		var condition *hullmark.Condition
		if errors.Is(err, errEnded) && !errors.As(err, &condition) {
			return err
		}
		if err != nil {
			condition = hullmark.AsCondition(err, s.Name, "step-failed")
			j.Status.Fail(condition)
			return keepMarks(condition, err)
		}
	}
	return nil
}

func (s Step) run(ctx context.Context) error {
	if s.Done != nil {
		done, err := s.Done(ctx)
		if done || err != nil {
			return err
		}
	}
	return s.Do(ctx)
}

// Marks of errors, which decide what comes after a failure.
var (
	// errReboot marks what no retry in this boot can mend.
	errReboot = errors.New("this boot cannot go on; the machine restarts")
	// errEnded says that the other end ended the exchange, which is its right.
	errEnded = errors.New("the other end ended the exchange")
)

// keepMarks returns the condition with the marks of the error that it was made from.
func keepMarks(condition *hullmark.Condition, err error) error {
	for _, mark := range []error{errReboot, errEnded} {
		if errors.Is(err, mark) {
			return fmt.Errorf("%w: %w", mark, condition)
		}
	}
	return condition
}
