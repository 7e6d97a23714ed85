package registry

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"errors"
	"net"
	"net/netip"
	"net/url"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/joinservice"
)

const (
	clientSigner  = certificatesv1.KubeAPIServerClientKubeletSignerName
	servingSigner = certificatesv1.KubeletServingSignerName
)

// question is a request with all that its decision depends on, for tests to change.
type question struct {
	template x509.CertificateRequest
	request  certificatesv1.CertificateSigningRequest
	known    facts
	now      time.Time
	// mangle changes the PEM before it is asked.
	mangle func([]byte) []byte
}

var asked = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// newQuestion asks as the kubelet of w1 does, for one of the signers.
func newQuestion(signer, user string, groups ...string) *question {
	node := hullmark.EKID{1}
	q := &question{
		template: x509.CertificateRequest{Subject: pkix.Name{CommonName: "system:node:w1", Organization: []string{"system:nodes"}}},
		request: certificatesv1.CertificateSigningRequest{
			ObjectMeta: metav1.ObjectMeta{Name: "csr-1", CreationTimestamp: metav1.NewTime(asked)},
			Spec: certificatesv1.CertificateSigningRequestSpec{
				SignerName: signer, Username: user, Groups: append(groups, "system:authenticated"),
				Usages: []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth},
			},
		},
		known: facts{node: node, found: true, recorded: true, machine: joinservice.Machine{
			EKID: node, Name: "w1", Role: hullmark.Worker, Token: "abc123",
			Credentials: []joinservice.Credential{{Fingerprint: shown, Ends: asked.Add(time.Hour)}}, Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("fd00::1")},
		}},
		now: asked.Add(time.Second),
	}
	if signer == servingSigner {
		q.request.Spec.Usages[1] = certificatesv1.UsageServerAuth
		q.template.DNSNames = []string{"w1"}
		q.template.IPAddresses = []net.IP{net.ParseIP("10.0.0.1")}
	}
	return q
}

func bootstrap() *question {
	return newQuestion(clientSigner, "system:bootstrap:abc123", "system:bootstrappers", tokenGroup, machineGroup+hullmark.EKID{1}.String())
}

// shown is the fingerprint of the certificate that w1 has, and shows when it asks.
var shown = strings.Repeat("5a", 32)

func renewal() *question {
	return newQuestion(clientSigner, "system:node:w1", "system:nodes").showing(certificateID + shown)
}

func serving() *question {
	return newQuestion(servingSigner, "system:node:w1", "system:nodes").showing(certificateID + shown)
}

// showing makes the question one of somebody whose credentials the API server names so.
func (q *question) showing(credentials ...string) *question {
	q.request.Spec.Extra = map[string]certificatesv1.ExtraValue{credentialKey: credentials}
	return q
}

// formerLife asks by a certificate that is not listed, timeout later: one of the machine's life before its last token, or of a
// machine that had its name.
func formerLife(q *question) *question {
	q.now = asked.Add(notePatience)
	return q.showing(certificateID + strings.Repeat("5b", 32))
}

func (q *question) ask(t testing.TB) (Outcome, string) {
	t.Helper()
	q.request.Spec.Request = requestPEM(t, &q.template)
	if q.mangle != nil {
		q.request.Spec.Request = q.mangle(q.request.Spec.Request)
	}
	return decide(&q.request, q.known, q.now)
}

func requestPEM(t testing.TB, template *x509.CertificateRequest) []byte {
	t.Helper()
	der, err := x509.CreateCertificateRequest(rand.Reader, template, newKey(t))
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
}

