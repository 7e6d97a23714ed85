package main

import (
	"errors"

	"github.com/spf13/pflag"
	ctrl "sigs.k8s.io/controller-runtime"
)

// The control plane's account may do what the packages of its controllers say, which all stand in this line, and what every manager does.
//
//go:generate go tool controller-gen rbac:roleName=hullmark-control-plane-manager,fileName=control-plane.yaml paths=. output:rbac:dir=config/rbac

// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch
// +kubebuilder:rbac:groups=authentication.k8s.io,resources=tokenreviews,verbs=create
// +kubebuilder:rbac:groups=authorization.k8s.io,resources=subjectaccessreviews,verbs=create
// +kubebuilder:rbac:groups=coordination.k8s.io,namespace=hullmark-control-plane-system,resources=leases,verbs=get;create;update
// +kubebuilder:rbac:groups="",namespace=hullmark-control-plane-system,resources=events,verbs=create;patch

// controlPlaneSettings are what the flags of "manager control-plane" alone say.
type controlPlaneSettings struct {
	// keeper is the URL of the keeper that wraps the sealing key.
	keeper string
	// keeperSecretFile and keeperCAFile are files with what the keeper is shown, and with its authorities; empty if there is none.
	keeperSecretFile, keeperCAFile string
	// sealingKeySecret is the name of the Secret of the manager's own namespace that holds the sealing key.
	sealingKeySecret string
}

func controlPlaneFlags(fs *pflag.FlagSet, s *settings) {
	c := &s.controlPlane
	fs.StringVar(&c.keeper, "keeper", "", "the URL of the keeper that wraps the sealing key (docs/keepers.md)")
	fs.StringVar(&c.keeperSecretFile, "keeper-secret-file", "", "the file with what the keeper is shown: Vault's token, or local's key; none if empty")
	fs.StringVar(&c.keeperCAFile, "keeper-ca-file", "", "the file with the authorities of the keeper's certificate as PEM; the system's if empty")
	fs.StringVar(&c.sealingKeySecret, "sealing-key-secret", "hullmark-sealing-key", "the Secret of the manager's namespace that holds the wrapped sealing key")
}

func checkControlPlane(s settings) error {
	if s.controlPlane.keeper == "" || s.controlPlane.sealingKeySecret == "" {
		return errors.New("flags: want --keeper and --sealing-key-secret: nothing that was sealed to this manager can be opened without them")
	}
	return nil
}

// setupControlPlane adds the controllers of the control plane provider and of the enroller to a manager.
func setupControlPlane(ctrl.Manager, settings) error {
	return errors.New("control-plane: this build has no control plane provider")
}
