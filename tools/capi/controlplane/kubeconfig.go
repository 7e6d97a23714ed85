package controlplane

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	capisecret "sigs.k8s.io/cluster-api/util/secret"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hullmark/hullmark/tools/capi/api/controlplane/v1alpha1"
	"github.com/hullmark/hullmark/tools/capi/internal/kubeconfig"
)

const (
	// kubeconfigValidity is how long a kubeconfig's certificate is good for; it is made anew when half of that is over.
	kubeconfigValidity = 24 * time.Hour
	// serverName is the name that every API server's certificate has, whatever the way to it.
	serverName = "kubernetes"
)

// keepKubeconfig has the Secret CLUSTER-kubeconfig hold a certificate that is good for a while.
func (r *Reconciler) keepKubeconfig(ctx context.Context, s *scope) error {
	name := capisecret.Name(s.cluster.Name, capisecret.Kubeconfig)
	secret := &corev1.Secret{}
	err := r.Live.Get(ctx, client.ObjectKey{Namespace: s.plane.Namespace, Name: name}, secret)
	absent := apierrors.IsNotFound(err)
	if err != nil && !absent {
		return fmt.Errorf("kubeconfig: %w", err)
	}
	err = nil
	if !absent && !slices.ContainsFunc(secret.OwnerReferences, func(ref metav1.OwnerReference) bool { return namesPlane(s.plane, ref) }) {
		s.say(v1alpha1.KubeconfigAvailableCondition, false, "SecretNameTaken", "Secret %s is not this control plane's, and is left as it is: delete it if nobody needs it", name)
		s.soon(s.retry)
		return nil
	}
	before := secret.DeepCopy()
	ends := kubeconfigEnds(secret.Data[capisecret.KubeconfigDataName], s.file.Cluster.KubernetesCA(), s.server)
	if ends.Sub(r.now()) <= kubeconfigValidity/2 {
		text, err := r.newKubeconfig(s)
		if err != nil {
			return fmt.Errorf("kubeconfig: %w", err)
		}
		secret.Namespace, secret.Name, secret.Type = s.plane.Namespace, name, clusterv1.ClusterSecretType
		secret.Data = map[string][]byte{capisecret.KubeconfigDataName: text}
		ends = r.now().Add(kubeconfigValidity)
	}
	if secret.Labels == nil {
		secret.Labels = map[string]string{}
	}
	secret.Labels[clusterv1.ClusterNameLabel] = s.cluster.Name
	secret.OwnerReferences = []metav1.OwnerReference{ownerOf(s.plane, true)}
	switch {
	case absent:
		err = r.Client.Create(ctx, secret)
	case !equality.Semantic.DeepEqual(before, secret):
		err = r.Client.Update(ctx, secret)
	}
	if err != nil {
		return fmt.Errorf("kubeconfig: %w", err)
	}
	s.say(v1alpha1.KubeconfigAvailableCondition, true, clusterv1.AvailableReason, "")
	s.soon(ends.Sub(r.now()) - kubeconfigValidity/2)
	return nil
}

// newKubeconfig makes an administrator's.
func (r *Reconciler) newKubeconfig(s *scope) ([]byte, error) {
	certificate, key, err := s.file.Cluster.Administrator(r.now(), kubeconfigValidity)
	if err != nil {
		return nil, err
	}
	config := clientcmdapi.NewConfig()
	cluster, user := s.cluster.Name, s.cluster.Name+"-admin"
	config.Clusters[cluster] = &clientcmdapi.Cluster{
		Server: "https://" + s.server, TLSServerName: serverName, CertificateAuthorityData: s.file.Cluster.KubernetesCA(),
	}
	config.AuthInfos[user] = &clientcmdapi.AuthInfo{ClientCertificateData: certificate, ClientKeyData: key}
	config.Contexts[user+"@"+cluster] = &clientcmdapi.Context{Cluster: cluster, AuthInfo: user}
	config.CurrentContext = user + "@" + cluster
	return clientcmd.Write(*config)
}

// kubeconfigEnds returns when the certificate of a kubeconfig ends; the zero time if it is none for this server and CA.
func kubeconfigEnds(text, ca []byte, server string) time.Time {
	certificate, err := certificateOf(text, ca, server)
	if err != nil {
		return time.Time{}
	}
	return certificate.NotAfter
}

func certificateOf(text, ca []byte, server string) (*x509.Certificate, error) {
	config, err := kubeconfig.Config(text)
	if err != nil {
		return nil, err
	}
	if config.Host != "https://"+server || !bytes.Equal(config.CAData, ca) || config.ServerName != serverName || len(config.KeyData) == 0 {
		return nil, errors.New("it is for another server, or without a key")
	}
	block, _ := pem.Decode(config.CertData)
	if block == nil {
		return nil, errors.New("it has no certificate")
	}
	return x509.ParseCertificate(block.Bytes)
}
