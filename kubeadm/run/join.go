package run

import (
	"context"
	"fmt"

	"github.com/hullmark/hullmark/kubeadm"
)

// JoinUnit runs kubeadm join.
const JoinUnit = "hullmark-kubeadm-join.service"

// Join runs kubeadm join with the documents, validated before. It returns when the kubelet has its certificate; the node
// becomes Ready by itself (WaitReady). When ctx ends, the unit is stopped. The documents are on a RAM disk while it runs, and
// gone afterwards. A failed join leaves JoinRemains: the caller records its intent before, and removes them before the next.
func Join(ctx context.Context, documents []byte, report func(kubeadm.Phase)) error {
	return withUnits(ctx, func(unit units) error { return joinWith(ctx, runDir, documents, report, unit) })
}

// joinWith is Join with files in dir.
func joinWith(ctx context.Context, dir string, documents []byte, report func(kubeadm.Phase), unit units) error {
	if len(documents) > kubeadm.MaxDocuments {
		return fmt.Errorf("kubeadm join: documents of %d bytes: at most %d are allowed", len(documents), kubeadm.MaxDocuments)
	}
	do := func(ctx context.Context) error { return unit(ctx, JoinUnit) }
	if err := run(ctx, dir, map[string][]byte{"config.yaml": documents}, report, do); err != nil {
		return fmt.Errorf("kubeadm join: %w", err)
	}
	return nil
}
