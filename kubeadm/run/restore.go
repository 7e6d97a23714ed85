package run

import (
	"context"
	"crypto/rand"
	"fmt"

	"github.com/hullmark/hullmark/kubeadm"
)

// RestoreUnit makes etcd's data out of a snapshot.
const RestoreUnit = "hullmark-etcd-restore.service"

// Restore makes kubeadm.EtcdData, which must not exist, out of SnapshotFile: a new etcd of one member, with another cluster ID than any
// before, so that no old member takes it for its own. When ctx ends, the unit is stopped. What a failure leaves of kubeadm.EtcdData is
// no use: the caller removes it.
func Restore(ctx context.Context, r kubeadm.Restoration) error {
	return withUnits(ctx, func(unit units) error { return restoreWith(ctx, runDir, r, unit) })
}

// restoreWith is Restore with files in dir.
func restoreWith(ctx context.Context, dir string, r kubeadm.Restoration, unit units) error {
	environment, err := r.Environment(rand.Text())
	if err != nil {
		return fmt.Errorf("restore etcd: %w", err)
	}
	do := func(ctx context.Context) error { return unit(ctx, RestoreUnit) }
	if err := run(ctx, dir, map[string][]byte{"environment": environment}, r.Report, do); err != nil {
		return fmt.Errorf("restore etcd: %w", err)
	}
	return nil
}
