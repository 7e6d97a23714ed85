package attest_test

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"slices"
	"testing"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest"
)

// FuzzCertificates holds what both ends think of the other's chain to what their callers rely on: whoever lacks the cluster's keys can say nothing else in
// a leaf, or an online CA, than what was signed. An input is an edit of what was signed: each of the fuzzer's processes has keys and certificates of its own.
func FuzzCertificates(f *testing.F) {
	var keys [3]*ecdsa.PrivateKey
	for i := range keys {
		var err error
		if keys[i], err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
			f.Fatal(err)
		}
	}
	root, err := attest.NewRoot(keys[0])
	if err != nil {
		f.Fatal(err)
	}
	online, err := attest.NewOnlineCA(root, keys[0], keys[1].Public())
	if err != nil {
		f.Fatal(err)
	}
	operator, err := attest.NewOperator(root, keys[0], attest.Errand{Verb: attest.VerbInit})
	if err != nil {
		f.Fatal(err)
	}
	service, err := attest.NewService(root, online, keys[1])
	if err != nil {
		f.Fatal(err)
	}
	later, err := attest.NewRoot(keys[2])
	if err != nil {
		f.Fatal(err)
	}
	itsOperator, err := attest.NewOperator(later, keys[2], attest.Errand{Verb: attest.VerbRecover, Policy: 7, Node: hullmark.NodeID{1}})
	if err != nil {
		f.Fatal(err)
	}
	handOver, err := attest.NewHandOver(root, keys[0], keys[2].Public())
	if err != nil {
		f.Fatal(err)
	}
	signed := [][]byte{operator.Certificate[0], service.Certificate[0], online.Raw, root.Raw, handOver.Raw}
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
			"an operator":    attest.CheckOperator([]*x509.Certificate{made, root}, id) == nil,
			"a service":      attest.CheckService([]*x509.Certificate{made, online, root}, id) == nil,
			"an online CA's": attest.CheckService([]*x509.Certificate{service.Leaf, made, root}, id) == nil,
			"a hand-over":    attest.CheckOperator([]*x509.Certificate{itsOperator.Leaf, later, made, root}, id) == nil,
			"a root's":       attest.CheckOperator([]*x509.Certificate{operator.Leaf, made}, id) == nil && !bytes.Equal(made.RawSubjectPublicKeyInfo, root.RawSubjectPublicKeyInfo),
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
