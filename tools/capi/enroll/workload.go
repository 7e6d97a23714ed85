package enroll

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/joinservice"
	"github.com/hullmark/hullmark/joinservice/registry"
)

// callTime bounds each call of a cluster's API.
const callTime = 15 * time.Second

// Clusters reaches Clusters by their kubeconfigs (Secret CLUSTER-kubeconfig, Cluster API's contract).
type Clusters struct {
	// Live reads Secrets.
	Live client.Reader

	mutex sync.Mutex
	known map[client.ObjectKey]connected
}

// connected is a client that was made of one version of a kubeconfig.
type connected struct {
	version string
	*api
}

// api is Workload by a cluster's API server.
type api struct {
	*registry.Registry
	nodes *kubernetes.Clientset
}

// Connect is Reconciler.Connect.
func (c *Clusters) Connect(ctx context.Context, cluster client.ObjectKey) (Workload, error) {
	secret := &corev1.Secret{}
	key := client.ObjectKey{Namespace: cluster.Namespace, Name: cluster.Name + "-kubeconfig"}
	if err := c.Live.Get(ctx, key, secret); err != nil {
		return nil, fmt.Errorf("secret %s: %w", key, err)
	}
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if known, ok := c.known[cluster]; ok && known.version == secret.ResourceVersion {
		return known.api, nil
	}
	config, err := clientcmd.RESTConfigFromKubeConfig(secret.Data["value"])
	if err != nil {
		return nil, fmt.Errorf("secret %s holds no kubeconfig", key) // Its text may quote the content.
	}
	config.Timeout = callTime
	made := &api{}
	if made.Registry, err = registry.New(config); err != nil {
		return nil, fmt.Errorf("secret %s: %w", key, err)
	}
	if made.nodes, err = kubernetes.NewForConfig(config); err != nil {
		return nil, fmt.Errorf("secret %s: %w", key, err)
	}
	if c.known == nil {
		c.known = map[client.ObjectKey]connected{}
	}
	c.known[cluster] = connected{secret.ResourceVersion, made}
	return made, nil
}

// HasNode implements Workload.
func (a *api) HasNode(ctx context.Context, name string) (bool, error) {
	_, err := a.nodes.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	return err == nil, err
}

// Joined implements Workload.
func (a *api) Joined(ctx context.Context, node hullmark.EKID) (bool, error) {
	_, version, err := a.Load(ctx, node)
	return version != "", err
}

// Forget implements Workload.
func (a *api) Forget(ctx context.Context, node hullmark.EKID) error {
	if _, err := a.Delete(ctx, joinservice.Machine{EKID: node}, true); err != nil {
		return err
	}
	return a.DeleteVoucher(ctx, node)
}
