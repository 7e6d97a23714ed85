package registry

import (
	"crypto/sha256"
	"crypto/x509"
	"encoding/asn1"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/joinservice"
)

// Outcome is how a decision over a certificate request ended. Its values but
// Waiting are the condition types of a CertificateSigningRequest.
type Outcome string

const (
	// Waiting leaves the request as it is: a record that it needs is not there yet.
	Waiting Outcome = ""
	// Approved lets the signer sign.
	Approved Outcome = "Approved"
	// Denied is final for this request.
	Denied Outcome = "Denied"
)

// timeout is how long a request of a running node waits for the node's record.
// The first node's kubelet asks before any service could make its record.
const timeout = 10 * time.Minute

// notePatience is how long a request waits for its requester's certificate to be seen issued: a kubelet asks for a serving
// certificate as soon as it has one for itself.
const notePatience = 30 * time.Second

const (
	nodeUser  = "system:node:"
	nodeGroup = "system:nodes"
	tokenUser = "system:bootstrap:"
)

// credentialKey is where API servers write which credential the requester showed, and certificateID begins what they write of a
// certificate: the SHA-256 of its DER, in hexadecimal, follows.
const credentialKey, certificateID = "authentication.kubernetes.io/credential-id", "X509SHA256="

// requester is who made a request: the bearer of a machine's token, or a node; or neither.
type requester struct {
	token   string
	machine hullmark.EKID
	name    string
	// credential is the fingerprint of the certificate that it showed, empty if it showed none.
	credential string
}

// requesterOf reads what the API server wrote into a request of whoever made it.
func requesterOf(csr *certificatesv1.CertificateSigningRequest) (r requester) {
	if id, ok := strings.CutPrefix(csr.Spec.Username, tokenUser); ok && tokenID.MatchString(id) && slices.Contains(csr.Spec.Groups, tokenGroup) {
		if machine, ok := machineOfGroups(csr.Spec.Groups); ok {
			r.token, r.machine = id, machine
		}
	}
	if name, ok := strings.CutPrefix(csr.Spec.Username, nodeUser); ok && hullmark.ValidNodeName(name) && slices.Contains(csr.Spec.Groups, nodeGroup) {
		r.name = name
		if shown := csr.Spec.Extra[credentialKey]; len(shown) == 1 {
			r.credential, _ = strings.CutPrefix(shown[0], certificateID)
		}
	}
	return r
}

// machineOfGroups returns the one machine that a bearer's groups name.
func machineOfGroups(groups []string) (machine hullmark.EKID, ok bool) {
	for _, g := range groups {
		text, named := strings.CutPrefix(g, machineGroup)
		if !named {
			continue
		}
		node, err := hullmark.ParseEKID(text)
		if err != nil || ok {
			return hullmark.EKID{}, false
		}
		machine, ok = node, true
	}
	return machine, ok
}

// facts are what the records say about a requester.
type facts struct {
	// node is the machine that the token was made for, or that claimed the name; found is false if nobody claimed it.
	node  hullmark.EKID
	found bool
	// machine is its record, recorded whether it has one.
	machine  joinservice.Machine
	version  joinservice.Version
	recorded bool
	// refused says why the policy in force does not admit the machine under the name and role of its record; nil if it does.
	refused error
}

// decide is the decision over an undecided request for one of the two
// kubelet signers, but for whose the addresses are that it names: a pure function of the request, of what the records say about
// its requester, and of the time.
func decide(csr *certificatesv1.CertificateSigningRequest, known facts, now time.Time) (Outcome, string) {
	who := requesterOf(csr)
	outcome, reason := entitled(csr, who, known, now)
	if outcome != Approved {
		return outcome, reason
	}
	request, err := parseRequest(csr.Spec.Request)
	if err != nil {
		return Denied, "certificate request: " + brief(err.Error())
	}
	check := clientDiffers
	if csr.Spec.SignerName == certificatesv1.KubeletServingSignerName {
		check = servingDiffers
	}
	if differs := check(request, csr.Spec.Usages, known.machine); differs != "" {
		return Denied, brief(differs)
	}
	if first := known.machine.FirstKey; who.token != "" && first != "" && first != keyOf(request.RawSubjectPublicKeyInfo) {
		return Denied, fmt.Sprintf("bootstrap token %s was used already, for another key", who.token)
	}
	return Approved, fmt.Sprintf("machine %s holds the name %s", known.node, known.machine.Name)
}

