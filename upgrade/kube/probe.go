package kube

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"k8s.io/client-go/rest"
)

const (
	// probeTimeout bounds one question, and maxProbe what is read of its answer, in bytes.
	probeTimeout = 5 * time.Second
	maxProbe     = 2 << 10
)

// Probe asks each control plane's API server itself, at this port of its Node's address, whether it is ready: with the certificate and
// the CA of config. Such a server asks its own member of etcd, which answers only with a quorum.
func (c *Cluster) Probe(config *rest.Config, port uint16) error {
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return fmt.Errorf("probe: %w", err)
	}
	client.Timeout = probeTimeout
	c.probe = func(ctx context.Context, address netip.Addr) error {
		return ready(ctx, client, "https://"+netip.AddrPortFrom(address, port).String()+"/readyz")
	}
	return nil
}

func ready(ctx context.Context, client *http.Client, url string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	answer, err := client.Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(io.LimitReader(answer.Body, maxProbe))
	if err != nil || answer.StatusCode == http.StatusOK {
		return err
	}
	return fmt.Errorf("%s: %s: %s", url, answer.Status, failing(string(text)))
}

// failing returns which checks of /readyz fail.
func failing(text string) string {
	var checks []string
	for line := range strings.Lines(text) {
		if check, ok := strings.CutPrefix(line, "[-]"); ok {
			check, _, _ = strings.Cut(check, " ")
			checks = append(checks, check)
		}
	}
	return strings.Join(checks, ", ")
}
