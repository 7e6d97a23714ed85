package enroll

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/transport"
	capisecret "sigs.k8s.io/cluster-api/util/secret"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/joinservice"
	"github.com/hullmark/hullmark/joinservice/registry"
	"github.com/hullmark/hullmark/measurements"
	"github.com/hullmark/hullmark/tools/capi/internal/kubeconfig"
)

// callTime bounds each call of a cluster's API.
const callTime = 15 * time.Second

// Clusters reaches Clusters by their kubeconfigs (Secret CLUSTER-kubeconfig, Cluster API's contract).
type Clusters struct {
	// Live reads Secrets.
	Live client.Reader

	// wrap, if it is set, is what a test puts between.
	wrap transport.WrapperFunc

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
	key := client.ObjectKey{Namespace: cluster.Namespace, Name: capisecret.Name(cluster.Name, capisecret.Kubeconfig)}
	if err := c.Live.Get(ctx, key, secret); err != nil {
		return nil, fmt.Errorf("secret %s: %w", key, err)
	}
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if known, ok := c.known[cluster]; ok && known.version == secret.ResourceVersion {
		return known.api, nil
	}
	config, err := kubeconfig.Config(secret.Data[capisecret.KubeconfigDataName])
	if err != nil {
		return nil, fmt.Errorf("secret %s: %w", key, err)
	}
	config.Timeout = callTime
	if c.wrap != nil {
		config.Wrap(c.wrap)
	}
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

// Disconnect is Reconciler.Disconnect.
func (c *Clusters) Disconnect(cluster client.ObjectKey) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	delete(c.known, cluster)
}

// Node implements Workload.
func (a *api) Node(ctx context.Context, name string) (providerID string, there bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, callTime) // A server may say when to ask again, which client-go waits for.
	defer cancel()
	node, err := a.nodes.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return "", false, nil
	}
	if err != nil {
		return "", false, err
	}
	return node.Spec.ProviderID, true, nil
}

// Joined implements Workload. Records that cannot be read are of machines that came, too, but nobody knows of which: an error.
func (a *api) Joined(ctx context.Context) (map[hullmark.EKID]bool, error) {
	joined := map[hullmark.EKID]bool{}
	var unread error
	err := a.EachMachine(ctx, func(m joinservice.Machine, err error) {
		if err != nil {
			unread = err
			return
		}
		joined[m.EKID] = true
	})
	return joined, cmp.Or(err, unread)
}

// Forget implements Workload. A certificate may outlive its machine, or a machine that the infrastructure gave up may run: the name rests
// until it has ended. A machine that comes back before its voucher is gone has a record again, which goes, too.
func (a *api) Forget(ctx context.Context, v measurements.Voucher) error {
	for _, forget := range []func(context.Context, measurements.Voucher) error{
		a.forgetRecord,
		func(ctx context.Context, v measurements.Voucher) error { return a.DeleteVoucher(ctx, v.EKID) },
		a.forgetRecord,
	} {
		if err := forget(ctx, v); err != nil {
			return err
		}
	}
	return nil
}

// forgetRecord leaves a record that is not the voucher's: who has the enroller's key, or makes a Machine that claims an identity, must not
// have another machine forgotten, a control plane's least of all.
func (a *api) forgetRecord(ctx context.Context, v measurements.Voucher) error {
	m, version, err := a.Load(ctx, v.EKID)
	if err != nil || version != "" && (m.Role != hullmark.Worker || m.Name != v.Name) {
		return err
	}
	_, err = a.Delete(ctx, joinservice.Machine{EKID: v.EKID}, false)
	return err
}