func newKey(t testing.TB) crypto.Signer {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// names encodes a subjectAltName extension of these context-specific values (RFC 5280 §4.2.1.6).
func names(t testing.TB, values ...asn1.RawValue) pkix.Extension {
	t.Helper()
	value, err := asn1.Marshal(values)
	if err != nil {
		t.Fatal(err)
	}
	return pkix.Extension{Id: subjectAltName, Value: value}
}

func TestDecideApproves(t *testing.T) {
	for name, c := range map[string]struct {
		from   *question
		change func(*question)
	}{
		"first certificate": {bootstrap(), func(*question) {}},
		"first certificate, asked for again": {bootstrap(), func(q *question) {
			q.mangle = func(text []byte) []byte {
				request, err := parseRequest(text)
				if err != nil {
					t.Error(err)
					return nil
				}
				q.known.machine.FirstKey = keyOf(request.RawSubjectPublicKeyInfo)
				return text
			}
		}},
		"renewal":                {renewal(), func(*question) {}},
		"renewal of another key": {renewal(), func(q *question) { q.known.machine.FirstKey = strings.Repeat("0", 64) }},
		"renewal without token":  {renewal(), func(q *question) { q.known.machine.Token = "" }},
		"renewal of long ago":    {renewal(), func(q *question) { q.now = asked.Add(timeout * 2) }},
		"renewal, no addresses":  {renewal(), func(q *question) { q.known.machine.Addresses = nil }},
		"renewal of a control plane, whose kubeadm made its certificate": {formerLife(renewal()), func(q *question) { q.known.machine.Role = hullmark.ControlPlane }},
		"serving of a control plane, whose kubeadm made its certificate": {formerLife(serving()), func(q *question) { q.known.machine.Role = hullmark.ControlPlane }},
		"serving":                 {serving(), func(*question) {}},
		"serving, name alone":     {serving(), func(q *question) { q.template.IPAddresses = nil }},
		"serving, address alone":  {serving(), func(q *question) { q.template.DNSNames = nil }},
		"serving, both addresses": {serving(), func(q *question) { q.template.IPAddresses = append(q.template.IPAddresses, net.ParseIP("fd00::1")) }},
		"client key that enciphers": {bootstrap(), func(q *question) {
			q.request.Spec.Usages = append(q.request.Spec.Usages, certificatesv1.UsageKeyEncipherment)
		}},
		"serving key that enciphers": {serving(), func(q *question) {
			q.request.Spec.Usages = append([]certificatesv1.KeyUsage{certificatesv1.UsageKeyEncipherment}, q.request.Spec.Usages...)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			c.change(c.from)
			if outcome, reason := c.from.ask(t); outcome != Approved {
				t.Errorf("got %q: %s", outcome, reason)
			}
		})
	}
}

// refusal is one change to a legal question, and what the denial has to name.
type refusal struct {
	from   *question
	change func(*question)
	says   string
}

func TestDecideDeniesRequesters(t *testing.T) {
	checkRefusals(t, map[string]refusal{
		"a person":                  {renewal(), func(q *question) { q.request.Spec.Username = "mallory" }, `got "mallory"`},
		"a node without its group":  {renewal(), func(q *question) { q.request.Spec.Groups = nil }, "requester"},
		"a token without its group": {bootstrap(), func(q *question) { q.request.Spec.Groups = []string{"system:bootstrappers"} }, "requester"},
		"a malformed token":         {bootstrap(), func(q *question) { q.request.Spec.Username = "system:bootstrap:abc-12" }, "requester"},
		"a node of no name":         {renewal(), func(q *question) { q.request.Spec.Username = "system:node:" }, "requester"},
		"a service account":         {renewal(), func(q *question) { q.request.Spec.Username = "system:serviceaccount:default:w1" }, "requester"},
		"a token of nobody's":       {bootstrap(), func(q *question) { q.request.Spec.Groups = q.request.Spec.Groups[:2] }, "requester"},
		"a token of two machines": {bootstrap(), func(q *question) {
			q.request.Spec.Groups = append(q.request.Spec.Groups, machineGroup+hullmark.EKID{2}.String())
		}, "requester"},
		"a token of no machine":                     {bootstrap(), func(q *question) { q.request.Spec.Groups[2] = machineGroup + "ab" }, "requester"},
		"token of a forgotten machine":              {bootstrap(), func(q *question) { q.known.recorded, q.known.machine = false, joinservice.Machine{} }, "last ticket"},
		"token of another ticket":                   {bootstrap(), func(q *question) { q.known.machine.Token = "zzz999" }, "last ticket"},
		"token used for another key":                {bootstrap(), func(q *question) { q.known.machine.FirstKey = strings.Repeat("0", 64) }, "used already, for another key"},
		"token revoked":                             {bootstrap(), func(q *question) { q.known.machine.Token = "" }, "last ticket"},
		"token for serving":                         {newQuestion(servingSigner, "system:bootstrap:abc123", tokenGroup, machineGroup+hullmark.EKID{1}.String()), func(*question) {}, "client certificate only"},
		"name of no machine":                        {renewal(), func(q *question) { q.known = facts{}; q.now = asked.Add(timeout) }, "no machine is recorded"},
		"machine without a record":                  {renewal(), func(q *question) { q.known.recorded = false; q.now = asked.Add(timeout) }, "no machine is recorded"},
		"first certificate of no member":            {bootstrap(), func(q *question) { q.known.refused = errors.New("policy version 2 admits it no more") }, "policy version 2 admits it no more"},
		"renewal of no member":                      {renewal(), func(q *question) { q.known.refused = errors.New("policy version 2 admits it no more") }, "policy version 2 admits it no more"},
		"serving, no member":                        {serving(), func(q *question) { q.known.refused = errors.New("policy version 2 admits it no more") }, "policy version 2 admits it no more"},
		"renewal by a certificate of a former life": {formerLife(renewal()), func(*question) {}, "was seen to get since its last token"},
		"serving by a certificate of a former life": {formerLife(serving()), func(*question) {}, "was seen to get since its last token"},
		"renewal by no certificate":                 {formerLife(renewal()).showing(), func(*question) {}, "was seen to get since its last token"},
		"renewal by two credentials":                {formerLife(renewal()).showing(certificateID+shown, certificateID+shown), func(*question) {}, "was seen to get since its last token"},
		"renewal by another kind of credential":     {formerLife(renewal()).showing("JTI=" + shown), func(*question) {}, "was seen to get since its last token"},
		"renewal while none is listed":              {formerLife(renewal()).showing(certificateID), func(q *question) { q.known.machine.Credentials = []joinservice.Credential{{}} }, "was seen to get since its last token"},
		"machine of another name by now":            {renewal(), func(q *question) { q.known.machine.Name = "w2" }, "is w2 by now"},
	})
}

func TestDecideDeniesContent(t *testing.T) {
	email := asn1.RawValue{Class: asn1.ClassContextSpecific, Tag: 1, Bytes: []byte("a@b")}
	dns := asn1.RawValue{Class: asn1.ClassContextSpecific, Tag: 2, Bytes: []byte("w1")}
	registered := asn1.RawValue{Class: asn1.ClassContextSpecific, Tag: 8, Bytes: []byte{42, 3}}
	authority := pkix.Extension{Id: asn1.ObjectIdentifier{2, 5, 29, 19}, Critical: true, Value: []byte{0x30, 3, 1, 1, 0xff}}
	both := map[string]func(q *question, says *string){
		"another node's name": func(q *question, says *string) {
			q.template.Subject.CommonName, *says = "system:node:w2", `want system:node:w1, got "system:node:w2"`
		},
		"a person's name": func(q *question, says *string) { q.template.Subject.CommonName, *says = "admin", "common name" },
		"no name":         func(q *question, says *string) { q.template.Subject.CommonName, *says = "", "common name" },
		"administrators": func(q *question, says *string) {
			q.template.Subject.Organization, *says = []string{"system:masters"}, "organization"
		},
		"another group": func(q *question, says *string) {
			q.template.Subject.Organization, *says = append(q.template.Subject.Organization, "system:masters"), "organization"
		},
		"no group": func(q *question, says *string) { q.template.Subject.Organization, *says = nil, "organization" },
		"another attribute": func(q *question, says *string) {
			q.template.Subject.OrganizationalUnit, *says = []string{"x"}, "subject"
		},
		"two common names": func(q *question, says *string) {
			q.template.Subject.ExtraNames, *says = []pkix.AttributeTypeAndValue{
				{Type: asn1.ObjectIdentifier{2, 5, 4, 3}, Value: "system:node:w2"}, {Type: asn1.ObjectIdentifier{2, 5, 4, 3}, Value: "system:node:w1"},
			}, "subject"
		},
		"no usages":    func(q *question, says *string) { q.request.Spec.Usages, *says = nil, "usages" },
		"a usage less": func(q *question, says *string) { q.request.Spec.Usages, *says = q.request.Spec.Usages[1:], "usages" },
		"both purposes": func(q *question, says *string) {
			q.request.Spec.Usages, *says = append(q.request.Spec.Usages, certificatesv1.UsageClientAuth, certificatesv1.UsageServerAuth), "usages"
		},
		"signing certificates": func(q *question, says *string) {
			q.request.Spec.Usages, *says = append(q.request.Spec.Usages, certificatesv1.UsageCertSign), "usages"
		},
		"an authority": func(q *question, says *string) {
			q.template.ExtraExtensions, *says = []pkix.Extension{authority}, "extensions"
		},
		"an email address": func(q *question, says *string) { q.template.EmailAddresses, *says = []string{"a@b"}, "names" },
		"a URI": func(q *question, says *string) {
			q.template.URIs, *says = []*url.URL{{Scheme: "spiffe", Host: "x"}}, "names"
		},
		"a registered id": func(q *question, says *string) {
			q.template.ExtraExtensions, *says = []pkix.Extension{names(t, dns, registered)}, "names"
		},
		"no PEM": func(q *question, says *string) { q.mangle, *says = func([]byte) []byte { return []byte("x") }, "PEM" },
		"two blocks": func(q *question, says *string) {
			q.mangle, *says = func(p []byte) []byte { return append(p, p...) }, "PEM"
		},
		"another block": func(q *question, says *string) {
			q.mangle, *says = func(p []byte) []byte { return bytes.ReplaceAll(p, []byte("REQUEST"), []byte("QUESTION")) }, "PEM"
		},
		"no ASN.1": func(q *question, says *string) {
			q.mangle, *says = func([]byte) []byte {
				return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: []byte{1}})
			}, "certificate request"
		},
		"another key's": func(q *question, says *string) { q.mangle, *says = flipSignature, "certificate request" },
	}
	cases := map[string]refusal{
		"client: a DNS name":    {bootstrap(), func(q *question) { q.template.DNSNames = []string{"w1"} }, "extensions"},
		"client: an address":    {renewal(), func(q *question) { q.template.IPAddresses = []net.IP{net.ParseIP("10.0.0.1")} }, "extensions"},
		"serving: another name": {serving(), func(q *question) { q.template.DNSNames = append(q.template.DNSNames, "kubernetes.default") }, `DNS name: want w1, got "kubernetes.default"`},
		"serving: too many addresses": {serving(), func(q *question) {
			for i := range joinservice.MaxAddresses {
				q.template.IPAddresses = append(q.template.IPAddresses, net.IPv4(10, 0, 1, byte(i)))
			}
		}, "at most 16, got 17"},
		"serving: no names": {serving(), func(q *question) { q.template.DNSNames, q.template.IPAddresses = nil, nil }, "extensions"},
		"serving: email alone": {serving(), func(q *question) {
			q.template.DNSNames, q.template.IPAddresses, q.template.ExtraExtensions = nil, nil, []pkix.Extension{names(t, email)}
		}, "names"},
		"serving: an empty list": {serving(), func(q *question) {
			q.template.DNSNames, q.template.IPAddresses, q.template.ExtraExtensions = nil, nil, []pkix.Extension{names(t)}
		}, "names"},
		"client: for serving":   {bootstrap(), func(q *question) { q.request.Spec.Usages[1] = certificatesv1.UsageServerAuth }, "usages"},
		"serving: for a client": {serving(), func(q *question) { q.request.Spec.Usages[1] = certificatesv1.UsageClientAuth }, "usages"},
	}
	for _, a := range []string{
		"127.0.0.1", "::1", "0.0.0.0", "::", "0.0.0.1", "169.254.169.254", "fe80::1", "224.0.0.1", "ff02::1", "255.255.255.255", "240.0.0.1", "::10.96.0.1", "64:ff9b::a60:1", "2002:a60:1::",
	} {
		cases["serving: "+a] = refusal{serving(), func(q *question) { q.template.IPAddresses = append(q.template.IPAddresses, net.ParseIP(a)) }, "no single machine's"}
	}
	for name, change := range both {
		for kind, from := range map[string]func() *question{"bootstrap": bootstrap, "renewal": renewal, "serving": serving} {
			q, says := from(), ""
			change(q, &says)
			if says == "names" && kind != "serving" {
				says = "extensions"
			}
			cases[kind+": "+name] = refusal{q, func(*question) {}, says}
		}
	}
	checkRefusals(t, cases)
}

