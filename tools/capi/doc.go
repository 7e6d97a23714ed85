package capi

import (
	_ "github.com/hullmark/hullmark"
	_ "github.com/hullmark/hullmark/cluster/render"
	_ "sigs.k8s.io/cluster-api/api/bootstrap/kubeadm/v1beta2"
	_ "sigs.k8s.io/cluster-api/api/core/v1beta2"
	_ "sigs.k8s.io/cluster-api/controllers"
	_ "sigs.k8s.io/controller-runtime"
	_ "sigs.k8s.io/controller-runtime/pkg/envtest"
	_ "k8s.io/client-go/kubernetes"
)
