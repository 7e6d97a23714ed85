package main

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"time"

	"github.com/spf13/pflag"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/hullmark/hullmark/joinservice/keys"
	"github.com/hullmark/hullmark/joinservice/keys/keeper"
	controlplanev1 "github.com/hullmark/hullmark/tools/capi/api/controlplane/v1alpha1"
	"github.com/hullmark/hullmark/tools/capi/controlplane"
	"github.com/hullmark/hullmark/tools/capi/custody"
	"github.com/hullmark/hullmark/tools/capi/enroll"
)

// The control plane's account may do what the packages of its controllers say, which all stand in this line, and what every manager does.
//
//go:generate go tool controller-gen rbac:roleName=hullmark-control-plane-manager,fileName=control-plane.yaml paths=.;./controlplane;./custody;./enroll output:rbac:dir=config/rbac

// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch
// +kubebuilder:rbac:groups=authentication.k8s.io,resources=tokenreviews,verbs=create
// +kubebuilder:rbac:groups=authorization.k8s.io,resources=subjectaccessreviews,verbs=create
// +kubebuilder:rbac:groups=coordination.k8s.io,namespace=hullmark-control-plane-system,resources=leases,verbs=get;create;update
// +kubebuilder:rbac:groups="",namespace=hullmark-control-plane-system,resources=events,verbs=create;patch

// controlPlaneSettings are what the flags of "manager control-plane" alone say.
type controlPlaneSettings struct {
	// keeper is the URL of the keeper that wraps a new sealing key, and has wrapped one that is there.
	keeper string
	// keeperSecretFile and keeperCAFile are files with what the keeper is shown, and with its authorities; empty if they are not there.
	keeperSecretFile, keeperCAFile string
	// sealingKeySecret is the name of the Secret of the manager's own namespace that holds the sealing key.
	sealingKeySecret string
	// voucherValidity is how long a machine that was vouched for has to come for the first time.
	voucherValidity time.Duration
}

func controlPlaneFlags(fs *pflag.FlagSet, s *settings) {
	c := &s.controlPlane
	fs.StringVar(&c.keeper, "keeper", "", "the URL of the keeper that wraps a new sealing key (docs/keepers.md); one that is there has to be of this keeper, too")
	fs.StringVar(&c.keeperSecretFile, "keeper-secret-file", "", "the file with what the keeper is shown: Vault's token, or local's key; nothing if it is not there")
	fs.StringVar(&c.keeperCAFile, "keeper-ca-file", "", "the file with the authorities of the keeper's certificate as PEM; the system's if it is not there")
	fs.StringVar(&c.sealingKeySecret, "sealing-key-secret", "hullmark-sealing-key", "the Secret of the manager's namespace that holds the wrapped sealing key")
	fs.DurationVar(&c.voucherValidity, "voucher-validity", enroll.Validity, "how long a voucher is good for; a machine that has not joined by then gets another")
}

// finishControlPlane forgets the files that are not there. The Deployment names both, and mounts them of a Secret that keepers who know
// a machine by itself do not need.
func finishControlPlane(s *settings) error {
	c := &s.controlPlane
	if c.sealingKeySecret == "" {
		return errors.New("flags: want --sealing-key-secret: nothing that was sealed to this manager can be opened without it")
	}
	if c.voucherValidity < time.Minute {
		return errors.New("flags: want --voucher-validity of a minute or more")
	}
	for _, name := range []*string{&c.keeperSecretFile, &c.keeperCAFile} {
		if _, err := os.Stat(*name); errors.Is(err, fs.ErrNotExist) {
			*name = ""
		}
	}
	return nil
}

// keeperTime is how long the keeper may take to open the sealing key, until the manager ends and is started again.
const keeperTime = time.Minute

// setupControlPlane adds the controllers of the control plane provider and of the enroller to a manager, once the keeper has opened the
// sealing key.
func setupControlPlane(mgr ctrl.Manager, s settings) error {
	c := s.controlPlane
	if err := controlplanev1.AddToScheme(mgr.GetScheme()); err != nil {
		return err
	}
	credentials, err := keeper.ReadCredentialFiles(c.keeperSecretFile, c.keeperCAFile)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), keeperTime)
	defer cancel()
	held, err := custody.Open(ctx, mgr.GetClient(), mgr.GetAPIReader(), custody.Options{
		Secret: client.ObjectKey{Namespace: s.role.system(), Name: c.sealingKeySecret}, Keeper: c.keeper, Access: keys.Access{Open: credentials.Open},
	})
	if err != nil {
		return err
	}
	ctrl.Log.Info("files that are lent, and enrollers' keys, are sealed to this recipient", "recipient", held.Recipient())
	options := controller.Options{MaxConcurrentReconciles: s.concurrency}
	workloads := enroll.Clusters{Live: mgr.GetAPIReader()}
	enroller := &enroll.Reconciler{
		Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Keys: held, Connect: workloads.Connect, Disconnect: workloads.Disconnect,
		Events: mgr.GetEventRecorder("hullmark-enroller"), WatchFilter: s.watchFilter, Validity: c.voucherValidity,
	}
	plane := &controlplane.Reconciler{
		Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Events: mgr.GetEventRecorder("hullmark-control-plane"), WatchFilter: s.watchFilter, Custody: held,
	}
	return errors.Join(enroller.SetupWithManager(mgr, options), plane.SetupWithManager(mgr, options), mgr.Add(manager.RunnableFunc(held.Watch)))
}
