package channel_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"errors"
	"math/big"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest/channel"
)

// next is another authority of the same cluster, and the cross-certificate to it with the root that made it.
func (a *authority) next(t *testing.T) (*authority, [][]byte) {
	t.Helper()
	b := newAuthority(t)
	return b, a.crossCertificate(t, b.rootKey)
}

// crossCertificate is a cross-certificate to a key, with the root that made it.
func (a *authority) crossCertificate(t *testing.T, to *ecdsa.PrivateKey) [][]byte {
	t.Helper()
	certificate, err := channel.NewCrossCertificate(a.root, a.rootKey, to.Public())
	if err != nil {
		t.Fatal(err)
	}
	return [][]byte{certificate.Raw, a.root.Raw}
}

// edited is a cross-certificate as an editor wants it.
func (a *authority) edited(t *testing.T, to *ecdsa.PrivateKey, edit func(*x509.Certificate)) [][]byte {
	t.Helper()
	template, err := x509.ParseCertificate(a.crossCertificate(t, to)[0])
	if err != nil {
		t.Fatal(err)
	}
	template.SerialNumber = big.NewInt(2)
	edit(template)
	der, err := x509.CreateCertificate(rand.Reader, template, a.root, to.Public(), a.rootKey)
	if err != nil {
		t.Fatal(err)
	}
	return [][]byte{der, a.root.Raw}
}

