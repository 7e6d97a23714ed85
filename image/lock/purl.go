package lock

import (
	"encoding/base64"
	"encoding/hex"
	"net/url"
	"strings"
)

// PURL is the package's name among all packages of the world (purl-spec, type deb).
func (p Package) PURL() string {
	return "pkg:deb/debian/" + purlEscape(p.Name) + "@" + purlEscape(p.Version) + "?arch=" + p.Arch
}

// PURL is the module's name among all packages of the world (purl-spec, type golang, which wants a path in lower case).
func (m Module) PURL() string {
	parts := strings.Split(strings.ToLower(m.Path), "/")
	for i, part := range parts {
		parts[i] = purlEscape(part)
	}
	return "pkg:golang/" + strings.Join(parts, "/") + "@" + purlEscape(m.Version)
}

// purlEscape percent-encodes a component of a package URL (purl-spec, "Character encoding"), which leaves colons as they are.
func purlEscape(s string) string {
	return strings.ReplaceAll(strings.ReplaceAll(url.QueryEscape(s), "+", "%20"), "%3A", ":")
}

// HexOfH1 turns Go's form of a Hash1, "h1:" and base64, into hex.
func HexOfH1(sum string) (string, error) {
	raw, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(sum, "h1:"))
	return hex.EncodeToString(raw), err
}
