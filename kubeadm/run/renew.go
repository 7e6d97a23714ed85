package run

import (
	"context"
	"fmt"

	"github.com/hullmark/hullmark/kubeadm"
)

// RenewUnit lets kubeadm make the certificates and kubeconfigs that a control plane lacks.
const RenewUnit = "hullmark-kubeadm-renew.service"

// Renew lets kubeadm make the certificates and kubeconfigs that are missing, by documents of Plan. kubeadm.Renewals are removed before.
func Renew(ctx context.Context, documents []byte, report func(kubeadm.Phase)) error {
	return withUnits(ctx, func(unit units) error {
		do := func(ctx context.Context) error { return unit(ctx, RenewUnit) }
		if err := run(ctx, runDir, map[string][]byte{"config.yaml": documents}, report, do); err != nil {
			return fmt.Errorf("renew certificates: %w", err)
		}
		return nil
	})
}