// A node follows its root to the one to which that has handed over, once or twice, and nobody else.
func TestCrossCertificate(t *testing.T) {
	a, stranger := newAuthority(t), newAuthority(t)
	b, ba := a.next(t)
	c, cb := b.next(t)
	d, dc := c.next(t)
	whole := slices.Concat(cb, ba)
	// The online CA of the first root as a root of its own: its certificate is signed by that root.
	usurper := &authority{rootKey: a.onlineKey, onlineKey: newKey(t)}
	var err error
	if usurper.root, err = channel.NewRoot(a.onlineKey); err != nil {
		t.Fatal(err)
	}
	if usurper.online, err = channel.NewOnlineCA(usurper.root, a.onlineKey, usurper.onlineKey.Public()); err != nil {
		t.Fatal(err)
	}
	// A cross-certificate in the place of the online CA: the later root's key signs a leaf of the earlier root.
	asOnline := *a
	asOnline.onlineKey = b.rootKey
	if asOnline.online, err = x509.ParseCertificate(ba[0]); err != nil {
		t.Fatal(err)
	}
	other, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	for name, row := range map[string]struct {
		by                *authority
		crossCertificates [][]byte
		node              *authority
		refused           string // empty for a legal chain
		other             bool   // the refusal is an OtherRoot
	}{
		"the present root":                       {b, nil, b, "", false},
		"the present root, which needs no other": {b, ba, b, "", false},
		"the earlier root":                       {b, ba, a, "", false},
		"the first of two":                       {c, whole, a, "", false},
		"the second of two":                      {c, whole, b, "", false},
		"times are a host's":                     {b, a.edited(t, b.rootKey, func(x *x509.Certificate) { x.NotAfter = time.Unix(1, 0); x.NotBefore = time.Unix(0, 0) }), a, "", false},

		"unknown critical extension": {b, a.edited(t, b.rootKey, func(x *x509.Certificate) {
			x.ExtraExtensions = []pkix.Extension{{Id: asn1.ObjectIdentifier{1, 2, 3}, Critical: true, Value: []byte{5, 0}}}
		}), a, "unknown critical extension", false},
		"for a key on another curve":          {b, a.edited(t, other, func(*x509.Certificate) {}), a, "no P-256 key", false},
		"no cross-certificate":                {b, nil, a, "to which it has not handed over", true},
		"a stranger's root":                   {stranger, nil, a, "to which it has not handed over", true},
		"a stranger's cross-certificate":      {b, stranger.crossCertificate(t, b.rootKey), a, "to which it has not handed over", true},
		"a stranger's, under the true root":   {b, [][]byte{stranger.crossCertificate(t, b.rootKey)[0], a.root.Raw}, a, "cross-certificate to root", false},
		"for another key":                     {stranger, ba, a, "it is for another key", false},
		"for another key, at its own node":    {stranger, ba, stranger, "it is for another key", false},
		"the earlier root after the exchange": {a, nil, b, "to which it has not handed over", true},
		"the earlier root, handed over to":    {a, ba, b, "it is for another key", false},
		"one that was given up":               {c, cb, a, "to which it has not handed over", true},
		"in another order":                    {c, slices.Concat(ba, cb), a, "it is for another key", false},
		"without the root that made it":       {b, ba[:1], a, "a chain of", false},
		"three cross-certificates":            {d, slices.Concat(dc, cb, ba), a, "a chain of", false},
		"a link is missing":                   {d, slices.Concat(dc, ba), a, "it is for another key", false},
		"to itself":                           {a, a.crossCertificate(t, a.rootKey), a, "comes twice", false},
		"an online CA as a cross-certificate": {usurper, [][]byte{a.online.Raw, a.root.Raw}, a, "no root's certificate", false},
		"a path length":                       {b, a.edited(t, b.rootKey, func(x *x509.Certificate) { x.MaxPathLen = 1 }), a, "no root's certificate", false},
		"no CA":                               {b, a.edited(t, b.rootKey, func(x *x509.Certificate) { x.IsCA, x.MaxPathLen = false, 0 }), a, "no root's certificate", false},
		"another subject":                     {b, a.edited(t, b.rootKey, func(x *x509.Certificate) { x.RawSubject = nil; x.Subject.CommonName = "root" }), a, "no root's certificate", false},
	} {
		for end, connect := range map[string]func() error{
			"service": func() error {
				_, errs := handshake(t, channel.JoinTLS(row.node.id()), channel.ServiceTLS(channel.WithCrossCertificates(row.by.service(t), row.crossCertificates)))
				return errs[0]
			},
			"operator": func() error {
				node, err := channel.NodeTLS(row.node.id())
				if err != nil {
					t.Fatal(err)
				}
				_, errs := handshake(t, channel.OperatorTLS(channel.WithCrossCertificates(row.by.operator(t), row.crossCertificates)), node)
				return errs[1]
			},
		} {
			err := connect()
			var other *channel.OtherRoot
			switch {
			case row.refused == "" && err != nil, row.refused != "" && (err == nil || !strings.Contains(err.Error(), row.refused)):
				t.Errorf("%s, %s: %v, want %q", name, end, err, row.refused)
			case errors.As(err, &other) != row.other:
				t.Errorf("%s, %s: another root: %v", name, end, err)
			}
		}
	}
	leaf := channel.WithCrossCertificates(asOnline.service(t), nil)
	if _, errs := handshake(t, channel.JoinTLS(a.id()), channel.ServiceTLS(leaf)); errs[0] == nil || !strings.Contains(errs[0].Error(), "path length") {
		t.Errorf("a cross-certificate as an online CA: %v", errs[0])
	}
}

// A certificate is shown with its cross-certificates, and kept without them.
func TestWithCrossCertificatesLeavesTheCertificate(t *testing.T) {
	a := newAuthority(t)
	_, ba := a.next(t)
	operator := a.operator(t)
	operator.Certificate = slices.Grow(operator.Certificate, 2)
	first, second := channel.WithCrossCertificates(operator, ba), channel.WithCrossCertificates(operator, [][]byte{{1}, {2}})
	if len(operator.Certificate) != 2 || !slices.EqualFunc(first.Certificate[2:], ba, slices.Equal) || len(second.Certificate) != 4 {
		t.Error("one chain changed another")
	}
}

func TestRootsListsThePresentFirst(t *testing.T) {
	a := newAuthority(t)
	b, ba := a.next(t)
	var certificates []*x509.Certificate
	for _, der := range ba {
		certificate, err := x509.ParseCertificate(der)
		if err != nil {
			t.Fatal(err)
		}
		certificates = append(certificates, certificate)
	}
	roots, err := channel.Roots(b.id(), certificates)
	if err != nil || !slices.Equal(roots, []hullmark.ClusterRoot{b.id(), a.id()}) {
		t.Errorf("%v, %v", roots, err)
	}
	if _, err := channel.Roots(b.id(), certificates[:1]); err == nil {
		t.Error("half a cross-certificate")
	}
}
