package controlplane

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/cluster-api/util/secret"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hullmark/hullmark/cluster"
)

// checkProvided says what is wrong if the authorities that somebody provides in the Secrets CLUSTER-ca, -etcd and -proxy, as for the
// kubeadm provider, are not those of the cluster file: they have to be in that, so that they reach machines by tickets. Secrets that are
// absent, as they should be, are not made.
func (r *Reconciler) checkProvided(ctx context.Context, s *scope, c *cluster.Cluster) (problem string, err error) {
	for _, p := range []struct {
		purpose secret.Purpose
		held    cluster.Authority
	}{{secret.ClusterCA, c.Kubernetes.Authority}, {secret.EtcdCA, c.Etcd.Authority}, {secret.FrontProxyCA, c.FrontProxy.Authority}} {
		key := client.ObjectKey{Namespace: s.plane.Namespace, Name: secret.Name(s.cluster.Name, p.purpose)}
		provided := &corev1.Secret{}
		if err := r.Live.Get(ctx, key, provided); apierrors.IsNotFound(err) {
			continue
		} else if err != nil {
			return "", fmt.Errorf("secret %s: %w", key, err)
		}
		if !certifies(provided.Data[secret.TLSCrtDataName], p.held.Certificate) {
			return fmt.Sprintf("secret %s provides another authority than the cluster file has: make a cluster file with it (hullmark cluster new --pki) and lend that, or delete the Secret", key), nil
		}
	}
	return "", nil
}

// certifies reports whether a text in PEM is this certificate.
func certifies(text []byte, held *x509.Certificate) bool {
	block, _ := pem.Decode(text)
	if block == nil {
		return false
	}
	certificate, err := x509.ParseCertificate(block.Bytes)
	return err == nil && certificate.Equal(held)
}
