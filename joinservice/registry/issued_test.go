package registry

import (
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"testing"

	"github.com/hullmark/hullmark"
)

// What was issued is noted for the life that asked for it, and for no later one.
func TestPresentLife(t *testing.T) {
	certificate := certificateOf(t, "w1")
	mine := func(q *question) *question {
		q.known.machine.FirstKey = keyOf(certificate.RawSubjectPublicKeyInfo)
		return q
	}
	for name, c := range map[string]struct {
		q    *question
		want bool
	}{
		"by the token's key":                                  {mine(bootstrap()), true},
		"by the token's key, when the token is gone":          {mine(bootstrap()).of(func(f *facts) { f.machine.Token = "" }), true},
		"by a listed certificate":                             {renewal(), true},
		"by a control plane's own":                            {formerLife(renewal()).of(func(f *facts) { f.machine.Role = hullmark.ControlPlane }), true},
		"by a former token's key":                             {bootstrap().of(func(f *facts) { f.machine.FirstKey = "another" }), false},
		"by a former token's key, before the next one's":      {bootstrap(), false},
		"by a former certificate":                             {formerLife(renewal()), false},
		"for a machine without a record":                      {mine(bootstrap()).of(func(f *facts) { f.recorded = false }), false},
		"for a machine of another name by now":                {mine(bootstrap()).of(func(f *facts) { f.machine.Name = "w2" }), false},
		"for an administrator, who asks for a node":           {newQuestion(clientSigner, "admin", "system:masters"), false},
		"for another node, which the certificate is not made": {newQuestion(clientSigner, "system:node:w3", "system:nodes").showing(certificateID + shown), false},
	} {
		if got := presentLife(&c.q.request, certificate, c.q.known); got != c.want {
			t.Errorf("%s: got %v", name, got)
		}
	}
}

// of changes what is known.
func (q *question) of(change func(*facts)) *question {
	change(&q.known)
	return q
}

// certificateOf signs itself.
func certificateOf(t testing.TB, name string) *x509.Certificate {
	t.Helper()
	key := newKey(t)
	made := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: nodeUser + name, Organization: []string{nodeGroup}}, NotAfter: asked}
	der, err := x509.CreateCertificate(rand.Reader, made, made, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return certificate
}

func TestParseIssued(t *testing.T) {
	certificate := certificateOf(t, "w1")
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate.Raw})
	if got, err := parseIssued(text); err != nil || fingerprintOf(got) != fingerprintOf(certificate) {
		t.Error(err)
	}
	for _, text := range []string{"", "x", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte{1}})), string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: certificate.Raw}))} {
		if _, err := parseIssued([]byte(text)); err == nil {
			t.Errorf("%q was read", text)
		}
	}
}
