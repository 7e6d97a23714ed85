package run

import (
	"context"
	"fmt"
	"path/filepath"

	"sigs.k8s.io/yaml"

	"github.com/hullmark/hullmark/internal/atomicfile"
	"github.com/hullmark/hullmark/kubeadm"
)

// UpgradeUnit runs kubeadm upgrade apply, and KubeletConfigUnit the one phase of kubeadm upgrade node that writes a file.
const (
	UpgradeUnit       = "hullmark-kubeadm-upgrade.service"
	KubeletConfigUnit = "hullmark-kubeadm-kubelet.service"
)

// Upgrade lets kubeadm write into the cluster what documents of kubeadm.RecordDocuments or DNSDocuments say. It writes no file, and can be
// done again.
func Upgrade(ctx context.Context, documents []byte, report func(kubeadm.Phase)) error {
	return withUnits(ctx, func(unit units) error {
		do := func(ctx context.Context) error { return unit(ctx, UpgradeUnit) }
		if err := run(ctx, runDir, map[string][]byte{"config.yaml": documents}, report, do); err != nil {
			return fmt.Errorf("kubeadm upgrade: %w", err)
		}
		return nil
	})
}

// KubeletConfig lets kubeadm make the kubelet's configuration of what the cluster keeps, as kubeadm upgrade node would write it to
// kubeadm.KubeletConfig. It changes nothing: whoever writes it does so whole or not at all.
func KubeletConfig(ctx context.Context, report func(kubeadm.Phase)) (config []byte, err error) {
	err = withUnits(ctx, func(unit units) error {
		config, err = kubeletConfigWith(ctx, runDir, report, unit)
		return err
	})
	return config, err
}

// kubeletConfigWith is KubeletConfig with files in dir, where the unit has kubeadm's dry run write.
func kubeletConfigWith(ctx context.Context, dir string, report func(kubeadm.Phase), unit units) (config []byte, err error) {
	err = run(ctx, dir, nil, report, func(ctx context.Context) error {
		if err := unit(ctx, KubeletConfigUnit); err != nil {
			return err
		}
		config, err = atomicfile.Read(filepath.Join(dir, "config.yaml"), kubeadm.MaxDocuments)
		return err
	})
	if err == nil {
		err = checkKubeletConfig(config)
	}
	if err != nil {
		return nil, fmt.Errorf("kubelet's configuration: %w", err)
	}
	return config, nil
}

// checkKubeletConfig refuses what no kubelet would start with.
func checkKubeletConfig(config []byte) error {
	var kind struct{ APIVersion, Kind string }
	if err := yaml.Unmarshal(config, &kind); err != nil {
		return err
	}
	if kind.Kind != "KubeletConfiguration" {
		return fmt.Errorf("kubeadm wrote a %.80q", kind.Kind)
	}
	return nil
}
