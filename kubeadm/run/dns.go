package run

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/kubeadm"
)

// OldDNS reports whether a cluster has a CoreDNS that is not the one that the kubeadm at program would start for a release.
func OldDNS(ctx context.Context, program string, access Access, v hullmark.Version) (bool, error) {
	runs, err := DNSImage(ctx, access)
	if err != nil || runs == "" {
		return false, err
	}
	wanted, err := WantedDNSImage(ctx, program, v)
	return runs != wanted, err
}

// DNSImage returns the image that a cluster's CoreDNS is started from, as kubeadm started it; empty if there is none.
func DNSImage(ctx context.Context, access Access) (string, error) {
	server := api{access: access}
	defer server.close()
	var deployment struct {
		Spec struct {
			Template struct {
				Spec struct {
					Containers []struct{ Name, Image string }
				}
			}
		}
	}
	err := server.get(ctx, "/apis/apps/v1/namespaces/kube-system/deployments/coredns", &deployment)
	if errors.Is(err, errNotFound) {
		return "", nil
	}
	for _, c := range deployment.Spec.Template.Spec.Containers {
		if c.Name == "coredns" {
			return c.Image, err
		}
	}
	return "", err
}

// WantedDNSImage asks the kubeadm at program from which image it would start CoreDNS.
func WantedDNSImage(ctx context.Context, program string, v hullmark.Version) (string, error) {
	said, err := exec.CommandContext(ctx, program, "config", "images", "list", "--image-repository", kubeadm.Repository, "--kubernetes-version", v.String()).Output()
	if err != nil {
		return "", fmt.Errorf("kubeadm config images list: %w", err)
	}
	for image := range strings.FieldsSeq(string(said)) {
		if strings.HasPrefix(image, kubeadm.Repository+"/coredns:") {
			return image, nil
		}
	}
	return "", fmt.Errorf("kubeadm config images list names no CoreDNS: %.300q", said)
}
