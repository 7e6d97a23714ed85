package run

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/kubeadm/step"
)

// maxGroups bounds how many groups of an API server are looked at, with all their versions.
const maxGroups = 1024

// Server is what an API server says of itself.
type Server struct {
	// Version is its program's.
	Version hullmark.Version
	// Acts is the release that it behaves as: Version, or the first of the minor release that --emulated-version names.
	Acts hullmark.Version
}

// ServerVersion asks an API server which it is.
func ServerVersion(ctx context.Context, access Access) (s Server, err error) {
	server := api{access: access}
	defer server.close()
	var said struct {
		GitVersion                     string
		EmulationMajor, EmulationMinor string
	}
	if err := server.get(ctx, "/version", &said); err != nil {
		return s, fmt.Errorf("version of the API server: %w", err)
	}
	if s.Version, err = hullmark.ParseVersion(said.GitVersion); err != nil {
		return s, fmt.Errorf("version of the API server: %w", err)
	}
	s.Acts = s.Version
	if said.EmulationMajor == "" {
		return s, nil // It is of a time before servers said so.
	}
	emulated, err := hullmark.ParseVersion("v" + said.EmulationMajor + "." + said.EmulationMinor + ".0")
	if err == nil && !emulated.SameLine(s.Version) {
		s.Acts = emulated
	}
	return s, err
}

// RequestedAPIs asks an API server which deprecated APIs it was asked for since it started.
func RequestedAPIs(ctx context.Context, access Access) (requested []step.API, err error) {
	server := api{access: access}
	defer server.close()
	if err := server.open(); err != nil {
		return nil, err
	}
	err = server.read(ctx, "/metrics", func(answer io.Reader) error {
		requested, err = step.RequestedAPIs(answer)
		return err
	})
	return requested, err
}

// Resources asks an API server what it serves and stores itself: no custom resources, and nothing of aggregated servers.
func Resources(ctx context.Context, access Access) ([]step.Resource, error) {
	server := api{access: access}
	defer server.close()
	groups, err := server.groups(ctx)
	if err != nil {
		return nil, fmt.Errorf("resources of the API server: %w", err)
	}
	var all []step.Resource
	for _, g := range groups {
		var list struct {
			Resources []struct {
				Name, Kind, StorageVersionHash string
			}
		}
		// In a cluster of two versions one server has groups that the other has not.
		if err := server.get(ctx, g.path, &list); err != nil && !errors.Is(err, errNotFound) {
			return nil, fmt.Errorf("resources of the API server: %s: %w", g.path, err)
		}
		for _, r := range list.Resources {
			all = append(all, step.Resource{Group: g.group, Version: g.version, Kind: r.Kind, Name: r.Name, StorageHash: r.StorageVersionHash})
		}
	}
	return all, nil
}

// group is one version of a group of resources.
type group struct{ group, version, path string }

// groups lists those that the API server has itself. Of a custom resource's group there is a definition, of an aggregated one's an
// APIService that names another service.
func (a *api) groups(ctx context.Context) ([]group, error) {
	var services struct {
		Items []struct {
			Metadata struct{ Labels map[string]string }
			Spec     struct {
				Group, Version string
				Service        *struct{}
			}
		}
	}
	if err := a.get(ctx, "/apis/apiregistration.k8s.io/v1/apiservices", &services); err != nil {
		return nil, err
	}
	if len(services.Items) > maxGroups {
		return nil, fmt.Errorf("%d groups of resources, at most %d are looked at", len(services.Items), maxGroups)
	}
	groups := []group{{"apiregistration.k8s.io", "v1", "/apis/apiregistration.k8s.io/v1"}}
	for _, s := range services.Items {
		g := group{s.Spec.Group, s.Spec.Version, "/apis/" + url.PathEscape(s.Spec.Group) + "/" + url.PathEscape(s.Spec.Version)}
		if g.group == "" {
			g.path = "/api/" + url.PathEscape(g.version)
		}
		// Whether it goes with its custom resources or with the server (kube-aggregator, AutoRegisterManagedLabel).
		if s.Spec.Service == nil && s.Metadata.Labels["kube-aggregator.kubernetes.io/automanaged"] == "onstart" {
			groups = append(groups, g)
		}
	}
	return groups, nil
}
