package kubeadm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/coreos/go-systemd/v22/dbus"
)

const (
	// Unit runs kubeadm init and then applies the addons.
	Unit = "hullmark-kubeadm.service"
	// runDir is where Unit finds its input and leaves its output; systemd/system/hullmark-kubeadm.service names the same files.
	runDir = "/run/hullmark/kubeadm"
)

// retryFlag lets kubeadm go on over what an init that did not end has left. Its phases keep what exists: keys, kubeconfig files, etcd's data. The agent
// sets it only for a disk that recorded such an init, so it never covers for another cluster's remains.
const retryFlag = "HULLMARK_KUBEADM_RETRY=--ignore-preflight-errors=" +
	"DirAvailable--var-lib-etcd," +
	"FileAvailable--etc-kubernetes-manifests-kube-apiserver.yaml," +
	"FileAvailable--etc-kubernetes-manifests-kube-controller-manager.yaml," +
	"FileAvailable--etc-kubernetes-manifests-kube-scheduler.yaml," +
	"FileAvailable--etc-kubernetes-manifests-etcd.yaml," +
	"Port-6443,Port-10259,Port-10257,Port-10250,Port-2379,Port-2380\n"

// Work is one kubeadm init.
type Work struct {
	// Documents are kubeadm's, validated before.
	Documents []byte
	// Addons are manifests as a YAML stream, applied when the API server answers. A pod network is the least of them: without one no node is Ready.
	Addons []byte
	// Retry says that this disk's record tells of an init that did not end.
	Retry bool
	// Report is called with each thing that kubeadm says it does; it may be nil.
	Report func(Phase)
}

// Init runs kubeadm init with the documents of w and applies the addons. It returns when both are done; then the API server answers, and the node
// becomes Ready by itself (WaitReady). When ctx ends, the unit is stopped. Init does not clean up after a failure: the caller records its intent before,
// and comes back with Retry.
func Init(ctx context.Context, w Work) error {
	systemd, err := dbus.NewSystemdConnectionContext(ctx)
	if err != nil {
		return fmt.Errorf("kubeadm init: reach systemd: %w", err)
	}
	defer systemd.Close()
	return initWith(ctx, runDir, w, func(ctx context.Context) error { return runUnit(ctx, systemd) })
}

// initWith is Init with files in dir and a function that runs the unit to its end.
func initWith(ctx context.Context, dir string, w Work, unit func(context.Context) error) error {
	if err := prepare(dir, w); err != nil {
		return fmt.Errorf("kubeadm init: %w", err)
	}
	output := filepath.Join(dir, "output")
	follower := follow(output, w.Report)
	err := unit(ctx)
	said, readErr := follower.stop()
	if err != nil {
		return fmt.Errorf("kubeadm init: %w: %s", errors.Join(err, readErr), cause(said))
	}
	// Kubeadm printed a bootstrap token.
	return errors.Join(readErr, os.RemoveAll(dir))
}

// prepare writes the unit's input. No other user can read it.
func prepare(dir string, w Work) error {
	if len(w.Documents) > MaxDocuments || len(w.Addons) > MaxDocuments {
		return fmt.Errorf("documents of %d and addons of %d bytes: at most %d are allowed", len(w.Documents), len(w.Addons), MaxDocuments)
	}
	if len(w.Addons) == 0 {
		return errors.New("addons: there are none: give at least the manifest of a pod network")
	}
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	environment := ""
	if w.Retry {
		environment = retryFlag
	}
	files := map[string][]byte{"config.yaml": w.Documents, "addons.yaml": w.Addons, "environment": []byte(environment)}
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// runUnit starts Unit and waits for its end. A unit of type oneshot is started when its commands have ended.
func runUnit(ctx context.Context, systemd *dbus.Conn) error {
	done := make(chan string, 1)
	if _, err := systemd.StartUnitContext(ctx, Unit, "replace", done); err != nil {
		return fmt.Errorf("start %s: %w", Unit, err)
	}
	select {
	case result := <-done:
		if result != "done" {
			return fmt.Errorf("%s: %s", Unit, result)
		}
		return nil
	case <-ctx.Done():
		stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
		defer cancel()
		_, err := systemd.StopUnitContext(stop, Unit, "replace", nil)
		return errors.Join(ctx.Err(), err)
	}
}
