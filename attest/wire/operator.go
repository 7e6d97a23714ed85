package wire

import (
	"crypto/sha256"
	"errors"
	"fmt"
)

// CheckOperatorAsk enforces the limits of a node's question about an operator, before it is used.
func CheckOperatorAsk(a *OperatorAsk) error {
	if err := firstError(strict(a.ProtoReflect()), exactly("key", len(a.GetKey()), sha256.Size)); err != nil {
		return fmt.Errorf("message from the node: %w", err)
	}
	return nil
}

// CheckOperatorAnswer enforces the limits of the answer, before it is used: it says that he may, or why not.
func CheckOperatorAnswer(a *OperatorAnswer) error {
	err := firstError(strict(a.ProtoReflect()), checkCauses(a.GetDenied()))
	if err == nil && a.GetMay() == (a.GetDenied() != nil) {
		err = errors.New("it says neither that the operator may nor why not, or both")
	}
	if err != nil {
		return fmt.Errorf("message from the service: %w", err)
	}
	return nil
}
