package operate

import (
	"context"
	"crypto/x509"
	"errors"
	"net"
	"net/netip"
	"strings"

	"github.com/hullmark/hullmark/joinservice"
	kubeadmrun "github.com/hullmark/hullmark/kubeadm/run"
	"github.com/hullmark/hullmark/measurements"
)

// apiPort is that of a control plane's API server.
const apiPort = 6443

// EndpointReport says which API servers serve the control plane's endpoint.
type EndpointReport struct {
	// Endpoint is the cluster's HOST:PORT, and Names are the further names of its API servers.
	Endpoint string
	Names    []string
	Servers  []ServerReport
	// Moved says that addons use the endpoint, and nodes from their next boot on. Absent are those of Hullmark's addons that
	// the cluster has not.
	Moved  bool
	Absent []string
}

// ServerReport is what one API server showed.
type ServerReport struct {
	// Name is its node's, and Address where it was asked.
	Name, Address string
	// Unreached is why it could not be asked.
	Unreached error
	// Certificate is what it showed, and Missing a name of the endpoint that that is not for; none if it serves the endpoint.
	Certificate *x509.Certificate
	Missing     string
}

// served reports whether all servers that were asked serve the endpoint, and whether all were asked.
func (r EndpointReport) served() (all, asked bool) {
	all, asked = true, true
	for _, s := range r.Servers {
		all, asked = all && s.Missing == "", asked && s.Unreached == nil
	}
	return all, asked
}

// Endpoint asks each API server which names its certificate is for.
func (a *API) Endpoint(ctx context.Context) (report EndpointReport, err error) {
	err = a.persist(ctx, func() error {
		report, err = a.endpoint(ctx)
		return err
	})
	return report, err
}

func (a *API) endpoint(ctx context.Context) (EndpointReport, error) {
	settings, err := a.file.Cluster.CurrentSettings()
	if err != nil {
		return EndpointReport{}, err
	}
	planes, err := a.client.ControlPlanes(ctx)
	if err != nil {
		return EndpointReport{}, err
	}
	if len(planes) == 0 {
		return EndpointReport{}, errors.New("the cluster has no node of the role control-plane")
	}
	report := EndpointReport{Endpoint: settings.ControlPlaneEndpoint, Names: settings.Names}
	for _, p := range planes {
		server := ServerReport{Name: p.Name, Address: netip.AddrPortFrom(p.Address, apiPort).String()}
		if len(planes) == 1 && a.Server != "" { // There is no other that could answer there.
			server.Address = a.Server
		}
		if server.Certificate, server.Unreached = kubeadmrun.ServerCertificate(ctx, a.file.Cluster.KubernetesCA(), server.Address); server.Unreached == nil {
			server.Missing = missingName(server.Certificate, settings)
		}
		report.Servers = append(report.Servers, server)
	}
	return report, nil
}

// SetEndpoint signs the endpoint into the policy and pushes it. Once all control planes serve it, addons use it; served says
// that those do which cannot be reached from here. It is called again until the report says that the endpoint moved.
func (a *API) SetEndpoint(ctx context.Context, endpoint measurements.Endpoint, served bool) (report EndpointReport, err error) {
	if _, err := a.file.Cluster.CurrentSettings(); err != nil {
		return report, err
	}
	err = a.persist(ctx, func() error {
		if err := a.signAndPush(ctx, setEndpoint(endpoint)); err != nil {
			return err
		}
		if err := a.client.NoteEndpoint(ctx, endpoint); err != nil {
			return err
		}
		if report, err = a.endpoint(ctx); err != nil {
			return err
		}
		if all, asked := report.served(); !all || !asked && !served {
			return nil
		}
		report.Absent, err = a.client.MoveAddons(ctx, report.Endpoint)
		report.Moved = err == nil
		return err
	})
	return report, err
}

// missingName returns the first name of an endpoint that a certificate is not for.
func missingName(certificate *x509.Certificate, settings joinservice.Settings) string {
	host, _, err := net.SplitHostPort(settings.ControlPlaneEndpoint)
	if err != nil {
		return settings.ControlPlaneEndpoint
	}
	for _, name := range append([]string{host}, settings.Names...) {
		if certificate.VerifyHostname(strings.Replace(name, "*", "any", 1)) != nil {
			return name
		}
	}
	return ""
}
