package run

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hullmark/hullmark/kubeadm"
)

// Unit runs kubeadm init.
const Unit = "hullmark-kubeadm.service"

// AddonsUnit applies the addons.
const AddonsUnit = "hullmark-addons.service"

// An API server that has just started, on a busy machine, may not answer within the 34 s that it gives every change: the addons
// are tried again.
const (
	addonsTries = 5
	addonsPause = 10 * time.Second
)

// retryFlag lets kubeadm go on over what an init that did not end has left. Its phases keep what exists: keys, kubeconfig
// files, etcd's data. The agent sets it only for a disk that recorded such an init, so it never covers for another cluster's
// remains.
const retryFlag = "HULLMARK_KUBEADM_FLAGS=--ignore-preflight-errors=" +
	"DirAvailable--var-lib-etcd," +
	"FileAvailable--etc-kubernetes-manifests-kube-apiserver.yaml," +
	"FileAvailable--etc-kubernetes-manifests-kube-controller-manager.yaml," +
	"FileAvailable--etc-kubernetes-manifests-kube-scheduler.yaml," +
	"FileAvailable--etc-kubernetes-manifests-etcd.yaml," +
	"Port-6443,Port-10259,Port-10257,Port-10250,Port-2379,Port-2380\n"

// restoredFlag lets kubeadm begin over etcd's data, which Restore has made.
const restoredFlag = "HULLMARK_KUBEADM_FLAGS=--ignore-preflight-errors=DirAvailable--var-lib-etcd\n"

// Work is one kubeadm init.
type Work struct {
	// Documents are kubeadm's, validated before.
	Documents []byte
	// Addons are manifests as a YAML stream, applied when the API server answers. A pod network is the least of them: without
	// one no node is Ready.
	Addons []byte
	// Retry says that this disk's record tells of an init that did not end.
	Retry bool
	// Restored says that kubeadm.EtcdData is a backup's content.
	Restored bool
	// Report is called with each thing that kubeadm says it does; it may be nil.
	Report func(kubeadm.Phase)
}

// Init runs kubeadm init with the documents of w and applies the addons. It returns when both are done; then the API server
// answers, and the node becomes Ready by itself (WaitReady). When ctx ends, the unit is stopped. Init does not clean up after a
// failure: the caller records its intent before, and comes back with Retry.
func Init(ctx context.Context, w Work) error {
	return withUnits(ctx, func(unit units) error { return initWith(ctx, runDir, w, unit) })
}

// initWith is Init with files in dir.
func initWith(ctx context.Context, dir string, w Work, unit units) error {
	files, err := w.files()
	if err != nil {
		return fmt.Errorf("kubeadm init: %w", err)
	}
	do := func(ctx context.Context) error {
		if err := unit(ctx, Unit); err != nil {
			return err
		}
		return apply(ctx, unit)
	}
	if err := run(ctx, dir, files, w.Report, do); err != nil {
		return fmt.Errorf("kubeadm init: %w", err)
	}
	return nil
}

// apply applies the addons. What the API server says of a failure is reported at once, all else that kubectl says with the last.
func apply(ctx context.Context, unit units) error {
	for try := 1; ; try++ {
		err := unit(ctx, AddonsUnit)
		if err == nil || try == addonsTries || ctx.Err() != nil {
			return err
		}
		select {
		case <-time.After(addonsPause):
		case <-ctx.Done():
			return errors.Join(err, ctx.Err())
		}
	}
}

// files are the unit's input.
func (w Work) files() (map[string][]byte, error) {
	if len(w.Documents) > kubeadm.MaxDocuments || len(w.Addons) > kubeadm.MaxDocuments {
		return nil, fmt.Errorf("documents of %d and addons of %d bytes: at most %d are allowed", len(w.Documents), len(w.Addons), kubeadm.MaxDocuments)
	}
	if len(w.Addons) == 0 {
		return nil, errors.New("addons: there are none: give at least the manifest of a pod network")
	}
	environment := ""
	switch {
	case w.Retry:
		environment = retryFlag
	case w.Restored:
		environment = restoredFlag
	}
	return map[string][]byte{"config.yaml": w.Documents, "addons.yaml": w.Addons, "environment": []byte(environment)}, nil
}