func checkRefusals(t *testing.T, cases map[string]refusal) {
	t.Helper()
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			c.change(c.from)
			if outcome, reason := c.from.ask(t); outcome != Denied || !strings.Contains(reason, c.says) {
				t.Errorf("got %q: %q, want a denial that says %q", outcome, reason, c.says)
			}
		})
	}
}

// flipSignature breaks a request's signature, which is its last bytes.
func flipSignature(text []byte) []byte {
	block, _ := pem.Decode(text)
	block.Bytes[len(block.Bytes)-1] ^= 1
	return pem.EncodeToMemory(block)
}

func TestDecideWaitsForTheRecord(t *testing.T) {
	for name, known := range map[string]facts{
		"no claim":  {},
		"no record": {node: hullmark.EKID{1}, found: true},
	} {
		q := serving()
		q.known = known
		if outcome, reason := q.ask(t); outcome != Waiting {
			t.Errorf("%s: got %q: %s", name, outcome, reason)
		}
		q.now = asked.Add(timeout)
		if outcome, _ := q.ask(t); outcome != Denied {
			t.Errorf("%s: after %v: got %q, want a denial", name, timeout, outcome)
		}
	}
}

// A kubelet's next request may come before its certificate was noted.
func TestDecideWaitsForTheNote(t *testing.T) {
	for _, q := range []*question{formerLife(renewal()), formerLife(serving())} {
		q.now = asked.Add(notePatience - time.Second)
		if outcome, reason := q.ask(t); outcome != Waiting {
			t.Errorf("got %q: %s", outcome, reason)
		}
		q.known.machine.Credentials = []joinservice.Credential{{Fingerprint: strings.Repeat("5b", 32), Ends: asked.Add(time.Hour)}}
		if outcome, reason := q.ask(t); outcome != Approved {
			t.Errorf("once it is noted: got %q: %s", outcome, reason)
		}
	}
}