// entitled decides whether the requester may ask this signer at all: Approved
// means that only the request's content is left to check.
func entitled(csr *certificatesv1.CertificateSigningRequest, who requester, known facts, now time.Time) (Outcome, string) {
	if outcome, reason := recognised(csr, who, known, now); outcome != Approved {
		return outcome, reason
	}
	if known.refused != nil {
		return Denied, brief(known.refused.Error())
	}
	return Approved, ""
}

// recognised decides whether the requester is the bearer of a machine's last token, or the node of its name by a certificate
// that it got since that.
func recognised(csr *certificatesv1.CertificateSigningRequest, who requester, known facts, now time.Time) (Outcome, string) {
	serving := csr.Spec.SignerName == certificatesv1.KubeletServingSignerName
	switch {
	case who.token == "" && who.name == "":
		return Denied, fmt.Sprintf("requester: want a node, or the bearer of a bootstrap token of Hullmark, got %q", brief(csr.Spec.Username))
	case who.token != "" && serving:
		return Denied, "requester: want a node, got the bearer of a bootstrap token: it may ask for a client certificate only"
	case who.token != "" && (!known.recorded || known.machine.Token != who.token):
		return Denied, fmt.Sprintf("bootstrap token %s is not the one of machine %s's last ticket", who.token, known.node)
	case who.token != "":
		return Approved, ""
	case !known.found, !known.recorded:
		if now.Sub(csr.CreationTimestamp.Time) < timeout {
			return Waiting, ""
		}
		return Denied, fmt.Sprintf("no machine is recorded that holds the name %s", who.name)
	case known.machine.Name != who.name:
		return Denied, fmt.Sprintf("name: machine %s is %s by now, got %s", known.node, known.machine.Name, who.name)
	case known.machine.RecognisedByName() || known.machine.Holds(who.credential):
		return Approved, ""
	case now.Sub(csr.CreationTimestamp.Time) < notePatience:
		return Waiting, ""
	}
	return Denied, fmt.Sprintf("certificate: want one that machine %s was seen to get since its last token, got another for its name; reboot the machine if it is its own", known.node)
}

// parseRequest reads the one PEM block of a request and checks that whoever made it holds the key.
func parseRequest(text []byte) (*x509.CertificateRequest, error) {
	block, rest := pem.Decode(text)
	if block == nil || block.Type != "CERTIFICATE REQUEST" || len(block.Headers) > 0 || len(rest) > 0 {
		return nil, errors.New("want one PEM block CERTIFICATE REQUEST and nothing else")
	}
	request, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return nil, err
	}
	if err := request.CheckSignature(); err != nil {
		return nil, err
	}
	return request, nil
}

// keyOf identifies a public key (SubjectPublicKeyInfo, in DER) as a machine's record does.
func keyOf(key []byte) string {
	sum := sha256.Sum256(key)
	return hex.EncodeToString(sum[:])
}

// clientDiffers says what of a request for a client certificate is not as the kubelet of machine m has it.
func clientDiffers(request *x509.CertificateRequest, usages []certificatesv1.KeyUsage, m joinservice.Machine) string {
	if differs := subjectDiffers(request, m.Name); differs != "" {
		return differs
	}
	if len(request.Extensions) > 0 {
		return fmt.Sprintf("extensions: want none and no alternative names, got %s", extensions(request))
	}
	return usagesDiffer(usages, certificatesv1.UsageClientAuth)
}

