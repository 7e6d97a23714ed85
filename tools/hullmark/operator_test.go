package main

import (
	"errors"
	"fmt"
	"testing"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/joinservice"
)

// What a node denies its operator ends like every denial, what fails on it like every failure.
func TestNodesRefusalsAreDenials(t *testing.T) {
	for code, want := range map[string]int{"call-refused": exitDenied, "operator-revoked": exitDenied, "kubeadm-failed": exitFailed} {
		var coded codedError
		err := tell(fmt.Errorf("init: %w", &joinservice.NodeError{Condition: &hullmark.Condition{Code: code}}))
		if !errors.As(err, &coded) || coded.code != want {
			t.Errorf("%s: got %v; want exit code %d", code, err, want)
		}
	}
}
