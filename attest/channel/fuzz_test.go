package channel_test

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"slices"
	"testing"
	"time"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest/channel"
)

// FuzzCertificates holds what both ends think of the other's chain to what their callers rely on: whoever lacks the cluster's
// keys can say nothing else in a leaf, or an online CA, than what was signed. An input is an edit of what was signed: each of
// the fuzzer's processes has keys and certificates of its own.
func FuzzCertificates(f *testing.F) {
	var keys [3]*ecdsa.PrivateKey
	for i := range keys {
		var err error
		if keys[i], err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
			f.Fatal(err)
		}
	}
	root, err := channel.NewRoot(keys[0])
	if err != nil {
		f.Fatal(err)
	}
	online, err := channel.NewOnlineCA(root, keys[0], keys[1].Public())
	if err != nil {
		f.Fatal(err)
	}
	operator, err := channel.NewOperator(root, keys[0], channel.Scope{Verb: channel.VerbInit})
	if err != nil {
		f.Fatal(err)
	}
	service, err := channel.NewService(root, online, keys[1])
	if err != nil {
		f.Fatal(err)
	}
	later, err := channel.NewRoot(keys[2])
	if err != nil {
		f.Fatal(err)
	}
	itsOperator, err := channel.NewOperator(later, keys[2], channel.Scope{Verb: channel.VerbRecover, Policy: 7, EKID: hullmark.EKID{1}})
	if err != nil {
		f.Fatal(err)
	}
	crossCertificate, err := channel.NewCrossCertificate(root, keys[0], keys[2].Public())
	if err != nil {
		f.Fatal(err)
	}
	named, err := channel.NewNamedOperator(root, keys[0], channel.Named{Name: "alice", May: []hullmark.Permission{hullmark.MayLook}, Policy: 7, Ends: time.Now().Add(time.Hour)})
	if err != nil {
		f.Fatal(err)
	}
	signed := [][]byte{operator.Certificate[0], named.Certificate[0], service.Certificate[0], online.Raw, root.Raw, crossCertificate.Raw}
	for i, der := range signed {
		f.Add(uint8(i), uint16(0), uint16(0), []byte(nil))
		f.Add(uint8(i), uint16(len(der)-10), uint16(1), []byte{0})
		f.Add(uint8(i), uint16(0), uint16(len(der)), signed[(i+1)%len(signed)])
	}
	id := hullmark.ClusterRootOf(root.RawSubjectPublicKeyInfo)
	f.Fuzz(func(t *testing.T, which uint8, at, cut uint16, put []byte) {
		der := signed[int(which)%len(signed)]
		from := min(int(at), len(der))
		made, err := x509.ParseCertificate(slices.Concat(der[:from], put, der[min(from+int(cut), len(der)):]))
		if err != nil {
			return
		}
		for name, accepted := range map[string]bool{
			"an operator":         channel.CheckOperator([]*x509.Certificate{made, root}, id) == nil,
			"a service":           channel.CheckService([]*x509.Certificate{made, online, root}, id) == nil,
			"an online CA's":      channel.CheckService([]*x509.Certificate{service.Leaf, made, root}, id) == nil,
			"a cross-certificate": channel.CheckOperator([]*x509.Certificate{itsOperator.Leaf, later, made, root}, id) == nil,
			"a root's":            channel.CheckOperator([]*x509.Certificate{operator.Leaf, made}, id) == nil && !bytes.Equal(made.RawSubjectPublicKeyInfo, root.RawSubjectPublicKeyInfo),
		} {
			known := false
			for _, s := range signed {
				original, err := x509.ParseCertificate(s)
				known = known || err == nil && bytes.Equal(original.RawTBSCertificate, made.RawTBSCertificate)
			}
			if accepted && !known {
				t.Errorf("taken for %s, and nobody signed it", name)
			}
		}
	})
}