// servingDiffers says what of a request for a serving certificate is not as the kubelet of machine m has it, but for whose its
// addresses are: claims tell that.
func servingDiffers(request *x509.CertificateRequest, usages []certificatesv1.KeyUsage, m joinservice.Machine) string {
	if differs := subjectDiffers(request, m.Name); differs != "" {
		return differs
	}
	if names := alternativeNames(request); names != nil {
		return names.Error()
	}
	for _, name := range request.DNSNames {
		if name != m.Name {
			return fmt.Sprintf("DNS name: want %s, got %q", m.Name, name)
		}
	}
	if n := len(request.IPAddresses); n > joinservice.MaxAddresses {
		return fmt.Sprintf("IP addresses: want at most %d, got %d", joinservice.MaxAddresses, n)
	}
	for _, address := range addressesOf(request) {
		if err := (joinservice.Reserved{}).Check(address, m.Role); err != nil {
			return err.Error()
		}
	}
	return usagesDiffer(usages, certificatesv1.UsageServerAuth)
}

// addressesOf returns the addresses of a request in their canonical form; what is none is the zero address, which nobody holds.
func addressesOf(request *x509.CertificateRequest) []netip.Addr {
	var addresses []netip.Addr
	for _, ip := range request.IPAddresses {
		address, _ := netip.AddrFromSlice(ip)
		addresses = append(addresses, joinservice.CanonicalAddress(address))
	}
	return addresses
}

// subjectAltName is the one extension that a serving request has (RFC 5280 §4.2.1.6).
var subjectAltName = asn1.ObjectIdentifier{2, 5, 29, 17}

// alternativeNames checks that a request has alternative names, and no others than DNS names and IP addresses.
func alternativeNames(request *x509.CertificateRequest) error {
	if len(request.Extensions) != 1 || !request.Extensions[0].Id.Equal(subjectAltName) {
		return fmt.Errorf("extensions: want alternative names alone, got %s", extensions(request))
	}
	var names []asn1.RawValue
	if rest, err := asn1.Unmarshal(request.Extensions[0].Value, &names); err != nil || len(rest) > 0 {
		return errors.New("alternative names: malformed")
	}
	if got := len(request.DNSNames) + len(request.IPAddresses); got == 0 || got != len(names) {
		return fmt.Errorf("alternative names: want at least one, and only DNS names and IP addresses, got %d of these and %d others", got, len(names)-got)
	}
	return nil
}

func extensions(request *x509.CertificateRequest) string {
	var ids []string
	for _, e := range request.Extensions {
		ids = append(ids, e.Id.String())
	}
	return "[" + strings.Join(ids, " ") + "]"
}

// subjectDiffers compares the whole subject: any other attribute would be signed along.
func subjectDiffers(request *x509.CertificateRequest, name string) string {
	s := request.Subject
	switch {
	case s.CommonName != nodeUser+name:
		return fmt.Sprintf("common name: want %s, got %q", nodeUser+name, s.CommonName)
	case !slices.Equal(s.Organization, []string{nodeGroup}):
		return fmt.Sprintf("organization: want %s alone, got %q", nodeGroup, s.Organization)
	case len(s.Names) != 2:
		return fmt.Sprintf("subject: want a common name and an organization only, got %s", s)
	}
	return ""
}

// usagesDiffer compares usages with the two sets that kubelets ask for: RSA keys encipher, others do not.
func usagesDiffer(got []certificatesv1.KeyUsage, purpose certificatesv1.KeyUsage) string {
	want := []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, purpose}
	have := slices.Sorted(slices.Values(got))
	if slices.Equal(have, slices.Sorted(slices.Values(want))) ||
		slices.Equal(have, slices.Sorted(slices.Values(append(want, certificatesv1.UsageKeyEncipherment)))) {
		return ""
	}
	return fmt.Sprintf("usages: want %q, with or without %q, got %q", want, certificatesv1.UsageKeyEncipherment, got)
}
