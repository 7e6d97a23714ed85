package main

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/nftables"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/kube-network-policies/pkg/api"
	"sigs.k8s.io/kube-network-policies/pkg/dataplane"
	"sigs.k8s.io/kube-network-policies/pkg/networkpolicy"
	"sigs.k8s.io/kube-network-policies/pkg/podinfo"
)

// The nftables rules of policyTable send the first packets of connections of pods that policies select to the queue.
const (
	policyTable = "kube-network-policies"
	policyQueue = 100
)

// enforce sees to it that NetworkPolicies are enforced on this node from its return on; what ends that is sent. Without policies
// it only removes the rules that an earlier run left.
//
// The rules outlive the program: what nobody judges is refused until its next start.
func (o options) enforce(ctx context.Context) (ended <-chan error, err error) {
	if !o.policies {
		return nil, forget()
	}
	controller, err := o.controller(ctx)
	if err != nil {
		return nil, err
	}
	over := make(chan error, 1)
	go func() {
		// Where its context ends, it removes the rules.
		err := controller.Run(context.WithoutCancel(ctx))
		over <- errors.Join(errors.New("the controller ended"), err)
	}()
	for {
		select {
		case err := <-over:
			return nil, err
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
		if ready, err := enforced(); err != nil || ready {
			return over, err
		}
	}
}

// controller follows policies, namespaces and pods, and judges what the queue brings.
func (o options) controller(ctx context.Context) (*dataplane.Controller, error) {
	config, err := rest.InClusterConfig()
	if err != nil {
		return nil, err
	}
	config.AcceptContentTypes, config.ContentType = "application/vnd.kubernetes.protobuf,application/json", "application/vnd.kubernetes.protobuf"
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	factory := informers.NewSharedInformerFactory(client, 0)
	namespaces, pods, policies := factory.Core().V1().Namespaces(), factory.Core().V1().Pods(), factory.Networking().V1().NetworkPolicies()
	if err := pods.Informer().SetTransform(withoutManagers); err != nil {
		return nil, err
	}
	resolver, err := podinfo.NewInformerResolver(pods.Informer())
	if err != nil {
		return nil, err
	}
	engine := networkpolicy.NewPolicyEngine(
		podinfo.NewInformerProvider(pods, namespaces, nil, []podinfo.IPResolver{resolver}),
		[]api.PolicyEvaluator{networkpolicy.NewStandardNetworkPolicy(o.node, namespaces, pods, policies)})
	factory.Start(ctx.Done())
	return dataplane.NewController(engine, dataplane.Config{
		QueueID: policyQueue, NFTableName: policyTable,
		// A policy holds for connections that were there before it, too.
		StrictMode: true,
	})
}

// withoutManagers leaves out of an object what takes most of its memory.
func withoutManagers(object any) (any, error) {
	if of, err := meta.Accessor(object); err == nil {
		of.SetManagedFields(nil)
	}
	return object, nil
}

// enforced reports whether the rules are written and somebody listens to the queue.
func enforced() (bool, error) {
	written, err := tableExists()
	if err != nil || !written {
		return false, err
	}
	queues, err := os.ReadFile("/proc/net/netfilter/nfnetlink_queue")
	if errors.Is(err, fs.ErrNotExist) { // The kernel's module is loaded with the first queue.
		return false, nil
	}
	for line := range strings.Lines(string(queues)) {
		if fields := strings.Fields(line); len(fields) > 0 && fields[0] == strconv.Itoa(policyQueue) {
			return true, nil
		}
	}
	return false, err
}

func tableExists() (bool, error) {
	connection, err := nftables.New()
	if err != nil {
		return false, err
	}
	tables, err := connection.ListTablesOfFamily(nftables.TableFamilyINet)
	return slices.ContainsFunc(tables, func(t *nftables.Table) bool { return t.Name == policyTable }), err
}

// forget removes the rules of an earlier run that enforced policies, which would refuse what nobody judges any more.
func forget() error {
	if there, err := tableExists(); err != nil || !there {
		return err
	}
	connection, err := nftables.New()
	if err != nil {
		return err
	}
	connection.DelTable(&nftables.Table{Name: policyTable, Family: nftables.TableFamilyINet})
	return connection.Flush()
}