func TestDenialsAreBounded(t *testing.T) {
	q := renewal()
	q.template.Subject.CommonName = strings.Repeat("x", 1<<16)
	if outcome, reason := q.ask(t); outcome != Denied || len(reason) > 600 {
		t.Errorf("got %q in %d bytes", outcome, len(reason))
	}
}

func FuzzDecide(f *testing.F) {
	for _, q := range []*question{bootstrap(), renewal(), serving()} {
		f.Add(requestPEM(f, &q.template))
	}
	f.Add([]byte("-----BEGIN CERTIFICATE REQUEST-----\n-----END CERTIFICATE REQUEST-----\n"))
	f.Fuzz(func(t *testing.T, request []byte) {
		for _, q := range []*question{bootstrap(), renewal(), serving()} {
			q.request.Spec.Request = request
			outcome, reason := decide(&q.request, q.known, q.now)
			if outcome == Waiting || outcome == Denied && (reason == "" || len(reason) > 600) {
				t.Errorf("got %q: %q", outcome, reason)
			}
			if outcome != Approved {
				continue
			}
			block, _ := pem.Decode(request)
			parsed, err := x509.ParseCertificateRequest(block.Bytes)
			if err != nil || parsed.Subject.String() != "CN=system:node:w1,O=system:nodes" {
				t.Errorf("approved: %v, %v", parsed, err)
			}
		}
	})
}
