package hullmark

import (
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"strings"
)

// maxExcept bounds the servers that are asked past a proxy.
const maxExcept = 64

func (p *Proxy) check() error {
	if p == nil {
		return nil
	}
	if p.HTTP == "" && p.HTTPS == "" {
		return errors.New("proxy: neither http nor https is set")
	}
	for _, proxy := range []struct{ field, url string }{{"http", p.HTTP}, {"https", p.HTTPS}} {
		if err := checkProxyURL(proxy.url); err != nil {
			return fmt.Errorf("proxy: %s: %w", proxy.field, err)
		}
	}
	if len(p.Except) > maxExcept {
		return fmt.Errorf("proxy: except: %d, at most %d are possible", len(p.Except), maxExcept)
	}
	for _, e := range p.Except {
		if !validException(e) {
			return fmt.Errorf("proxy: except: %.80q: want a host name, .DOMAIN, an address or a network in CIDR notation", e)
		}
	}
	return nil
}

// checkProxyURL says nothing of the text where that may hold a password.
func checkProxyURL(text string) error {
	if text == "" {
		return nil
	}
	u, err := url.Parse(text)
	if strings.Contains(text, "@") || err == nil && u.User != nil {
		return errors.New("it has credentials, and a node configuration is public: want a proxy that needs none")
	}
	for _, scheme := range []string{"http://", "https://"} {
		if endpoint, ok := strings.CutPrefix(text, scheme); ok && ValidEndpoint(endpoint) && !strings.Contains(endpoint, "%") {
			return nil
		}
	}
	return fmt.Errorf("%.80q: want http://HOST:PORT or https://HOST:PORT", text)
}

func validException(s string) bool {
	if p, err := netip.ParsePrefix(s); err == nil {
		return p == p.Masked()
	}
	if a, err := netip.ParseAddr(s); err == nil {
		return a.Zone() == ""
	}
	name := strings.TrimPrefix(s, ".")
	return hostPattern.MatchString(name) && !numberPattern.MatchString(name)
}
