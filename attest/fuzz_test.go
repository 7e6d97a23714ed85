package attest_test

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/x509"
	"testing"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest"
)

// FuzzCertificates holds what both ends think of the other's chain to what their callers rely on: whoever lacks the cluster's keys can say nothing else in
// a leaf, or an online CA, than what was signed.
func FuzzCertificates(f *testing.F) {
	// They are the same in each of the fuzzer's processes: what one of them was signed with is good in the others.
	var keys [3]*ecdsa.PrivateKey
	for i := range keys {
		var err error
		if keys[i], err = ecdsa.ParseRawPrivateKey(elliptic.P256(), append(make([]byte, 31), byte(i+1))); err != nil {
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
	operator, err := attest.NewOperator(root, keys[0])
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
	itsOperator, err := attest.NewOperator(later, keys[2])
	if err != nil {
		f.Fatal(err)
	}
	handOver, err := attest.NewHandOver(root, keys[0], keys[2].Public())
	if err != nil {
		f.Fatal(err)
	}
	signed := [][]byte{operator.Certificate[0], service.Certificate[0], online.Raw, root.Raw, handOver.Raw}
	for _, der := range signed {
		f.Add(der)
	}
	id := hullmark.ClusterRootOf(root.RawSubjectPublicKeyInfo)
	f.Fuzz(func(t *testing.T, der []byte) {
		made, err := x509.ParseCertificate(der)
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
